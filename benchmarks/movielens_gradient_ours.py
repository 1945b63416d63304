"""Worker of movielens_gradient.py: this project's likelihood of the matrix factorisation.

python benchmarks/movielens_gradient_ours.py NUM_USERS NUM_MOVIES NUM_CHAIN_GROUPS SECONDS
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
    """Measures the likelihood in `custom_vjp`, as the samplers have it."""
    startup.configure(2)
    import jax

    from ensemble.sharding.chainwise import with_own_gradient
    from ensemble.sharding.mesh import DATA, create_mesh
    from ensemble.tasks.factorisation import watch_likelihood
    from ensemble.tasks.factorisation.baselines import fit_biases
    from ensemble.tasks.factorisation.watch_task import reference_of

    mesh = create_mesh(num_groups, 2 // num_groups, jax.devices())
    value_and_grad = watch_likelihood.make_value_and_grad(mesh)

    def log_likelihood(params: Any, data: Any) -> jax.Array:
        return with_own_gradient(value_and_grad, data)(params)

    observed = make_observed(num_users, num_movies)
    host = make_positions(num_users, num_movies, mesh.shape[DATA])
    user_bias, movie_bias = fit_biases(observed)
    reference = reference_of(observed, {"user_bias": user_bias, "movie_bias": movie_bias})
    data = watch_likelihood.place(observed, reference, mesh)
    positions = place_positions(host, mesh)
    trajectory = make_trajectory(log_likelihood)
    result = measure(trajectory, positions, data, seconds)
    return result | {"error": difference_error(trajectory, positions, data, observed)}


if __name__ == "__main__":
    num_users, num_movies, num_groups = map(int, sys.argv[1:4])
    print(json.dumps(run(num_users, num_movies, num_groups, float(sys.argv[4]))))
