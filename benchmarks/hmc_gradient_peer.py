"""Worker of hmc_gradient.py: BlackJAX's HMC as its documentation would have it, on MNIST.

    python benchmarks/hmc_gradient_peer.py NUM_CHAINS

One matrix product and a log-softmax in `jax.shard_map(check_vma=True)`, examples over the devices,
differentiated by JAX; chains are vmapped.
"""

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
from hmc_gradient_work import NUM_LEAPFROG_STEPS, STEP_SIZE, load_images, measure
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def make_advance(num_chains: int) -> tuple[Any, Any]:
    """Returns `advance(positions, data)`, which takes one draw of all chains, and the data."""
    import blackjax  # Starts JAX, after which the number of devices is fixed.

    mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
    shards = PartitionSpec("data")

    def log_density(params: Any, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        def on_shard(params: Any, inputs: jax.Array, labels: jax.Array) -> jax.Array:
            log_probs = jax.nn.log_softmax(inputs @ params["kernel"] + params["bias"])
            chosen = jnp.take_along_axis(log_probs, labels[:, None], axis=1)
            return jax.lax.psum(jnp.sum(chosen), "data")

        log_likelihood = jax.shard_map(
            on_shard,
            mesh=mesh,
            in_specs=(PartitionSpec(), shards, shards),
            out_specs=PartitionSpec(),
        )(params, inputs, labels)
        return log_likelihood - 0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    def draw(position: Any, inputs: jax.Array, labels: jax.Array) -> Any:
        kernel = blackjax.hmc(
            lambda params: log_density(params, inputs, labels),
            step_size=STEP_SIZE,
            inverse_mass_matrix=jnp.ones(7850),
            num_integration_steps=NUM_LEAPFROG_STEPS,
        )
        state, _ = kernel.step(jax.random.key(0), kernel.init(position))
        return state.position

    if num_chains > 1:
        draw = jax.vmap(draw, in_axes=(0, None, None))
    images, labels = load_images()
    data = jax.device_put((images, labels), NamedSharding(mesh, shards))
    return jax.jit(lambda position, data: draw(position, *data)), data


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    num_chains = int(sys.argv[1])
    advance, data = make_advance(num_chains)
    batch = (num_chains,) if num_chains > 1 else ()
    position = {"kernel": jnp.zeros((*batch, 784, 10)), "bias": jnp.zeros((*batch, 10))}
    print(json.dumps(measure(advance, position, data, num_chains)))
