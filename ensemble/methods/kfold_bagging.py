"""K-fold bagging: members that hold each other's rows out.

Every member learns all training rows but those of its fold, and is held to these: they say which of
its epochs is best, and when it stops. So all rows are learned by most members, and all are held out
by some, which settles what else there is to choose: before the members train to the end, all of
them try settings for some epochs, and go on with the best. These are whether they start from a
linear model, to whose outputs the network's are added, or without one; and then whether a lower
learning rate than the configured one is better. At the end the rows held out say how wide the
mixture's predictions must be.

AutoGluon's bagged models (Erickson et al. 2020, arXiv:2003.06505) are ensembles of this kind.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from ensemble import pytrees
from ensemble.data.batches import epoch_batches
from ensemble.fitted import LINEAR, WIDTH
from ensemble.methods import linear_start, training
from ensemble.methods.descent import Descending, descent, make_objective
from ensemble.methods.descent import apart as estimators_first
from ensemble.methods.folds import Folds, make_folds
from ensemble.methods.held_predictions import HeldPredictions, fitted_factor, has_factor
from ensemble.methods.optimizers import Descent, create_optimizer, learning_rate_schedule
from ensemble.methods.shared_weights import SharedWeights
from ensemble.methods.training import StoppingEarly
from ensemble.notes import tell
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Start
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batch
from ensemble.runtime.method import Method
from ensemble.runtime.rows import Period
from ensemble.runtime.status import FAILURES, Status
from ensemble.sharding import processes
from ensemble.storage.predictions import write_held_out
from ensemble.tasks.supervised import Supervised

_TRIAL_EPOCHS = 20
"""The epochs of each setting that is tried, unless the run is short."""
_MIN_LENGTH = 4
"""The least length of a run, in trials."""
_LOWER = 0.2
"""Share of the configured learning rate that is tried after it."""
_MAX_NORM = 1.0
"""The most norm of a step's gradients, which are shortened to it."""
_LEAST_GAIN = 0.005
"""In nats, which two digits show."""
_AT_ONCE = 1024
"""Rows of one forward pass."""
_ROWS_OF_ALL = 50
"""Rows of its own from which on a member's loss counts more than that of all members."""


class Held(NamedTuple):
    """A member that is held to the rows of its fold.

    Attributes:
        best: The member, with its best variables and their criterion, nats.
        is_lost: Whether a step of the trial was not finite.
    """

    best: StoppingEarly
    is_lost: jax.Array


class Tried(NamedTuple):
    """A member, and what has been tried.

    Attributes:
        variables: Those that predict.
        held: The member of the setting that is under way.
        kept: That of the best trial so far.
        losses: [T] of trials, nats; infinite of those yet to come.
        chosen: Number of the best trial so far, the same for all members.
    """

    variables: Any
    held: Held
    kept: Held
    losses: jax.Array
    chosen: jax.Array


