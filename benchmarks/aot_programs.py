"""Programs of this package, lowered for devices that are only described.

A case is a function from devices to a `jax.stages.Lowered`: nothing is put on them and nothing
runs. Data are zeros of the right shapes, for a compiler looks at no values.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import ml_collections
import numpy as np

from ensemble.config import checked
from ensemble.data.data_forms import recognise
from ensemble.run.loop import create_method, create_task
from ensemble.runtime.predict import Predictions
from ensemble.runtime.programs import Programs
from ensemble.sharding import processes, transfer
from ensemble.storage import memory

Case = Callable[[Sequence[jax.Device]], jax.stages.Lowered]

PICTURES = (224, 224, 3)
_BYTES = {
    "TPU v5 lite": 2**34,
    "TPU v5": 95 * 2**30,
    "TPU v6 lite": 2**35,
    "NVIDIA H100 80GB HBM3": 80 * 2**30,
}
"""Bytes of a device by its kind; those of TPUs are of https://docs.cloud.google.com/tpu/docs, the
page of each version."""


@contextlib.contextmanager
def described(devices: Sequence[jax.Device]) -> Iterator[None]:
    """Within it, arrays that are put on devices are only described."""
    with (
        mock.patch.object(transfer, "put", describe),
        mock.patch.object(
            transfer,
            "_prepared",
            lambda fn, inputs: describe(jax.eval_shape(fn, inputs), inputs.sharding),
        ),
        mock.patch.object(memory, "own_bytes", return_value=_BYTES.get(devices[0].device_kind)),
        mock.patch.object(processes, "devices", return_value=devices),
    ):
        yield


def describe(tree: Any, shardings: Any) -> Any:
    """Shapes that say where arrays would lie, which a jitted function's `lower` takes for them.

    Args:
        tree: Arrays, or anything else that has a shape and a dtype.
        shardings: One, or a tree of them.
    """

    def one(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)

    if isinstance(shardings, jax.sharding.Sharding):
        return jax.tree.map(lambda leaf: one(leaf, shardings), tree)
    return jax.tree.map(one, tree, shardings)


def _classes(count: int, shape: tuple[int, ...]) -> Any:
    """So many images of ten classes, of the same zeros."""
    zeros = np.broadcast_to(np.zeros(shape, np.uint8), (count, *shape))
    return recognise({"inputs": zeros, "labels": np.arange(count) % 10})


def lower_steps(
    devices: Sequence[jax.Device],
    steps: int = 10,
    count: int = 0,
    shape: tuple[int, ...] = (28, 28, 1),
    data: Any = None,
    predicts: bool = False,
    **settings: Any,
) -> jax.stages.Lowered:
    """Steps of all members or chains, or what the members say of a batch.

    Args:
        devices: Described devices.
        steps: Steps of the program.
        count: Number of images; 0: the data are others.
        shape: Shape of an image.
        data: Data in place of images.
        predicts: Whether to lower the prediction of `batch_size` images.
        **settings: Settings of the configuration.
    """
    own = {"train_on_all": True} if count else {}
    config = checked({"log_every_steps": steps, **own, **settings})
    task: Any = create_task(config, _classes(count, shape) if count else data)
    with described(devices):
        method = create_method(config, task)
        placed = method.place(method.num_members)
        numbers = range(method.num_members)
        algorithm = method.algorithm(placed, numbers)
        programs = Programs(algorithm, placed, numbers, 0, min(algorithm.steps_per_program, steps))
        members = programs.shapes
        members = describe(members, placed.of_members(members))
        if predicts:
            sets: Any = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((placed.num_places, 1, *leaf.shape), leaf.dtype),
                programs.set_shapes,
            )
            program: Any = Predictions(task, placed).program
            return program.lower(
                describe(sets, placed.of_members(sets)),
                placed.put_examples(np.zeros((config.batch_size, *shape), np.uint8)),
            )
        feed = algorithm.feed
        counts = map(np.int32, (0, programs.length))
        sent = feed.send(0, programs.length, programs.length)
        return programs.take_steps.lower(members, None, feed.fixed, sent, *counts)


def free_chains(devices: Sequence[jax.Device], **settings: Any) -> jax.stages.Lowered:
    """Draws of a NumPyro model's chains, which do not wait for each other."""
    import numpyro  # An extra.
    import numpyro.distributions as dist

    from ensemble.numpyro_models.model import Model

    def schools(y: Any, sigma: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("schools", 8):
            theta = numpyro.sample("theta", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(mu + tau * theta, sigma), obs=y)

    arrays = np.arange(8, dtype=np.float32), np.full(8, 10.0, np.float32)
    model = Model(schools, arrays)
    own = {"model": "numpyro:schools", "init_from": "uniform", "sampler.mass_matrix": "diagonal"}
    return lower_steps(devices, data=lambda: model, **{**own, **settings})


def walks(devices: Sequence[jax.Device], num_chains: int) -> jax.stages.Lowered:
    """A thousand steps of very many chains on a mixture of normals.

    Args:
        devices: D.
        num_chains: C.
    """
    from ensemble.random_walk import densities, walker  # An application.
    from ensemble.random_walk.block_kernel import Span
    from ensemble.runtime.algorithm import Start
    from ensemble.runtime.devices import Devices

    sampler = ml_collections.ConfigDict(
        {"num_warmup": 0, "step_size": 1.0, "mass_matrix": "identity"}
    )
    config = ml_collections.ConfigDict({"seed": 0, "num_chains": num_chains, "sampler": sampler})
    placed = Devices(1, devices, groups=len(devices))
    with described(devices):
        walk = walker.Walker(config, densities.GAUSSIAN_MIXTURE, placed)
        chains, sums, _, factor, origin = walk.start(Start()).state
        span = Span(np.uint32(0), np.int32(0), np.int32(1000))
        take_steps: Any = walk.take_steps
        lowered: jax.stages.Lowered = take_steps.lower(
            chains, sums, walk.keys, factor, origin, span
        )
    return lowered


_MEMBERS: dict[str, Any] = {"num_steps": 100, "ensemble_size": 64, "batch_size": 128}
_CNNS: dict[str, Any] = {**_MEMBERS, "model": "cnn", "count": 60_000, "steps": 8}
_FEW: dict[str, Any] = {"ensemble_size": 8, "batch_size": 8, "count": 10_000, "steps": 2}
_LARGE: dict[str, Any] = {"num_steps": 100, "ensemble_size": 8, "shape": PICTURES, "steps": 1}
_TEN_STEPS: dict[str, Any] = {"sampler.num_leapfrog_steps": 10}
_CHAINS: dict[str, Any] = {"num_chains": 8, "prior": "normal(1)", "init_from": "prior"}
_HMC: dict[str, Any] = {**_CHAINS, "method": "hmc", "model": "logistic_regression"}
_CNN_CHAINS: dict[str, Any] = {
    **_HMC,
    "model": "cnn",
    "shape": (8, 8, 1),
    "sampler.num_leapfrog_steps": 50,
}
_SGHMC: dict[str, Any] = {
    "method": "sghmc",
    "sgmcmc.num_burn_in": 10,
    "sgmcmc.num_samples": 10,
}
_FACTORS: dict[str, Any] = {
    "model": "matrix_factorisation",
    "method": "hmc",
    "prior": "normal(1)",
    "num_chains": 2,
}

FULL: Mapping[str, tuple[str, Case]] = {
    "cnn": (
        "64 of the how-to's CNNs, batches of 128 of 60,000 images, 8 steps",
        functools.partial(lower_steps, **_CNNS),
    ),
    "cnn_independent": (
        "the same, each with batches of its own",
        functools.partial(lower_steps, shuffle="independent", **_CNNS),
    ),
    "mlp": (
        "512 MLPs, likewise",
        functools.partial(lower_steps, **{**_CNNS, "model": "mlp", "ensemble_size": 512}),
    ),
    "resnet50": (
        "8 ResNet-50s in bfloat16, one step of batches of 32 of 224 x 224",
        functools.partial(
            lower_steps, model="resnet50", dtype="bfloat16", count=32, batch_size=32, **_LARGE
        ),
    ),
    "vit": (
        "8 ViT-L, split over devices, one step of batches of 64 of 224 x 224",
        functools.partial(
            lower_steps,
            model="vit",
            count=64,
            batch_size=64,
            split_members=True,
            **_LARGE | {"vit.size": "L"},
        ),
    ),
    "predict": (
        "256 images by 64 CNNs",
        functools.partial(lower_steps, predicts=True, **{**_CNNS, "batch_size": 256}),
    ),
    "hmc": (
        "8 chains of logistic regression on 60,000 images, 10 draws of 10 steps",
        functools.partial(lower_steps, count=60_000, **_HMC, **_TEN_STEPS),
    ),
    "hmc_cnn": (
        "8 chains of CNNs on 1,257 digits of 8 x 8, 10 draws of 50 steps",
        functools.partial(lower_steps, count=1_797, **{**_CNN_CHAINS, "train_on_all": False}),
    ),
    "nuts": (
        "`hmc` by NUTS",
        functools.partial(lower_steps, count=60_000, **{**_HMC, "method": "nuts"}),
    ),
    "mclmc": (
        "8 chains of an MLP on 4,000 images by MCLMC, 10 draws",
        functools.partial(lower_steps, count=4_000, method="mclmc", model="mlp", **_CHAINS),
    ),
    "sghmc": (
        "64 chains of CNNs by SGHMC, batches of 128 of 60,000 images, 8 steps",
        functools.partial(
            lower_steps,
            model="cnn",
            batch_size=128,
            count=60_000,
            steps=8,
            **{**_CHAINS, **_SGHMC, "num_chains": 64},
        ),
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
            lower_steps, dataset="watches:6040x3706", num_factors=20, **_FACTORS, **_TEN_STEPS
        ),
    ),
}
"""The programs of docs/scaling.md: what they are, and how they are lowered."""

