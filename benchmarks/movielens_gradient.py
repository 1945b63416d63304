"""Worker of movielens_gradient: leapfrog steps of the matrix factorisation, ours or a peer's.

    python benchmarks/movielens_gradient.py MODE NUM_USERS NUM_MOVIES NUM_CHAIN_GROUPS SECONDS

MODE is `ours` or `peer`. The peer is the log density as it is written down, differentiated by JAX:
users and their watches are split over the devices in `jax.shard_map(check_vma=True)`.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import rates

from ensemble.sharding import startup

DIM = 20
NUM_CHAINS = 2
STEP_SIZE = 1e-4
NUM_LEAPFROG_STEPS = 5
POSITIVE_RATE = 0.045  # Of MovieLens 1M.
_ROWS = 512


def make_signs(num_users: int, num_movies: int) -> np.ndarray:
    """Watches [N, M] int8 at MovieLens's rate: few movies and few users have most of them."""
    rng = np.random.default_rng(0)
    activity = rng.lognormal(size=num_users)
    popularity = rng.lognormal(sigma=1.3, size=num_movies)
    activity = activity / activity.mean()
    popularity = popularity / popularity.mean()
    signs = np.empty((num_users, num_movies), np.int8)
    for start in range(0, num_users, _ROWS):
        block = signs[start : start + _ROWS]
        probs = POSITIVE_RATE * np.outer(activity[start : start + _ROWS], popularity)
        block[:] = np.where(rng.random(block.shape, np.float32) < probs, 1, -1)
    return signs


def make_positions(num_users: int, num_movies: int, num_shards: int) -> dict[str, np.ndarray]:
    """Positions [C, ...] of the chains; users are padded to a multiple of the shards."""
    rng = np.random.default_rng(1)
    num_users += -num_users % num_shards
    bias = np.log(POSITIVE_RATE) / 2

    def draw(*shape: int, mean: float = 0.0) -> np.ndarray:
        return rng.normal(mean, 0.4, (NUM_CHAINS, *shape)).astype(np.float32)

    return {
        "user_embeddings": draw(num_users, DIM),
        "user_bias": draw(num_users, mean=bias),
        "movie_embeddings": draw(num_movies, DIM),
        "movie_bias": draw(num_movies, mean=bias),
    }


