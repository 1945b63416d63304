"""Worker of hmc_gradient: HMC on MNIST's logistic regression, ours or BlackJAX's.

    python benchmarks/hmc_gradient.py ours|peer NUM_CHAINS NUM_CHAIN_GROUPS [NUM_NOISE]

With NUM_NOISE there are so many images of noise, and all devices instead of two CPU devices.
The peer is BlackJAX's HMC as its documentation would have it: one matrix product and a log-softmax
in `jax.shard_map(check_vma=True)`, examples over the devices, differentiated by JAX; chains are
vmapped. Both multiply in float32, also on GPUs, where JAX's default would be TF32.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rates

STEP_SIZE = 1e-3
NUM_LEAPFROG_STEPS = 20
SECONDS = 4.0


def load_dataset(num_noise: int = 0) -> Any:
    """MNIST with all 60,000 training images in one split, or noise of its shape."""
    from ensemble import sources

    if num_noise:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 255, (num_noise, 28, 28, 1), dtype=np.uint8)
        labels = np.arange(num_noise) % 10
        data = {"train_inputs": images, "train_labels": labels}
        return sources.dataset_from_arrays(data, hold_out=False)
    return sources.load_dataset("mnist", hold_out=False)


def make_density(num_groups: int, num_noise: int = 0) -> tuple[Any, Any]:
    """The task of the logistic regression, and its log density over all devices."""
    import jax

    from ensemble import networks
    from ensemble.methods.mcmc.log_density import make_log_density
    from ensemble.priors import parse_prior
    from ensemble.sharding.mesh import create_mesh
    from ensemble.source import in_memory
    from ensemble.tasks.supervised import classification

    dataset, devices = load_dataset(num_noise), jax.devices()
    network = networks.create("logistic_regression", len(dataset.class_names or ()))
    task = classification(dataset, network, parse_prior("normal(1)"))
    mesh = create_mesh(num_groups, len(devices) // num_groups, devices)
    return task, make_log_density(task, in_memory(dataset, "train"), mesh)


def load_images(num_noise: int) -> tuple[np.ndarray, np.ndarray]:
    """The training images [60000, 784] float32, 0..1, and their labels."""
    from ensemble import sources

    dataset = load_dataset(num_noise)
    split = sources.in_memory(dataset, "train")
    return (split.inputs.reshape(len(split.targets), -1) * dataset.scale).astype(
        np.float32
    ), split.targets


def measure(
    advance: Callable[[Any, Any], Any], positions: Any, data: Any, num_chains: int
) -> dict[str, float]:
    """Takes draws for some seconds, all from the same start.

    A draw costs one gradient to begin with, and one a leapfrog step.
    """
    import jax

    start = time.perf_counter()
    jax.block_until_ready(advance(positions, data))
    compile_seconds = time.perf_counter() - start

    def work() -> int:
        jax.block_until_ready(advance(positions, data))
        return (NUM_LEAPFROG_STEPS + 1) * num_chains

    return rates.measure(work, SECONDS) | {"compile_seconds": compile_seconds}


def advance_ours(num_chains: int, num_groups: int, num_noise: int) -> tuple[Any, Any]:
    """Returns `advance(positions, data)`, which takes one draw of all chains, and the data."""
    import jax
    import jax.numpy as jnp

    from ensemble.methods.mcmc.kernels import Settings, make_sampler
    from ensemble.sharding.mesh import ENSEMBLE

    _, density = make_density(num_groups, num_noise)
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


def advance_peer(num_chains: int, num_groups: int, num_noise: int) -> tuple[Any, Any]:
    """Returns the same for BlackJAX, whose examples are on all devices."""
    import blackjax  # Starts JAX, after which the number of devices is fixed.
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
    shards = PartitionSpec("data")

    def log_density(params: Any, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        def on_shard(params: Any, inputs: jax.Array, labels: jax.Array) -> jax.Array:
            logits = jnp.matmul(inputs, params["kernel"], precision="highest") + params["bias"]
            log_probs = jax.nn.log_softmax(logits)
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
    images, labels = load_images(num_noise)
    data = jax.device_put((images, labels), NamedSharding(mesh, shards))
    return jax.jit(lambda position, data: draw(position, *data)), data


def main(who: str, num_chains: int, num_groups: int, num_noise: int = 0) -> dict[str, float]:
    """Measures one contestant, from zero."""
    if who == "ours":
        from ensemble.sharding import startup

        startup.configure(None if num_noise else 2)
    import jax
    import jax.numpy as jnp

    if who == "peer" and not num_noise:
        jax.config.update("jax_num_cpu_devices", 2)
    make_advance = {"ours": advance_ours, "peer": advance_peer}[who]
    advance, data = make_advance(num_chains, num_groups, num_noise)
    batch = (num_chains,) if num_chains > 1 else ()
    layer = {"kernel": jnp.zeros((*batch, 784, 10)), "bias": jnp.zeros((*batch, 10))}
    start = {"Dense_0": layer} if who == "ours" else layer
    sizes = {"num_chains": num_chains, "num_images": num_noise or 60_000}
    return measure(advance, start, data, num_chains) | sizes


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
