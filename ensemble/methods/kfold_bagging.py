"""K-fold bagging: members that hold each other's rows out.

Every member learns all training rows but those of its fold, and is held to these: they say which of
its epochs is best, and when it stops. So all rows are learned by most members, and all are held out
by some, which settles what else there is to choose: before the run all members try settings for
some epochs, and go on with the best. These are whether they start from a linear model, to whose
outputs the network's are added, or without one; and then whether a lower learning rate than the
configured one is better. At the end the rows held out say how wide the mixture's predictions must
be.

AutoGluon's bagged models (Erickson et al. 2020, arXiv:2003.06505) are ensembles of this kind.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.config import Config
from ensemble.data.batches import epoch_batches
from ensemble.data.source import Source
from ensemble.data.splitting import (
    cut,
    digest_examples,
    keep_together,
    stratified_split,
)
from ensemble.errors import InputError, logger
from ensemble.fitted import LINEAR, WIDTH
from ensemble.likelihoods.predictive import Arrays, Predictive
from ensemble.methods import linear_start, training
from ensemble.methods.batch_ensemble import OWN, SHARED, SharedWeights
from ensemble.methods.optimizers import descent_of_each
from ensemble.metrics import metrics_of
from ensemble.network import path_name
from ensemble.pytrees import ByName
from ensemble.run.progress import duration
from ensemble.runtime.algorithm import Algorithm, Start, Status
from ensemble.runtime.devices import Devices
from ensemble.runtime.method import Method
from ensemble.runtime.programs import Members, Programs
from ensemble.sharding import processes, signals
from ensemble.storage.predictions import write_held_out
from ensemble.tasks.supervised import Supervised

MANY_ROWS = 50_000
"""From here on all members hold out the same tenth, unless it is said how many folds there are."""
_NUM_FOLDS = 8
"""The most folds; fewer rows have fewer."""
_SHARE = 10
_PARTS = 4
"""The parts of a fold, of which the member before holds out the first too."""

_TRIAL_EPOCHS = 20
"""Epochs of each setting that is tried, unless the run is short."""
_MIN_LENGTH = 4
"""Least length of a run, in trials."""
_LOWER = 0.2
"""Share of the configured learning rate that is tried after it."""
_MAX_NORM = 1.0
"""Norm to which gradients are clipped."""
_MIN_SECONDS = 5
"""Seconds of a trial from which on a line says how long it takes."""
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


# Folds.


class Folds(NamedTuple):
    """Which fold a training row is of; member k holds out the rows of fold k modulo `number`.

    It also holds out the rows of the next fold that are shared: these are what two members say of
    rows that they have not learned.

    Attributes:
        number: F.
        of_rows: [N] int, from 0 to F - 1; or F, of rows that nobody holds out.
        is_shared: [N] bool.
    """

    number: int
    of_rows: NDArray
    is_shared: NDArray

    def is_held_out(self, member: int) -> NDArray:
        """[N] bool: the rows that a member is held to."""
        after = self.of_rows == (member + 1) % self.number
        return (self.of_rows == member % self.number) | (after & self.is_shared)

    def held_out(self, member: int) -> NDArray:
        """The rows that a member is held to, ascending."""
        return np.flatnonzero(self.is_held_out(member))

    def learned(self, member: int) -> NDArray:
        """The rows that a member learns, ascending."""
        return np.flatnonzero(~self.is_held_out(member))

    @property
    def num_learned(self) -> int:
        """Rows that a member learns, of the member that learns the most."""
        return max(len(self.learned(fold)) for fold in range(self.number))


def make_folds(source: Source, number: int, seed: int) -> Folds:
    """Divides the training rows: a function of the data and the seed.

    Folds are alike in their classes, or in the ranks of their numbers, and equal inputs are in one
    of them. Where the splits of the data are by groups or by time, a group is in one fold, or a
    fold is a period, the latest first.

    Args:
        source: Data with the training rows.
        number: F; 1 makes one fold of a tenth of the rows; 0 as many as suit the rows, and at most
            as many as there are groups or times.
        seed: Seed of the order.

    Raises:
        InputError: There are too few rows, groups or times.
    """
    num_rows, strata = source.sizes["train"], source.strata("train")
    if not number:
        number = 1 if num_rows >= MANY_ROWS else min(_NUM_FOLDS, max(num_rows // 2, 2))
        if strata is not None:
            number = min(number, max(2, len(np.unique(strata.values))))
    if num_rows < 2 * number:
        raise InputError(
            f"{num_rows} training rows are too few for {number} folds; set "
            "config.method='deep_ensemble', or give more rows"
        )
    sizes = [len(fold) for fold in np.array_split(np.arange(num_rows), number)]
    if number == 1:
        tenth = max(1, num_rows // _SHARE)
        sizes = [tenth, num_rows - tenth]
    if strata is None:
        codes, parts = _random(source, sizes, seed)
    else:
        codes, parts = cut(strata, sizes, seed, latest_first=True)
    of_rows, is_shared = np.empty(num_rows, np.int64), np.zeros(num_rows, bool)
    for fold, rows in enumerate(parts):
        of_rows[rows] = fold
        if fold < number > 1:
            own, least = codes[rows], 0
            if strata is not None:  # Whole groups, but not the only one.
                own = np.unique(own)
                least = int(len(own) > 1)
            is_shared[rows] = np.isin(codes[rows], own[: max(least, len(own) // _PARTS)])
    return Folds(number, of_rows, is_shared)


def _random(source: Source, sizes: list[int], seed: int):
    """Codes [N] of inputs, and the rows of folds that are alike in their targets."""
    classes = targets = source.targets("train")
    if targets.dtype.kind not in "iu":  # Blocks of as many rows as folds by rank, of the first one.
        first = targets.reshape(len(targets), -1)[:, 0]
        classes = np.argsort(np.argsort(first, kind="stable")) // len(sizes)
    codes = digest_examples(source.splits["train"].inputs)
    return codes, keep_together(stratified_split(classes, sizes, seed), codes)


# The method.


def create(config: Config, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The data do not suit it, or it takes too much memory.
    """
    bagging = Bagging(config, task)
    return training.of_members(
        config,
        bagging.task,
        bagging.epochs,
        members_learn=bagging.learned,
        place=partial(training.spread, config, bagging.learned),
        algorithm=bagging.algorithm,
        report=bagging,
        facts={"the steps of a trial": (bagging.trial, "config.num_epochs or config.num_steps")},
    )


