"""Programs of this package, lowered for devices that are only described.

A case is a function from devices to a `jax.stages.Lowered`: nothing is put on them and nothing
runs. Data are zeros of the right shapes, for a compiler looks at no values.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ensemble.batched_prediction import make_predict_batch
from ensemble.config_rules import validate
from ensemble.methods.mcmc.coordinates import identity
from ensemble.methods.mcmc.programs import Programs
from ensemble.methods.members.engine import Engine
from ensemble.methods.members.engine_method import check_members
from ensemble.methods.members.member_programs import zero_metrics
from ensemble.methods.members.optimizers import Descent, create_descent
from ensemble.run.loop import create_task
from ensemble.sharding import transfer
from ensemble.sharding.mesh import create_mesh, named_sharding
from ensemble.sources.data_forms import recognise

Case = Callable[[Sequence[jax.Device]], jax.stages.Lowered]

MNIST, PICTURES = (28, 28, 1), (224, 224, 3)


def _classes(count: int, shape: tuple[int, ...]) -> Any:
    """So many images of ten classes, of the same zeros."""
    zeros = np.broadcast_to(np.zeros(shape, np.uint8), (count, *shape))
    return recognise({"inputs": zeros, "labels": np.arange(count) % 10})


def members(
    devices: Sequence[jax.Device],
    shape: tuple[int, ...] = MNIST,
    num_examples: int = 0,
    steps: int = 1,
    descent_of: Callable[[Any, Any], Descent] = lambda config, task: create_descent(config, 100),
    **settings: Any,
) -> jax.stages.Lowered:
    """Training steps of all members.

    Args:
        devices: D.
        shape: of an image.
        num_examples: that lie on the devices; 0: batches are sent there.
        steps: that one program takes.
        descent_of: how they descend, by configuration and task.
        **settings: of the configuration, `batch_size` among them.
    """
    length = {} if "method" in settings else {"num_steps": 100}
    config = validate({"hold_out": False, **length, **settings})
    number = config.get("num_chains") or config.ensemble_size
    task: Any = create_task(config, _classes(num_examples or max(config.batch_size, 10), shape))
    if "ensemble_size" in config:
        check_members(config, task, devices)
    with transfer.described():
        engine = Engine(config, task, devices, number, 100, descent_of(config, task))
        placement = engine.programs.placement
        numbers = placement.place_members(np.arange(number, dtype=np.uint32))
        states = jax.eval_shape(engine.programs.create, numbers, _key(), {})
        states = transfer.describe(states, placement.member_shardings(states))
        batch = engine.batches.place(
            placement, engine.indices, 0, steps, steps, of_rows=num_examples > 0
        )
        rows = engine.rows if num_examples else None
        totals = zero_metrics(placement, task.likelihood)
        train_steps: Any = engine.programs.train_steps  # Compiled by `jax.jit`.
        lowered: jax.stages.Lowered = train_steps.lower(
            states, *totals, rows, batch, np.int32(0), np.int32(steps)
        )
    return lowered


def minibatch_chains(devices: Sequence[jax.Device], **settings: Any) -> jax.stages.Lowered:
    """Steps of chains by the gradients of batches."""
    from ensemble.methods.minibatch.langevin import descent_of_chains  # Of these alone.
    from ensemble.methods.minibatch.timetable import timetable

    def descent(config: Any, task: Any) -> Descent:
        times = timetable(config)
        return descent_of_chains(config, times, task.num_train_examples, config.momentum)

    own = {"method": "sghmc", "sgmcmc.num_burn_in": 10, "sgmcmc.num_samples": 10}
    return members(devices, descent_of=descent, **{**own, **settings})


def predictions(
    devices: Sequence[jax.Device], shape: tuple[int, ...] = MNIST, **settings: Any
) -> jax.stages.Lowered:
    """What all members say of one batch."""
    config = validate({"hold_out": False, "num_steps": 100, **settings})
    number, batch_size = config.ensemble_size, config.batch_size
    task: Any = create_task(config, _classes(max(batch_size, 10), shape))
    with transfer.described():
        descent = create_descent(config, 100)
        placement = Engine(config, task, devices, number, 100, descent).programs.placement
        variables = jax.eval_shape(jax.vmap(task.init_variables), jax.random.split(_key(), number))
        batch = placement.place_shared(np.zeros((batch_size, *shape), np.uint8))
        predict: Any = make_predict_batch(task.predict, placement)
        lowered: jax.stages.Lowered = predict.lower(placement.place_members(variables), batch)
    return lowered


def chains(
    devices: Sequence[jax.Device],
    count: int = 0,
    shape: tuple[int, ...] = MNIST,
    data: Any = None,
    **settings: Any,
) -> jax.stages.Lowered:
    """Draws of all chains, ten in a loop.

    Args:
        devices: D.
        count: of images; 0: the data are others.
        shape: of an image.
        data: in their place.
        **settings: of the configuration.
    """
    own = {"prior": "normal(1)", "hold_out": False} if count else {}
    config = validate({"log_every_steps": 10, **own, **settings})
    task: Any = create_task(config, _classes(count, shape) if count else data)
    with transfer.described():
        programs = Programs(config, task, devices)
        # Whole on every device: a seed is no array of a description's dtype.
        keys = transfer.put(
            jax.random.split(_key(), config.num_chains), named_sharding(programs.mesh)
        )
        positions = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((config.num_chains, *leaf.shape), leaf.dtype),
            programs.padded_shapes,
        )
        placed = programs.density.data
        state = jax.eval_shape(programs.first_state, keys, identity(), positions, placed)
        state = transfer.describe(state, programs.shardings(state))
        record = jax.eval_shape(functools.partial(programs.new_record, num_draws=10))
        record = transfer.describe(record, programs.record_shardings(record))
        tracked = programs.splits.get(programs.tracked_split or "")
        bounds = map(np.int32, (0, 0, 10))
        lowered: jax.stages.Lowered = programs.run_chunk.lower(
            state, record, placed, tracked, *bounds
        )
    return lowered


def free_chains(devices: Sequence[jax.Device], **settings: Any) -> jax.stages.Lowered:
    """Draws of a NumPyro model's chains, which do not wait for each other."""
    import numpyro  # An extra.
    import numpyro.distributions as dist

    from ensemble.numpyro_models.numpyro_program import NumPyroProgram

    def schools(y: Any, sigma: Any) -> None:
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("schools", 8):
            theta = numpyro.sample("theta", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(mu + tau * theta, sigma), obs=y)

    arrays = np.arange(8, dtype=np.float32), np.full(8, 10.0, np.float32)
    model = NumPyroProgram(schools, arrays)
    own = {"model": "numpyro:schools", "init_from": "uniform", "sampler.mass": "diagonal"}
    return chains(devices, data=model, **{**own, **settings})


