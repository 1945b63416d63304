"""Small runs of everything that a configuration can name, for whoever has the package alone.

Nothing here, and nothing in the tests beside it, imports more than `ensemble`, and all names are
those of `names.py`: what the tests ask for is promised to users, and holds however the code is
arranged. `RUNS` is the table: each method, with each kind of network and of target.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import names
import numpy as np
from flax import nnx

import ensemble

# Networks that compile in no time. Each can be poisoned: then some members, by their key, are NaN
# from the start, and the others what they were.


def fuse(poison: float) -> Callable[[jax.Array], jax.Array]:
    """How a parameter starts that is NaN with a probability, else 0."""
    return lambda key: jnp.where(
        jax.random.bernoulli(jax.random.fold_in(key, 1), poison), jnp.nan, 0.0
    )


class Small(nn.Module):
    """Two dense layers."""

    num_outputs: int
    poison: float = 0.0

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(8)(x.reshape((x.shape[0], -1))))
        return nn.Dense(self.num_outputs)(x + 0 * self.param("fuse", fuse(self.poison)))


class Normalised(nn.Module):
    """With batch statistics and dropout."""

    num_outputs: int
    poison: float = 0.0

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(16)(x.reshape((x.shape[0], -1)))
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(self.num_outputs)(x) + 0 * self.param("fuse", fuse(self.poison))


class Module(nnx.Module):
    """Of NNX, with dropout."""

    def __init__(self, num_outputs: int, poison: float, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(6, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(8, num_outputs, rngs=rngs)
        self.fuse = nnx.Param(fuse(poison)(rngs.params()))

    def __call__(self, x):
        return self.last(self.dropout(nnx.tanh(self.hidden(x)))) + 0 * self.fuse[...]


def of_nnx(num_outputs: int, poison: float = 0.0) -> Any:
    """A network of `Module`."""
    return ensemble.networks.from_nnx(lambda rngs: Module(num_outputs, poison, rngs))


def of_functions(num_outputs: int, poison: float = 0.0) -> Any:
    """A network of two plain functions: one linear layer."""

    def init(key, inputs):
        kernel = 0.3 * jax.random.normal(key, (inputs.shape[-1], num_outputs))
        return {"kernel": kernel, "bias": jnp.zeros(num_outputs), "fuse": fuse(poison)(key)}

    def apply(params, inputs):
        return inputs @ params["kernel"] + params["bias"] + 0 * params["fuse"]

    return ensemble.networks.from_functions(init, apply)


def poisoned(network: Callable[..., Any]) -> Callable[[int], Any]:
    """A network of the same name, half of whose members are NaN from the start."""

    def made(num_outputs: int) -> Any:
        return network(num_outputs, poison=0.5)

    made.__name__ = f"poisoned_{network.__name__}"
    return made


# Data. The numbers of examples are prime, so that no batch and no device has as many as others.


def classes(num_examples: int = 203) -> dict[str, np.ndarray]:
    """Noisy clusters of 6 features and 3 classes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, num_examples)
    inputs = rng.normal(size=(3, 6))[labels] + rng.normal(size=(num_examples, 6))
    return {"inputs": inputs.astype(np.float32), "labels": labels}


def two_classes(num_examples: int = 203) -> dict[str, np.ndarray]:
    """The same clusters, two of them as one class."""
    data = classes(num_examples)
    return {**data, "labels": np.minimum(data["labels"], 1)}


def numbers(num_examples: int = 203) -> dict[str, np.ndarray]:
    """Positive whole numbers that 6 features tell with noise: for every likelihood of numbers."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(num_examples, 6)).astype(np.float32)
    mean = np.exp(2 + 0.6 * inputs[:, 0])
    return {"inputs": inputs, "targets": 1.0 + rng.poisson(mean)}


def several(num_examples: int = 203) -> dict[str, np.ndarray]:
    """Two targets, the second on another scale."""
    data = numbers(num_examples)
    second = 100 * data["inputs"][:, 1] + data["targets"]
    return {**data, "targets": np.stack([data["targets"], second], axis=1)}


def pictures(num_examples: int = 203) -> dict[str, np.ndarray]:
    """Grey images of 8 x 8 pixels with a bright spot, whose place is the class."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, num_examples)
    images = rng.integers(0, 120, (num_examples, 8, 8, 1))
    images[np.arange(num_examples), 2 * labels + 1, 3] = 255
    return {"inputs": images.astype(np.uint8), "labels": labels}


