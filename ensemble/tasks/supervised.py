"""The supervised task: a data set, a network, a likelihood and a prior."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.sharding import Mesh

from ensemble import likelihoods, networks, pytrees
from ensemble.config import Config, settings
from ensemble.data.batches import normalise
from ensemble.data.catalogue import load, models_of
from ensemble.data.dataset import with_quantiles, with_robust_scaling
from ensemble.data.image_form import parse_size
from ensemble.data.labels import class_weights, weights_in_batches
from ensemble.data.source import Examples, Request, Source
from ensemble.errors import InputError, in_own_code, logger, shown
from ensemble.fitted import LINEAR, WIDTH
from ensemble.likelihoods.classes import Categorical
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.network import Network, Traits, Variables, widened
from ensemble.networks import FLOAT32, facts
from ensemble.networks.linen import LogisticRegression
from ensemble.notes import note
from ensemble.priors import Prior, log_prior, parse_prior, sample_prior
from ensemble.pytrees import ByName
from ensemble.task import Aux, DrawSections, OwnLogLikelihood

if TYPE_CHECKING:
    from ensemble.data.data_forms import Given


OWN = "likelihood"
"""The entry of `params` that holds the likelihood's own parameters, where it has any."""
_SCALES = ("shift", "scale", "squash", "quantiles")
"""Arrays of a data set that normalise inputs."""
_OWN_STREAM = 2**32 - 2  # What a member's key is folded with to start them.