def factorisation(devices: Sequence[jax.Device], **settings: Any) -> jax.stages.Lowered:
    """Draws of the factors of users and movies, of generated watches."""
    own = {"model": "matrix_factorisation", "method": "hmc", "prior": "normal(1)"}
    return chains(devices, **{**own, **settings})


def walks(devices: Sequence[jax.Device], num_chains: int) -> jax.stages.Lowered:
    """A thousand steps of very many chains on a mixture of normals.

    Args:
        devices: D.
        num_chains: C.
    """
    from ensemble.walks import densities  # An application.
    from ensemble.walks.block_kernel import Span
    from ensemble.walks.walker import Walker

    mesh = create_mesh(len(devices), 1, devices)
    walker = Walker(densities.create("gaussian_mixture"), num_chains, mesh)
    with transfer.described():
        state = walker.init(jax.random.key(0, impl="threefry2x32"))
        span = Span(np.uint32(0), np.int32(0), np.int32(1000))
        take_steps: Any = walker.take_steps
        lowered: jax.stages.Lowered = take_steps.lower(
            state.chains, state.sums, state.rng_key, state.factor, state.grid, span
        )
    return lowered


def _key() -> jax.Array:
    return jax.random.key(0)


_TEN_STEPS: dict[str, Any] = {"sampler.num_leapfrog_steps": 10}
_ROWS: dict[str, Any] = {"num_examples": 60_000, "steps": 8}
_FEW_ROWS: dict[str, Any] = {"num_examples": 10_000, "steps": 2}
_HMC: dict[str, Any] = {"method": "hmc", "model": "logistic_regression", "init_from": "prior"}
_CNN_CHAINS: dict[str, Any] = {
    "method": "hmc",
    "model": "cnn",
    "shape": (8, 8, 1),
    "init_from": "prior",
    "sampler.num_leapfrog_steps": 50,
}
_RESNET: dict[str, Any] = {
    "model": "resnet50",
    "dtype": "bfloat16",
    "shape": PICTURES,
    "ensemble_size": 8,
}
_VIT: dict[str, Any] = {
    "model": "vit",
    "vit.size": "L",
    "shape": PICTURES,
    "ensemble_size": 8,
    "batch_size": 64,
}