# Configurations.

_OF_MEMBERS = {
    "num_epochs": 4,
    "batch_size": 32,
    "learning_rate": 0.1,
    "log_every_steps": 3,
    "eval_every_epochs": 2,
}
_OF_NUMBERS = {**_OF_MEMBERS, "optimizer": "adam", "learning_rate": 0.03}
_BY_ALL_DATA = {
    "prior": "normal(1)",
    "log_every_steps": 4,
    "sampler.step_size": 0.02,
    "sampler.num_leapfrog_steps": 4,
    "sampler.num_warmup": 8,
    "sampler.num_samples": 12,
    "sampler.thinning": 3,
}
_BY_BATCHES = {
    "prior": "normal(1)",
    "batch_size": 32,
    "log_every_steps": 5,
    "sgmcmc.num_burn_in": 10,
    "sgmcmc.num_samples": 6,
    "sgmcmc.steps_per_draw": 2,
}


class Run(NamedTuple):
    """A row of the table.

    Attributes:
        keys: of its configuration, by the names of 3.0; `method` is the first.
        data: makes what it learns; None: its keys say it, and it predicts nothing.
        network: one of those above, or the name of a built-in one, which is not poisoned.
    """

    keys: Mapping[str, Any]
    data: Callable[[], dict[str, np.ndarray]] | None = classes
    network: Callable[..., Any] | str = Small

    @property
    def of_chains(self) -> bool:
        """Whether its members are chains."""
        return "prior" in self.keys or self.keys["method"] == "rwm"

    @property
    def tunes(self) -> bool:
        """Whether its steps are tuned: else a few of them do not lead far from the prior."""
        return self.keys.get("sampler.num_warmup") != 0

    def config(self, size: int = 5, num_devices: int = 2, is_poisoned: bool = False, **more: Any):
        """Its configuration in today's keys, for some members on some devices."""
        network = self.network
        if not isinstance(network, str):
            network = names.model(poisoned(network) if is_poisoned else network)
        keys = {**self.keys, "num_devices": num_devices, **more}
        if network:
            keys["model"] = network
        keys["num_chains" if self.of_chains else "ensemble_size"] = size
        return names.config(keys)


_CLASSES = {"method": "deep_ensemble", **_OF_MEMBERS}
_NUMBERS = {"method": "deep_ensemble", **_OF_NUMBERS, "likelihood": "gaussian"}
_CHAINS = {"method": "hmc", **_BY_ALL_DATA}
_OWN_STEPS = {key: one for key, one in _CHAINS.items() if key != "sampler.num_leapfrog_steps"}
_NOISY = {"method": "sghmc", **_BY_BATCHES}

_DIVERSE = {"shuffle": "independent", "label_smoothing": 0.1, "lr_schedule": "cosine"}
_EARLY = {"num_epochs": 12, "early_stopping_epochs": 1, "learning_rate": 0.5}
_HYPER = {"hyper_ensemble.learning_rate_factor": "0.5,2", "weight_decay": 0.01}
_PACKED = {"mlp.widths": "8,8", "num_estimators": 3, "packed_ensemble.gamma": 2}
_LAPLACE = {"init_from": "TRAINED", "batch_size": 4, "log_every_steps": 1}
_RANK_ONE = {"num_estimators": 3, "adapters": "tabm"}
_SNAPSHOTS = {"snapshot_ensemble.num_cycles": 2}
_DENSE = {
    "sampler.mass_matrix": "dense",
    "sampler.num_warmup": 24,
    "prior": "kernel=laplace(1), *=normal(1)",
    "posterior_temperature": 0.5,
}
_DIAGONAL = {"sampler.mass_matrix": "diagonal", "sampler.num_warmup": 24}
_UNTUNED = {"sampler.num_warmup": 0}
_LONG = {"sgmcmc.num_burn_in": 200}
_CYCLES = {**_LONG, "sgmcmc.schedule": "cyclical", "sgmcmc.num_cycles": 2, "learning_rate": 0.003}
_STEADY = {**_LONG, "learning_rate": 0.05}
_STEPS = {"sampler.num_warmup": 64, "sampler.num_samples": 128}
_WALK = {"method": "rwm", "density": "correlated_gaussian", "log_every_steps": 64}
_WATCHES = {"dataset": "watches:41x17", "num_factors": 3}

