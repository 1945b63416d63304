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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import scipy.optimize

from ensemble import pytrees
from ensemble.data.batches import epoch_batches
from ensemble.fitted import LINEAR, WIDTH
from ensemble.methods import linear_start, training
from ensemble.methods.batch_ensemble import OWN, SHARED, SharedWeights
from ensemble.methods.descent import Descending, descent, make_objective
from ensemble.methods.folds import make_folds
from ensemble.methods.optimizers import descent_of_each
from ensemble.methods.training import StoppingEarly
from ensemble.metrics import metrics_of
from ensemble.network import path_name
from ensemble.notes import tell
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Start
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batch, Fixed
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

_SEARCHED = (0.4, 3.0)
"""Factors among which the best is searched."""
_NARROWEST, _WIDEST = 0.8, 1.5
_DEVIATION = 0.1
"""The prior deviation of the factor's logarithm, before any row is seen: few rows, or rows of which
nothing is known, hardly tell it."""


class Tried(NamedTuple):
    """A member, and what has been tried.

    Attributes:
        variables: Those that predict.
        held: The member of the setting that is under way, and its best epoch by the rows of its
            fold.
        kept: That of the best trial so far.
        losses: [T] of trials, nats; infinite of those yet to come.
    """

    variables: Any
    held: StoppingEarly
    kept: StoppingEarly
    losses: Any


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
        duration="num_epochs or config.num_steps",
        facts={"the steps of a trial": (bagging.trial, "config.num_epochs or config.num_steps")},
    )