def create(config: ml_collections.FrozenConfigDict, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The data do not suit it, or it takes too many steps, or too much memory.
    """
    bagging = _Bagging(config, task)
    return training.of_members(
        config,
        bagging.task,
        bagging.epochs,
        members_learn=bagging.learned,
        place=functools.partial(training.spread, config, bagging.learned),
        algorithm=bagging.algorithm,
        report=BaggingReport(bagging),
        num_steps=bagging.num_steps,
        may_end_early=True,
        num_trials=len(bagging.starts) + 1,
        duration="num_epochs or config.num_steps",
        facts={"the steps of a trial": (bagging.trial, "config.num_epochs or config.num_steps")},
    )


class _Bagging:
    """The settings of a run, and the functions of its members."""

    def __init__(self, config: ml_collections.FrozenConfigDict, task: Supervised):
        self.config = config = training.with_own_keys(config)
        self.why_not_linear = linear_start.why_not(task)
        beside = (WIDTH,) if self.why_not_linear else (LINEAR, WIDTH)
        self.task = task = dataclasses.replace(task, beside=beside)
        self.learned: Supervised = task
        if config.num_estimators > 1:
            self.learned = SharedWeights.of(task, config.num_estimators, config.adapters)
        self.folds = make_folds(task.dataset, config.kfold_bagging.folds, config.seed)
        self.epochs = training.Epochs.of(config, self.folds.num_learned)
        self.epoch = self.epochs.steps
        self.steps = int(config.num_steps or config.num_epochs * self.epoch)
        epochs = min(_TRIAL_EPOCHS, self.steps // self.epoch // _MIN_LENGTH)
        self.trial = epochs * self.epoch
        self.starts = (False,) if self.why_not_linear else (True, False)
        """Whether trials start from a linear model; the last one has the better of these starts."""
        self.num_trials = len(self.starts) + 1 if epochs else 1
        self.before = (self.num_trials - 1) * self.trial
        self.end = self.num_trials * self.trial or -1
        """Steps of all trials; -1: there are none."""
        self.num_steps = self.before + self.steps
        self.how = _descent(config, self.steps)
        # Classes count as they come where predictions are corrected for their weights.
        of_classes = self.learned.likelihood.class_weights is None
        self.weigh = training.weights_of(config, task.dataset, of_classes)
        training.check_members(config, self.learned)

    def rate(self, trial: int) -> float:
        """Share of the learning rate of a trial."""
        return _LOWER if trial == self.num_trials - 1 > 0 else 1.0

    def begun(self, step: Any) -> Any:
        """Returns the first step of the trial that a step is of, traced or not."""
        return sum(
            (step >= end) * self.trial for end in range(self.trial, self.end, self.trial or 1)
        )

    def start(self) -> Start:
        """The linear models, of which a member takes that of its fold."""
        rows = np.arange(self.task.dataset.sizes["train"])
        weights = self.weigh(rows, self.task.dataset.targets("train"))
        found = linear_start.fit(self.learned, self.folds, weights)._asdict()
        # Other machines may round otherwise, and choose other penalties.
        return Start(shared=processes.tree_from_main(found))

    def algorithm(self, devices: Devices, numbers: Sequence[int]) -> Algorithm:
        feed = training.batches(
            self.config, self.learned, devices, numbers, self.num_steps, order=self._order
        )
        self.rows = _HeldRows(self, devices, numbers)
        functions = _Functions(self, devices)
        ends = [self.trial * (i + 1) for i in range(self.num_trials)] if self.trial else []

        def is_epoch(step: int) -> bool:
            return step % self.epoch == 0 or step == self.num_steps

        return Algorithm(
            functions.init,
            functions.step,
            lambda now, state: pytrees.at(state.variables, None),
            self.num_steps,
            feed,
            steps_per_program=training.in_loop(self.learned, devices, feed.steps_per_program),
            between=(
                Between(is_epoch, functions.judge, self.rows, of_all=True),
                Between(ends.__contains__, functions.next_trial, of_all=True),
                # Who never gets better predicts as it began.
                Between(ends[:-1].__contains__, functions.judge, self.rows, of_all=True),
            ),
            start=None if self.why_not_linear else self.start,
        )

    def _order(self, epoch: int, member: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of examples and mask [steps, B] of a member, which learns its own rows.

        A member with fewer of them than another begins its order again: all take equal steps.
        Each trial begins with the first epoch.
        """
        assert member is not None
        epoch -= self.begun(epoch * self.epoch) // self.epoch
        rows = self.folds.learned(member)
        order, mask = epoch_batches(
            len(rows),
            self.epochs.batch_size,
            self.config.seed,
            epoch,
            member,
            length=self.folds.num_learned,
        )
        return rows[order].astype(np.int32), mask


def _descent(config: ml_collections.FrozenConfigDict, num_steps: int) -> Descent:
    """How members descend, over a horizon of `num_steps`: each trial's by a rate of its own."""
    schedule = learning_rate_schedule(config, num_steps)

    def optimizer_of(learning_rate: Any) -> optax.GradientTransformation:
        share = learning_rate / config.learning_rate
        shortened = optax.clip_by_global_norm(_MAX_NORM)
        return optax.chain(
            shortened, create_optimizer(config, lambda count: share * schedule(count))
        )

    optimizer = optax.inject_hyperparams(optimizer_of)(learning_rate=config.learning_rate)
    return Descent(schedule, optimizer)


class _HeldRows:
    """The rows that members hold out, on the devices: a feed of each member's own.

    Args:
        bagging: Settings of the run.
        devices: Placement of the members.
        numbers: Their numbers.
    """

    per_member = True

    def __init__(self, bagging: _Bagging, devices: Devices, numbers: Sequence[int]):
        folds: Folds = bagging.folds
        self._bagging, self._devices = bagging, devices
        self.rows = [folds.held_out(k) for k in numbers]
        """Numbers of the rows of each member, ascending."""
        self.counts = np.array([len(rows) for rows in self.rows])
        self.decides = np.array([folds.decides(k) for k in numbers])
        most = max(map(len, self.rows))
        self._num_parts = math.ceil(most / _AT_ONCE)
        self._size = math.ceil(most / self._num_parts)

    @functools.cached_property
    def fixed(self) -> Any:
        """Blocks [num_places, parts, B, ...], and what decides on all members."""
        source, size = self._bagging.task.dataset, self._num_parts * self._size
        filled = np.stack([np.resize(rows, size) for rows in self.rows])
        inputs, targets = source.read("train", filled)
        weights = self._bagging.weigh(filled, targets)
        counted = (np.arange(size) < self.counts[:, None]).astype(np.float32)
        weights = counted * (1 if weights is None else weights)
        arrays = jax.tree.map(
            lambda one: np.swapaxes(
                one.reshape(len(one), self._num_parts, self._size, *one.shape[2:]), 0, 1
            ),
            (inputs, targets, counted, weights.astype(np.float32)),
        )
        placed = self._devices.put_examples(arrays, 2, per_member=True)
        facts = self._devices.put_members((self.counts.astype(np.float32), self.decides))
        return Batch(*placed), *facts

    def predictions(self, predict: Any, sets: Any) -> list[dict[str, np.ndarray]]:
        """What each member's estimators predict of its rows, arrays [K, n, ...] by name.

        Args:
            predict: Program of what sets say of inputs.
            sets: [num_places, 1, ...] of the members.
        """
        rows = np.unique(np.concatenate(self.rows))
        inputs = self._bagging.task.dataset.read("train", rows).inputs
        flat, number = predict(sets, inputs), len(self.rows)
        found = {name: leaf.reshape(number, -1, *leaf.shape[1:]) for name, leaf in flat.items()}
        places = [np.searchsorted(rows, own) for own in self.rows]
        return [
            {name: leaf[i][:, own] for name, leaf in found.items()} for i, own in enumerate(places)
        ]


class _Functions:
    """The functions of the members."""

    def __init__(self, bagging: _Bagging, devices: Devices):
        self.bagging, self.devices, self.task = bagging, devices, bagging.learned
        objective = make_objective(bagging.config, self.task)
        self.begin, self.move = descent(self.task, devices, objective, bagging.how)
        self.loss = training.mean_loss(self.task, devices, self._losses)

    def _start(self, now: Now, is_linear: jax.Array, rate: jax.Array) -> Held:
        """A member that begins a trial."""
        moving = self.begin(now, None)
        variables = moving.variables
        if not self.bagging.why_not_linear:
            started = _started(self.task, now.shared, now.number, variables)
            variables = pytrees.where(is_linear, started, variables)
        rates = moving.optimizer.hyperparams["learning_rate"] * jnp.float32(rate)
        optimizer = moving.optimizer._replace(hyperparams={"learning_rate": rates})
        return Held(StoppingEarly.of(Descending(variables, optimizer)), jnp.array(False))

    def init(self, now: Now, batch: Any) -> Tried:
        """A member that begins its first trial."""
        held = self._start(now, jnp.array(self.bagging.starts[0]), jnp.float32(1))
        losses = jnp.full(self.bagging.num_trials, jnp.inf)
        return Tried(held.best.variables, held, held, losses, jnp.int32(0))

    def step(self, now: Now, state: Tried, batch: Batch) -> tuple[Tried, Info]:
        """One step of the setting that is under way; in a trial nobody fails for good."""
        (best, is_lost), in_trial = state.held, now.step < self.bagging.end
        step = now.step - self.bagging.begun(now.step)
        moving, info = self.move(now._replace(step=step), best.moving, batch)
        ok = jnp.asarray(info.ok)
        is_lost |= ~ok
        best = best._replace(moving=pytrees.where(is_lost, best.moving, moving))
        held = Held(best, is_lost & in_trial)
        return state._replace(held=held), info._replace(ok=ok | in_trial, rows=None)

    def _losses(self, variables: Any, part: Batch) -> jax.Array:
        """Losses of a part of a member's rows."""
        task, likelihood = self.task, self.task.likelihood
        nats, aux = task.log_likelihood(variables, task.prepare(part.inputs), part.targets)
        if task.num_estimators == 1 and likelihood.class_weights is None:
            return -nats
        each = estimators_first(aux.predicted, task.num_estimators)
        return likelihood.scores(each, part.targets)[likelihood.loss]

    def judge(self, now: Now, state: Tried, status: jax.Array, data: Any) -> tuple[Tried, Any]:
        """Notes the criterion of every member, keeps its best variables, stops it.

        Few rows of its own alone flatter a member, of whose many epochs one is the best by chance;
        and no member that diverges decides for the others. Where the latest period decides, all
        stop by the median of those who hold it out.
        """
        parts, counts, decides = data
        losses = self.devices.map_members(self.loss, (0, 1))(
            state.held.best.moving.variables, parts
        )
        real = ~jnp.asarray(self.devices.is_padding)
        finite = jnp.isfinite(losses)
        counted = finite & real & decides
        by_own = jnp.all(decides | ~real) | ~jnp.any(counted)
        counted = jnp.where(by_own, finite & real, counted)
        own = jnp.where(by_own, counts / (counts + _ROWS_OF_ALL), jnp.where(finite, 0.0, 1.0))
        median = jnp.nanmedian(jnp.where(counted, losses, jnp.nan))
        criteria = jnp.where(own < 1, own * losses + (1 - own) * median, losses)
        criteria = jnp.where(jnp.any(finite & real), criteria, losses)
        in_trial = jnp.asarray(now.step <= self.bagging.end)
        active = status == Status.ACTIVE

        def of_member(held: Held, value: jax.Array, active: jax.Array) -> tuple[Held, jax.Array]:
            reached = jnp.where(held.is_lost, jnp.inf, value)
            best, status = held.best.judged(reached, self.bagging.config.early_stopping_epochs)
            lost = held.is_lost | (jnp.isnan(value) & in_trial)
            return Held(pytrees.where(active, best, held.best), lost), status

        held, found = self.devices.map_members(of_member)(state.held, criteria, active)
        found = jnp.where(active & ~in_trial, found, status)
        return state._replace(held=held, variables=held.best.variables), found

    def next_trial(self, now: Now, state: Tried, status: jax.Array, data: Any) -> Any:
        """Notes how a trial went, and begins the next; after the last one the best goes on."""
        settings, held = self.bagging, state.held
        number = now.step // settings.trial - 1
        losses = state.losses.at[:, number].set(jnp.where(held.is_lost, jnp.inf, held.best.lowest))
        real = ~jnp.asarray(self.devices.is_padding)
        tried = real & jnp.isfinite(losses).any(axis=1)
        tried = jnp.where(tried.any(), tried, real)
        means = jnp.sum(jnp.where(tried[:, None], losses, 0), 0) / jnp.sum(tried)
        means = jnp.where(jnp.isnan(means), jnp.inf, means)
        best = jnp.argmin(means).astype(jnp.int32)
        kept = pytrees.where(best == number, held, state.kept)
        is_last = number == settings.num_trials - 1
        # The last trial has the better start of those before.
        starts = jnp.array([*settings.starts, False])
        of_best = starts[jnp.argmin(means[: len(settings.starts)])]
        is_lower = number + 1 == settings.num_trials - 1
        is_linear = jnp.where(is_lower, of_best, starts[number + 1])
        rate = jnp.where(is_lower, _LOWER, 1.0)

        def begin(number: jax.Array, key: jax.Array) -> Held:
            return self._start(now._replace(number=number, key=key), is_linear, rate)

        started = self.devices.map_members(begin)(now.number, now.key)
        going_on = pytrees.where(is_last, kept, started)
        going_on = going_on._replace(is_lost=jnp.zeros_like(going_on.is_lost))
        lost = is_last & ~jnp.isfinite(losses[:, best])
        status = jnp.where(lost, jnp.int8(Status.NON_FINITE), status)
        chosen = jnp.full_like(state.chosen, best)
        return Tried(going_on.best.variables, going_on, kept, losses, chosen), status


def _started(task: Supervised, shared: Any, number: jax.Array, variables: Any) -> Any:
    """Variables that put out what the linear model of a member's fold does: the network's are 0."""
    fold = number % len(shared["bias"])
    kernel, bias = shared["kernel"][fold], shared["bias"][fold]
    if task.num_estimators > 1:
        kernel, bias = (jnp.stack([one] * task.num_estimators) for one in (kernel, bias))
    assert task.output_layer is not None
    params = variables["params"]
    last = {str(jax.tree_util.keystr(path)) for path in task.output_layer.values()}

    def zero(path: Any, leaf: jax.Array) -> jax.Array:
        place = [key for key in path if getattr(key, "key", None) not in ("own", "shared")]
        is_last = str(jax.tree_util.keystr(tuple(place))) in last
        return jnp.zeros_like(leaf) if is_last else leaf

    params = jax.tree.map_with_path(zero, params)
    return {**variables, "params": params, LINEAR: {"kernel": kernel, "bias": bias}}


class BaggingReport(training.DescentReport):
    """What runs of members that hold rows out say."""

    def __init__(self, bagging: _Bagging):
        super().__init__(bagging.config, bagging.task, bagging.how)
        self._bagging = bagging

    def scalars(self, run: Any, period: Period) -> dict[str, float]:
        """Means over steps; the learning rate is that of the trial."""
        bagging, step = self._bagging, period.end - 1
        begun = bagging.begun(step)
        if step < bagging.end:
            trial = begun // bagging.trial
        else:
            trial = int(run.devices.fetch_members(run.loop.members.state.chosen)[0])
        rate = float(self.descent.learning_rate(step - begun)) * bagging.rate(trial)
        return {**super().scalars(run, period), "train/learning_rate": rate}

    def _held(self, run: Any, is_wide: bool = False) -> HeldPredictions:
        """Predictions of the live members at their best, of the rows that they hold out.

        Args:
            run: Of the members.
            is_wide: Whether predictions are as wide as the mixture's, or as training left them.
        """
        bagging, targets = self._bagging, self.task.dataset.targets("train")
        variables = run.loop.members.state.variables
        variables = variables if is_wide else _unwidened(variables)
        sets = jax.tree.map(lambda leaf: leaf[:, None], variables)
        found = bagging.rows.predictions(run.predict, sets)
        live = [i for i, one in enumerate(run.loop.status) if one not in FAILURES]
        weights = bagging.weigh(np.arange(len(targets)), targets)
        rows = [bagging.rows.rows[i] for i in live]
        arrays = [found[i] for i in live]
        return HeldPredictions(rows, arrays, targets, weights, self.task.likelihood)

    def finish(self, run: Any) -> bool:
        """Makes predictions as wide as the rows held out say."""
        held, size = self._held(run), len(run.numbers)
        factor = processes.from_main(lambda: fitted_factor(held, size)) or 1
        state = run.loop.members.state
        plain = _unwidened(state.variables)
        wide = {"factor": plain[WIDTH]["factor"] * np.float32(factor)}
        state = state._replace(variables={**plain, WIDTH: wide})
        run.loop.members = run.loop.members._replace(state=state)
        return True

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """The settings that were tried and chosen, and what the rows held out say of them."""
        bagging, held = self._bagging, self._held(run)
        state = run.devices.fetch_members(run.loop.members.state)
        taken = run.devices.fetch_members(run.loop.members.taken)
        epochs = -(-(taken - bagging.before) // bagging.epoch)
        tried = np.isfinite(state.losses).any(axis=1)
        losses = state.losses[tried if tried.any() else ...].mean(axis=0)
        chosen = int(state.chosen[0])
        starts = [*bagging.starts, bagging.starts[int(np.argmin(losses[: len(bagging.starts)]))]]
        rate = self.config.learning_rate
        found: dict[str, Any] = {
            "folds": bagging.folds.number,
            "held_out_rows": int(np.isfinite(held.losses()).sum()),
            "trials": [
                {
                    "linear_start": bool(starts[i]),
                    "learning_rate": rate * bagging.rate(i),
                    "nll": float(loss) if np.isfinite(loss) else None,
                }
                for i, loss in enumerate(losses if bagging.trial else [np.inf])
            ],
            "chosen": chosen,
            "best_epochs": (epochs - state.held.best.waited).tolist(),
            "width": None,
            "latest_decides": bagging.folds.are_periods,
            "why_not_linear": bagging.why_not_linear,
            "below_linear": None,
        }
        if has_factor(held, len(run.numbers)):
            found["width"] = float(state.variables[WIDTH]["factor"].flat[0])
        if not bagging.why_not_linear:
            of_linear = np.asarray(run.loop.shared["losses"])
            gain = of_linear - held.losses()
            found["below_linear"] = _mean_and_error(gain, held.weights)
        found["summary"] = _line(found, self.config.ensemble_size)
        tell(found["summary"])
        return {"cross_fitted": found}

    def write(self, run: Any) -> None:
        """Writes the losses of the rows that members hold out: see `storage.predictions`."""
        losses = self._held(run, is_wide=True).losses()
        losses[~self._bagging.folds.deciding] = np.nan
        if processes.is_main():
            write_held_out(run.where.work, losses)


def _unwidened(variables: Any) -> dict[str, Any]:
    """Variables that predict as training has left them."""
    factors = jax.tree.map(lambda one: one / one, variables[WIDTH])  # Ones, where these lie.
    return {**variables, WIDTH: factors}


def _mean_and_error(values: np.ndarray, weights: np.ndarray | None) -> list[float]:
    """The mean over finite values [N], and its standard error."""
    there = np.isfinite(values)
    shares = np.ones(len(values)) if weights is None else weights.astype(np.float64)
    shares = shares[there] / shares[there].sum()
    mean = float(shares @ values[there])
    return [mean, float(np.sqrt(np.sum((shares * (values[there] - mean)) ** 2)))]


def _line(found: Mapping[str, Any], size: int) -> str:
    """Says in one line what was chosen, and by what."""
    chosen = found["trials"][found["chosen"]]
    start = "from a linear model" if chosen["linear_start"] else "without a linear model"
    if found["why_not_linear"]:
        start += f", for {found['why_not_linear']},"
    low, high = min(found["best_epochs"]), max(found["best_epochs"])
    line = (
        f"{size} networks hold out folds of {found['folds']}, {found['held_out_rows']} rows in "
        f"all. They start {start}, at rate {chosen['learning_rate']:.3g}; best epochs {low} to "
        f"{high}."
    )
    if found["latest_decides"]:
        line += " Which of these, the latest of the folds has decided."
    if found["below_linear"] is None:
        return line
    gain, error = found["below_linear"]
    if abs(gain) < max(2 * error, _LEAST_GAIN):
        return f"{line} Their held-out NLL is not distinguishable from the linear model's."
    side = "below" if gain > 0 else "above"
    return (
        f"{line} Their held-out NLL is {abs(gain):.2f} nats {side} the linear model's (standard "
        f"error {error:.2f})."
    )