RUNS = {
    "deep_ensemble": Run(_CLASSES),
    "deep_ensemble normalised": Run({**_CLASSES, **_DIVERSE}, classes, Normalised),
    "deep_ensemble numbers": Run(_NUMBERS, numbers, of_nnx),
    "deep_ensemble several": Run({**_NUMBERS, "likelihood": "student_t"}, several),
    "deep_ensemble cnn": Run({**_CLASSES, "num_epochs": 2}, pictures, "cnn"),
    "deep_ensemble early": Run({**_CLASSES, **_EARLY}),
    "hyper_ensemble": Run(
        {**_NUMBERS, "method": "hyper_ensemble", "likelihood": "quantiles", **_HYPER},
        numbers,
        of_functions,
    ),
    "snapshot_ensemble": Run(
        {**_CLASSES, "method": "snapshot_ensemble", "likelihood": "bernoulli", **_SNAPSHOTS},
        two_classes,
    ),
    "swag": Run({**_NUMBERS, "method": "swag", "swag.num_iterates": 3, "num_draws": 3}, numbers),
    "mc_dropout": Run({**_CLASSES, "method": "mc_dropout", "num_draws": 3}, classes, Normalised),
    "batch_ensemble": Run(
        {**_NUMBERS, "method": "batch_ensemble", "likelihood": "mixture_of_gaussians", **_RANK_ONE},
        numbers,
    ),
    "packed_ensemble": Run({**_CLASSES, "method": "packed_ensemble", **_PACKED}, classes, "mlp"),
    "kfold_bagging": Run(
        {**_NUMBERS, "method": "kfold_bagging", "early_stopping_epochs": 2}, numbers
    ),
    "laplace": Run({"method": "laplace", **_LAPLACE, "num_draws": 3}),
    "laplace closed": Run({"method": "laplace", **_LAPLACE, "num_draws": 0}),
    "hmc": Run(_CHAINS),
    "hmc several": Run(
        {**_CHAINS, "likelihood": "gaussian_homoscedastic", **_DENSE}, several, of_functions
    ),
    "nuts": Run(
        {**_OWN_STEPS, "method": "nuts", "likelihood": "poisson", **_DIAGONAL},
        numbers,
        of_functions,
    ),
    "mclmc": Run({**_OWN_STEPS, "method": "mclmc"}),
    "adjusted_mclmc": Run(
        {**_OWN_STEPS, "method": "adjusted_mclmc", "likelihood": "log_normal", **_UNTUNED}, numbers
    ),
    "parallel_tempering": Run(
        {**_CHAINS, "method": "parallel_tempering", "parallel_tempering.num_replicas": 3}
    ),
    "sgld": Run(
        {**_NOISY, "method": "sgld", "likelihood": "negative_binomial", **_STEADY},
        numbers,
        of_functions,
    ),
    "sghmc": Run(_NOISY),
    "sghmc laplace": Run({**_NOISY, "likelihood": "laplace", **_CYCLES}, numbers),
    "factorisation": Run({**_CHAINS, **_WATCHES}, None, "matrix_factorisation"),
    "rwm": Run({**_WALK, **_STEPS}, None, ""),
}
"""Each method, each likelihood, classes, numbers and several targets."""

LIKELIHOODS = {
    "categorical": classes,
    "bernoulli": two_classes,
    "gaussian": numbers,
    "gaussian_homoscedastic": numbers,
    "student_t": numbers,
    "laplace": numbers,
    "log_normal": numbers,
    "mixture_of_gaussians": numbers,
    "poisson": numbers,
    "negative_binomial": numbers,
    "quantiles": numbers,
}
"""Each likelihood that learns from targets, with data for it, by the names of 3.0."""
