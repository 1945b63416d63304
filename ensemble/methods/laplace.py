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
from ensemble.methods.given_weights import check_number, run_of
from ensemble.methods.laplace_member import Approximation, precise, predict_closed, predict_draw
from ensemble.network import Variables
from ensemble.runtime import loading
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Start
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batch, Batches, Fixed
from ensemble.runtime.method import Method, Report
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
    member, own = Approximation(task, config.laplace.structure), training.with_own_keys(config)
    _check(config, member)
    epochs = training.Epochs.of(config, task.num_train_examples)
    steps = member.structure.num_passes * epochs.steps
    report = LaplaceReport(
        config, task, "set config.laplace.prior_precision to a larger number, such as 100"
    )
    report.predict, _ = _predict_of(config)

    def place(count: int) -> Devices:
        # What does not add up sees whole batches.
        splits = task.traits.examples_are_independent and member.structure.adds
        return Devices(count, processes.devices(config.num_devices), splits)

    def algorithm(devices: Devices, numbers: Sequence[int]) -> Algorithm:
        feed = training.batches(own, task, devices, numbers, steps)
        return _algorithm(config, member, devices, feed, epochs.steps)

    return training.of_members(
        config, task, epochs, place=place, algorithm=algorithm, report=report, num_steps=steps
    )


def _algorithm(
    config: Any, member: Approximation, devices: Devices, feed: Batches, epoch: int
) -> Algorithm:
    """Returns the algorithm of members.

    Args:
        config: Configuration of the run.
        member: Pure functions of a member.
        devices: Placement of the members.
        feed: Batches of the training examples.
        epoch: Steps of a pass over these.
    """
    task, structure, given = member.task, member.structure, config.laplace.prior_precision
    tried, (predict, passes) = jnp.asarray(_TRIED, jnp.float32), _predict_of(config)

    def of_slice(one: Any, batch: Batch) -> Any:
        variables, curvature, number = one
        found, outputs = member.added(variables, curvature, number, batch.inputs, batch.weights)
        log_prob = task.likelihood.log_prob(member.own(variables), outputs, batch.targets)
        # A structure may pass over the data twice.
        return (found, jnp.where(number == 0, jnp.sum(batch.weights * log_prob), 0.0)), ()

    spread = devices.over_examples(of_slice, unrolls=True)

    def init(now: Now, batch: Batch) -> LaplaceState:
        # Without what is given, only the shapes are asked for.
        variables = task.init_variables(now.key) if now.given is None else now.given
        precision = jnp.float32("nan" if given in (MARGINAL, VALIDATION) else given)
        curvature = structure.nothing(member.matrices(member.covered(variables)))
        return LaplaceState(variables, curvature, jnp.zeros(()), precision)

    @precise
    def step(now: Now, state: LaplaceState, batch: Batch) -> tuple[LaplaceState, Info]:
        found, _ = spread((state.mean, state.curvature, now.step // epoch), batch)
        curvature, told = jax.tree.map(jnp.add, (state.curvature, state.log_likelihood), found)
        return state._replace(curvature=curvature, log_likelihood=told), Info({})

    @precise
    def parameters(now: Now, state: LaplaceState) -> Any:
        spectrum = structure.spectrum(state.curvature)
        found = member.posterior(state.mean, spectrum, state.log_likelihood, state.precision)
        if passes == 1:
            found["spectrum"] = structure.kept(spectrum, found["prior_precision"])
        own = {**found, "rng_key": jax.random.key_data(now.key)}
        return pytrees.at({**state.mean, OF_METHOD: own}, None)

    def losses(one: Any, batch: Batch) -> jax.Array:
        variables, own = one
        if member.is_last or passes == 1:
            seen = Supervised.prepare(task, batch.inputs)
            said = member.closed(variables, own["spectrum"], tried, seen)
            said = jax.tree.map(lambda leaf: leaf[:, None], said)
        else:

            def drawn(tau: jax.Array) -> Any:
                whole = {**variables, OF_METHOD: {**own, "prior_precision": tau}}
                return jax.lax.map(
                    lambda k: predict(task, whole, k, batch.inputs), jnp.arange(passes)
                )

            said = jax.lax.map(drawn, tried)
        scores = jax.vmap(lambda each: task.likelihood.scores(each, batch.targets))(said)
        return scores[task.likelihood.loss]

    loss = training.mean_loss(task, devices, losses, tried.shape)

    @precise
    def choose(now: Now, state: LaplaceState, data: Batch) -> Any:
        spectrum = structure.spectrum(state.curvature)
        own = {"spectrum": spectrum, "rng_key": jax.random.key_data(now.key)}
        found = loss((state.mean, own), data)
        found = jnp.where(jnp.isfinite(found), found, jnp.inf)
        best = jnp.where(jnp.isfinite(found).any(), tried[jnp.argmin(found)], tried[-1])
        return state._replace(precision=best), jnp.int8(Status.ACTIVE)

    steps = structure.num_passes * epoch
    between: tuple[Between, ...] = ()
    if given == VALIDATION:
        data = Fixed(training.validation(task, devices))
        between = (Between(lambda step: step == steps, choose, data),)
    return Algorithm(
        init,
        step,
        parameters,
        steps,
        feed,
        steps_per_program=training.in_loop(task, devices, feed.steps_per_program),
        between=between,
        start=functools.partial(_start, config, task),
        passes=passes,
    )


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


def _check(config: ml_collections.FrozenConfigDict, member: Approximation) -> None:
    """Refuses what has no such approximation, or too large a one.

    Raises:
        InputError: as said.
    """
    name, task = config.laplace.structure, member.task
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

    def sizes(rng_key: jax.Array) -> Any:
        covered = member.matrices(member.covered(task.init_variables(rng_key)))
        return member.structure.nothing(covered), covered

    size, num_params = map(pytrees.size, jax.eval_shape(sizes, jax.random.key(0)))
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