@dataclass(frozen=True)
class Supervised:
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
    def sizes(self) -> Any:
        """Examples of each split, `train` first."""
        return self.dataset.sizes

    def describe(self) -> ByName:
        """Returns what a checkpoint says of what was learned, JSON-ready.

        A program that predicts knows the inputs by it. Another `fingerprint` is another task, and
        so is another `teacher`, which only some have.
        """
        dataset = self.dataset
        arrays = {name: getattr(dataset, name) for name in _SCALES}
        return {
            "name": dataset.name,
            "input_shape": list(dataset.input_shape),
            "dtype": dataset.input_dtype.name,
            **{name: np.asarray(one).tolist() for name, one in arrays.items() if one is not None},
            "num_examples": dict(dataset.sizes),
            "fingerprint": dataset.fingerprint,
            "test_fingerprint": dataset.test_fingerprint,
            **({"table": dataset.table.content} if dataset.table else {}),
            **self.likelihood.to_dict(),
        }

    @property
    def num_estimators(self) -> int:
        """K, networks that a member consists of where it learns: 1, unless a method has made more.

        Above 1, `predict` and `Aux.predicted` are [B, K, ...].
        """
        return 1

    def draw_report(self, mesh: Mesh) -> DrawSections | None:
        """What the report says of a sample of the posterior beside scores.

        Args:
            mesh: of the devices; all processes call it.
        """
        return None

    def without_examples(self) -> "Supervised":
        """The same task for predictions alone."""
        dataset = described_dataset(self.describe())
        return Supervised(dataset, self.network, self.likelihood)

    # Parameters.

    @cached_property
    def traits(self) -> Traits:
        """What the network does beside mapping inputs to outputs."""
        return facts.traits(self.network, self.dataset.input_shape)

    @cached_property
    def output_layer(self) -> ByName | None:
        """The dense layer that makes the outputs, as of `facts.output_layer`."""
        return facts.output_layer(self.network, self.dataset.input_shape)

    @cached_property
    def _has_own(self) -> bool:
        """Whether the likelihood has parameters of its own."""
        return bool(jax.eval_shape(self.likelihood.init, jax.eval_shape(random.key, 0)))

    def init_variables(self, rng_key: Array) -> Variables:
        """Starts the variables of one network and of the likelihood; the key is typed or raw."""
        variables = self.network.init(rng_key, jnp.ones((1, *self.dataset.input_shape)))
        if WIDTH in self.beside:
            variables = {**variables, WIDTH: {"factor": jnp.ones(())}}
        if LINEAR in self.beside:
            shape = math.prod(self.dataset.input_shape), self.likelihood.num_outputs
            linear = {"kernel": jnp.zeros(shape), "bias": jnp.zeros(shape[1:])}
            variables = {**variables, LINEAR: linear}
        if self._has_own:
            own = self.likelihood.init(random.fold_in(rng_key, _OWN_STREAM))
            variables = {**variables, "params": {**variables["params"], OWN: own}}
        return variables

    def params_shapes(self) -> Any:
        """The shapes of one network's parameters."""
        return jax.eval_shape(self.init_variables, random.key(0))["params"]

    def log_prior(self, params: Any) -> Array:
        """Returns log p(params) up to a constant, nats; zero without a prior."""
        return log_prior(self.priors, params)

    def sample_prior(self, rng_key: Array) -> Any:
        """Draws the parameters of one network from the prior.

        Raises:
            InputError: there is no prior.
        """
        return sample_prior(rng_key, self.priors, self.params_shapes())

    # The likelihood.

    def prepare(self, inputs: Array) -> Array:
        """Normalises raw inputs [N, ...] on the device: what the network sees."""
        if getattr(self.network, "takes_raw_inputs", False):
            return inputs.astype(jnp.float32)
        return normalise(inputs, self.dataset.shift, self.dataset.scale, self.dataset.squash)

    def outputs(
        self,
        variables: Variables,
        inputs: Array,
        train: bool = False,
        rng_key: Array | None = None,
    ) -> tuple[Array, ByName, Variables]:
        """Runs the network.

        Args:
            variables: of one member.
            inputs: [B, ...], prepared.
            train: as of `Network.apply`.
            rng_key: as of `Network.apply`.

        Returns:
            Outputs [B, K], the likelihood's own parameters, and the network's state.
        """
        own: ByName = {}
        if self._has_own:
            own = variables["params"][OWN]
            variables = {**variables, "params": pytrees.without(variables["params"], OWN)}
        fitted = {name: variables[name] for name in (LINEAR, WIDTH) if name in variables}
        own_variables = pytrees.without(variables, *fitted)
        outputs, state = self.network.apply(own_variables, inputs, train, rng_key)
        outputs = widened(outputs)
        if linear := fitted.get(LINEAR):
            flat = inputs.reshape((inputs.shape[0], -1))  # Where it is exported, any number.
            outputs += jnp.matmul(flat, linear["kernel"], precision="highest") + linear["bias"]
        return outputs, own, {**state, **fitted}

    def log_likelihood(
        self,
        variables: Variables,
        inputs: Array,
        targets: Array,
        train: bool = False,
        rng_key: Array | None = None,
    ) -> tuple[Array, Aux]:
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

    def predict(self, variables: Variables, inputs: Array, rng_key: Array | None = None) -> ByName:
        """The predictive distribution of one member for raw inputs [N, ...].

        With a key the network draws its noise once, for all inputs together: what is said of one
        does not depend on those beside it.
        """
        seen = Supervised.prepare(self, inputs)  # A student's training sees more of them.
        if rng_key is None:
            outputs, own, _ = self.outputs(variables, seen)
        else:
            own = variables["params"][OWN] if self._has_own else {}
            outputs = jax.vmap(
                lambda one: self.outputs(variables, one[None], rng_key=rng_key)[0][0]
            )(seen)
        predicted = self.likelihood.predict(own, outputs)
        if WIDTH in variables and self.likelihood.can_be_tempered:
            predicted = self.likelihood.tempered(predicted, variables[WIDTH]["factor"])
        return predicted

    def why_no_noise(self) -> str:
        """Why the network's predictions with a key have no noise, or more than that."""
        traits = self.traits
        if not traits.is_random:
            return "draws no noise"
        if traits.has_state or facts.has_same_noise(self.network, self.dataset.input_shape):
            return ""
        return "uses its switch for training for more than Dropout"

    def check_inputs(self, inputs: np.ndarray, params: Any) -> None:
        """Refuses what the network refuses, if it looks at inputs at all."""
        if hasattr(self.network, "check_inputs"):
            self.network.check_inputs(inputs, params)

    # Multinomial logistic regression.

    @cached_property
    def is_softmax_regression(self) -> bool:
        """Whether it is that: a softmax of one dense layer, whose curvature is known."""
        module = getattr(self.network, "module", None)
        return type(self.likelihood) is Categorical and isinstance(module, LogisticRegression)

    def own_log_likelihood(self, split: Examples, mesh: Mesh) -> OwnLogLikelihood | None:
        """A faster sum of `log_likelihood` over a split: that of logistic regression.

        Args:
            split: the N examples.
            mesh: of the devices, with the axes of `ensemble.sharding.mesh`.
        """
        if not self.is_softmax_regression:
            return None
        from ensemble.tasks import linear_likelihood  # Of logistic regression alone.

        return OwnLogLikelihood(
            place=lambda: linear_likelihood.place_blocks(self.dataset, split, mesh),
            value_and_grad=linear_likelihood.make_value_and_grad(mesh),
            parts="examples",
            num_parts=len(split.targets),
        )