def make_trajectory(log_likelihood: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns `(positions, data) -> (positions, log likelihoods)` after some leapfrog steps.

    All chains at once, under N(0, 1) priors, from a momentum of zero.

    Args:
        log_likelihood: `(params, data) -> nats`, of one chain.
    """
    import jax
    import jax.numpy as jnp

    from ensemble.sharding.mesh import ENSEMBLE

    def of_chain(position: Any, data: Any) -> Any:
        value_and_grad = jax.value_and_grad(lambda params: log_likelihood(params, data))

        def step(carry: Any, _: Any) -> Any:
            position, momentum, grads, _ = carry
            half = jax.tree.map(
                lambda p, g, q: p + 0.5 * STEP_SIZE * (g - q), momentum, grads, position
            )
            position = jax.tree.map(lambda q, p: q + STEP_SIZE * p, position, half)
            value, grads = value_and_grad(position)
            momentum = jax.tree.map(
                lambda p, g, q: p + 0.5 * STEP_SIZE * (g - q), half, grads, position
            )
            return (position, momentum, grads, value), None

        # Without a gradient to begin with, so that steps are all that there is to time.
        zeros = jax.tree.map(jnp.zeros_like, position)
        carry = (position, zeros, zeros, jnp.zeros_like(position["user_bias"], shape=()))
        carry, _ = jax.lax.scan(step, carry, length=NUM_LEAPFROG_STEPS)
        return carry[0], carry[3]

    return jax.jit(jax.vmap(of_chain, in_axes=(0, None), spmd_axis_name=ENSEMBLE))


def place_positions(positions: dict[str, np.ndarray], mesh: Any) -> Any:
    """Puts the positions where they stay: users on their shards."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from ensemble.sharding.mesh import DATA, ENSEMBLE

    def place(name: str, leaf: np.ndarray) -> Any:
        spec = PartitionSpec(ENSEMBLE, DATA) if name.startswith("user") else PartitionSpec(ENSEMBLE)
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return {name: place(name, leaf) for name, leaf in positions.items()}


def measure(
    trajectory: Callable[[Any, Any], Any], positions: Any, data: Any, seconds: float
) -> dict[str, float]:
    """Takes trajectories for some seconds, all from the same start; a step moves all chains."""
    import jax

    jax.block_until_ready(trajectory(positions, data))  # Compiles.

    def work() -> int:
        jax.block_until_ready(trajectory(positions, data))
        return NUM_LEAPFROG_STEPS

    return rates.measure(work, seconds) | {"peak_mebibytes": 1024 * rates.peak_memory()}


def difference_error(
    trajectory: Callable[[Any, Any], Any],
    positions: Any,
    data: Any,
    signs: np.ndarray,
) -> float:
    """How wrong the change of the log likelihood over the last of two trajectories is, nats.

    The largest over the chains, against float64 at the same positions.
    """
    import jax

    first, before = jax.device_get(trajectory(positions, data))
    second, after = jax.device_get(trajectory(first, data))
    errors = []
    for k in range(NUM_CHAINS):
        exact = [
            exact_log_likelihood({name: leaf[k] for name, leaf in params.items()}, signs)
            for params in (first, second)
        ]
        errors.append(float(after[k]) - float(before[k]) - (exact[1] - exact[0]))
    return float(np.abs(errors).max())


def exact_log_likelihood(params: dict[str, np.ndarray], signs: np.ndarray) -> float:
    """The log likelihood of watches [N, M] in float64, nats; users may be padded."""
    names = ("user_embeddings", "user_bias", "movie_embeddings", "movie_bias")
    users, user_bias, movies, movie_bias = (np.asarray(params[name], np.float64) for name in names)
    total = 0.0
    for i, row in enumerate(signs):
        logits = users[i] @ movies.T + user_bias[i] + movie_bias
        total -= np.logaddexp(0, -row * logits).sum(where=row != 0)
    return total


def run_ours(num_users: int, num_movies: int, num_groups: int, seconds: float) -> dict[str, float]:
    """Measures the likelihood in `custom_vjp`, as the samplers have it."""
    import jax

    from ensemble.recommendation import likelihood
    from ensemble.sharding.mesh import create_mesh
    from ensemble.sharding.transfer import with_own_gradient

    mesh = create_mesh(num_groups, 2 // num_groups, jax.devices())
    value_and_grad = likelihood.make_value_and_grad(likelihood.of_watches, mesh)

    def log_likelihood(params: Any, data: Any) -> jax.Array:
        return with_own_gradient(value_and_grad, data)(params)

    signs = make_signs(num_users, num_movies)
    layout, _ = likelihood.layout_of(signs.shape, mesh)
    host = make_positions(layout.num_places, num_movies, 1)
    data = likelihood.place((signs,), likelihood.of_popularity(signs), mesh)
    positions = place_positions(host, mesh)
    return _measure(log_likelihood, positions, data, signs, seconds)


def run_peer(num_users: int, num_movies: int, num_groups: int, seconds: float) -> dict[str, float]:
    """Measures it; the users must be a multiple of the shards."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    num_shards = 2 // num_groups
    axis_types = (AxisType.Auto, AxisType.Auto)
    mesh = jax.make_mesh((num_groups, num_shards), ("ensemble", "data"), axis_types=axis_types)
    shards = PartitionSpec("data")
    whole = PartitionSpec()

    def on_shard(params: Any, watched: jax.Array) -> jax.Array:
        logits = params["user_embeddings"] @ params["movie_embeddings"].T
        logits += params["user_bias"][:, None] + params["movie_bias"]
        terms = jnp.where(watched, logits, 0) - jax.nn.softplus(logits)
        return jax.lax.psum(jnp.sum(terms), "data")

    of_users, of_movies = ((f"{who}_embeddings", f"{who}_bias") for who in ("user", "movie"))
    specs = dict.fromkeys(of_users, shards) | dict.fromkeys(of_movies, whole)
    log_likelihood = jax.shard_map(
        on_shard, mesh=mesh, in_specs=(specs, shards), out_specs=whole, check_vma=True
    )
    signs = make_signs(num_users, num_movies)
    data = jax.device_put(signs > 0, NamedSharding(mesh, shards))
    positions = place_positions(make_positions(num_users, num_movies, num_shards), mesh)
    return _measure(log_likelihood, positions, data, signs, seconds)


def _measure(
    log_likelihood: Any, positions: Any, data: Any, signs: np.ndarray, seconds: float
) -> dict[str, float]:
    trajectory = make_trajectory(log_likelihood)
    result = measure(trajectory, positions, data, seconds)
    return result | {"error": difference_error(trajectory, positions, data, signs)}


if __name__ == "__main__":
    startup.configure(2)  # Flags, memory and devices are the same for both.
    modes: dict[str, Callable[..., dict[str, float]]] = {"ours": run_ours, "peer": run_peer}
    run = modes[sys.argv[1]]
    num_users, num_movies, num_groups = map(int, sys.argv[2:5])
    print(json.dumps(run(num_users, num_movies, num_groups, float(sys.argv[5]))))