FULL: Mapping[str, tuple[str, Case]] = {
    "cnn": (
        "64 of the how-to's CNNs, batches of 128 of 60,000 images, 8 steps",
        functools.partial(members, model="cnn", ensemble_size=64, batch_size=128, **_ROWS),
    ),
    "cnn_independent": (
        "the same, each with batches of its own",
        functools.partial(
            members,
            model="cnn",
            ensemble_size=64,
            batch_size=128,
            batching="independent",
            **_ROWS,
        ),
    ),
    "cnn_less": (
        "the first with `config.rematerialise=True`",
        functools.partial(
            members, model="cnn", ensemble_size=64, batch_size=128, rematerialise=True, **_ROWS
        ),
    ),
    "mlp": (
        "512 MLPs, likewise",
        functools.partial(members, model="mlp", ensemble_size=512, batch_size=128, **_ROWS),
    ),
    "resnet50": (
        "8 ResNet-50s in bfloat16, one step of batches of 32 of 224 x 224, which are sent",
        functools.partial(members, batch_size=32, **_RESNET),
    ),
    "vit": (
        "8 ViT-L, 8 devices each, one step of batches of 64 of 224 x 224, which are sent",
        functools.partial(members, member_devices=8, **_VIT),
    ),
    "predict": (
        "256 images by 64 CNNs",
        functools.partial(predictions, model="cnn", ensemble_size=64, batch_size=256),
    ),
    "hmc": (
        "8 chains of logistic regression on 60,000 images, 10 draws of 10 steps",
        functools.partial(chains, count=60_000, num_chains=8, **_HMC, **_TEN_STEPS),
    ),
    "hmc_cnn": (
        "8 chains of CNNs on 1,257 digits of 8 x 8, 10 draws of 50 steps",
        functools.partial(chains, count=1_797, num_chains=8, hold_out=True, **_CNN_CHAINS),
    ),
    "nuts": (
        "`hmc` by NUTS",
        functools.partial(chains, count=60_000, num_chains=8, **{**_HMC, "method": "nuts"}),
    ),
    "mclmc": (
        "8 chains of an MLP on 4,000 images by MCLMC, 10 draws",
        functools.partial(
            chains, count=4_000, num_chains=8, method="mclmc", model="mlp", init_from="prior"
        ),
    ),
    "sghmc": (
        "64 chains of CNNs by SGHMC, batches of 128 of 60,000 images, 8 steps",
        functools.partial(minibatch_chains, model="cnn", num_chains=64, batch_size=128, **_ROWS),
    ),
    "free_nuts": (
        "1,024 chains of the eight schools by NUTS, 10 draws",
        functools.partial(free_chains, method="nuts", num_chains=1024),
    ),
    "walks": (
        "131,072 chains a device of a mixture of normals, 1,000 steps",
        lambda devices: walks(devices, 131_072 * len(devices)),
    ),
    "factorisation": (
        "2 chains of 20 factors of 6,040 users and 3,706 movies, 10 draws of 10 steps",
        functools.partial(
            factorisation,
            dataset="watches:6040x3706",
            num_factors=20,
            num_chains=2,
            **_TEN_STEPS,
        ),
    ),
}
"""The programs of docs/scaling.md: what they are, and how they are lowered."""

SMALL: Mapping[str, Case] = {
    "cnn": functools.partial(members, model="cnn", ensemble_size=8, batch_size=8, **_FEW_ROWS),
    "cnn_independent": functools.partial(
        members, model="cnn", ensemble_size=8, batch_size=8, batching="independent", **_FEW_ROWS
    ),
    "mlp": functools.partial(members, model="mlp", ensemble_size=8, batch_size=8, **_FEW_ROWS),
    "predict": functools.partial(predictions, model="cnn", ensemble_size=8, batch_size=8),
    "hmc": functools.partial(chains, count=100, num_chains=8, **_HMC),
    "hmc_cnn": functools.partial(chains, count=700, num_chains=8, **_CNN_CHAINS),
    "mclmc": functools.partial(
        chains, count=100, num_chains=8, method="mclmc", model="logistic_regression"
    ),
    "sghmc": functools.partial(
        minibatch_chains, model="mlp", num_chains=8, batch_size=8, **_FEW_ROWS
    ),
    "free_nuts": functools.partial(free_chains, method="nuts", num_chains=16),
    "free_mclmc": functools.partial(free_chains, method="mclmc", num_chains=16),
    "walks": lambda devices: walks(devices, 1024 * len(devices)),
    "factorisation": functools.partial(
        factorisation, dataset="watches:40x24", num_factors=2, num_chains=2
    ),
    # Which are too large, and are refused.
    "many_cnns": functools.partial(members, model="cnn", ensemble_size=40_000, batch_size=8),
    "many_chains": functools.partial(chains, count=100, num_chains=1_000_000, **_HMC),
}
"""The same, so small that all are compiled within two minutes."""
