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
import scipy.optimize

from ensemble import pytrees
from ensemble.data.batches import epoch_batches
from ensemble.fitted import LINEAR, WIDTH
from ensemble.methods import linear_start, training
from ensemble.methods.batch_ensemble import OWN, SHARED, SharedWeights
from ensemble.methods.descent import Descending, descent, make_objective
from ensemble.methods.folds import make_folds
from ensemble.methods.optimizers import descent_of_each
from ensemble.metrics import metrics_of
from ensemble.network import path_name
from ensemble.notes import tell
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Start, Status
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batch, Fixed
from ensemble.runtime.method import Method
from ensemble.sharding import processes
from ensemble.storage.predictions import write_held_out
from ensemble.tasks.supervised import Supervised

_TRIAL_EPOCHS = 20
"""Epochs of each setting that is tried, unless the run is short."""
_MIN_LENGTH = 4
"""Least length of a run, in trials."""
_LOWER = 0.2
"""Share of the configured learning rate that is tried after it."""
_MAX_NORM = 1.0
"""Norm to which gradients are clipped."""
_AT_ONCE = 1024
"""Rows of one forward pass."""
_ROWS_OF_ALL = 50
"""Rows of its own from which on a member's loss counts more than that of all members."""

_SEARCHED = (0.4, 3.0)
"""Range of the factors that are searched."""
_NARROWEST, _WIDEST = 0.8, 1.5
_DEVIATION = 0.1
"""Prior deviation of the factor's logarithm: few rows, or rows of which nothing is known, hardly
determine it."""


class Bagged(NamedTuple):
    """A member in the setting that is under way, and what has been tried.

    Attributes:
        kept: The member of the best trial so far.
        losses: [T] of trials, nats; infinite of those yet to come.
        variables: As of `training.StoppingEarly`, by the rows of its fold.
        moving: As there.
        lowest: As there.
        waited: As there.
    """

    kept: training.StoppingEarly
    losses: jax.Array
    variables: Any
    moving: Descending
    lowest: jax.Array
    waited: jax.Array