def create(config: Config, data: "Given | None") -> Supervised:
    """Makes the task of a run.

    Args:
        config: of the run.
        data: what a program has handed over instead of `config.dataset`.

    Raises:
        InputError: the data cannot be had, or the network or the likelihood do not suit them.
    """
    dataset = load_source(config, data)
    likelihood = _corrected(make_likelihood(dataset, config), dataset, config)
    network = create_network(config, likelihood, dataset.quantiles)
    task = Supervised(dataset, network, likelihood, parse_prior(config.prior))
    check_network(task, config)
    return task


def _corrected(likelihood, dataset: Source, config: Config):
    """The likelihood, whose predictions are corrected for the class weights of a run."""
    spec = config.get("class_weights", "none")
    if spec == "none" or not dataset.class_names:
        return likelihood
    if smoothing := config.get("label_smoothing"):
        note(
            f"Probabilities are not corrected for config.class_weights={spec!r}, because "
            f"config.label_smoothing={smoothing} changes them too: those of rare classes are too "
            "high. Set one of the two."
        )
        return likelihood
    labels = dataset.targets("train")
    weights = class_weights(spec, labels, len(dataset.class_names))
    weights = weights_in_batches(weights, labels, dataset.train_weights, config.batch_size)
    return type(likelihood)(likelihood.class_names, weights)


def restore(config: ByName, description: ByName, params: Any) -> Supervised:
    """Makes the task of a workdir, to predict with.

    Args:
        config: of the run.
        description: of `Supervised.describe`.
        params: of the members [M, ...].

    Raises:
        InputError: the network cannot be loaded, or has other parameters.
    """
    likelihood = likelihoods.from_dict(config["likelihood"], description)
    dataset = described_dataset(description)
    network = create_network(config, likelihood, dataset.quantiles)
    task = Supervised(dataset, network, likelihood)
    what = f"config.model={config['model']!r}, with inputs {dataset.input_shape},"
    remedy = "give the network and the config file of the run"
    try:
        expected = task.params_shapes()
    except Exception as error:  # A network is a program, and may raise anything.
        raise InputError(f"{what} failed {in_own_code(error)}; {remedy}") from None
    found = jax.tree.map(lambda leaf: (leaf.shape[1:], leaf.dtype.kind), params)
    if found != jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.kind), expected):
        raise InputError(f"{what} has other parameters than the checkpoint or the draws; {remedy}")
    return task


