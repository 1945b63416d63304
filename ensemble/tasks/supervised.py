"""The supervised task: a data set, a network, a likelihood and a prior."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble import likelihoods
from ensemble.errors import UserError, in_one_line
from ensemble.likelihood import Likelihood
from ensemble.network import Network, Traits, Variables, traits
from ensemble.priors import Prior, log_prior
from ensemble.source import Examples, Source
from ensemble.sources.batches import normalise
from ensemble.sources.dataset import Dataset

OWN = "likelihood"
"""The entry of `params` that holds the likelihood's own parameters, where it has any."""
_OWN_STREAM = 2**32 - 2  # What a member's key is folded with to start them.


class Aux(NamedTuple):
    """What a forward pass leaves beside the log likelihood.

    Attributes:
        predicted: the predictive distribution, named arrays [B, ...].
        state: the network's collections beside `params`.
    """

    predicted: dict[str, jax.Array]
    state: Variables


@dataclasses.dataclass(frozen=True)
class Supervised:
    """A data set and the network that is to learn it.

    Attributes:
        dataset: the examples, by splits.
        network: from [N, *input_shape] to outputs [N, K].
        likelihood: of a target given the outputs.
        priors: on the parameters, by `ensemble.priors.parse_prior`; empty: none.
    """

    dataset: Source
    network: Network
    likelihood: Likelihood
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
        return {**describe(self.dataset), **self.likelihood.describe()}

    # Parameters.

    @functools.cached_property
    def traits(self) -> Traits:
        """What the network does beside mapping inputs to outputs."""
        return traits(self.network, self.dataset.input_shape)

    @functools.cached_property
    def _has_own(self) -> bool:
        """Whether the likelihood has parameters of its own."""
        return bool(jax.eval_shape(self.likelihood.init, jax.eval_shape(jax.random.key, 0)))

    def init_variables(self, rng_key: jax.Array) -> Variables:
        """Starts the variables of one network and of the likelihood; the key is typed or raw."""
        variables = self.network.init(rng_key, jnp.ones((1, *self.dataset.input_shape)))
        if not self._has_own:
            return variables
        params = variables["params"]
        if not isinstance(params, Mapping) or OWN in params:
            raise UserError(
                f"config.likelihood={self.likelihood.name!r} keeps parameters beside the network's "
                f"in params[{OWN!r}]; the network's must be a dict without this entry"
            )
        own = self.likelihood.init(jax.random.fold_in(rng_key, _OWN_STREAM))
        return {**variables, "params": {**params, OWN: own}}

    def init_params(self, rng_key: jax.Array) -> Any:
        """Starts the parameters of one network as training does."""
        return self.init_variables(rng_key)["params"]

    def params_shapes(self) -> Any:
        """The shapes of one network's parameters."""
        return jax.eval_shape(self.init_params, jax.random.key(0))

    def log_prior(self, params: Any) -> jax.Array:
        """Returns log p(params) up to a constant, nats; zero without a prior."""
        return log_prior(self.priors, params)

    # The likelihood.

    def prepare(self, inputs: jax.Array) -> jax.Array:
        """Normalises raw inputs [N, ...] on the device: what the network sees."""
        return normalise(inputs, self.dataset.shift, self.dataset.scale)

    def outputs(
        self,
        variables: Variables,
        inputs: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Mapping[str, Any], Variables]:
        """Runs the network.

        Args:
            variables: of one member.
            inputs: [B, ...], prepared.
            train: as of `Network.apply`.
            rng_key: as of `Network.apply`.

        Returns:
            Outputs [B, K], the likelihood's own parameters, and the network's state.
        """
        own: Mapping[str, Any] = {}
        if self._has_own:
            params = dict(variables["params"])
            own = params.pop(OWN)
            variables = {**variables, "params": params}
        outputs, state = self.network.apply(variables, inputs, train, rng_key)
        return outputs, own, state

    def log_likelihood(
        self,
        variables: Variables,
        inputs: jax.Array,
        targets: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Aux]:
        """Log p(target | input, variables) of one member.

        Args:
            variables: of the member.
            inputs: [B, ...], prepared.
            targets: [B].
            train: as of `Network.apply`.
            rng_key: as of `Network.apply`.

        Returns:
            Nats [B], for the caller to weight, mask and sum; and what else the pass leaves.
        """
        outputs, own, state = self.outputs(variables, inputs, train, rng_key)
        log_prob = self.likelihood.log_prob(own, outputs, targets)
        return log_prob, Aux(self.likelihood.predict(own, outputs), state)

    def predict(self, variables: Variables, inputs: jax.Array) -> dict[str, jax.Array]:
        """The predictive distribution of one member for raw inputs [N, ...]."""
        outputs, own, _ = self.outputs(variables, self.prepare(inputs))
        return self.likelihood.predict(own, outputs)


