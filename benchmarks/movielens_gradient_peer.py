"""Worker of movielens_gradient.py: the log density as it is written down, differentiated by JAX.

    python benchmarks/movielens_gradient_peer.py NUM_USERS NUM_MOVIES NUM_CHAIN_GROUPS SECONDS

Users and their watches are split over the devices in `jax.shard_map(check_vma=True)`.
"""

import json
import sys
from typing import Any

from movielens_gradient_work import (
    difference_error,
    make_observed,
    make_positions,
    make_trajectory,
    measure,
    place_positions,
)

from ensemble.sharding import startup


def run(num_users: int, num_movies: int, num_groups: int, seconds: float) -> dict[str, float]:
    """Measures it; the users must be a multiple of the shards."""
    startup.configure(2)  # As ours has it: flags, memory, devices.
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    num_shards = 2 // num_groups
    axis_types = (AxisType.Auto, AxisType.Auto)
    mesh = jax.make_mesh((num_groups, num_shards), ("ensemble", "data"), axis_types=axis_types)
    shards, whole = PartitionSpec("data"), PartitionSpec()

    def on_shard(params: Any, watched: jax.Array) -> jax.Array:
        logits = params["user_embeddings"] @ params["movie_embeddings"].T
        logits += params["user_bias"][:, None] + params["movie_bias"]
        terms = jnp.where(watched, logits, 0) - jax.nn.softplus(logits)
        return jax.lax.psum(jnp.sum(terms), "data")

    specs = {
        "user_embeddings": shards,
        "user_bias": shards,
        "movie_embeddings": whole,
        "movie_bias": whole,
    }
    log_likelihood = jax.shard_map(
        on_shard, mesh=mesh, in_specs=(specs, shards), out_specs=whole, check_vma=True
    )
    observed = make_observed(num_users, num_movies)
    data = jax.device_put(observed.astype(bool), NamedSharding(mesh, shards))
    positions = place_positions(make_positions(num_users, num_movies, num_shards), mesh)
    trajectory = make_trajectory(log_likelihood)
    result = measure(trajectory, positions, data, seconds)
    return result | {"error": difference_error(trajectory, positions, data, observed)}


if __name__ == "__main__":
    num_users, num_movies, num_groups = map(int, sys.argv[1:4])
    print(json.dumps(run(num_users, num_movies, num_groups, float(sys.argv[4]))))