def create_network(
    config: ByName, likelihood: Likelihood, quantiles: np.ndarray | None = None
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
    packing = None
    if packed := config.get("packed_ensemble"):  # Other methods have no such keys.
        packing = networks.Packing(config["num_estimators"], packed["alpha"], packed["gamma"])
    own = settings("model", config)
    return networks.create(config["model"], likelihood.num_outputs, own, dtype, quantiles, packing)


def check_network(task: Supervised, config: ByName) -> None:
    """Refuses a network that cannot take the data, before training is compiled.

    Raises:
        InputError: The network fails on inputs of this shape, or has other outputs than K numbers,
            or probabilities where logits are meant, or does not compute in the wanted dtype.
    """
    dataset, likelihood = task.dataset, task.likelihood
    what = f"config.model={config['model']!r}"
    inputs = jax.ShapeDtypeStruct((2, *dataset.input_shape), dataset.input_dtype)
    expected = (2, likelihood.num_outputs)

    try:
        shape = jax.eval_shape(
            lambda key, inputs: task.outputs(task.init_variables(key), task.prepare(inputs))[0],
            random.key(0),
            inputs,
        ).shape
        if shape == expected:
            _ = task.traits  # A step of training, too.
    except InputError:
        raise
    except Exception as error:  # A network is a program, and may raise anything.
        raise InputError(
            f"{what} failed {in_own_code(error)} on inputs of shape {dataset.input_shape}: "
            "examples are vectors [F], for networks such as 'mlp', or images [H, W, C], channels "
            "last; noise and moving statistics are for `train` alone"
        ) from error
    if shape != expected:
        raise InputError(
            f"{what} maps 2 examples to {shape}; outputs of config.likelihood={likelihood.name!r} "
            f"must be {expected}: flatten each example, as by x.reshape((len(x), -1)), and let the "
            f"last layer have as many units as the factory is given, {expected[1]}"
        )
    if not likelihood.takes_logits or pytrees.size(task.params_shapes()) > _MAX_COMPUTED:
        return
    if activation := facts.last_activation(facts.Called(task.network, dataset.input_shape)):
        raise InputError(
            f"{what} ends in a {activation}, and config.likelihood={likelihood.name!r} takes "
            f"logits, to which it applies its own: leave the {activation} out"
        )


_MAX_COMPUTED = 1 << 26
"""Parameters, above which a network is not computed before training."""


# Data.


def load_source(config: Config, data: "Given | None") -> Source:
    """Loads what a run learns from.

    Args:
        config: of the run.
        data: what a program has handed over instead of `config.dataset`.

    Raises:
        InputError: the data cannot be had, or not every network can learn them.
    """
    request = request_of(config, config.data_dir or None)
    dataset = load(config.dataset, request) if data is None else data.source(request)
    if dataset.table is not None:
        lines = [f"What was made of the columns of {shown(dataset.name)}:", *dataset.table.lines()]
        logger.info("%s", "\n  ".join(lines), extra={"stays": True})
    if config.get("scaler") == "robust":
        dataset = with_robust_scaling(dataset)
    if networks.takes_quantiles(settings("model", config)):
        dataset = with_quantiles(dataset)
    models = models_of(config.dataset) if data is None else ()
    if models and config.model not in models:
        raise InputError(
            f"config.model={config.model!r} must be {' or '.join(models)} for {dataset.name}"
        )
    return dataset


def request_of(config: ByName, data_dir: str | None) -> Request:
    """How a configuration, nested or not, asks for data; some tasks have no keys of tables.

    Args:
        config: of the run.
        data_dir: where TFDS sets lie; None for where they lie by default.
    """
    kind = "labels" if likelihoods.named(config["likelihood"]).takes_logits else "targets"
    # Members of folds are judged by the rows that they hold out.
    stops_early = config.get("early_stopping_epochs") and "kfold_bagging" not in config
    return Request(
        data_dir,
        config["seed"],
        not config["train_on_all"],
        bool(stops_early),
        size=parse_size(config.get("resize")),
        target=config.get("target") or "",
        column_types=config.get("column_types"),
        split_by=config.get("split_by") or "",
        na_values=config.get("na_values"),
        kind=kind,
    )


def make_likelihood(dataset: Source, config: ByName) -> Likelihood:
    """Makes the likelihood of a data set's targets.

    Args:
        dataset: with training examples.
        config: of the run.

    Raises:
        InputError: the name is unknown, or the targets are none that the likelihood can have.
    """
    name, targets = config["likelihood"], dataset.targets("train")
    own = settings("likelihood", config)
    found = likelihoods.from_data(name, targets, dataset.class_names or (), **own)
    for split in dataset.sizes:
        likelihoods.named(name).check_targets(dataset.targets(split), split)
    return found


def described_dataset(description: Any) -> Source:
    """Returns a data set without examples, from what a task's `describe` has kept of it."""
    inputs = np.zeros((0, *description["input_shape"]), description["dtype"])
    scales: Any = {k: np.asarray(description[k], np.float32) for k in _SCALES if k in description}
    table = None
    if "table" in description:
        from ensemble.data.tables.table import TableForm  # Most data are no tables.

        table = TableForm(description["table"])
    return Source(
        name=description["name"],
        splits={"train": Examples(inputs, np.zeros(0, np.int32))},
        class_names=tuple(description.get("class_names", ())) or None,
        table=table,
        **scales,
    )
