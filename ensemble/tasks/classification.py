"""The task of classification: its data, its network, its likelihood and its prior."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble.errors import UserError, in_one_line
from ensemble.network import Network, Traits, Variables, traits
from ensemble.priors import Prior, log_prior
from ensemble.source import Examples, Source
from ensemble.sources.batches import normalise
from ensemble.sources.dataset import Dataset


@dataclasses.dataclass(frozen=True)
class Classification:
    """A data set and the network that is to learn it.

    Attributes:
        dataset: the examples, by splits.
        network: from [N, *input_shape] to logits [N, C].
        priors: on the parameters, by `ensemble.priors.parse_prior`; empty: none.
    """

    dataset: Source
    network: Network
    priors: tuple[Prior, ...] = ()

    @property
    def num_train_examples(self) -> int:
        """N that the members learn from."""
        return self.dataset.sizes["train"]

    @property
    def sizes(self) -> Mapping[str, int]:
        """Examples of each split, `train` first."""
        return self.dataset.sizes

    def describe(self) -> dict[str, Any]:
        """Returns what a checkpoint says of what was learned, JSON-ready."""
        return describe(self.dataset)

    @functools.cached_property
    def traits(self) -> Traits:
        """What the network does beside mapping inputs to logits."""
        return traits(self.network, self.dataset.input_shape)

    def init_variables(self, rng_key: jax.Array) -> Variables:
        """Starts the variables of one network; the key is typed or raw."""
        return self.network.init(rng_key, jnp.ones((1, *self.dataset.input_shape)))

    def init_params(self, rng_key: jax.Array) -> Any:
        """Starts the parameters of one network as training does."""
        return self.init_variables(rng_key)["params"]

    def params_shapes(self) -> Any:
        """The shapes of one network's parameters."""
        return jax.eval_shape(self.init_params, jax.random.key(0))

    def prepare(self, inputs: jax.Array) -> jax.Array:
        """Normalises raw inputs [N, ...] on the device: what the network sees."""
        return normalise(inputs, self.dataset.shift, self.dataset.scale)

    def log_probs(self, variables: Any, inputs: jax.Array) -> jax.Array:
        """Returns log p(class | input) [N, C] float32 of one member for raw inputs [N, ...]."""
        logits, _ = self.network.apply(variables, self.prepare(inputs))
        return jax.nn.log_softmax(logits.astype(jnp.float32))

    def log_prior(self, params: Any) -> jax.Array:
        """Returns log p(params) up to a constant, nats; zero without a prior."""
        return log_prior(self.priors, params)


def check_model(task: Classification, name: str) -> None:
    """Refuses a network that cannot take the data, before anything is compiled.

    Raises:
        UserError: the network fails on inputs of this shape, or has other outputs than C logits.
    """
    dataset = task.dataset
    inputs = jax.ShapeDtypeStruct((2, *dataset.input_shape), dataset.input_dtype)

    def forward(rng_key: jax.Array, inputs: jax.Array) -> jax.Array:
        return task.log_probs(task.init_variables(rng_key), inputs)

    try:
        shape = jax.eval_shape(forward, jax.random.key(0), inputs).shape
    except Exception as error:  # A network is a program, and may raise anything.
        reason = in_one_line(error, 200)
        raise UserError(
            f"config.model={name!r} cannot take inputs of shape {dataset.input_shape} "
            f"({type(error).__name__}: {reason}); feature vectors and tiny images go to 'mlp'"
        ) from error
    if shape != (2, dataset.num_classes):
        raise UserError(
            f"config.model={name!r} maps 2 examples to {shape}; logits must be "
            f"(2, {dataset.num_classes})"
        )


def check_augmentation(config: ml_collections.FrozenConfigDict, task: Classification) -> None:
    """Refuses to augment what is no image, and to shift images out of sight.

    Raises:
        UserError: as said.
    """
    shape, shift = task.dataset.input_shape, config.augment.shift
    if (shift or config.augment.flip) and not task.dataset.has_pictures:
        raise UserError(
            f"config.augment is for images [H, W, C]; {task.dataset.name} has inputs of shape "
            f"{shape}: set augment.shift=0 and augment.flip=False"
        )
    if shift and shift >= min(shape[:2]):
        raise UserError(
            f"config.augment.shift={shift} pixels must be less than the {min(shape[:2])} of the "
            "images"
        )


def describe(dataset: Source) -> dict[str, Any]:
    """Returns what a program that predicts must know of a data set, JSON-ready."""
    return {
        "name": dataset.name,
        "num_classes": dataset.num_classes,
        "class_names": list(dataset.class_names or ()),
        "input_shape": list(dataset.input_shape),
        "dtype": dataset.input_dtype.name,
        "shift": np.asarray(dataset.shift).tolist(),
        "scale": np.asarray(dataset.scale).tolist(),
        "num_examples": dict(dataset.sizes),
        "fingerprint": dataset.fingerprint,
        "test_fingerprint": dataset.test_fingerprint,
    }


def described_dataset(description: Mapping[str, Any]) -> Source:
    """Returns a data set without examples, from what `describe` has kept of it."""
    shape = (0, *description["input_shape"])
    return Dataset(
        name=description["name"],
        splits={"train": Examples(np.zeros(shape, description["dtype"]), np.zeros(0, np.int32))},
        class_names=tuple(description["class_names"]),
        shift=np.asarray(description["shift"], np.float32),
        scale=np.asarray(description["scale"], np.float32),
    )
