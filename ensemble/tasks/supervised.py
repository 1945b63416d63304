"""The supervised task: a data set, a network, a likelihood and a prior."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh

from ensemble import likelihoods, networks, pytrees
from ensemble.config import settings
from ensemble.data.batches import normalise
from ensemble.data.labels import class_weights, weights_in_batches
from ensemble.data.source import Examples, Source
from ensemble.errors import InputError, in_own_code
from ensemble.fitted import LINEAR, WIDTH
from ensemble.likelihoods.classes import Categorical
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.network import Network, Traits, Variables, widened
from ensemble.networks import FLOAT32, facts
from ensemble.networks.logistic_regression import LogisticRegression
from ensemble.notes import note
from ensemble.priors import Prior, log_prior, parse_prior, sample_prior
from ensemble.task import Aux, Defaults, OwnLogLikelihood, Scored
from ensemble.tasks.learning_data import (
    check_params,
    describe,
    described_dataset,
    load_source,
    make_likelihood,
)

if TYPE_CHECKING:
    from ensemble.data.data_forms import Given


OWN = "likelihood"
"""The entry of `params` that holds the likelihood's own parameters, where it has any."""
_OWN_STREAM = 2**32 - 2  # What a member's key is folded with to start them.


@dataclasses.dataclass(frozen=True)
class Supervised(Defaults):
    """A data set and the network that is to learn it.

    Attributes:
        dataset: the examples, by splits.
        network: from [N, *input_shape] to outputs [N, K].
        likelihood: of a target given the outputs.
        priors: on the parameters, by `ensemble.priors.parse_prior`; empty: none.
        beside: which of the collections `LINEAR` and `WIDTH` variables have beside the network's.
            They begin without effect; what predicts sees by itself that they are there.
    """

    dataset: Source
    network: Network
    likelihood: Likelihood
    priors: tuple[Prior, ...] = ()
    beside: tuple[str, ...] = ()

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
        return {**describe(self.dataset), **self.likelihood.to_dict()}

    def scored(self) -> Scored:
        """The data, as users have them, and the likelihood."""
        return Scored(self.dataset, self.likelihood)

    def without_examples(self) -> "Supervised":
        """The same task for predictions alone."""
        dataset = described_dataset(self.describe())
        return Supervised(dataset, self.network, self.likelihood)

    # Parameters.

    @functools.cached_property
    def traits(self) -> Traits:
        """What the network does beside mapping inputs to outputs."""
        return facts.traits(self.network, self.dataset.input_shape)

    @functools.cached_property
    def output_layer(self) -> dict[str, Any] | None:
        """The dense layer that makes the outputs, as of `facts.output_layer`."""
        return facts.output_layer(self.network, self.dataset.input_shape)

    @functools.cached_property
    def _has_own(self) -> bool:
        """Whether the likelihood has parameters of its own."""
        return bool(jax.eval_shape(self.likelihood.init, jax.eval_shape(jax.random.key, 0)))

    def init_variables(self, rng_key: jax.Array) -> Variables:
        """Starts the variables of one network and of the likelihood; the key is typed or raw."""
        variables = self.network.init(rng_key, jnp.ones((1, *self.dataset.input_shape)))
        if WIDTH in self.beside:
            variables = {**variables, WIDTH: {"factor": jnp.ones(())}}
        if LINEAR in self.beside:
            shape = math.prod(self.dataset.input_shape), self.likelihood.num_outputs
            linear = {"kernel": jnp.zeros(shape), "bias": jnp.zeros(shape[1:])}
            variables = {**variables, LINEAR: linear}
        if not self._has_own:
            return variables
        params = variables["params"]
        if not isinstance(params, Mapping) or OWN in params:
            raise InputError(
                f"config.likelihood={self.likelihood.name!r} keeps parameters beside the network's "
                f"in params[{OWN!r}]; the network's must be a dict without this entry"
            )
        own = self.likelihood.init(jax.random.fold_in(rng_key, _OWN_STREAM))
        return {**variables, "params": {**params, OWN: own}}

    def params_shapes(self) -> Any:
        """The shapes of one network's parameters."""
        return jax.eval_shape(self.init_variables, jax.random.key(0))["params"]

    def log_prior(self, params: Any) -> jax.Array:
        """Returns log p(params) up to a constant, nats; zero without a prior."""
        return log_prior(self.priors, params)

    def sample_prior(self, rng_key: jax.Array) -> Any:
        """Draws the parameters of one network from the prior.

        Raises:
            InputError: there is no prior.
        """
        return sample_prior(rng_key, self.priors, self.params_shapes())

    # The likelihood.

    def prepare(self, inputs: jax.Array) -> jax.Array:
        """Normalises raw inputs [N, ...] on the device: what the network sees."""
        if getattr(self.network, "takes_raw_inputs", False):
            return inputs.astype(jnp.float32)
        return normalise(inputs, self.dataset.shift, self.dataset.scale, self.dataset.squash)

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
            own = variables["params"][OWN]
            variables = {**variables, "params": pytrees.without(variables["params"], OWN)}
        fitted = {name: variables[name] for name in (LINEAR, WIDTH) if name in variables}
        variables = pytrees.without(variables, *fitted)
        outputs, state = self.network.apply(variables, inputs, train, rng_key)
        outputs = widened(outputs)
        if LINEAR in fitted:
            flat = inputs.reshape((inputs.shape[0], -1))  # Where it is exported, any number.
            kernel = fitted[LINEAR]["kernel"]
            bias = fitted[LINEAR]["bias"]
            outputs += jnp.matmul(flat, kernel, precision=jax.lax.Precision.HIGHEST) + bias
        return outputs, own, {**state, **fitted}

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
        return log_prob, Aux(self.likelihood.predict(own, outputs), state, outputs)

    def predict(
        self, variables: Variables, inputs: jax.Array, rng_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """The predictive distribution of one member for raw inputs [N, ...].

        With a key the network draws its noise once, for all inputs together: what is said of one
        does not depend on those beside it.
        """
        seen = Supervised.prepare(self, inputs)  # A student's training sees more of them.
        if rng_key is None:
            outputs, own, _ = self.outputs(variables, seen)
        else:

            def of_one(one: jax.Array) -> jax.Array:
                return self.outputs(variables, one[None], rng_key=rng_key)[0][0]

            own = variables["params"][OWN] if self._has_own else {}
            outputs = jax.vmap(of_one)(seen)
        predicted = self.likelihood.predict(own, outputs)
        if WIDTH in variables and self.likelihood.can_be_tempered:
            predicted = self.likelihood.tempered(predicted, variables[WIDTH]["factor"])
        return predicted

    def why_no_noise(self) -> str:
        """Why the network's predictions with a key have no noise, or more than that."""
        if not self.traits.is_random:
            return "draws no noise"
        has_state = self.traits.has_state
        shape = self.dataset.input_shape
        if not has_state and not facts.has_same_noise(self.network, shape):
            return (
                "uses its switch for training for more than Dropout, so that its noise is not "
                "known without its training"
            )
        return ""

    def check_inputs(self, inputs: np.ndarray, params: Any) -> None:
        """Refuses what the network refuses, if it looks at inputs at all."""
        if hasattr(self.network, "check_inputs"):
            self.network.check_inputs(inputs, params)

    # Multinomial logistic regression.

    @functools.cached_property
    def is_softmax_regression(self) -> bool:
        """Whether it is that: a softmax of one dense layer, whose curvature is known."""
        module = getattr(self.network, "module", None)
        return type(self.likelihood) is Categorical and isinstance(module, LogisticRegression)

    def own_log_likelihood(self, split: Examples, mesh: Mesh) -> OwnLogLikelihood | None:
        """The fast gradient of logistic regression."""
        if not self.is_softmax_regression:
            return None
        from ensemble.tasks import linear_likelihood  # Of logistic regression alone.

        return OwnLogLikelihood(
            place=lambda: linear_likelihood.place_blocks(self.dataset, split, mesh),
            value_and_grad=linear_likelihood.make_value_and_grad(mesh),
            parts="examples",
            num_parts=len(split.targets),
        )


def create(config: ml_collections.FrozenConfigDict, data: "Given | None") -> Supervised:
    """Makes the task of a run.

    Args:
        config: of the run.
        data: what a program has handed over instead of `config.dataset`.

    Raises:
        InputError: the data cannot be had, or the network or the likelihood do not suit them.
    """
    dataset = load_source(config, data)
    likelihood = make_likelihood(dataset, config)
    likelihood = _corrected(likelihood, dataset, config)
    network = create_network(config, likelihood, dataset.quantiles)
    task = Supervised(dataset, network, likelihood, parse_prior(config.prior))
    check_network(task, config)
    return task


def _corrected(
    likelihood: Likelihood, dataset: Source, config: ml_collections.FrozenConfigDict
) -> Likelihood:
    """The likelihood, whose predictions are corrected for the class weights of a run."""
    spec = config.get("class_weights", "none")
    smoothing = config.get("label_smoothing", 0.0)
    if spec == "none" or not dataset.class_names:
        return likelihood
    if smoothing:
        note(
            f"Probabilities are not corrected for config.class_weights={spec!r}, because "
            f"config.label_smoothing={smoothing} changes them too: those of rare classes are too "
            "high. Set one of the two."
        )
        return likelihood
    classes: Any = likelihood  # As the data have classes.
    labels = dataset.targets("train")
    weights = class_weights(spec, labels, len(dataset.class_names))
    found: Likelihood = type(classes)(
        classes.class_names,
        weights_in_batches(weights, labels, dataset.train_weights, config.batch_size),
    )
    return found


def restore(config: Mapping[str, Any], description: Mapping[str, Any], params: Any) -> Supervised:
    """Makes the task of a workdir, to predict with.

    Args:
        config: of the run.
        description: of `Supervised.describe`.
        params: of the members [M, ...].

    Raises:
        InputError: the network cannot be loaded, or has other parameters.
    """
    likelihood = likelihoods.from_dict(config["likelihood"], description)
    quantiles = description.get("quantiles")
    network = create_network(config, likelihood, quantiles and np.asarray(quantiles, np.float32))
    task = Supervised(described_dataset(description), network, likelihood)
    try:
        expected = task.params_shapes()
    except Exception as error:  # A network is a program, and may raise anything.
        raise InputError(
            f"config.model={config['model']!r} cannot take the inputs {task.dataset.input_shape} "
            f"that the workdir speaks of: it failed {in_own_code(error)}; use the network of its "
            "run"
        ) from None
    check_params(params, expected, config, task)
    return task


def create_network(
    config: Mapping[str, Any], likelihood: Likelihood, quantiles: np.ndarray | None = None
) -> Network:
    """Makes the network that a configuration names, for the outputs that a likelihood needs.

    With the method `packed_ensemble` it is that of one estimator.

    Args:
        config: of the run.
        likelihood: of the targets.
        quantiles: of the inputs, `Source.quantiles`.

    Raises:
        InputError: it cannot be loaded, or does not take its settings.
    """
    dtype = config.get("dtype", FLOAT32)  # Samplers have no such key.
    packed = config.get("packed_ensemble")  # Other methods have no such keys.
    packing = None
    if packed is not None:
        packing = networks.Packing(config["num_estimators"], packed["alpha"], packed["gamma"])
    own = settings("model", config)
    return networks.create(config["model"], likelihood.num_outputs, own, dtype, quantiles, packing)


def check_network(task: Supervised, config: Mapping[str, Any]) -> None:
    """Refuses a network that cannot take the data, before training is compiled.

    One whose predictions of an example depend on the others of a batch is noted.

    Raises:
        InputError: The network fails on inputs of this shape, or has other outputs than K numbers,
            or probabilities where logits are meant, or does not compute in the wanted dtype.
    """
    dataset = task.dataset
    name = config["model"]
    kind = task.likelihood.name
    inputs = jax.ShapeDtypeStruct((2, *dataset.input_shape), dataset.input_dtype)
    expected = (2, task.likelihood.num_outputs)

    def forward(rng_key: jax.Array, inputs: jax.Array) -> jax.Array:
        return task.outputs(task.init_variables(rng_key), task.prepare(inputs))[0]

    try:
        shape = jax.eval_shape(forward, jax.random.key(0), inputs).shape
        if shape == expected:
            _ = task.traits  # A step of training, too.
    except InputError:
        raise
    except Exception as error:  # A network is a program, and may raise anything.
        raise InputError(
            f"config.model={name!r} failed {in_own_code(error)} on inputs of shape "
            f"{dataset.input_shape}: examples are vectors [F], for networks such as 'mlp', or "
            "images [H, W, C], channels last; noise and moving statistics are for `train` alone"
        ) from error
    if shape != expected:
        raise InputError(
            f"config.model={name!r} maps 2 examples to {shape}; outputs of config.likelihood="
            f"{kind!r} must be {expected}: flatten each example, as by x.reshape((len(x), -1)), "
            f"and let the last layer have as many units as the factory is given, {expected[1]}"
        )
    if pytrees.size(task.params_shapes()) > _MAX_COMPUTED:
        return
    call = facts.Called(task.network, dataset.input_shape)  # It is compiled once.
    if facts.mixes_examples(call):
        note(
            f"The network {name!r} mixes the examples of a batch, also where it predicts: what it "
            "says of one depends on the others, and on the number of devices. Let each layer leave "
            "the first axis alone; nn.BatchNorm normalises by statistics of training."
        )
    activation = facts.last_activation(call) if task.likelihood.takes_logits else ""
    if activation:
        raise InputError(
            f"config.model={name!r} ends in a {activation}, and config.likelihood={kind!r} takes "
            f"logits, to which it applies its own: leave the {activation} out"
        )


_MAX_COMPUTED = 1 << 26
"""Parameters, above which a network is not computed before training."""