class Bagging(training.DescentReport):
    """Settings, algorithm and report of members that hold rows out.

    Attributes:
        learned: Task of the members.
        folds: Folds of the training rows.
        output_layer: That of the network, if members can start from a linear model.
        trial: Steps in which each setting is tried, before the run; 0: one setting alone.
        num_steps: Steps of the run, in which the best setting goes on.
        weights: How much training rows count, [N].
    """

    def __init__(self, config: Config, task: Supervised):
        config = Config({**training.with_own_keys(config), "clip_norm": _MAX_NORM})
        self.can_be_linear = linear_start.suits(task)
        # Found by calling the network: not while it is traced, nor of each task anew.
        self.output_layer = task.output_layer if self.can_be_linear else None
        beside = (LINEAR, WIDTH) if self.can_be_linear else (WIDTH,)
        task = self.learned = replace(task, beside=beside)
        if config.num_estimators > 1:
            self.learned = SharedWeights.of(task, config.num_estimators, config.adapters)
        self.folds = make_folds(task.dataset, config.kfold_bagging.folds, config.seed)
        number = self.folds.num_learned
        self.epochs, steps = training.Epochs.of(config, number), training.num_steps(config, number)
        epoch = self.epochs.steps
        self.trial = trial = min(_TRIAL_EPOCHS, steps // epoch // _MIN_LENGTH) * epoch
        self.num_steps = steps - trial
        # Classes count as they come where predictions are corrected for their weights.
        of_classes = task.likelihood.class_weights is None
        weights = training.weights_of(config, task.dataset, of_classes)
        ones = np.ones(task.num_train_examples, np.float32)
        self.weights = ones if weights is None else weights
        self.descent = descent_of_each(config, steps, "learning_rate")
        schedule = self.descent.learning_rate
        later = self.descent._replace(learning_rate=lambda step: schedule(step + trial))
        super().__init__(config, task, later)

    def order(self, epoch: int, member) -> tuple[NDArray, NDArray]:
        """Numbers of examples and mask [steps, B] of a member, which learns its own rows.

        A member with fewer of them than another begins its order again: all take equal steps.
        """
        length, size = self.epochs
        rows = self.folds.learned(member)
        epoch += self.trial // self.epochs.steps
        order, mask = epoch_batches(len(rows), size, self.config.seed, epoch, member, length)
        return rows[order].astype(np.int32), mask

    def algorithm(self, devices: Devices, numbers: Sequence[int]) -> Algorithm:
        """Makes the algorithm of some members, each with the rows that it holds out."""
        config, task, epoch = self.config, self.learned, self.epochs.steps
        rows = [self.folds.held_out(k) for k in numbers]
        counts = np.array([len(one) for one in rows], np.float32)
        size = math.ceil(counts.max() / math.ceil(counts.max() / _AT_ONCE))
        # Few rows of its own flatter a member, of whose many epochs one is the best by chance.
        own = np.resize(counts / (counts + _ROWS_OF_ALL), devices.num_places)

        def criteria(losses):
            """Mixes losses with their median; no member that diverges decides for others."""
            counted = jnp.isfinite(losses) & ~devices.is_padding
            median = jnp.nanmedian(jnp.where(counted, losses, jnp.nan))
            return jnp.where(counted, own * losses + (1 - own) * median, losses)

        base = training.descending(
            config, task, devices, numbers, self.num_steps, self.descent, self.order
        )

        def begin(now, _):
            is_linear, share = now.given or (self.can_be_linear, 1)
            variables, optimizer = base.init(now._replace(given=None), None)
            if now.shared is not None:
                linear = _from_linear(self.output_layer, now.shared, now.number, variables)
                variables = pytrees.where(is_linear, linear, variables)
            rates = jax.tree.map(lambda leaf: leaf * jnp.float32(share), optimizer.hyperparams)
            return training.Descending(variables, optimizer._replace(hyperparams=rates))

        def step(now, state, batch):
            return base.step(now._replace(step=now.step + self.trial), state, batch)

        found = training.stopping_early(
            base._replace(
                init=begin,
                step=step,
                start=self.start if self.can_be_linear else None,
            ),
            task,
            devices,
            config.early_stopping_epochs,
            training.blocks(devices, task.dataset, "train", rows, size, self.weights),
            epoch,
            epoch if self.trial else 0,  # Trials end with an evaluation.
            criteria,
        )
        if not self.trial:
            return found
        trials = Trials(found, devices, numbers, config.seed, found.steps_per_program)
        trials.bagging = self
        return found._replace(programs=trials)

    def start(self) -> Start:
        """Fits the linear models, of which a member takes that of its fold."""
        found = linear_start.fit(self.learned, self.folds, self.weights)
        # Other machines may round otherwise, and choose other penalties.
        return Start(processes.tree_from_main(found))

    # Report.

    @cached_property
    def share(self) -> float:  # type: ignore[override]
        """The share of the configured learning rate that was chosen."""
        moving = self.run.loop.members.state.moving
        found = self.run.devices.fetch_members(moving.optimizer.hyperparams)
        return float(found["learning_rate"][0] / self.config.learning_rate)

    def finish(self, run) -> bool:
        """Makes predictions as wide as the rows held out say."""
        source, state = self.task.dataset, run.loop.members.state
        width = state.moving.variables[WIDTH]  # As the network says.
        holds = np.stack([self.folds.is_held_out(k) & (k in run.live) for k in run.numbers])
        rows = np.flatnonzero(holds.any(axis=0))
        sets = pytrees.at({**state.variables, WIDTH: width}, np.s_[:, None])
        flat = run.predict(sets, source.read("train", rows).inputs)
        arrays = {name: one.reshape(len(holds), -1, *one.shape[1:]) for name, one in flat.items()}
        given = rows, holds, arrays, source.targets("train"), self.weights, self.task.likelihood
        self.held = mixtures(1, *given), mixtures(2, *given)
        factor = processes.from_main(lambda: fitted_factor(*self.held, len(holds)))
        self.factor = np.float32(factor)
        wide = {"factor": width["factor"] * self.factor}
        state = state._replace(variables={**state.variables, WIDTH: wide})
        run.loop.members = run.loop.members._replace(state=state)
        return True

    def sections(self, run) -> ByName:
        """What was chosen, and results on the rows held out."""
        members = run.loop.members
        state, taken = run.devices.fetch_members((members.state, members.taken))
        epochs = -(-taken // self.epochs.steps) - state.waited
        is_linear = any(map(np.any, jax.tree.leaves(state.variables.get(LINEAR))))
        line = (
            f"{len(taken)} networks hold out folds of {self.folds.number}, "
            f"{len(self.held[0].rows)} rows in all. They start "
            f"{'from' if is_linear else 'without'} a linear model, at rate "
            f"{self.share * self.config.learning_rate:.3g}; best epochs {epochs.min()} to "
            f"{epochs.max()}."
        )
        width = float(self.factor)
        return {"kfold_bagging": {"best_epochs": epochs.tolist(), "width": width, "summary": line}}

    def write(self, run) -> None:
        """Writes the losses of the rows that members hold out: see `storage.predictions`."""
        losses = np.full(len(self.weights), np.nan)
        for one in self.held:
            if len(one.rows):
                p = one.widened(self.factor)
                losses[one.rows] = metrics_of(p)[one.likelihood.loss].terms(p, one.targets)
        if processes.is_main():
            write_held_out(run.where.work, losses)


class Trials(Programs):
    """Programs of members that try settings for some epochs, and start with the best of these.

    Attributes:
        bagging: Settings of the members.
    """

    bagging: Bagging

    def start(self, found: Start) -> Members:
        """Starts the members."""
        is_over = False
        tried: list[Members] = []
        starts = [True, False] if self.bagging.can_be_linear else [False]
        number = len(starts) + 1
        while len(tried) < number and not is_over:
            is_last = len(tried) == len(starts)
            is_linear = starts[_lowest(tried) if is_last else len(tried)]
            setting = np.array([is_linear]), np.array([_LOWER if is_last else 1], np.float32)
            members = super().start(found._replace(given=setting))
            name = f"setting {len(tried) + 1} of {number}"
            members, is_over = self._trained(members, found.shared, name)
            fetched = self.devices.fetch_members(members)
            del members  # Before the next ones are there.
            taken = np.full_like(fetched.taken, self.bagging.trial)
            tried.append(fetched._replace(taken=taken))
        return self.devices.put_members(tried[_lowest(tried)])

    def _trained(self, members: Members, shared, name: str):
        """Members after a trial, each epoch of which is judged, and whether the time is over."""
        trial, epoch = self.bagging.trial, self.bagging.epochs.steps
        (judges,) = self.algorithm.between
        for begin in range(-trial, epoch, epoch):
            began = time.monotonic()
            members = self.change(judges, members, shared, begin)
            for first in range(begin, min(begin + epoch, 0), self.length):
                count = min(self.length, begin + epoch - first)
                members, _ = self.advance(members, shared, first, count)
                jax.block_until_ready(members.status)
            if signals.check():
                return members, True
            left = (time.monotonic() - began) * (-begin // epoch)
            if begin == epoch - trial and left > _MIN_SECONDS:  # The first epoch compiles.
                logger.info("Before the first step: %s is tried, %s left.", name, duration(left))
        return members, False


def _lowest(tried: Sequence[Members]) -> int:
    """The trial with the lowest mean loss of the members that have a finite one in any."""
    losses = np.stack([one.state.lowest for one in tried])
    failed = np.stack([one.status == Status.NON_FINITE for one in tried])
    losses = np.where(failed | np.isnan(losses), np.inf, losses)
    lives = np.isfinite(losses).any(axis=0)
    means = np.mean(losses, axis=1, where=lives | ~lives.any())
    return processes.from_main(lambda: int(np.argmin(means)))


def _from_linear(output_layer: Any, shared, number: jax.Array, variables):
    """Variables that put out what the linear model of a member's fold does: the network's are 0."""
    linear = {
        name: jnp.broadcast_to(shared[name][number % len(shared["bias"])], leaf.shape)
        for name, leaf in variables[LINEAR].items()
    }
    layer = [path_name(path) for path in output_layer.values()]
    last = {name + part for name in layer for part in ("", f"/{OWN}", f"/{SHARED}")}
    params = jax.tree.map_with_path(
        lambda path, leaf: jnp.zeros_like(leaf) if path_name(path) in last else leaf,
        variables["params"],
    )
    return {**variables, "params": params, LINEAR: linear}


# Predictions on the rows held out, and the width of their mixture.


class Mixtures(NamedTuple):
    """Predictions of N rows by equally many members that have not learned them.

    Attributes:
        rows: Numbers of the rows among the training rows, [N].
        arrays: Predictions of these members' estimators, [E, N, ...] by name.
        targets: [N].
        weights: How much rows count, [N].
        likelihood: Likelihood of the targets.
    """

    rows: NDArray
    arrays: Arrays
    targets: NDArray
    weights: NDArray
    likelihood: Any

    def widened(self, factor) -> Predictive:
        """Mixtures of predictions that are wider by a factor."""
        arrays = self.arrays
        if factor != 1:
            arrays = jax.tree.map(np.asarray, self.likelihood.tempered(arrays, factor))
        return self.likelihood.predictive(arrays)

    def best_square(self) -> float:
        """Square of the most probable factor."""

        def loss(log_factor):
            nll = -self.widened(math.exp(log_factor)).log_prob(self.targets)
            mean = np.average(nll, weights=self.weights)
            return len(nll) * mean + (log_factor / _DEVIATION) ** 2 / 2

        bounds = tuple(map(math.log, _SEARCHED))
        found = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded")
        return math.exp(2 * found.x)


def mixtures(
    number: int,
    rows: NDArray,
    holds: NDArray,
    arrays: Mapping[str, NDArray],
    targets: NDArray,
    weights: NDArray,
    likelihood,
) -> Mixtures:
    """Mixes, of each row that so many members or more hold out, what the first of them predict.

    Args:
        number: Members of a mixture.
        rows: Numbers of rows among the training rows, [n], ascending.
        holds: Whether a member lives and holds a training row out, bool [M, N].
        arrays: Predictions of the rows by each member's K estimators, [M, K, n, ...] by name.
        targets: [N].
        weights: [N].
        likelihood: Likelihood of the targets.
    """
    holds = holds[:, rows]
    places = np.flatnonzero(holds.sum(axis=0) >= number)
    members = np.argsort(~holds[:, places], axis=0, kind="stable")[:number]
    each = {
        name: np.concatenate(one[members, :, places].swapaxes(1, 2)) for name, one in arrays.items()
    }
    rows = rows[places]
    return Mixtures(rows, each, targets[rows], weights[rows], likelihood)


def fitted_factor(singles: Mixtures, pairs: Mixtures, num_members: int) -> float:
    """Factor of the width of members' predictions for which those of their mixture are right.

    On rows that two members hold out, the factor of one and the factor of their mixture tell by
    extrapolation in 1 / M how the one of the whole mixture, which nobody holds rows out of, differs
    from that of one member, for which all rows that are held out speak. Of classes it is a
    temperature.

    Args:
        singles: Predictions of rows by one member.
        pairs: Those by two.
        num_members: M.

    Returns:
        1 where no two of several members hold out a row, or predictions have no width.
    """
    needed = pairs if num_members > 1 else singles
    if not needed.likelihood.can_be_tempered or not len(needed.rows):
        return 1.0
    square = singles.best_square()
    if num_members > 1:
        halves = {name: one[: len(one) // 2] for name, one in pairs.arrays.items()}
        one, two = pairs._replace(arrays=halves).best_square(), pairs.best_square()
        limit = 2 * two - one
        square *= (limit + (one - limit) / num_members) / one
    return math.sqrt(np.clip(square, _NARROWEST**2, _WIDEST**2))
