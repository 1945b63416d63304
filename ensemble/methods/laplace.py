"""Laplace approximations: a normal distribution around the parameters of trained members.

Its mean are a member's parameters, and its precision the curvature of the log likelihood there, by
Gauss and Newton, plus that of a normal prior (MacKay 1992; Daxberger et al. 2021,
arXiv:2106.14806). Predictions are those of the network linearised in its parameters (Immer et al.
2021, arXiv:2008.08400), of which the last layer is linear as it is. Nothing is trained: the steps
are batches of the training data, whose curvature is added up.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble import pytrees
from ensemble.config.builtin import MARGINAL, VALIDATION, is_file
from ensemble.errors import InputError
from ensemble.fitted import OWN as OF_METHOD
from ensemble.fitted import Fitted, OnDisk, Predict
from ensemble.methods import training
from ensemble.methods.descent import apart
from ensemble.methods.given_weights import check_number, run_of
from ensemble.methods.laplace_member import (
    Approximation,
    parts_of_set,
    precise,
    predict_closed,
    predict_draw,
)
from ensemble.methods.laplace_structures import structure_of
from ensemble.network import Variables
from ensemble.runtime import loading
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Start
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batch, Fixed
from ensemble.runtime.method import Method, Report
from ensemble.runtime.rows import Period
from ensemble.runtime.status import Status
from ensemble.sharding import processes
from ensemble.storage.memory import check_memory
from ensemble.tasks.supervised import Supervised

_LIKELIHOODS = ("categorical", "gaussian", "gaussian_homoscedastic")
_TRIED = np.logspace(-2, 5, 22)
"""Precisions of the prior, which are tried on the validation split."""
_NOUNS = ("member", "draw")


class LaplaceState(NamedTuple):
    """A member, and what is known of its curvature.

    Attributes:
        mean: Its variables, as their run has left them.
        curvature: What has been added up so far.
        log_likelihood: Of the training data, [] nats.
        precision: Of the prior, []; NaN: that with the largest marginal likelihood.
    """

    mean: Variables
    curvature: Any
    log_likelihood: jax.Array
    precision: jax.Array


class LaplaceReport(Report):
    """What a run of Laplace approximations says."""

    charts: ClassVar[Mapping[str, str]] = {}
    noun, set_noun = _NOUNS

    def scalars(self, run: Any, period: Period) -> dict[str, float]:
        """There are none."""
        return {}

    def rate(self, examples_per_second: float) -> dict[str, float]:
        """The speed as it is shown."""
        return {"laplace/member_examples_per_second": examples_per_second}

    def has_predictions(self, run: Any) -> bool:
        """At the end."""
        return bool(run.loop.finished)

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """The prior of each member, and its log marginal likelihood, nats."""
        found = run.devices.fetch_members(run.loop.parameters())[OF_METHOD]
        names = ("prior_precision", "log_marginal_likelihood")
        each = {name: [float(one) for one in found[name][:, 0]] for name in names}
        return {"laplace": {"structure": self.config.laplace.structure, **each}}


def create(config: ml_collections.FrozenConfigDict, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The network, the likelihood or the run that is begun from do not suit it, or it
            takes too much memory.
    """
    _check(config, task)
    structure, own = structure_of(config.laplace.structure), training.with_own_keys(config)
    epochs = training.Epochs.of(config, task.num_train_examples)
    steps = structure.num_passes * epochs.steps
    report = LaplaceReport(
        config, task, "set config.laplace.prior_precision to a larger number, such as 100"
    )
    predict, passes = _predict_of(config)
    report.predict = predict

    def place(count: int) -> Devices:
        # What does not add up sees whole batches.
        splits = task.traits.examples_are_independent and structure.adds
        return Devices(count, processes.devices(config.num_devices), splits)

    def algorithm(devices: Devices, numbers: Sequence[int]) -> Algorithm:
        feed = training.batches(own, task, devices, numbers, steps)
        functions = _Curvature(config, task, devices, epochs.steps)
        between = []
        if config.laplace.prior_precision == VALIDATION:
            data = Fixed(training.validation(task, devices))
            between.append(Between(lambda step: step == steps, functions.choose, data))
        return Algorithm(
            functions.init,
            functions.step,
            functions.parameters,
            steps,
            feed,
            steps_per_program=training.in_loop(task, devices, feed.steps_per_program),
            between=tuple(between),
            start=functools.partial(_start, config, task),
            passes=passes,
        )

    return training.of_members(
        config, task, epochs, place=place, algorithm=algorithm, report=report, num_steps=steps
    )


