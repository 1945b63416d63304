"""Small runs of everything that a configuration can name, for whoever has the package alone.

Nothing here, and nothing in the tests beside it, imports more than `ensemble`: what they ask for is
promised to users, and holds however the code is arranged.
"""

import atexit
import fcntl
import os
import pathlib
import tempfile

import flax.linen as nn
import numpy as np

import ensemble


@ensemble.networks.register("public_small")
class Small(nn.Module):
    """A network that compiles in no time."""

    num_outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_outputs)(nn.tanh(nn.Dense(8)(x.reshape((x.shape[0], -1)))))


def classes(num_examples: int = 203) -> dict[str, np.ndarray]:
    """Noisy clusters of 6 features and 3 classes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, num_examples)
    inputs = rng.normal(size=(3, 6))[labels] + rng.normal(size=(num_examples, 6))
    return {"inputs": inputs.astype(np.float32), "labels": labels}


def numbers(num_examples: int = 203) -> dict[str, np.ndarray]:
    """Positive whole numbers that 6 features tell with noise: for every likelihood of numbers."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(num_examples, 6)).astype(np.float32)
    mean = np.exp(2 + 0.6 * inputs[:, 0])
    return {"inputs": inputs, "targets": 1.0 + rng.poisson(mean)}


MEMBERS = {
    "model": "public_small",
    "ensemble_size": 3,
    "num_devices": 2,
    "num_epochs": 6,
    "batch_size": 32,
    "learning_rate": 0.1,
    "log_every_steps": 5,
    "eval_every_epochs": 3,
}

_CHAINS = {
    "model": "public_small",
    "prior": "normal(1)",
    "num_chains": 2,
    "num_devices": 2,
    "log_every_steps": 10,
}
_BY_ALL_DATA = {
    **_CHAINS,
    "init_from": "prior",
    "sampler.step_size": 0.02,
    "sampler.num_warmup": 20,
    "sampler.num_samples": 20,
}
_BY_BATCHES = {
    **_CHAINS,
    "batch_size": 32,
    "sgmcmc.num_burn_in": 10,
    "sgmcmc.num_samples": 10,
    "sgmcmc.steps_per_draw": 2,
}

if "TESTS_TRAINED" not in os.environ:
    _folder = tempfile.TemporaryDirectory(prefix="trained_members_")
    atexit.register(_folder.cleanup)
    os.environ["TESTS_TRAINED"] = _folder.name
TRAINED = str(pathlib.Path(os.environ["TESTS_TRAINED"]) / "run")
"""The workdir of members that are trained, the same in all processes of a test run."""


def train_members() -> None:
    """Sees to it that there are some in `TRAINED`; one process at a time."""
    with open(pathlib.Path(TRAINED).with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(TRAINED):
            ensemble.train(MEMBERS, data=classes(), workdir=TRAINED, show_progress=False)


METHODS = {
    "sgd": {"method": "sgd", **MEMBERS},
    "snapshots": {"method": "snapshots", **MEMBERS, "snapshots.num_cycles": 2},
    "swag": {
        "method": "swag",
        **MEMBERS,
        "swag.num_iterates": 2,
        "swag.fraction": 0.5,
        "swag.num_draws": 3,
    },
    "mc_dropout": {
        "method": "mc_dropout",
        **MEMBERS,
        "model": "mlp",
        "mlp.widths": "16",
        "mlp.dropout": 0.2,
        "mc_dropout.num_passes": 3,
    },
    "batch_ensemble": {
        "method": "batch_ensemble",
        **MEMBERS,
        "batch_ensemble.num_estimators": 3,
        "batch_ensemble.adapters": "tabm",
    },
    "packed": {
        "method": "packed",
        **MEMBERS,
        "model": "mlp",
        "mlp.widths": "16,16",
        "packed.num_estimators": 3,
        "packed.gamma": 2,
    },
    "varied": {"method": "varied", **MEMBERS, "varied.learning_rate_factor": "0.5,2"},
    "cross_fitted": {"method": "cross_fitted", **MEMBERS, "cross_fitted.patience": 3},
    "laplace": {
        "method": "laplace",
        "init_from": TRAINED,
        **{key: MEMBERS[key] for key in ("model", "ensemble_size", "num_devices", "batch_size")},
        "log_every_steps": 1,
        "laplace.predictive": "draws",
        "laplace.num_draws": 3,
    },
    "hmc": {"method": "hmc", **_BY_ALL_DATA, "sampler.num_leapfrog_steps": 4},
    "nuts": {"method": "nuts", **_BY_ALL_DATA},
    "mclmc": {"method": "mclmc", **_BY_ALL_DATA},
    "adjusted_mclmc": {"method": "adjusted_mclmc", **_BY_ALL_DATA},
    "tempering": {"method": "tempering", **_BY_ALL_DATA},
    "sgld": {"method": "sgld", **_BY_BATCHES},
    "sghmc": {"method": "sghmc", **_BY_BATCHES},
}
"""Each method that learns examples, with the keys that it has."""


def two_classes(num_examples: int = 203) -> dict[str, np.ndarray]:
    """The same clusters, two of them as one class."""
    data = classes(num_examples)
    return {**data, "labels": np.minimum(data["labels"], 1)}


LIKELIHOODS = {
    "categorical": classes,
    "bernoulli": two_classes,
    "gaussian": numbers,
    "gaussian_shared": numbers,
    "student_t": numbers,
    "laplace": numbers,
    "log_normal": numbers,
    "mixture_of_gaussians": numbers,
    "poisson": numbers,
    "negative_binomial": numbers,
    "quantiles": numbers,
}
"""Each likelihood that learns from targets, with data for it."""