class _Bagging:
    """The settings of a run, and the functions of its members."""

    def __init__(self, config: ml_collections.FrozenConfigDict, task: Supervised):
        keys = {**training.with_own_keys(config), "clip_norm": _MAX_NORM}
        self.config = config = ml_collections.FrozenConfigDict(keys)
        self.why_not_linear = linear_start.why_not(task)
        beside = (WIDTH,) if self.why_not_linear else (LINEAR, WIDTH)
        self.task = task = dataclasses.replace(task, beside=beside)
        self.learned: Supervised = task
        if config.num_estimators > 1:
            self.learned = SharedWeights.of(task, config.num_estimators, config.adapters)
        self.folds = make_folds(task.dataset, config.kfold_bagging.folds, config.seed)
        self.epochs = training.Epochs.of(config, self.folds.num_learned)
        self.epoch = self.epochs.steps
        steps = int(config.num_steps or config.num_epochs * self.epoch)
        self.trial = min(_TRIAL_EPOCHS, steps // self.epoch // _MIN_LENGTH) * self.epoch
        """Steps of a trial; 0: there are none."""
        self.starts = (False,) if self.why_not_linear else (True, False)
        """Whether trials start from a linear model; the last one has the better of these starts."""
        number = (len(self.starts) + 1) * bool(self.trial)
        self.ends = [(i + 1) * self.trial for i in range(number)]
        """Steps after which trials end."""
        self.end, self.before = max(self.ends, default=-1), max(self.ends[:-1], default=0)
        self.num_steps = self.before + steps
        self.how = descent_of_each(config, steps, "learning_rate")
        # Classes count as they come where predictions are corrected for their weights.
        of_classes = self.learned.likelihood.class_weights is None
        self.weigh = training.weights_of(config, task.dataset, of_classes)
        training.check_members(config, self.learned)

    def rate(self, trial: int) -> float:
        """Share of the learning rate of a trial."""
        return _LOWER if trial == len(self.ends) - 1 else 1.0

    def begun(self, step: Any) -> Any:
        """Returns the first step of the trial that a step is of, traced or not."""
        return sum((step >= end) * self.trial for end in self.ends[:-1])

    def start(self) -> Start:
        """The linear models, of which a member takes that of its fold."""
        rows = np.arange(self.task.dataset.sizes["train"])
        weights = self.weigh(rows, self.task.dataset.targets("train"))
        found = linear_start.fit(self.learned, self.folds, weights)._asdict()
        # Other machines may round otherwise, and choose other penalties.
        return Start(shared=processes.tree_from_main(found))

    def algorithm(self, devices: Devices, numbers: Sequence[int]) -> Algorithm:
        """Returns the algorithm of some members, each with the rows that it holds out."""
        feed = training.batches(
            self.config, self.learned, devices, numbers, self.num_steps, order=self._order
        )
        rows = [self.folds.held_out(k) for k in numbers]
        counts = np.array([len(one) for one in rows], np.float32)
        size = -(-int(counts.max()) // -(-int(counts.max()) // _AT_ONCE))
        blocks = training.blocks(devices, self.task.dataset, "train", rows, size, self.weigh)
        decides = np.array([self.folds.decides(k) for k in numbers])
        held = Fixed((blocks, *devices.put_members((counts, decides))))
        init, step, judge, next_trial = _functions(self, devices)

        def is_epoch(step: int) -> bool:
            return step % self.epoch == 0 or step == self.num_steps

        return Algorithm(
            init,
            step,
            lambda now, state: pytrees.at(state.variables, None),
            self.num_steps,
            feed,
            steps_per_program=training.in_loop(self.learned, devices, feed.steps_per_program),
            between=(
                Between(is_epoch, judge, held, of_all=True),
                Between(self.ends.__contains__, next_trial, of_all=True),
                # Who never gets better predicts as it began.
                Between(self.ends[:-1].__contains__, judge, held, of_all=True),
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
        rows, size = self.folds.learned(member), self.epochs.batch_size
        length = self.folds.num_learned
        order, mask = epoch_batches(len(rows), size, self.config.seed, epoch, member, length)
        return rows[order].astype(np.int32), mask


def _functions(bagging: _Bagging, devices: Devices) -> tuple[Callable[..., Any], ...]:
    """Returns `init`, `step`, `judge` and `next_trial` of members on devices."""
    config, task, end = bagging.config, bagging.learned, bagging.end
    last, starts = max(len(bagging.ends) - 1, 0), bagging.starts
    begin, move = descent(task, devices, make_objective(config, task), bagging.how)
    losses_of = devices.map_members(training.held_loss(task, devices), (0, 1))
    real = ~np.asarray(devices.is_padding)

    def started(now: Now, is_linear: jax.Array, rate: jax.Array) -> StoppingEarly:
        """A member that begins a trial."""
        variables, optimizer = begin(now, None)
        if now.shared is not None:
            linear = _from_linear(task, now.shared, now.number, variables)
            variables = pytrees.where(is_linear, linear, variables)
        rates = optimizer.hyperparams["learning_rate"] * jnp.float32(rate)
        optimizer = optimizer._replace(hyperparams={"learning_rate": rates})
        return StoppingEarly.of(Descending(variables, optimizer))

    def init(now: Now, batch: Any) -> Tried:
        held = started(now, jnp.array(starts[0]), jnp.float32(1))
        return Tried(held.variables, held, held, jnp.full(last + 1, jnp.inf))

    def step(now: Now, state: Tried, batch: Batch) -> tuple[Tried, Info]:
        """One step of the setting that is under way; in a trial nobody fails for good."""
        in_trial, held = now._replace(step=now.step - bagging.begun(now.step)), state.held
        moving, info = move(in_trial, held.moving, batch)
        ok = jnp.asarray(info.ok)
        lowest = jnp.where(ok, held.lowest, jnp.nan)
        moving = pytrees.where(jnp.isnan(lowest), held.moving, moving)
        held = held._replace(moving=moving, lowest=lowest)
        return state._replace(held=held), Info(info.scalars, ok | (now.step < end))

    def judge(now: Now, state: Tried, status: jax.Array, data: Any) -> tuple[Tried, Any]:
        """Keeps the best variables of every member by its criterion, and stops it."""
        blocks, counts, decides = data
        losses = losses_of(state.held.moving.variables, blocks)
        criteria = _criteria(losses, counts, decides, real)
        active = status == Status.ACTIVE

        def of_member(one: StoppingEarly, value: jax.Array, active: jax.Array) -> Any:
            judged, status = one.judged(value, config.early_stopping_epochs)
            return pytrees.where(active, judged, one), status

        held, found = devices.map_members(of_member)(state.held, criteria, active)
        status = jnp.where(active & (now.step > end), found, status)
        return state._replace(held=held, variables=held.variables), status

    def next_trial(now: Now, state: Tried, status: jax.Array, data: Any) -> Any:
        """Notes how a trial went, and begins the next; after the last one the best goes on."""
        number, held = now.step // bagging.trial - 1, state.held
        lowest = jnp.where(jnp.isnan(held.lowest), jnp.inf, held.lowest)
        losses = state.losses.at[:, number].set(lowest)
        means = _means(losses, real)
        best = jnp.argmin(means)
        # The last trial has the better start of those before, and the lower rate.
        is_lower = number + 1 == last
        which = jnp.where(is_lower, jnp.argmin(means[: len(starts)]), number + 1)

        def again(number: jax.Array, key: jax.Array) -> StoppingEarly:
            one, rate = now._replace(number=number, key=key), jnp.where(is_lower, _LOWER, 1.0)
            return started(one, jnp.array(starts)[which], rate)

        kept = pytrees.where(best == number, held, state.kept)
        fresh = devices.map_members(again)(now.number, now.key)
        going_on = pytrees.where(number == last, kept, fresh)
        is_lost = (number == last) & ~jnp.isfinite(losses[:, best])
        status = jnp.where(is_lost, jnp.int8(Status.NON_FINITE), status)
        return Tried(going_on.variables, going_on, kept, losses), status

    return init, step, judge, next_trial


def _criteria(
    losses: jax.Array, counts: jax.Array, decides: jax.Array, real: np.ndarray
) -> jax.Array:
    """Criteria [M] of members by their losses [M], of so many rows.

    Few rows of its own alone flatter a member, of whose many epochs one is the best by chance; and
    no member that diverges decides for the others. Where the latest period decides, all stop by the
    median of those who hold it out.
    """
    counted = jnp.isfinite(losses) & real
    decides = decides | ~jnp.any(counted & decides)
    median = jnp.nanmedian(jnp.where(counted & decides, losses, jnp.nan))
    own = jnp.where(jnp.all(decides | ~real), counts / (counts + _ROWS_OF_ALL), 0.0)
    return jnp.where(counted, own * losses + (1 - own) * median, losses)


def _means(losses: Any, real: Any) -> Any:
    """Mean losses [T] of trials over the members [M, T] that have had a finite one, if any has."""
    tried = real & jnp.isfinite(losses).any(axis=1)
    tried = jnp.where(tried.any(), tried, real)
    return jnp.mean(losses, 0, where=tried[:, None])


def _from_linear(task: Supervised, shared: Any, number: jax.Array, variables: Any) -> Any:
    """Variables that put out what the linear model of a member's fold does: the network's are 0."""
    fold = number % len(shared["bias"])
    linear = {name: shared[name][fold] for name in ("kernel", "bias")}
    if task.num_estimators > 1:
        linear = jax.tree.map(lambda leaf: jnp.stack([leaf] * task.num_estimators), linear)
    last = {path_name(path) for path in (task.output_layer or {}).values()}

    def zero(path: Any, leaf: jax.Array) -> jax.Array:
        name = path_name(path).removesuffix(f"/{OWN}").removesuffix(f"/{SHARED}")
        return jnp.zeros_like(leaf) if name in last else leaf

    params = jax.tree.map_with_path(zero, variables["params"])
    return {**variables, "params": params, LINEAR: linear}


class BaggingReport(training.DescentReport):
    """What runs of members that hold rows out say."""

    def __init__(self, bagging: _Bagging):
        super().__init__(bagging.config, bagging.task, bagging.how)
        self._bagging = bagging

    def scalars(self, run: Any, period: Period) -> dict[str, float]:
        """Means over steps; the learning rate is that of the trial."""
        bagging, step = self._bagging, period.end - 1
        if step < bagging.end:
            trial = step // bagging.trial
        else:
            losses = run.devices.fetch_members(run.loop.members.state.losses)
            trial = int(np.argmin(_means(losses, np.True_)))
        rate = float(self.descent.learning_rate(step - bagging.begun(step))) * bagging.rate(trial)
        return {**super().scalars(run, period), "train/learning_rate": rate}

    def _held(self, run: Any, variables: Any) -> tuple[np.ndarray, HeldPredictions]:
        """Rows that members hold out, ascending, and what the live members predict of them.

        Args:
            run: Of the members.
            variables: By which they predict.
        """
        source = self.task.dataset
        each = [self._bagging.folds.held_out(k) for k in run.numbers]
        rows = np.unique(np.concatenate(each))
        holds = [
            np.isin(rows, own) & (status not in FAILURES)
            for own, status in zip(each, run.loop.status, strict=True)
        ]
        sets = jax.tree.map(lambda leaf: leaf[:, None], variables)
        flat = run.predict(sets, source.read("train", rows).inputs)
        arrays = {k: one.reshape(len(each), -1, *one.shape[1:]) for k, one in flat.items()}
        targets = source.targets("train")[rows]
        weights = self._bagging.weigh(rows, targets)
        found = HeldPredictions(np.stack(holds), arrays, targets, weights, self.task.likelihood)
        return rows, found

    def finish(self, run: Any) -> bool:
        """Makes predictions as wide as the rows held out say."""
        state = run.loop.members.state
        plain, size = state.held.variables, len(run.numbers)
        held = self._held(run, plain)[1]
        factor = np.float32(processes.from_main(lambda: fitted_factor(held, size)))
        wide = {**plain, WIDTH: {"factor": plain[WIDTH]["factor"] * factor}}
        run.loop.members = run.loop.members._replace(state=state._replace(variables=wide))
        return True

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """The settings that were tried and chosen, and what the rows held out say of them."""
        bagging, members = self._bagging, run.loop.members
        state, taken = run.devices.fetch_members((members.state, members.taken))
        rows, held = self._held(run, members.state.held.variables)
        losses, means = held.losses(), np.asarray(_means(state.losses, np.True_))
        starts = [*bagging.starts, bagging.starts[np.argmin(means[: len(bagging.starts)])]]
        epochs = -(-(taken - bagging.before) // bagging.epoch)
        width = float(state.variables[WIDTH]["factor"].flat[0])
        found: dict[str, Any] = {
            "folds": bagging.folds.number,
            "held_out_rows": int(np.isfinite(losses).sum()),
            "trials": [
                {
                    "linear_start": starts[i],
                    "learning_rate": self.config.learning_rate * bagging.rate(i),
                    "nll": float(mean) if np.isfinite(mean) else None,
                }
                for i, mean in enumerate(means)
            ],
            "chosen": int(np.argmin(means)),
            "best_epochs": (epochs - state.held.waited).tolist(),
            "width": None if width == 1 else width,
            "latest_decides": bagging.folds.are_periods,
            "why_not_linear": bagging.why_not_linear,
            "below_linear": None,
        }
        if not bagging.why_not_linear:
            gain = np.asarray(run.loop.shared["losses"])[rows] - losses
            found["below_linear"] = _mean_and_error(gain, held.weights)
        found["summary"] = _line(found, self.config.ensemble_size)
        tell(found["summary"])
        return {"cross_fitted": found}

    def write(self, run: Any) -> None:
        """Writes the losses of the rows that members hold out: see `storage.predictions`."""
        folds = self._bagging.folds
        rows, held = self._held(run, run.loop.members.state.variables)
        losses = np.full(len(folds.of_rows), np.nan)
        losses[rows] = np.where(folds.deciding[rows], held.losses(), np.nan)
        if processes.is_main():
            write_held_out(run.where.work, losses)


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
    start = "from" if chosen["linear_start"] else "without"
    low, high = min(found["best_epochs"]), max(found["best_epochs"])
    line = (
        f"{size} networks hold out folds of {found['folds']}, {found['held_out_rows']} rows in "
        f"all. They start {start} a linear model, at rate {chosen['learning_rate']:.3g}; best "
        f"epochs {low} to {high}."
    )
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


# What members predict of the rows that they hold out, and how wide their mixture must be.


class HeldPredictions(NamedTuple):
    """Predictions of N rows by M members, some of which have not learned them.

    Attributes:
        holds: [M, N] bool: whether a member lives and holds a row out.
        arrays: Predictions of each member's K estimators, [M, K, N, ...] by name.
        targets: [N].
        weights: [N], how much rows count; None: all the same.
        likelihood: Of the targets.
    """

    holds: np.ndarray
    arrays: Mapping[str, np.ndarray]
    targets: np.ndarray
    weights: np.ndarray | None
    likelihood: Any

    def mixtures(self, number: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Rows [n] that so many members hold out, or more, and what the first of them predict.

        These are arrays [number * K, n, ...], of the estimators of one member after the other.
        """
        rows = np.flatnonzero(self.holds.sum(axis=0) >= number)
        members = np.argsort(~self.holds[:, rows], axis=0, kind="stable")[:number]
        found = {name: one[members, :, rows].swapaxes(1, 2) for name, one in self.arrays.items()}
        return rows, {name: np.concatenate(one) for name, one in found.items()}

    def losses(self) -> np.ndarray:
        """The loss [N] of each row by one member that holds it out, or two; else NaN."""
        losses = np.full(len(self.targets), np.nan)
        for number in (1, 2):
            rows, arrays = self.mixtures(number)
            if len(rows):
                p = self.likelihood.predictive(arrays)
                losses[rows] = metrics_of(p)[self.likelihood.loss].terms(p, self.targets[rows])
        return losses


def fitted_factor(held: HeldPredictions, num_members: int) -> float:
    """How much wider the predictions of members must be for those of their mixture to be right.

    On rows that two members hold out, the factor of one and the factor of their mixture tell by
    extrapolation in 1 / M how the one of the whole mixture, which nobody holds rows out of, differs
    from that of one member, for which all rows that are held out speak. Of classes it is a
    temperature.

    Args:
        held: Of the members.
        num_members: M.

    Returns:
        1 where no two of several members hold out a row, or predictions have no width.
    """
    rows, pairs = held.mixtures(min(num_members, 2))
    if not held.likelihood.can_be_tempered or not len(rows):
        return 1.0
    shrinkage = 1.0
    if num_members > 1:
        first = {name: one[: len(one) // 2] for name, one in pairs.items()}
        one, two = (_best(held, rows, arrays) ** 2 for arrays in (first, pairs))
        limit = 2 * two - one
        shrinkage = (limit + (one - limit) / num_members) / one
    square = shrinkage * _best(held, *held.mixtures(1)) ** 2
    return math.sqrt(np.clip(square, _NARROWEST**2, _WIDEST**2))


def _best(held: HeldPredictions, rows: np.ndarray, arrays: dict[str, np.ndarray]) -> float:
    """The most probable factor of mixtures [m, n, ...] of rows [n], with weights of mean 1."""
    targets, likelihood = held.targets[rows], held.likelihood
    weights = None if held.weights is None else held.weights[rows]
    tempered = jax.jit(likelihood.tempered)

    def loss(log_factor: float) -> float:
        wide = jax.tree.map(np.asarray, tempered(arrays, math.exp(log_factor)))
        nll = -likelihood.predictive(wide).log_prob(targets)
        mean = np.average(nll, weights=weights)
        return float(len(rows) * mean + (log_factor / _DEVIATION) ** 2 / 2)

    bounds = tuple(map(math.log, _SEARCHED))
    found = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded")
    return math.exp(found.x)
