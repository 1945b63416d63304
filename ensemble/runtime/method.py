"""Result of `config.method`: an algorithm, its placement, and a report."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from ensemble import pytrees
from ensemble.config import Config
from ensemble.fitted import Predict, predict_plainly
from ensemble.pytrees import ByName, Function
from ensemble.runtime.loop import Period
from ensemble.runtime.predict import draw_scores, of_estimators
from ensemble.sharding import processes

if TYPE_CHECKING:
    from ensemble.runtime.run import Run

Scalars = dict[str, float]


class Report:
    """Metrics, sections and predictions of a run. A method that reports more subclasses it.

    Attributes:
        noun: Name of a member in messages.
        charts: Pattern of tags by title, for curves in one chart of TensorBoard.
        predict: Function that predicts by one pass of one parameter sample.
        predicts_at_end: Whether members predict only when they have taken all steps.
        rate: Tag of the speed, in examples a second, summed over members.
        run: The run, once it has begun.
    """

    noun = "member"
    charts: ClassVar[Any] = {"training loss": "train/member_[0-9]+/loss"}
    predict: Predict = staticmethod(predict_plainly)
    predicts_at_end = False
    rate = "train/member_examples_per_second"
    run: Any = None

    def __init__(self, config: Config, task: Any, remedy: str):
        self.config = config
        self.task = task
        self.remedy = remedy

    # While it runs.

    def scalars(self, run: Run, period: Period) -> Scalars:
        """The scalars of a line of metrics, by tag: means over its steps."""
        with np.errstate(invalid="ignore"):
            found = {
                f"train/member_{k:02d}/{name}": float(value)
                for name, values in period.scalars.items()
                for k, value in zip(run.numbers, values.mean(axis=0), strict=True)
            }
            return found | {
                f"train/ensemble/{k}": float(v.mean()) for k, v in period.of_all.items()
            }

    def examples(self, run: Run, period: Period) -> int:
        """Examples that the members have learned from, summed over members."""
        before = run.method.examples_before
        return (before(period.end) - before(period.first)) * len(run.numbers)

    def recorded(self, run: Run, period: Period) -> ByName:
        """What goes to the disk with what is kept, [steps, M] or [steps, M, n] by name.

        Of all steps, or of those alone after which something is kept: `Keep.only_rows`.
        """
        return period.scalars

    def stripped(self, sets: Any) -> Any:
        """Kept parameters [M, n, ...] without what pads them on the devices."""
        return sets

    def resumed(self, run: Run, step: int, goal: int) -> None:
        """Notes that a run goes on from a step, whose goal was this when it was saved."""

    def has_predictions(self, run: Run) -> bool:
        """Whether the members predict yet."""
        return not self.predicts_at_end or bool(run.loop.finished)

    def predictions(self, run: Run, split: str) -> Any:
        """What the members say of a split now, a `Predictive`."""
        inputs = self.task.dataset.splits[split].inputs
        return run.predict.pooled(run.loop.parameters(), inputs, len(run.numbers))

    def monitored(self, run: Run) -> Scalars:
        """What an evaluation shows beside scores, by tag."""
        return {}

    def headline(self, scalars: Scalars) -> Scalars:
        """What of all scalars a line of the log shows."""
        losses = [v for tag, v in scalars.items() if re.fullmatch(r"train/member_\d+/loss", tag)]
        losses = [v for v in losses if np.isfinite(v)]
        return {"train loss": float(np.mean(losses))} if losses else {}

    def may_end(self, scalars: Scalars) -> bool:
        """Whether what `monitored` says suffices to end the run."""
        return False

    # In the end.

    def finish(self, run: Run) -> bool:
        """Changes members that have taken all steps, or have stopped; returns whether it did."""
        return False

    def judge(self, run: Run) -> None:
        """Marks members as failed that can be told only in the end."""

    def sections(self, run: Run) -> ByName:
        """Entries of results.json beside the scores; every process asks, the main one's count."""
        return {}

    def write(self, run: Run) -> None:
        """Writes files of its own into the workdir."""

    def data(self) -> Any:
        """Draws of a model, as ArviZ takes them; None of a network."""
        return None


