"""The likelihood of watches or of ratings and its gradient, fast, with users on their shards.

A block of users times all movies has the outputs x = U V' + u_i + v_j of all their pairs, and what
is known of them. What is computed and as large as the matrix exists for a block only, which stays
in the cache. Ratings are computed so where they are a good share of all pairs: products of matrices
are faster than rows of factors that are gathered for each rating.

User i has watched movie j or not: W_ij ~ Bernoulli(sigmoid(x_ij)). With t = +1 for watched, -1 for
not and 0 for held out, s = sigmoid(-t x) gives all that is wanted: the gradient of the logits,
R = t s, and the log likelihood,

    min(t x, 0) + log max(s, 1 - s),

of which a held-out entry has exactly none. The maximum is at least 1/2, so that the logarithm of a
product of some fifty of them takes the place of fifty logarithms.

The sum over millions of entries would lose .1 nat in float32, which the acceptance of HMC would
notice: it is compensated, and relative to a simpler model, so that what is left is smaller. At
6,040 x 3,706 entries changes near the posterior are right to .03 nats, and the kinetic energy to
.01.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh
from numpy.typing import NDArray

from ensemble.sharding import transfer
from ensemble.sharding.mesh import DATA, named_sharding, platform_of, spec
from ensemble.sharding.transfer import Layout, make_chainwise, pad

_ENTRIES_PER_BLOCK = {"cpu": 600_000}  # 2.4 MB.
_ENTRIES_ON_ACCELERATORS = 2**26
_MIN_ROWS = 100  # Of a block: products of fewer are slow.
_MAX_FACTORS = 64  # Of at least 1/2 each; float32 has 126 halvings before it loses digits.

USERS = ("user_embeddings", "user_bias")
MOVIES = ("movie_embeddings", "movie_bias")

Params = Mapping[str, Array]
"""`user_embeddings` [N', D], `user_bias` [N'], `movie_embeddings` [M, D], `movie_bias` [M]; N' is
the number of users, padded as `layout_of` has it."""

Pair = tuple[Array, Array]
"""Two arrays, such as a sum and what rounding took from it."""


OfBlock = Callable[..., Pair]
"""`(outputs [R, M], *cells) -> (log likelihoods of movies [M], their gradient of the outputs)`."""


class Placed(NamedTuple):
    """What is known of all pairs, their users spread over the shards in blocks.

    Attributes:
        cells: Arrays [S * B, R, M] of B blocks of R users on each of S shards: t of watches; or
            standardised ratings, and how often they count. 0 pads.
        reference: What the log likelihood of each shard is relative to, nats, [S] float32.
    """

    cells: Sequence[Array]
    reference: Array


def layout_of(shape: Sequence[int], mesh: Mesh) -> tuple[Layout, int]:
    """Says where users' parameters lie, padded to whole blocks; and how many users a block has.

    Args:
        shape: Numbers of users and of movies.
        mesh: Mesh of the devices; shard s has users s * N' / S and on.
    """
    num_users, num_movies = shape
    num_shards = mesh.shape[DATA]
    per_shard = -(-num_users // num_shards)
    num_entries = _ENTRIES_PER_BLOCK.get(platform_of(mesh), _ENTRIES_ON_ACCELERATORS)
    num_blocks = -(-per_shard // max(_MIN_ROWS, num_entries // num_movies))
    num_rows = -(-per_shard // num_blocks)
    num_groups = -(-num_rows // _MAX_FACTORS)
    num_rows = num_groups * -(-num_rows // num_groups)
    return Layout(USERS, num_users, num_shards * num_blocks * num_rows), num_rows


def place(cells: Sequence[NDArray], reference: float, mesh: Mesh) -> Placed:
    """Puts what is known of all pairs on the devices, with users where their parameters are.

    Args:
        cells: Arrays [N, M], those of `of_watches` or `of_ratings`.
        reference: What the log likelihood is relative to, nats.
        mesh: Mesh of the devices.
    """
    layout, num_rows = layout_of(cells[0].shape, mesh)
    num_shards = mesh.shape[DATA]
    placed = (
        [pad(one, layout.num_places).reshape(-1, num_rows, one.shape[1]) for one in cells],
        np.full(num_shards, reference / num_shards, np.float32),
    )
    return Placed(*transfer.put(placed, named_sharding(mesh, "row")))


def of_popularity(signs: NDArray) -> float:
    """The log likelihood of watches [N, M] if all users are alike, nats."""
    counts = count(signs)
    return float(np.sum(counts * np.log((counts + 1) / (counts.sum(axis=0) + 2))))


def count(signs: NDArray) -> NDArray:
    """Numbers [2, M] of the users who have watched each movie, and who have not."""
    return np.array([(signs > 0).sum(axis=0), (signs < 0).sum(axis=0)])


def make_value_and_grad(of_block: OfBlock, mesh: Mesh) -> Any:
    """Returns `(params, placed) -> (log likelihood less the reference, its gradient)`.

    Users' parameters and their gradients lie on the users' shards. Vmapped over chains, the
    function spreads these too, over the mesh of `place`.

    Args:
        of_block: `of_watches` or `of_ratings`.
        mesh: Mesh of the devices.
    """

    def on_shard(params: Params, placed: Placed):
        # One chain after another: what one block of one chain needs is all that the cache holds.
        return lax.map(lambda one: _value_and_grad(of_block, one, placed), params)

    def of_chains(params: Params, placed: Placed, chains: str | None):
        users = dict.fromkeys(USERS, spec(chains, "row"))
        specs = users | dict.fromkeys(MOVIES, spec(chains))
        mapped = jax.shard_map(
            on_shard,
            mesh=mesh,
            in_specs=(specs, spec("row")),
            out_specs=(spec(chains), specs),
            check_vma=True,
        )
        return mapped(dict(params), placed)

    return make_chainwise(of_chains, mesh)


def make_outputs(mesh: Mesh) -> Callable[[Params, Array], Array]:
    """Returns `(params, pairs) -> outputs [P]` of pairs [P, 2] int32 of a user and a movie.

    Every shard has all pairs and computes those of its users; the results are spread over the
    shards, whose number divides P.
    """

    def on_shard(params: Params, pairs: Array) -> Array:
        users, movies = join_biases(params)
        rows = pairs[:, 0] - lax.axis_index(DATA) * len(users)
        is_here = (rows >= 0) & (rows < len(users))
        found = jnp.sum(users[jnp.where(is_here, rows, 0)] * movies[pairs[:, 1]], axis=-1)
        return lax.psum_scatter(jnp.where(is_here, found, 0), DATA, tiled=True)

    specs = dict.fromkeys(USERS, spec("row")) | dict.fromkeys(MOVIES, spec())
    mapped = jax.shard_map(
        on_shard, mesh=mesh, in_specs=(specs, spec()), out_specs=spec("example"), check_vma=True
    )
    return lambda params, pairs: mapped({name: params[name] for name in specs}, pairs)


def of_watches(logits: Array, signs: Array) -> Pair:
    """Log likelihoods of watches t [R, M], as `OfBlock` has them."""
    num_rows, num_movies = signs.shape
    groups = (-(-num_rows // _MAX_FACTORS), -1, num_movies)
    signs = signs.astype(jnp.float32)
    # Where the exponential is infinite the residual is zero, as it should be.
    odds = jnp.exp(signs * logits)
    # Barriers: else the exponentials are computed again for everything that they are used in.
    residuals = lax.optimization_barrier(signs / (1 + odds))
    magnitudes = jnp.abs(residuals)
    factors = jnp.maximum(magnitudes, 1 - magnitudes).reshape(groups)
    linear = jnp.minimum(signs * logits, 0).reshape(groups)
    of_groups = jnp.sum(linear, axis=1) + jnp.log(jnp.prod(factors, axis=1))
    return jnp.sum(of_groups, axis=0), residuals


def of_ratings(outputs: Array, ratings: Array, weights: Array) -> Pair:
    """Log likelihoods of weighted ratings if their noise is N(0, 1), up to a constant."""
    errors = ratings - outputs
    residuals = lax.optimization_barrier(weights * errors)
    return -0.5 * jnp.sum(residuals * errors, axis=0), residuals


def _value_and_grad(of_block: OfBlock, params: Params, placed: Placed) -> tuple[Array, Any]:
    """The log likelihood [] of a chain and its gradient, of the parameters of this shard."""
    (users, movies), pull = jax.vjp(join_biases, params)
    movies = lax.pcast(movies, DATA, to="varying")
    blocks = users.reshape(*placed.cells[0].shape[:2], -1)

    def add_block(grad_movies: Array, block):
        users, cells = block
        outputs = lax.optimization_barrier(contract(users, movies, 1, 1))
        terms, residuals = of_block(outputs, *cells)
        # This way round: `residuals.T @ users` takes XLA:CPU almost three times as long.
        grad_movies += contract(users, residuals, 0, 0)
        return grad_movies, (terms, contract(residuals, movies, 1, 0))

    start = jnp.zeros_like(movies.T)  # As varying as what is added to it.
    grad_movies, (terms, grad_users) = lax.scan(add_block, start, (blocks, placed.cells))
    total = terms, jnp.zeros_like(terms)
    zero = jnp.zeros_like(terms[0, 0])
    for _ in range(2):
        total = lax.reduce(total, (zero, zero), _add_exactly, (0,))
    value = (total[0] - placed.reference[0]) + total[1]
    value, grad_movies = lax.psum((value, grad_movies), DATA)
    return value, *pull((grad_users.reshape(users.shape), grad_movies.T))


def outputs_of(params: Params) -> Array:
    """Outputs [N, M] of all pairs: log-odds of watching, or standardised ratings."""
    return contract(*join_biases(params), 1, 1)


def join_biases(params: Params) -> tuple[Array, Array]:
    """Users [n, D + 2] and movies [M, D + 2] whose products are the outputs, biases included."""
    users, user_bias, movies, movie_bias = (params[name] for name in (*USERS, *MOVIES))
    return (
        jnp.column_stack([users, user_bias, jnp.ones_like(user_bias)]),
        jnp.column_stack([movies, jnp.ones_like(movie_bias), movie_bias]),
    )


def _add_exactly(a: Pair, b: Pair) -> Pair:
    """Adds two sums (Knuth's TwoSum)."""
    total = a[0] + b[0]
    of_b = total - a[0]
    lost = (a[0] - (total - of_b)) + (b[0] - of_b)
    return total, a[1] + b[1] + lost


def contract(left: Array, right: Array, left_axis: int, right_axis: int) -> Array:
    """A product of matrices. TPUs and TF32 would round it to some 3 digits, which are nats here."""
    dimensions = (((left_axis,), (right_axis,)), ((), ()))
    return lax.dot_general(left, right, dimensions, precision="highest")