def make_likelihood(dataset: Source, name: str = "categorical") -> Likelihood:
    """Makes the likelihood of a data set's targets.

    Args:
        dataset: with training examples.
        name: of `ensemble.likelihoods`.

    Raises:
        UserError: the name is unknown, or the targets are none that the likelihood can have.
    """
    return likelihoods.named(name).of_data(dataset.targets("train"), dataset.class_names or ())


def classification(dataset: Source, network: Network, priors: tuple[Prior, ...] = ()) -> Supervised:
    """The task of learning classes: with the categorical likelihood."""
    return Supervised(dataset, network, make_likelihood(dataset), priors)


def check_network(task: Supervised, name: str) -> None:
    """Refuses a network that cannot take the data, before anything is compiled.

    Raises:
        UserError: the network fails on inputs of this shape, or has other outputs than K numbers.
    """
    dataset = task.dataset
    inputs = jax.ShapeDtypeStruct((2, *dataset.input_shape), dataset.input_dtype)

    def forward(rng_key: jax.Array, inputs: jax.Array) -> jax.Array:
        return task.outputs(task.init_variables(rng_key), task.prepare(inputs))[0]

    try:
        shape = jax.eval_shape(forward, jax.random.key(0), inputs).shape
    except UserError:
        raise
    except Exception as error:  # A network is a program, and may raise anything.
        reason = in_one_line(error, 200)
        raise UserError(
            f"config.model={name!r} cannot take inputs of shape {dataset.input_shape} "
            f"({type(error).__name__}: {reason}); feature vectors and tiny images go to 'mlp'"
        ) from error
    if shape != (2, task.likelihood.num_outputs):
        raise UserError(
            f"config.model={name!r} maps 2 examples to {shape}; outputs of "
            f"config.likelihood={task.likelihood.name!r} must be "
            f"(2, {task.likelihood.num_outputs})"
        )


def check_augmentation(config: ml_collections.FrozenConfigDict, task: Supervised) -> None:
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
    """Returns what a program that predicts must know of a data set's inputs, JSON-ready."""
    return {
        "name": dataset.name,
        "input_shape": list(dataset.input_shape),
        "dtype": dataset.input_dtype.name,
        "shift": np.asarray(dataset.shift).tolist(),
        "scale": np.asarray(dataset.scale).tolist(),
        "num_examples": dict(dataset.sizes),
        "fingerprint": dataset.fingerprint,
        "test_fingerprint": dataset.test_fingerprint,
    }


def described_dataset(description: Mapping[str, Any]) -> Source:
    """Returns a data set without examples, from what `Supervised.describe` has kept of it."""
    shape = (0, *description["input_shape"])
    return Dataset(
        name=description["name"],
        splits={"train": Examples(np.zeros(shape, description["dtype"]), np.zeros(0, np.int32))},
        class_names=tuple(description.get("class_names", ())) or None,
        shift=np.asarray(description["shift"], np.float32),
        scale=np.asarray(description["scale"], np.float32),
    )