class _Curvature(Approximation):
    """The functions of one member, on devices.

    Args:
        config: Configuration of the run.
        task: What the members have learned.
        devices: Their placement.
        epoch: Steps of a pass over the data.
    """

    def __init__(self, config: Any, task: Supervised, devices: Devices, epoch: int):
        super().__init__(task, config.laplace.structure)
        self.devices, self.epoch, self.chosen = devices, epoch, config.laplace.prior_precision
        self.predict, self.passes = _predict_of(config)
        self.spread = devices.over_examples(self._of_slice, unrolls=True)

    def init(self, now: Now, batch: Batch) -> LaplaceState:
        """A member whose curvature is not known yet."""
        variables = now.given
        if variables is None:  # Only the shapes are asked for.
            variables = self.task.init_variables(now.key)
        fixed = self.chosen not in (MARGINAL, VALIDATION)
        precision = jnp.float32(self.chosen if fixed else "nan")
        curvature = self.structure.nothing(self.covered(variables))
        return LaplaceState(variables, curvature, jnp.zeros(()), precision)

    @precise
    def step(self, now: Now, state: LaplaceState, batch: Batch) -> tuple[LaplaceState, Info]:
        """Adds the curvature of a batch."""
        member = state.mean, state.curvature, now.step // self.epoch
        (found, told), _ = self.spread(member, batch)
        if self.structure.adds:
            found = jax.tree.map(jnp.add, state.curvature, found)
        log_likelihood = state.log_likelihood + told
        return state._replace(curvature=found, log_likelihood=log_likelihood), Info({})

    def _of_slice(self, member: Any, batch: Batch) -> Any:
        variables, sums, number = member
        found, outputs = self.added(variables, sums, number, batch.inputs, batch.weights)
        log_prob = self.task.likelihood.log_prob(self.own(variables), outputs, batch.targets)
        # A structure may pass over the data twice.
        told = jnp.where(number == 0, jnp.sum(batch.weights * log_prob), 0.0)
        return (found, told), ()

    def _set(self, now: Now, state: LaplaceState, precision: jax.Array, is_closed: bool) -> Any:
        """The variables, and the posterior around them."""
        spectrum = self.structure.spectrum(state.curvature)
        found = self.posterior(state.mean, spectrum, state.log_likelihood, precision, is_closed)
        return {**state.mean, OF_METHOD: {**found, "rng_key": jax.random.key_data(now.key)}}

    @precise
    def parameters(self, now: Now, state: LaplaceState) -> Any:
        """The one set of a member."""
        found = self._set(now, state, state.precision, self.passes == 1)
        return pytrees.at(found, None)

    @precise
    def choose(self, now: Now, state: LaplaceState, data: Batch) -> Any:
        """Takes the precision whose predictions of the validation split are best."""
        losses_of = self._losses
        if self.is_last:
            losses_of, data = self._losses_by_features, self._with_features(state, data)
        loss = training.mean_loss(self.task, self.devices, losses_of)
        tried = jnp.asarray(_TRIED, jnp.float32)
        is_closed = self.is_last or self.passes == 1
        losses = jnp.stack([loss(self._set(now, state, one, is_closed), data) for one in tried])
        best = tried[jnp.nanargmin(jnp.where(jnp.isfinite(losses), losses, jnp.inf))]
        best = jnp.where(jnp.isfinite(losses).any(), best, tried[-1])
        return state._replace(precision=best), jnp.int8(Status.ACTIVE)

    def _losses(self, one: Any, batch: Batch) -> jax.Array:
        """Losses [B] of a set, on raw inputs."""
        passes, likelihood = jnp.arange(self.passes), self.task.likelihood
        said = jax.lax.map(lambda k: self.predict(self.task, one, k, batch.inputs), passes)
        return likelihood.scores(said, batch.targets)[likelihood.loss]

    def _losses_by_features(self, one: Any, batch: Batch) -> jax.Array:
        """The same of the last layer in closed form, on features and outputs."""
        (variables, posterior), (features, outputs) = parts_of_set(one), batch.inputs
        variances = jax.vmap(functools.partial(self.variances, posterior))(features)
        said, likelihood = self.closed(variables, outputs, variances), self.task.likelihood
        return likelihood.scores(apart(said, 1), batch.targets)[likelihood.loss]

    def _with_features(self, state: LaplaceState, data: Batch) -> Batch:
        """Blocks of features and outputs, which are computed once, and not for each posterior."""

        def of_block(variables: Variables, batch: Batch) -> Any:
            seen = Supervised.prepare(self.task, batch.inputs)
            features = jax.vmap(functools.partial(self.derivatives, variables))(seen)
            return (), (features, self.task.outputs(variables, seen)[0])

        spread, number = self.devices.over_examples(of_block, unrolls=True), len(data.mask)
        blocks = [spread(state.mean, pytrees.at(data, i))[1] for i in range(number)]
        return data._replace(inputs=jax.tree.map(lambda *each: jnp.stack(each), *blocks))