SMALL: Mapping[str, Case] = {
    "cnn": functools.partial(lower_steps, **{**_CNNS, **_FEW}),
    "cnn_independent": functools.partial(lower_steps, shuffle="independent", **{**_CNNS, **_FEW}),
    "mlp": functools.partial(lower_steps, **{**_CNNS, **_FEW, "model": "mlp"}),
    "predict": functools.partial(lower_steps, predicts=True, **{**_CNNS, **_FEW}),
    "hmc": functools.partial(lower_steps, count=100, **_HMC),
    "hmc_cnn": functools.partial(lower_steps, count=700, **_CNN_CHAINS),
    "mclmc": functools.partial(lower_steps, count=100, **{**_HMC, "method": "mclmc"}),
    "sghmc": functools.partial(
        lower_steps, model="mlp", batch_size=8, count=10_000, steps=2, **_CHAINS, **_SGHMC
    ),
    "free_nuts": functools.partial(free_chains, method="nuts", num_chains=16),
    "free_mclmc": functools.partial(free_chains, method="mclmc", num_chains=16),
    "walks": lambda devices: walks(devices, 1024 * len(devices)),
    "factorisation": functools.partial(
        lower_steps, dataset="watches:40x24", num_factors=2, **_FACTORS
    ),
    # Which are too large, and are refused.
    "many_cnns": functools.partial(lower_steps, **{**_CNNS, **_FEW, "ensemble_size": 40_000}),
}
"""The same, so small that all are compiled within two minutes."""
