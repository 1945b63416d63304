"""The method `cross_fitted`: members that hold each other's rows out.

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from ensemble.errors import UserError
from ensemble.fitted import LINEAR, WIDTH, Fitted, OnDisk
from ensemble.method import FAILURES, Status
from ensemble.methods.members import linear_start, member
from ensemble.methods.members.engine import ChunkInfo, Engine, EngineState, batch_sizes
from ensemble.methods.members.engine_method import EngineMethod, duration
from ensemble.methods.members.folds import make_folds
from ensemble.methods.members.held_predictions import HeldPredictions, fitted_factor, has_factor
from ensemble.methods.members.member import TrainState
from ensemble.methods.members.optimizers import (
    Descent,
    create_optimizer,
    learning_rate_schedule,
    say_what_stretching_does,
)
from ensemble.methods.members.shared_weights import SharedWeights, apart, without_factors
from ensemble.notes import tell
from ensemble.sharding import processes
from ensemble.storage.held_out import write_held_out
from ensemble.storage.workdir import Workdir
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
_KEPT, _TRIED = "kept", "tried"
"""The entries of a checkpoint."""


class Trial(NamedTuple):
    """A setting that is tried.

    Attributes:
        is_linear: whether members start from a linear model.
        rate: share of the learning rate.
    """

    is_linear: bool
    rate: float = 1.0


class CrossFittedState(NamedTuple):
    """Members, and what has been tried.

    Attributes:
        members: of the setting that is under way, as the engine moves them.
        trial: its number, from 0; the number of trials once one has been chosen.
        step: steps taken, in all trials.
        tried: [num_places, T] losses of members by trial, nats; infinite of those yet to come.
        kept: the members of the best trial so far; None where these are `members`.
    """

    members: EngineState
    trial: int
    step: int
    tried: jax.Array
    kept: TrainState | None = None


class CrossFitted(EngineMethod[CrossFittedState]):
    """Members that hold folds out; the arguments are those of `EngineMethod`.

    Raises:
        UserError: the data do not suit it, or it takes too many steps, or too much memory.
    """

    charts: Mapping[str, str] = {"training loss": "train/member_[0-9]+/loss"}

    def __init__(
        self,
        config: ml_collections.FrozenConfigDict,
        task: Supervised,
        others: Mapping[str, int] | None = None,
    ):
        self.why_not_linear = linear_start.why_not(task)
        beside = (WIDTH,) if self.why_not_linear else (LINEAR, WIDTH)
        super().__init__(config, dataclasses.replace(task, beside=beside), others)
        self.may_end_early = True
        self.num_steps = self._before + self.engine.goal
        self._chosen = _chosen(others) if others else Trial(self._starts[0])
        self._rng_key: jax.Array | None = None

    def make_engine(self, others: Mapping[str, int] | None) -> Engine:
        """The engine of members that learn all rows but those of their folds."""
        learned: Any = self.task  # Supervised, as the registry has it.
        settings = self.config.cross_fitted
        if settings.num_estimators > 1:
            learned = SharedWeights.of(learned, settings.num_estimators, settings.adapters)
        self._supervised: Supervised = learned
        self._starts = (False,) if self.why_not_linear else (True, False)
        self.num_trials = self.most_trials = len(self._starts) + 1
        own = ml_collections.ConfigDict(self.config)
        with own.unlocked():
            own.batching, own.early_stopping_epochs = "independent", own.cross_fitted.patience
        config = ml_collections.FrozenConfigDict(own)
        self.folds = folds = make_folds(learned.dataset, config.cross_fitted.folds, config.seed)
        per_epoch = batch_sizes(config, learned, folds)[1]
        num_steps = duration(config, learned, folds)
        epochs = min(_TRIAL_EPOCHS, num_steps // per_epoch // _MIN_LENGTH)
        self._trial_steps = epochs * per_epoch
        if not epochs:
            self.num_trials = 1
        if others:
            others = {**others, "step": others["step"] - self._before}
        devices = processes.devices(config.num_devices)
        size, descent = config.ensemble_size, _descent(config, num_steps)
        return Engine(config, learned, devices, size, num_steps, descent, others, folds)

    @property
    def _before(self) -> int:
        """Steps of the trials whose members do not go on."""
        return (self.num_trials - 1) * self._trial_steps

    def _offset(self, trial: int) -> int:
        """Steps that all members had taken before those of a trial began."""
        return min(trial, self.num_trials - 1) * self._trial_steps

    def _trial_of(self, step: int) -> int:
        """The trial that a step from 1 is of; the number of trials after the last."""
        if self.indices[0]:
            return self.num_trials
        return min((step - 1) // self._trial_steps, self.num_trials) if self._trial_steps else 1

    @functools.cached_property
    def _linear(self) -> linear_start.LinearStart:
        """The linear models, fitted where they are first asked for."""
        rows = np.arange(self.task.dataset.sizes["train"])
        assert self.engine.held_out is not None
        weights = self.engine.held_out.weights(rows, self.task.dataset.targets("train"))
        found = None  # Other machines may round otherwise, and choose other penalties.
        if processes.is_main():
            found = linear_start.fit(self._supervised, self.folds, weights)._asdict()
        return linear_start.LinearStart(**processes.arrays_from_main(found))

    def moved(self, state: CrossFittedState) -> EngineState:
        """The members of the setting that is under way."""
        return state.members

    # Moving.

    def init(self, rng_key: jax.Array) -> CrossFittedState:
        """Starts the members, member k from `fold_in(rng_key, k)`."""
        self._rng_key = rng_key
        only = self.num_trials == 1 or bool(self.indices[0])
        members = self._start(self._chosen)
        tried = np.full((len(self.indices), self.num_trials), np.inf, np.float32)
        tried = self.engine.programs.placement.place_members(tried)
        trial = self.num_trials if only else 0
        return CrossFittedState(members, trial, self._offset(trial), tried)

    def _settings(self, losses: np.ndarray) -> list[Trial]:
        """The settings that were tried, and the next, by the losses [T] of trials so far."""
        found = [Trial(start) for start in self._starts]
        best = found[int(np.argmin(losses[: len(found)]))]
        return [*found, Trial(best.is_linear, _LOWER)][: self.num_trials]

    def _start(self, trial: Trial) -> EngineState:
        """Members that begin a trial."""
        assert self._rng_key is not None
        given = None
        if trial.is_linear:
            given = _started(self._supervised, self._linear)
        state = self.engine.init(self._rng_key, given)
        opt_state: Any = state.members.opt_state
        rate = opt_state.hyperparams["learning_rate"] * np.float32(trial.rate)
        opt_state = opt_state._replace(hyperparams={"learning_rate": rate})
        return state.replace(members=state.members.replace(opt_state=opt_state))

    def advance(
        self, state: CrossFittedState, limit: int | None = None
    ) -> tuple[CrossFittedState, ChunkInfo]:
        """Takes the steps up to the next that is due, or to the end of a trial."""
        is_trial, offset = state.trial < self.num_trials, self._offset(state.trial)
        end = self._trial_steps if is_trial else self.engine.goal
        left = end - state.members.step
        members, info = self.engine.advance(state.members, min(limit or left, left))
        info = info._replace(step=info.step + offset, first=info.first + offset)
        state = state._replace(members=members, step=members.step + offset)
        if is_trial:
            info = info._replace(status=_spared(info.status))
            return self._next(state) if members.step == end else state, info
        is_active = self.engine.status(members).values()
        if members.step == end or Status.ACTIVE not in is_active:
            state = state._replace(members=self._widened(members))
        return state, info

    def _next(self, state: CrossFittedState) -> CrossFittedState:
        """Notes how a trial went, and begins the next; after the last one the best goes on."""
        members, number = state.members.members, state.trial
        best: Any = members.best  # There, as all members stop early.
        tried = _noted(state.tried, number, members.status, best.nll)
        losses = self._losses(tried)
        is_best = number == int(np.argmin(losses[: number + 1]))
        kept = state.kept if state.kept is not None and not is_best else members
        state = state._replace(trial=number + 1, tried=tried)
        settings = self._settings(losses)
        if number + 1 < self.num_trials:
            return state._replace(members=self._start(settings[number + 1]), kept=kept)
        self._chosen = settings[int(np.argmin(losses))]
        going_on = EngineState(kept, step=self._trial_steps, begun=self._trial_steps)
        return state._replace(members=going_on, kept=None)

    def _losses(self, tried: jax.Array) -> np.ndarray:
        """The mean loss [T] of each trial, over the members that have tried some."""
        found = self.engine.programs.placement.gather_members(tried)
        have_tried = np.isfinite(found).any(axis=1)
        losses: np.ndarray = found[have_tried if have_tried.any() else slice(None)].mean(axis=0)
        return losses

    def _widened(self, state: EngineState) -> EngineState:
        """Members whose predictions are as wide as the rows held out say."""
        best: Any = state.members.best
        held, plain = self._held(state), _unwidened(best.variables)
        size = len(self.indices)
        factor = processes.from_main(lambda: fitted_factor(self.task.likelihood, held, size)) or 1
        wide = jax.tree.map(lambda one: one * np.float32(factor), plain[WIDTH])
        best = best.replace(variables={**plain, WIDTH: wide})
        return state.replace(members=state.members.replace(best=best))

    def _held(self, state: EngineState, is_wide: bool = False) -> HeldPredictions:
        """Predictions of the live members at their best, of the rows that they hold out.

        Args:
            state: of the engine.
            is_wide: whether predictions are as wide as the mixture's, or as training has left them.
        """
        engine, targets = self.engine, self.task.dataset.targets("train")
        best, held_out = state.members.best, engine.held_out
        assert best is not None
        assert held_out is not None
        variables = best.variables if is_wide else _unwidened(best.variables)
        found = held_out.predictions(variables)
        live = [i for i, one in enumerate(engine.status(state).values()) if one not in FAILURES]
        weights = held_out.weights(np.arange(len(targets)), targets)
        rows = [held_out.rows[i] for i in live]
        return HeldPredictions(rows, [found[i] for i in live], targets, weights)

    # What a run shows.

    def status(self, info_or_state: ChunkInfo | CrossFittedState) -> dict[int, Status]:
        """Fetches the status of the members, by number; in a trial nobody has failed for good."""
        found = super().status(info_or_state)
        if isinstance(info_or_state, ChunkInfo) or info_or_state.trial == self.num_trials:
            return found
        return dict.fromkeys(found, Status.ACTIVE)

    def scalars(self, info: ChunkInfo) -> dict[str, float]:
        """Fetches a chunk's diagnostics as named scalars; waits for the chunk."""
        trial = self._trial_of(info.step)
        found = super().scalars(info._replace(step=info.step - self._offset(trial)))
        is_lower = trial == self.num_trials - 1 and trial > 0
        found["train/learning_rate"] *= _LOWER if is_lower else self._chosen.rate
        return found

    def report_sections(
        self, state: CrossFittedState, draws: Any, timing: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """The settings that were tried and chosen, and what the rows held out say of them."""
        place = self.engine.programs.placement
        members, held = state.members.members, self._held(state.members)
        best: Any = members.best
        epochs = -(-place.gather_members(members.step) // self.steps_per_epoch)
        best_epochs = epochs - place.gather_members(best.epochs_since)
        losses = self._losses(state.tried)
        settings = self._settings(losses)
        rate = self.config.learning_rate
        found: dict[str, Any] = {
            "folds": self.folds.number,
            "held_out_rows": int(np.isfinite(held.losses(self.task.likelihood)).sum()),
            "trials": [
                {
                    "linear_start": trial.is_linear,
                    "learning_rate": rate * trial.rate,
                    "nll": float(loss) if np.isfinite(loss) else None,
                }
                for trial, loss in zip(settings, losses, strict=True)
            ],
            "chosen": settings.index(self._chosen),
            "best_epochs": best_epochs.tolist(),
            "width": None,
            "latest_decides": self.folds.are_periods,
            "why_not_linear": self.why_not_linear,
            "below_linear": None,
        }
        if has_factor(self.task.likelihood, held, len(self.indices)):
            found["width"] = float(place.gather_members(best.variables[WIDTH]["factor"]).flat[0])
        if not self.why_not_linear:
            gain = self._linear.losses - held.losses(self.task.likelihood)
            found["below_linear"] = _mean_and_error(gain, held.weights)
        found["summary"] = _line(found, self.config.ensemble_size)
        tell(found["summary"])
        return {"cross_fitted": found}

    def write_results(self, state: CrossFittedState, work: Workdir, draws: Any) -> None:
        """Writes the losses of the rows that members hold out: see `storage.held_out`."""
        losses = self._held(state.members, is_wide=True).losses(self.task.likelihood)
        losses[~self.folds.deciding] = np.nan
        if processes.is_main():
            write_held_out(work, losses)

    def fitted(self, state: CrossFittedState, live: Sequence[int], draws: Any) -> Fitted:
        """The networks that the live members are, or consist of."""
        found = super().fitted(state, live, draws)
        return apart(found) if self._supervised.num_estimators > 1 else found

    # What a checkpoint holds.

    def saved(
        self, state: CrossFittedState, gather: Callable[[Any], Any]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """A state as `(arrays, counters)`, with what has been tried."""
        arrays, counters = super().saved(state, gather)
        arrays[_TRIED] = gather(state.tried)
        if state.kept is not None:
            arrays[_KEPT] = self.engine.saved(EngineState(state.kept, 0), gather)[0]
        offset = self._offset(state.trial)
        return arrays, {
            **counters,
            "step": state.step,
            "begun": counters["begun"] + offset,
            "trial": state.trial,
            "trial_steps": self._trial_steps,
            "linear_start": int(self._chosen.is_linear),
            "lower_rate": int(self._chosen.rate < 1),
        }

    def from_host(
        self, rng_key: jax.Array, arrays: dict[str, Any], counters: dict[str, int]
    ) -> CrossFittedState:
        """The inverse of `to_host`, on any devices."""
        self._rng_key, self._chosen = rng_key, _chosen(counters)
        arrays, trial = dict(arrays), counters["trial"]
        tried, kept = arrays.pop(_TRIED), arrays.pop(_KEPT, None)
        offset = self._offset(trial)
        steps = {name: counters[name] - offset for name in ("step", "begun")}
        members = self.restored(arrays, {**counters, **steps})
        return CrossFittedState(
            members,
            trial,
            counters["step"],
            self.engine.programs.placement.place_members(tried),
            None if kept is None else self.engine.restored(kept, {"step": 0}).members,
        )

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Refuses counters of a run that this configuration cannot go on with.

        Raises:
            UserError: what differs, and what to do.
        """
        offset = self._offset(counters["trial"])
        super().check_resumable({**counters, "step": counters["step"] - offset}, where)
        if counters["trial_steps"] != self._trial_steps:
            raise UserError(
                f"the run in {where} tries each setting for {counters['trial_steps']} steps, and "
                f"this configuration would for {self._trial_steps}; keep config.num_epochs or "
                "config.num_steps as it was, or choose another --workdir"
            )
        say_what_stretching_does(
            self.config,
            {**counters, "step": counters["step"] - offset},
            self.engine.descent.learning_rate,
            self.engine.num_steps,
        )

    # Growth.

    def new_members(self, counters: Mapping[str, int]) -> Self | None:
        """The method of the members that a checkpoint with these counters lacks, if any.

        They begin with what the others have chosen.

        Raises:
            UserError: the others have not chosen yet.
        """
        size, number = self.config.ensemble_size, counters["num_members"]
        if number < size and counters["trial"] < self.num_trials:
            raise UserError(
                f"config.ensemble_size={size}: the run's {number} members still try their "
                "settings; let it go on with that number first"
            )
        return super().new_members(counters)

    def joined(
        self,
        arrays: Mapping[str, Any],
        counters: Mapping[str, int],
        new_members: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """A checkpoint's `(arrays, counters)` with the new members, all as wide as suits them."""
        arrays, counters = super().joined(arrays, counters, new_members)
        if counters["step"] < self.num_steps and Status.ACTIVE in arrays["status"]:
            return arrays, counters
        state = self.from_host(jax.random.key(self.config.seed), arrays, counters)
        return self.to_host(state._replace(members=self._widened(state.members)))


def fitted(saved: OnDisk) -> Fitted:
    """The networks of members that are on disk: see `ensemble.entries.MethodEntry`."""
    found = member.fitted(saved)
    number = saved.config["cross_fitted"].get("num_estimators", 1)  # Earlier versions had no such.
    return apart(found) if number > 1 else found


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


def _chosen(counters: Mapping[str, int]) -> Trial:
    """The setting that members of a checkpoint have chosen, or have begun with."""
    return Trial(bool(counters["linear_start"]), _LOWER if counters["lower_rate"] else 1.0)


@jax.jit  # One small program in place of several, as in the next function.
def _noted(tried: jax.Array, number: int, status: jax.Array, nll: jax.Array) -> jax.Array:
    """Losses [M, T] of all trials, with those of a trial that has ended."""
    return tried.at[:, number].set(jnp.where(status == Status.NON_FINITE, jnp.inf, nll))


@jax.jit
def _spared(status: jax.Array) -> jax.Array:
    """Statuses of a trial, in which nobody has stopped or failed for good."""
    return jnp.where(status == Status.PADDING, status, jnp.int8(Status.ACTIVE))


def _unwidened(variables: Any) -> dict[str, Any]:
    """Variables that predict as training has left them."""
    factors = jax.tree.map(lambda one: one / one, variables[WIDTH])  # Ones, where these lie.
    return {**variables, WIDTH: factors}


def _started(task: Supervised, linear: linear_start.LinearStart) -> dict[str, Any]:
    """The linear part [F, ...], and parameters [1, ...] with which the network puts out zeros."""
    part = {"kernel": linear.kernel, "bias": linear.bias}
    if task.num_estimators > 1:
        part = {name: np.stack([one] * task.num_estimators, 1) for name, one in part.items()}
    shapes = task.params_shapes()
    found: dict[str, Any] = {}
    for path in (task.output_layer or {}).values():
        place, leaf = found, shapes
        for key in path:
            leaf = leaf[key.key]
        for key in path[:-1]:
            place = place.setdefault(key.key, {})
        place[path[-1].key] = jax.tree.map(
            lambda one: np.zeros((1, *one.shape), np.float32), without_factors(leaf)
        )
    return {LINEAR: part, "params": found}


def _mean_and_error(values: np.ndarray, weights: np.ndarray | None) -> list[float]:
    """The mean over finite values [N], and its standard error."""
    there = np.isfinite(values)
    shares = np.ones(len(values)) if weights is None else weights.astype(np.float64)
    shares = shares[there] / shares[there].sum()
    mean = float(shares @ values[there])
    return [mean, float(np.sqrt(np.sum((shares * (values[there] - mean)) ** 2)))]


def _line(found: Mapping[str, Any], size: int) -> str:
    """Says in one line what was chosen, and by what."""
    trials, chosen = found["trials"], found["trials"][found["chosen"]]
    start = "from a linear model" if chosen["linear_start"] else "without a linear model"
    if found["why_not_linear"]:
        start += f", for {found['why_not_linear']},"
    others = [
        one
        for one in trials
        if one["linear_start"] == chosen["linear_start"] and one is not chosen and one["nll"]
    ]
    worse = "".join(
        f" ({one['learning_rate']:.3g} was worse by {one['nll'] - chosen['nll']:.2f} nats)"
        for one in others
    )
    low, high = min(found["best_epochs"]), max(found["best_epochs"])
    width = "" if found["width"] is None else f"; width {found['width']:.2f}"
    line = (
        f"{size} networks hold out folds of {found['folds']}, {found['held_out_rows']} rows in "
        f"all. They start {start}, at rate {chosen['learning_rate']:.3g}{worse}; best epochs {low} "
        f"to {high}{width}."
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
