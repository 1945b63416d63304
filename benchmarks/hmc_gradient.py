"""Worker of hmc_gradient: HMC on MNIST's logistic regression, ours or BlackJAX's.

    python benchmarks/hmc_gradient.py ours|peer NUM_CHAINS NUM_CHAIN_GROUPS [NUM_NOISE]

With NUM_NOISE there are so many images of noise, and all devices instead of two CPU devices.
The peer is BlackJAX's HMC as its documentation would have it: one matrix product and a log-softmax
in `jax.shard_map(check_vma=True)`, examples over the devices, differentiated by JAX; chains are
vmapped. Both multiply in float32, also on GPUs, where JAX's default would be TF32.

`cold_seconds` go from the images in memory, as they are stored, to the first draw: with what each
makes of the images, compilation, and without imports.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rates
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ensemble import networks
from ensemble.data import catalogue, dataset_from_arrays
from ensemble.data.source import in_memory
from ensemble.methods.log_density import make_log_density
from ensemble.priors import parse_prior
from ensemble.sharding import startup
from ensemble.sharding.mesh import ENSEMBLE, create_mesh
from ensemble.tasks.supervised import Supervised, make_likelihood

STEP_SIZE = 1e-3
NUM_LEAPFROG_STEPS = 20
SECONDS = 4.0


def load_dataset(num_noise: int = 0) -> Any:
    """MNIST with all 60,000 training images in one split, or noise of its shape."""
    if num_noise:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 255, (num_noise, 28, 28, 1), dtype=np.uint8)
        labels = np.arange(num_noise) % 10
        data = {"train_inputs": images, "train_labels": labels}
        return dataset_from_arrays(data, hold_out=False)
    return catalogue.load_dataset("mnist", hold_out=False)


def make_density(num_groups: int, dataset: Any) -> tuple[Any, Any]:
    """The task of the logistic regression, and its log density over all devices."""
    devices = jax.devices()
    network = networks.create("logistic_regression", len(dataset.class_names or ()))
    prior = parse_prior("normal(1)")
    task = Supervised(
        dataset, network, make_likelihood(dataset, {"likelihood": "categorical"}), prior
    )
    mesh = create_mesh(num_groups, len(devices) // num_groups, devices)
    return task, make_log_density(task, in_memory(dataset, "train"), mesh)


def flattened(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """The training images [60000, 784] float32, 0..1, and their labels."""
    split = in_memory(dataset, "train")
    return (split.inputs.reshape(len(split.targets), -1) * dataset.scale).astype(
        np.float32
    ), split.targets


def measure(
    advance: Callable[[Any, Any], Any],
    positions: Any,
    data: Any,
    num_chains: int,
    started: tuple[float, float],
) -> dict[str, float]:
    """Takes draws for some seconds, all from the same start.

    A draw costs one gradient to begin with, and one a leapfrog step.

    Args:
        advance: takes one draw of all chains.
        positions: where they start.
        data: that is conditioned on.
        num_chains: as said.
        started: when the images lay in memory, by the clock and by that of the CPU.
    """
    start = time.perf_counter()
    jax.block_until_ready(advance(positions, data))
    now = time.perf_counter()
    cpu = time.process_time()
    cold = {"cold_seconds": now - started[0], "cold_cpu_seconds": cpu - started[1]}

    def work() -> int:
        jax.block_until_ready(advance(positions, data))
        return (NUM_LEAPFROG_STEPS + 1) * num_chains

    return rates.measure(work, SECONDS) | {"compile_seconds": now - start} | cold


class Prepared(NamedTuple):
    """A contestant that is ready.

    Attributes:
        advance: `(positions, data)`, takes one draw of all chains.
        data: on the devices.
        started: as of `measure`.
    """

    advance: Callable[[Any, Any], Any]
    data: Any
    started: tuple[float, float]


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def prepare_ours(num_chains: int, num_groups: int, num_noise: int) -> Prepared:
    """Ours, with the examples or the chains over the devices."""
    # BlackJAX, which starts JAX: after that the number of devices is fixed.
    from ensemble.methods.kernels import Settings, make_sampler

    dataset = load_dataset(num_noise)
    started = _clocks()
    _, density = make_density(num_groups, dataset)
    settings = Settings(
        "hmc", STEP_SIZE, num_leapfrog_steps=NUM_LEAPFROG_STEPS, jitter=0, num_warmup=0
    )

    def draw(position: Any, data: Any) -> Any:
        sampler = make_sampler(settings, density.bind(data))
        key = jax.random.key(0)
        return sampler.step(key, sampler.init(key, position), jnp.int32(0))[0].state.position

    if num_chains > 1:
        draw = jax.vmap(draw, in_axes=(0, None), spmd_axis_name=ENSEMBLE)
    return Prepared(jax.jit(draw), density.data, started)


def prepare_peer(num_chains: int, num_groups: int, num_noise: int) -> Prepared:
    """BlackJAX, whose examples are on all devices."""
    import blackjax  # As above.

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
    dataset = load_dataset(num_noise)
    started = _clocks()
    data = jax.device_put(flattened(dataset), NamedSharding(mesh, shards))
    return Prepared(jax.jit(lambda position, data: draw(position, *data)), data, started)


def main(who: str, num_chains: int, num_groups: int, num_noise: int = 0) -> dict[str, float]:
    """Measures one contestant, from zero."""
    if who == "ours":
        startup.configure(None if num_noise else 2)
    if who == "peer" and not num_noise:
        jax.config.update("jax_num_cpu_devices", 2)
    prepare = {"ours": prepare_ours, "peer": prepare_peer}[who]
    advance, data, started = prepare(num_chains, num_groups, num_noise)
    batch = (num_chains,) if num_chains > 1 else ()
    layer = {"kernel": jnp.zeros((*batch, 784, 10)), "bias": jnp.zeros((*batch, 10))}
    start = {"Dense_0": layer} if who == "ours" else layer
    sizes = {"num_chains": num_chains, "num_images": num_noise or 60_000}
    return measure(advance, start, data, num_chains, started) | sizes


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
