"""Worker of hmc_gradient.py: this project's sampler and log density, on MNIST.

python benchmarks/hmc_gradient_ours.py NUM_CHAINS NUM_CHAIN_GROUPS
"""

import json
import sys
from typing import Any

from hmc_gradient_work import NUM_LEAPFROG_STEPS, STEP_SIZE, load_dataset, measure

from ensemble.sharding import startup


def make_advance(num_chains: int, num_groups: int) -> tuple[Any, Any]:
    """Returns `advance(positions, data)`, which takes one draw of all chains, and the data."""
    startup.configure(2)
    import jax
    import jax.numpy as jnp

    from ensemble import networks
    from ensemble.methods.mcmc.kernels import make_sampler
    from ensemble.methods.mcmc.log_density import make_log_density
    from ensemble.methods.mcmc.settings import Settings
    from ensemble.priors import parse_prior
    from ensemble.sharding.mesh import ENSEMBLE, create_mesh
    from ensemble.source import in_memory
    from ensemble.tasks.supervised import classification

    dataset = load_dataset()
    network = networks.create("logistic_regression", len(dataset.class_names or ()))
    task = classification(dataset, network, parse_prior("normal(1)"))
    devices = jax.devices()
    mesh = create_mesh(num_groups, len(devices) // num_groups, devices)
    density = make_log_density(task, in_memory(dataset, "train"), mesh)
    settings = Settings(
        "hmc", STEP_SIZE, num_leapfrog_steps=NUM_LEAPFROG_STEPS, jitter=0, num_warmup=0
    )

    def draw(position: Any, data: Any) -> Any:
        sampler = make_sampler(settings, density.bind(data))
        chain = sampler.init(jax.random.key(0), position)
        return sampler.step(chain, jnp.int32(0))[0].state.position

    if num_chains > 1:
        draw = jax.vmap(draw, in_axes=(0, None), spmd_axis_name=ENSEMBLE)
    return jax.jit(draw), density.data


if __name__ == "__main__":
    num_chains, num_groups = map(int, sys.argv[1:])
    advance, data = make_advance(num_chains, num_groups)
    import jax.numpy as jnp

    batch = (num_chains,) if num_chains > 1 else ()
    layer = {"kernel": jnp.zeros((*batch, 784, 10)), "bias": jnp.zeros((*batch, 10))}
    print(json.dumps(measure(advance, {"Dense_0": layer}, data, num_chains)))