def _predict_of(config: Any) -> tuple[Predict, int]:
    """How a set predicts, and in how many passes."""
    name = config["laplace"]["structure"]
    if not config["num_draws"]:
        return functools.partial(predict_closed, name), 1
    return functools.partial(predict_draw, name), config["num_draws"]


def fitted(saved: OnDisk) -> Fitted:
    """The members that are on disk, and their posteriors.

    Raises:
        InputError: The curvature is not complete.
    """
    predict, passes = _predict_of(saved.config)
    return loading.parameters(saved, predict=predict, num_passes=passes, nouns=_NOUNS)


def _start(config: Any, task: Supervised) -> Start:
    """The variables [L, ...] of the live members of `config.init_from`.

    Raises:
        InputError: they have learned something else, or are too few.
    """
    what, restored = f"config.init_from={config.init_from!r}", run_of(config, task, "train one")
    fitted: Fitted = restored.fitted
    if fitted.num_estimators != fitted.num_members:
        raise InputError(
            f"{what} has several {fitted.nouns[1]}s of a {fitted.nouns[0]}, "
            f"{fitted.num_estimators} in all; a Laplace approximation is around one set of "
            "each: give a run of config.method='deep_ensemble'"
        )
    check_number(config, fitted.num_members, "ensemble_size")
    theirs, ours = restored.description.get("class_weights"), task.describe().get("class_weights")
    if restored.config["likelihood"] != config.likelihood or theirs != ours:
        raise InputError(
            f"{what} has another likelihood or other class weights than here; set "
            "config.likelihood, config.class_weights and batch_size to those of the run"
        )
    return Start(given=dict(fitted.variables))


# Checks.


def _check(config: ml_collections.FrozenConfigDict, task: Supervised) -> None:
    """Refuses what has no such approximation, or too large a one.

    Raises:
        InputError: as said.
    """
    name, member = config.laplace.structure, Approximation(task, config.laplace.structure)
    if not config.init_from or is_file(config.init_from):
        raise InputError(
            f"config.init_from={config.init_from!r} must be the workdir of a run, whose members "
            "are trained"
        )
    if task.likelihood.name not in _LIKELIHOODS:
        raise InputError(
            f"config.method='laplace' is for {', '.join(_LIKELIHOODS)}, and config.likelihood is "
            f"{task.likelihood.name!r}"
        )
    if member.is_last and task.output_layer is None:
        raise InputError(
            f"config.model={config.model!r} puts out what no dense layer does, inputs @ kernel + "
            "bias; let it end in one, or choose another config.laplace.structure"
        )
    if config.laplace.prior_precision == VALIDATION and "validation" not in task.dataset.sizes:
        raise InputError(
            f"config.laplace.prior_precision={VALIDATION!r} needs a validation split: give one, "
            f"set config.train_on_all=False, or choose {MARGINAL!r}"
        )
    shapes = jax.eval_shape(task.init_variables, jax.random.key(0))
    covered = jax.eval_shape(member.covered, shapes)
    curvature = jax.eval_shape(member.structure.nothing, covered)
    size, num_params = (pytrees.size(one) for one in (curvature, covered))
    # The curvature, its eigenvectors and a copy of these; derivatives of an example.
    own = 4 * (3 * size + 2 * num_params * task.likelihood.num_outputs)
    on_devices = own * config.ensemble_size // processes.count()
    check_memory(
        on_devices,
        f"the curvatures {name!r} of config.ensemble_size={config.ensemble_size} members, of "
        f"{num_params:,} parameters,",
        "it, or choose another config.laplace.structure",
        on_devices,
        processes.devices(config.num_devices),
    )