class KeptReport(Report):
    """Report of members that predict with the sets of parameters, or draws, that they keep on disk.

    As draws are added, those that have predicted are not asked again until their spacing grows, as
    of `Draws.predicting`: then all predict anew. Every process must ask; the main one reads the
    draws.
    """

    @property
    def most(self) -> int:
        """Sets of a member that predict, at most."""
        return int(self.config.max_draws_per_chain)

    @cached_property
    def _known(self) -> ByName:
        return {}

    def predict_set(self, sets: Any, split: str) -> Any:
        """Predicts a split [M, N, ...] by one set of each member, [M, ...] on the host."""
        placed = self.run.devices.put_members(pytrees.at(sets, np.s_[:, None]), whole=True)
        return self.run.predict(placed, self.task.dataset.splits[split].inputs)

    def has_predictions(self, run: Run) -> bool:
        """Whether a set is on disk."""
        return bool(run.counters()["num_kept"])

    def predictions(self, run: Run, split: str) -> Any:
        """What the sets that are kept so far say of a split."""
        return of_estimators(self.task.likelihood, self._predicted(run, split)[0])

    def average_draw(self, run: Run, split: str) -> Any:
        """Returns the mean `Predictive.scores` [C] of single draws on a split, by name."""
        scores = self._predicted(run, split)[1]
        return jax.tree.map(lambda *each: np.mean(each, axis=0), *scores)

    def _predicted(self, run: Run, split: str) -> Any:
        """Predictions of a split by the draws so far.

        Returns:
            Arrays [C, K, N, ...] of the estimators that the draws have become, and
            `Predictive.scores` of each draw by name, means [C] over the examples.
        """
        numbers = processes.from_main(lambda: run.draws.predicting(self.most).tolist())
        nothing: Any = ({}, [], [], np.zeros(0, int))
        arrays, scores, done, counts = self._known.get(split, nothing)
        if done != numbers[: len(done)]:
            arrays, scores, done, counts = nothing
        likelihood = self.task.likelihood
        new = numbers[len(done) :]
        params = _read(run.draws, new) if new else {}
        targets = self.task.dataset.targets(split)
        for k in range(len(new)):
            predicted = self.predict_set(pytrees.at(params, np.s_[:, k]), split)
            score = _draw_scores(likelihood, dict(predicted), targets, np.ones(len(targets), bool))
            scores.append(jax.tree.map(np.asarray, score))
            own, one = likelihood.pooled(pytrees.at(predicted, np.s_[:, None]), np.ones(1, int))
            if arrays:
                own = jax.tree.map(lambda *each: np.concatenate(each, axis=1), arrays, own)
            # Numbers of draws that each estimator stands for.
            arrays, counts = likelihood.pooled(own, np.append(counts, one))
        self._known[split] = arrays, scores, numbers, counts
        return arrays, scores


_draw_scores = jax.jit(draw_scores, static_argnums=0)


def _read(draws: Any, numbers: Any) -> Any:
    """Reads parameters [C, K, ...] of draws, on the main process for all."""
    kept = draws.positions(np.array(numbers))[0] if processes.is_main() else {}
    shapes = processes.from_main(lambda: jax.tree.map(np.shape, kept))
    like = jax.tree.map(
        lambda shape: np.zeros(shape, np.float32), shapes, is_leaf=lambda x: not isinstance(x, dict)
    )
    return processes.tree_from_main(kept or like)


@dataclass(frozen=True)
class Method:
    """Method of a run: algorithm, placement and report.

    Attributes:
        config: Configuration of the run.
        task: Task of the run.
        num_members: Members of the run.
        place: `(num_members) -> Devices`.
        algorithm: `(devices, numbers) -> Algorithm` of some members.
        report: Report of the run.
        steps_per_epoch: Steps of `config.eval_every_epochs` and its like.
        examples_before: Examples that a member has seen before a step.
        members_learn: Task of the members, if another than the run's.
        tracked_split: Split scored during the run; None: no split.
        facts: Numbers that a resumed run must have again, each with the key that sets it.
    """

    config: Config
    task: Any
    num_members: int
    place: Function
    algorithm: Function
    report: Report
    steps_per_epoch: int
    examples_before: Function = lambda step: 0
    members_learn: Any = None
    tracked_split: str | None = None
    facts: ByName = field(default_factory=dict)
