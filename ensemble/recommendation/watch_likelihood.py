"""The likelihood of a matrix factorisation and its gradient, fast, with users on their shards.

User i has watched movie j or not: W_ij ~ Bernoulli(sigmoid(x_ij)), x = U V' + u_i + v_j. With
t = +1 for watched, -1 for not and 0 for held out, s = sigmoid(-t x) gives all that is wanted: the
gradient of the logits, R = t s, and the log likelihood,

    min(t x, 0) + log max(s, 1 - s),

of which a held-out entry has exactly none. The maximum is at least 1/2, so that the logarithm of a
product of some fifty of them takes the place of fifty logarithms. What is as large as the matrix
exists for a block of users only, which stays in the cache.

A watch may have a weight, which multiplies its log likelihood and its residual: t is then as large
as the weight, in float32 where it has else 8 bits, and every entry has a logarithm of its own.

The sum over millions of entries would lose .1 nat in float32, which the acceptance of HMC would
notice: it is compensated, and relative to a fixed baseline, so that what is left is smaller. At
6,040 x 3,706 entries changes near the posterior are right to .03 nats, and the kinetic energy to
.01.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.sharding import Mesh, PartitionSpec  # noqa: TID251  A type.

from ensemble.sharding import transfer
from ensemble.sharding.chainwise import make_chainwise
from ensemble.sharding.mesh import DATA, named_sharding, spec

_ENTRIES_PER_BLOCK = 600_000  # On CPUs: 2.4 MB.
_ENTRIES_ON_ACCELERATORS = 2**26
_MIN_ROWS = 100  # Of a block: products of fewer are slow.
_MAX_FACTORS = 64  # Of at least 1/2 each; float32 has 126 halvings before it loses digits.
_HOST_ROWS = 256

USERS = ("user_embeddings", "user_bias")
MOVIES = ("movie_embeddings", "movie_bias")

Params = Mapping[str, jax.Array]
"""`user_embeddings` [N', D], `user_bias` [N'], `movie_embeddings` [M, D], `movie_bias` [M]; N' is
the number of users, padded to a multiple of the shards."""


class PlacedWatches(NamedTuple):
    """Watches, their users spread over the shards in blocks.

    Attributes:
        signs: [S * B, R, M], t of B blocks of R users on each of S shards; 0 pads. int8, or
            float32 times the weights where watches have some.
        reference: [S, 2] float32, the baseline's log likelihood of the users of each shard, nats:
            rounded, and what rounding took.
    """

    signs: jax.Array
    reference: jax.Array


def place(signs: np.ndarray, reference: np.ndarray, mesh: Mesh) -> PlacedWatches:
    """Puts watches on the devices.

    Args:
        signs: [N, M], as of `InteractionDataset.signs`.
        reference: [N] float64, log likelihoods of the users under a fixed baseline, nats.
        mesh: of the devices; shard s of the data has users s * N' / S and on.
    """
    num_users, num_movies = signs.shape
    num_shards = mesh.shape[DATA]
    per_shard = -(-num_users // num_shards)
    num_blocks, num_rows = _block_shape(per_shard, rows_of_block(mesh, num_movies))
    padded = transfer.pad(reference.astype(np.float64), num_shards * per_shard)
    totals = padded.reshape(num_shards, -1).sum(axis=1)
    rounded = totals.astype(np.float32)
    pairs = np.stack([rounded, (totals - rounded).astype(np.float32)], axis=1)
    shards = transfer.pad(signs, num_shards * per_shard).reshape(num_shards, per_shard, num_movies)
    blocks = transfer.pad(shards, num_blocks * num_rows, axis=1).reshape(-1, num_rows, num_movies)
    return PlacedWatches(*transfer.put((blocks, pairs), named_sharding(mesh, "row")))


def rows_of_block(mesh: Mesh, num_movies: int) -> int:
    """How many users a block has at most, whose products with all movies exist at once."""
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    entries = _ENTRIES_PER_BLOCK if is_cpu else _ENTRIES_ON_ACCELERATORS
    return max(_MIN_ROWS, entries // num_movies)


def _block_shape(num_users: int, max_rows: int) -> tuple[int, int]:
    """Blocks of a shard and rows of a block: whole groups, with little padding."""
    num_blocks = -(-num_users // max_rows)
    num_rows = -(-num_users // num_blocks)
    num_groups = _num_groups(num_rows)
    return num_blocks, num_groups * -(-num_rows // num_groups)


def _num_groups(num_rows: int) -> int:
    """Groups of a block's rows, whose factors are multiplied: the same before padding and after."""
    return -(-num_rows // _MAX_FACTORS)


def make_value_and_grad(
    mesh: Mesh,
) -> Callable[[Params, PlacedWatches], tuple[jax.Array, dict[str, jax.Array]]]:
    """Returns `(params, watches) -> (log likelihood less the reference, its gradient)`.

    Users' parameters and their gradients lie on the users' shards. Vmapped over chains, the
    function spreads these too, over the mesh of `place`.
    """

    def of_chains(params: Params, watches: PlacedWatches, chains: str | None) -> Any:
        specs = _params_specs(chains)
        mapped = jax.shard_map(
            _value_and_grad_on_shard,
            mesh=mesh,
            in_specs=(specs, spec("row")),
            out_specs=(spec(chains), specs),
            check_vma=True,
        )
        return mapped(dict(params), watches)

    return make_chainwise(of_chains, mesh)


def make_log_probs(mesh: Mesh) -> Callable[[Params, jax.Array], jax.Array]:
    """Returns `(params, pairs) -> log-probabilities [P, 2]` of not having watched, and of having.

    The P pairs [P, 2] int32 are of a user and a movie, and every shard has all of them. Each
    computes those of its users; the results are spread over the shards, which divide P.
    """

    def on_shard(params: Params, pairs: jax.Array) -> jax.Array:
        users, movies = pairs.T
        num_users = len(params["user_bias"])
        users -= jax.lax.axis_index(DATA) * num_users
        is_here = (users >= 0) & (users < num_users)
        users = jnp.where(is_here, users, 0)
        products = params["user_embeddings"][users] * params["movie_embeddings"][movies]
        logits = products.sum(axis=-1) + params["user_bias"][users] + params["movie_bias"][movies]
        logits = jax.lax.psum_scatter(jnp.where(is_here, logits, 0), DATA, tiled=True)
        return jax.nn.log_sigmoid(jnp.stack([-logits, logits], axis=-1))

    mapped = jax.shard_map(
        on_shard,
        mesh=mesh,
        in_specs=(_params_specs(), spec()),
        out_specs=spec("example"),
        check_vma=True,
    )
    return lambda params, pairs: mapped(dict(params), pairs)


def user_log_likelihoods(params: Mapping[str, Any], signs: np.ndarray) -> np.ndarray:
    """Computes the log likelihood of every user, [N] float64 nats, on the host.

    Args:
        params: with or without padding.
        signs: [N, M], as of `place`.
    """
    users, user_bias, movies, movie_bias = (
        np.asarray(params[name], np.float64) for name in (*USERS, *MOVIES)
    )
    result = np.empty(len(signs))
    for start in range(0, len(signs), _HOST_ROWS):
        block = signs[start : start + _HOST_ROWS]
        rows = slice(start, start + len(block))
        logits = users[rows] @ movies.T + user_bias[rows, None] + movie_bias
        log_probs = scipy.special.log_expit(np.sign(block) * logits)
        result[rows] = np.sum(abs(block) * log_probs, axis=1, where=block != 0)
    return result


def _params_specs(*leading: str | None) -> dict[str, PartitionSpec]:
    """How parameters lie on the devices whose first axes, before users or movies, are `leading`."""
    users = dict.fromkeys(USERS, spec(*leading, "row"))
    return users | dict.fromkeys(MOVIES, spec(*leading))


def _value_and_grad_on_shard(
    params: Params, watches: PlacedWatches
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The log likelihood [c] of c chains and its gradient, of params [c, ...] of this shard."""
    reference, excess = watches.reference[0]

    def one_chain(params: Params) -> tuple[jax.Array, dict[str, jax.Array]]:
        num_users = len(params["user_bias"])
        users, movies = join_biases(params)
        movies = jax.lax.pcast(movies, DATA, to="varying")
        total, grad_users, grad_movies = _sum_over_blocks(users, movies, watches.signs)
        value = (total[0] - reference) + (total[1] - excess)
        value, grad_movies = jax.lax.psum((value, grad_movies), DATA)
        return value, {
            "user_embeddings": grad_users[:num_users, :-2],
            "user_bias": grad_users[:num_users, -2],
            "movie_embeddings": grad_movies[:-2].T,
            "movie_bias": grad_movies[-1],
        }

    # One chain after another: what one block of one chain needs is all that the cache holds.
    return jax.lax.map(one_chain, params)


def join_biases(params: Params) -> tuple[jax.Array, jax.Array]:
    """Users [n, D + 2] and movies [M, D + 2] whose products are the logits, biases included."""
    users, user_bias, movies, movie_bias = (params[name] for name in (*USERS, *MOVIES))
    return (
        jnp.concatenate([users, user_bias[:, None], jnp.ones_like(user_bias)[:, None]], axis=1),
        jnp.concatenate([movies, jnp.ones_like(movie_bias)[:, None], movie_bias[:, None]], axis=1),
    )


def _sum_over_blocks(
    users: jax.Array, movies: jax.Array, signs: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], jax.Array, jax.Array]:
    """The log likelihood of users [n, K] and movies [M, K], as a sum and what rounding took.

    Returns:
        With it, the gradients by users [B * R, K], the padding's included, and by movies [K, M].
    """
    num_blocks, num_rows, num_movies = signs.shape
    groups = (_num_groups(num_rows), -1, num_movies)
    users = transfer.pad(users, num_blocks * num_rows)

    def add_block(carry: Any, block: Any) -> Any:
        total, grad_movies = carry
        users, signs = block
        is_weighted = signs.dtype != jnp.int8
        if is_weighted:
            signs, weights = jnp.sign(signs), jnp.abs(signs).reshape(groups)
        signs = signs.astype(jnp.float32)
        # Barriers: else the exponentials are computed again for everything that they are used in.
        logits = jax.lax.optimization_barrier(contract(users, movies, 1, 1))
        # Where the exponential is infinite the residual is zero, as it should be.
        odds = jnp.exp(signs * logits)
        residuals = jax.lax.optimization_barrier(signs / (1 + odds))
        magnitudes = jnp.abs(residuals)
        factors = jnp.maximum(magnitudes, 1 - magnitudes).reshape(groups)
        linear = jnp.minimum(signs * logits, 0).reshape(groups)
        if is_weighted:
            log_probs = linear + jnp.log(factors)
            of_groups = jnp.sum(weights * log_probs, axis=1)
            residuals *= weights.reshape(residuals.shape)
        else:
            of_groups = jnp.sum(linear, axis=1) + jnp.log(jnp.prod(factors, axis=1))
        total = _add_exactly(total, (jnp.sum(of_groups, axis=0), jnp.zeros_like(total[1])))
        # This way round: `residuals.T @ users` takes XLA:CPU almost three times as long.
        grad_movies += contract(users, residuals, 0, 0)
        return (total, grad_movies), contract(residuals, movies, 1, 0)

    zeros = jnp.zeros_like(movies.T)  # As varying as what is added to them.
    (total, grad_movies), grad_users = jax.lax.scan(
        add_block,
        ((zeros[0], zeros[0]), zeros),
        (users.reshape(num_blocks, num_rows, -1), signs),
    )
    zero = jnp.zeros_like(total[0][0])
    total = jax.lax.reduce(total, (zero, zero), _add_exactly, (0,))
    return total, grad_users.reshape(num_blocks * num_rows, -1), grad_movies


def _add_exactly(
    a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Adds sums that each come with what rounding took from them (Knuth's TwoSum)."""
    total = a[0] + b[0]
    of_b = total - a[0]
    lost = (a[0] - (total - of_b)) + (b[0] - of_b)
    return total, a[1] + b[1] + lost


def contract(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
    """A product of matrices. TPUs and TF32 would round it to some 3 digits, which are nats here."""
    dimensions = (((left_axis,), (right_axis,)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, precision="highest")