def create(config: ml_collections.FrozenConfigDict, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The data do not suit it, or it takes too much memory.
    """
    bagging = Bagging(config, task)
    learned = bagging.learned
    duration = "num_epochs or config.num_steps"
    return training.of_members(
        config,
        bagging.task,
        bagging.epochs,
        members_learn=learned,
        place=functools.partial(training.spread, config, learned),
        algorithm=bagging.algorithm,
        report=bagging,
        num_steps=bagging.num_steps,
        may_end_early=True,
        duration=duration,
        facts={"the steps of a trial": (bagging.trial, f"config.{duration}")},
    )


class Bagging(training.DescentReport):
    """Settings, algorithm and report of members that hold rows out.

    Attributes:
        learned: Task of the members.
        folds: Folds of the training rows.
        starts: Whether trials start from a linear model; a further one has the better of these.
        shares: Shares of the learning rate in the T trials.
        trial: Steps of a trial. After the last one the best goes on, to the end of the run.
        ends: Steps after which trials end.
    """

    held: HeldPredictions
    factor: np.float32

    def __init__(self, config: ml_collections.FrozenConfigDict, task: Supervised):
        keys = {**training.with_own_keys(config), "clip_norm": _MAX_NORM}
        config = ml_collections.FrozenConfigDict(keys)
        self.starts = (False,) if linear_start.why_not(task) else (True, False)
        beside = (LINEAR, WIDTH) if self.starts[0] else (WIDTH,)
        task = learned = dataclasses.replace(task, beside=beside)
        if config.num_estimators > 1:
            learned = SharedWeights.of(task, config.num_estimators, config.adapters)
        self.learned = learned
        self.folds = make_folds(task.dataset, config.kfold_bagging.folds, config.seed)
        self.epochs = training.Epochs.of(config, self.folds.num_learned)
        epoch = self.epochs.steps
        steps = int(config.num_steps or config.num_epochs * epoch)
        trial = min(_TRIAL_EPOCHS, steps // epoch // _MIN_LENGTH) * epoch
        self.shares = (*[1.0] * len(self.starts), _LOWER) if trial else (1.0,)
        self.trial = trial or steps
        self.ends = [(i + 1) * self.trial for i in range(len(self.shares))]
        self.num_steps = steps + self.ends[-1] - self.trial
        # Classes count as they come where predictions are corrected for their weights.
        of_classes = learned.likelihood.class_weights is None
        weights = training.weights_of(config, task.dataset, of_classes)
        number = task.dataset.sizes["train"]
        self.weights = np.ones(number, np.float32) if weights is None else weights
        super().__init__(config, task, descent_of_each(config, steps, "learning_rate"))

    def begun(self, step: Any) -> Any:
        """Returns the first step of the trial that a step is of, traced or not."""
        return sum((step >= end) * self.trial for end in self.ends[:-1])

    def start(self) -> Start:
        """Fits the linear models, of which a member takes that of its fold."""
        found = linear_start.fit(self.learned, self.folds, self.weights)._asdict()
        # Other machines may round otherwise, and choose other penalties.
        return Start(shared=processes.tree_from_main(found))

    def order(self, epoch: int, member: Any) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of examples and mask [steps, B] of a member, which learns its own rows.

        A member with fewer of them than another begins its order again: all take equal steps.
        Each trial begins with the first epoch.
        """
        length, size = self.epochs
        rows, steps = self.folds.learned(member), self.epochs.steps
        epoch -= self.begun(epoch * steps) // steps
        order, mask = epoch_batches(len(rows), size, self.config.seed, epoch, member, length)
        return rows[order].astype(np.int32), mask

    def _held_out(self, devices: Devices, numbers: Sequence[int]) -> Fixed:
        """Rows that members hold out in blocks, the shares of their own losses, and who decides."""
        folds = self.folds
        rows = [folds.held_out(k) for k in numbers]
        counts = np.array([len(one) for one in rows], np.float32)
        size = math.ceil(counts.max() / math.ceil(counts.max() / _AT_ONCE))
        blocks = training.blocks(devices, self.task.dataset, "train", rows, size, self.weights)
        # Few rows of its own alone flatter a member, of whose many epochs one is the best by
        # chance; where the latest period decides, all stop by those who hold it out.
        own = 0 * counts if folds.are_periods else counts / (counts + _ROWS_OF_ALL)
        decides = np.array([folds.decides(k) for k in numbers])
        return Fixed((blocks, devices.put_members((own, decides))))

    def algorithm(self, devices: Devices, numbers: Sequence[int]) -> Algorithm:
        """Makes the algorithm of some members, each with the rows that it holds out."""
        config, task, ends = self.config, self.learned, self.ends
        starts, shares, real = np.array(self.starts), np.array(self.shares), ~devices.is_padding
        last = len(shares) - 1
        held = self._held_out(devices, numbers)
        feed = training.batches(config, task, devices, numbers, self.num_steps, order=self.order)
        begin, move = descent(task, devices, make_objective(config, task), self.descent)

        def criteria(losses: jax.Array, data: Any) -> jax.Array:
            """Mixes losses [M] with their median; no member that diverges decides for others."""
            own, decides = data
            counted = jnp.isfinite(losses) & real
            decides = counted & (decides | ~jnp.any(counted & decides))
            median = jnp.nanmedian(jnp.where(decides, losses, jnp.nan))
            return jnp.where(counted, own * losses + (1 - own) * median, losses)

        chosen = ends[-1] if len(ends) > 1 else -1  # Until then nobody stops or fails.
        judge = training.judge(
            devices,
            training.held_loss(task, devices),
            config.early_stopping_epochs,
            axis=1,
            criteria=criteria,
            first=chosen,
        )

        def started(now: Now, is_linear: Any, share: Any) -> training.StoppingEarly:
            """Begins a trial."""
            variables, optimizer = begin(now, None)
            if now.shared is not None:
                linear = _from_linear(task, now.shared, now.number, variables)
                variables = pytrees.where(is_linear, linear, variables)
            rates = jax.tree.map(lambda leaf: leaf * jnp.float32(share), optimizer.hyperparams)
            moving = Descending(variables, optimizer._replace(hyperparams=rates))
            return training.StoppingEarly.of(moving)

        def init(now: Now, batch: Any) -> Bagged:
            begun = started(now, starts[0], 1)
            return Bagged(begun, jnp.full(len(shares), jnp.inf), *begun)

        def step(now: Now, state: Bagged, batch: Batch) -> tuple[Bagged, Info]:
            """Takes a step of the setting that is under way; in a trial nobody fails for good."""
            in_trial = now._replace(step=now.step - self.begun(now.step))
            moving, info = move(in_trial, state.moving, batch)
            ok = jnp.asarray(info.ok)
            lowest = jnp.where(ok, state.lowest, jnp.nan)
            moving = pytrees.where(jnp.isnan(lowest), state.moving, moving)
            state = state._replace(moving=moving, lowest=lowest)
            return state, Info(info.scalars, ok | (now.step < chosen))

        def next_trial(now: Now, state: Bagged, status: jax.Array, data: Any) -> Any:
            """Notes how a trial went, and begins the next; after the last one the best goes on."""
            number = now.step // self.trial - 1
            lowest = jnp.where(jnp.isnan(state.lowest), jnp.inf, state.lowest)
            losses = state.losses.at[:, number].set(lowest)
            means = _means(losses, real)
            best, is_last = jnp.argmin(means), number == last
            better = jnp.argmin(means[: len(starts)])
            is_linear = jnp.asarray(starts)[jnp.where(number + 1 == last, better, number + 1)]
            share = jnp.asarray(shares)[number + 1]

            def again(number: jax.Array, key: jax.Array) -> training.StoppingEarly:
                return started(now._replace(number=number, key=key), is_linear, share)

            tried = training.StoppingEarly(*state[2:])
            kept = pytrees.where(best == number, tried, state.kept)
            fresh = devices.map_members(again)(now.number, now.key)
            is_lost = is_last & ~jnp.isfinite(losses[:, best])
            status = jnp.where(is_lost, jnp.int8(Status.NON_FINITE), status)
            return Bagged(kept, losses, *pytrees.where(is_last, kept, fresh)), status

        epoch = self.epochs.steps
        return Algorithm(
            init,
            step,
            None,
            self.num_steps,
            feed,
            steps_per_program=feed.steps_per_program,
            between=(
                Between(
                    lambda step: step % epoch == 0 or step == self.num_steps,
                    judge,
                    held,
                    of_all=True,
                ),
                Between(ends.__contains__, next_trial, of_all=True),
                # Who never gets better predicts as it began.
                Between(ends[:-1].__contains__, judge, held, of_all=True),
            ),
            start=self.start if starts[0] else None,
        )

    # Report.

    def learning_rate(self, run: Any, step: int) -> float:
        """Learning rate of the trial that a step is of."""
        trial = step // self.trial
        if step >= self.ends[-1]:
            losses = run.devices.fetch_members(run.loop.members.state.losses)
            trial = int(np.argmin(_means(losses)))
        return super().learning_rate(run, step - self.begun(step)) * self.shares[trial]

    def finish(self, run: Any) -> bool:
        """Makes predictions as wide as the rows held out say."""
        source, state = self.task.dataset, run.loop.members.state
        width = state.moving.variables[WIDTH]  # As the network says.
        holds = np.stack([self.folds.is_held_out(k) & (k in run.live) for k in run.numbers])
        rows = np.flatnonzero(holds.any(axis=0))
        sets = pytrees.at({**state.variables, WIDTH: width}, np.s_[:, None])
        flat = run.predict(sets, source.read("train", rows).inputs)
        arrays = {name: one.reshape(len(holds), -1, *one.shape[1:]) for name, one in flat.items()}
        self.held = HeldPredictions(
            rows,
            holds[:, rows],
            arrays,
            source.targets("train")[rows],
            self.weights[rows],
            self.task.likelihood,
        )
        factor = processes.from_main(lambda: fitted_factor(self.held, len(holds)))
        self.factor = np.float32(factor)
        wide = {"factor": width["factor"] * self.factor}
        state = state._replace(variables={**state.variables, WIDTH: wide})
        run.loop.members = run.loop.members._replace(state=state)
        return True

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """Settings that were tried and chosen, and results on the rows held out."""
        members = run.loop.members
        state, taken = run.devices.fetch_members((members.state, members.taken))
        means = np.asarray(_means(state.losses))
        starts = *self.starts, self.starts[np.argmin(means[: len(self.starts)])]
        trials = [
            {
                "linear_start": is_linear,
                "learning_rate": self.config.learning_rate * share,
                "nll": float(mean) if np.isfinite(mean) else None,
            }
            for is_linear, share, mean in zip(starts, self.shares, means, strict=False)
        ]
        chosen = int(np.argmin(means))
        epochs = -(-(taken - self.begun(self.num_steps)) // self.epochs.steps) - state.waited
        number = len(self.held.rows)
        line = (
            f"{len(taken)} networks hold out folds of {self.folds.number}, {number} rows in all. "
            f"They start {'from' if starts[chosen] else 'without'} a linear model, at rate "
            f"{trials[chosen]['learning_rate']:.3g}; best epochs {epochs.min()} to {epochs.max()}."
        )
        tell(line)
        found = {
            "folds": self.folds.number,
            "held_out_rows": number,
            "trials": trials,
            "chosen": chosen,
            "best_epochs": epochs.tolist(),
            "width": None if self.factor == 1 else float(self.factor),
            "summary": line,
        }
        return {"kfold_bagging": found}

    def write(self, run: Any) -> None:
        """Writes the losses of the rows that members hold out: see `storage.predictions`."""
        rows, deciding = self.held.rows, self.folds.deciding
        losses = np.full(len(deciding), np.nan)
        losses[rows] = self.held.losses(self.factor)
        losses[~deciding] = np.nan
        if processes.is_main():
            write_held_out(run.where.work, losses)


def _means(losses: Any, real: Any = np.True_) -> Any:
    """Mean losses [T] of trials over the members [M, T] that have had a finite one, if any has."""
    tried = real & jnp.isfinite(losses).any(axis=1)
    tried = jnp.where(tried.any(), tried, real)
    return jnp.mean(losses, 0, where=tried[:, None])


def _from_linear(task: Supervised, shared: Any, number: jax.Array, variables: Any) -> Any:
    """Variables that put out what the linear model of a member's fold does: the network's are 0."""
    fold = number % len(shared["bias"])
    linear = {
        name: jnp.broadcast_to(shared[name][fold], leaf.shape)
        for name, leaf in variables[LINEAR].items()
    }
    layer = [path_name(path) for path in (task.output_layer or {}).values()]
    last = {name + part for name in layer for part in ("", f"/{OWN}", f"/{SHARED}")}
    params = jax.tree.map_with_path(
        lambda path, leaf: jnp.zeros_like(leaf) if path_name(path) in last else leaf,
        variables["params"],
    )
    return {**variables, "params": params, LINEAR: linear}


# Predictions on the rows held out, and the width of their mixture.


class HeldPredictions(NamedTuple):
    """Predictions of N rows by M members, some of which have not learned them.

    Attributes:
        rows: [N] their numbers among the training rows, ascending.
        holds: [M, N] bool: whether a member lives and holds a row out.
        arrays: Predictions of each member's K estimators, [M, K, N, ...] by name.
        targets: [N].
        weights: [N], how much rows count.
        likelihood: Likelihood of the targets.
    """

    rows: np.ndarray
    holds: np.ndarray
    arrays: Mapping[str, np.ndarray]
    targets: np.ndarray
    weights: np.ndarray
    likelihood: Any

    def mixtures(self, number: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Rows [n] that so many members hold out, or more, and what the first of them predict.

        These are arrays [number * K, n, ...], of the estimators of one member after the other.
        """
        rows = np.flatnonzero(self.holds.sum(axis=0) >= number)
        members = np.argsort(~self.holds[:, rows], axis=0, kind="stable")[:number]
        return rows, {
            name: np.concatenate(one[members, :, rows].swapaxes(1, 2))
            for name, one in self.arrays.items()
        }

    def widened(self, arrays: dict[str, np.ndarray], factor: Any) -> Any:
        """The mixture of predictions that are wider by a factor."""
        if factor != 1:
            arrays = jax.tree.map(np.asarray, self.likelihood.tempered(arrays, factor))
        return self.likelihood.predictive(arrays)

    def losses(self, factor: Any = 1) -> np.ndarray:
        """The loss [N] of each row by one member that holds it out, or two; else NaN."""
        losses = np.full(len(self.targets), np.nan)
        for number in (1, 2):
            rows, arrays = self.mixtures(number)
            if len(rows):
                p = self.widened(arrays, factor)
                losses[rows] = metrics_of(p)[self.likelihood.loss].terms(p, self.targets[rows])
        return losses

    def best_square(self, rows: np.ndarray, arrays: dict[str, np.ndarray]) -> float:
        """Square of the most probable factor of mixtures [m, n, ...] of rows [n]."""

        def loss(log_factor: float) -> float:
            nll = -self.widened(arrays, math.exp(log_factor)).log_prob(self.targets[rows])
            mean = np.average(nll, weights=self.weights[rows])
            return float(len(rows) * mean + (log_factor / _DEVIATION) ** 2 / 2)

        bounds = tuple(map(math.log, _SEARCHED))
        found = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded")
        return math.exp(2 * found.x)


def fitted_factor(held: HeldPredictions, num_members: int) -> float:
    """Factor of the width of members' predictions for which those of their mixture are right.

    On rows that two members hold out, the factor of one and the factor of their mixture tell by
    extrapolation in 1 / M how the one of the whole mixture, which nobody holds rows out of, differs
    from that of one member, for which all rows that are held out speak. Of classes it is a
    temperature.

    Args:
        held: Predictions of the members.
        num_members: M.

    Returns:
        1 where no two of several members hold out a row, or predictions have no width.
    """
    rows, pairs = held.mixtures(min(num_members, 2))
    if not held.likelihood.can_be_tempered or not len(rows):
        return 1.0
    square = held.best_square(*held.mixtures(1))
    if num_members > 1:
        first = {name: one[: len(one) // 2] for name, one in pairs.items()}
        one, two = (held.best_square(rows, arrays) for arrays in (first, pairs))
        limit = 2 * two - one
        square *= (limit + (one - limit) / num_members) / one
    return math.sqrt(np.clip(square, _NARROWEST**2, _WIDEST**2))
