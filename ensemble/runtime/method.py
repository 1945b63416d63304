"""Result of `config.method`: an algorithm, its placement, and a report."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import ml_collections
import numpy as np

from ensemble import pytrees
from ensemble.draws.store import Draws
from ensemble.fitted import Predict, predict_plainly
from ensemble.likelihoods.predictive import Arrays, Predictive
from ensemble.runtime.algorithm import Algorithm
from ensemble.runtime.devices import Devices
from ensemble.runtime.loop import Period
from ensemble.runtime.predict import draw_scores, of_estimators
from ensemble.sharding import processes

if TYPE_CHECKING:
    from ensemble.runtime.run import Run


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
    charts: ClassVar[Mapping[str, str]] = {"training loss": "train/member_[0-9]+/loss"}
    predict: Predict = staticmethod(predict_plainly)
    predicts_at_end = False
    rate = "train/member_examples_per_second"
    run: Any = None

    def __init__(self, config: ml_collections.FrozenConfigDict, task: Any, remedy: str):
        self.config = config
        self.task = task
        self.remedy = remedy

    # While it runs.

    def scalars(self, run: Run, period: Period) -> dict[str, float]:
        """The scalars of a line of metrics, by tag: means over its steps."""
        found = {}
        with np.errstate(invalid="ignore"):
            for name, values in period.scalars.items():
                for k, value in zip(run.numbers, values.mean(axis=0), strict=True):
                    found[f"train/member_{k:02d}/{name}"] = float(value)
            for name, value in period.of_all.items():
                found[f"train/ensemble/{name}"] = float(value.mean())
        return found

    def examples(self, run: Run, period: Period) -> int:
        """Examples that the members have learned from, summed over members."""
        before = run.method.examples_before
        return (before(period.end) - before(period.first)) * len(run.numbers)

    def recorded(self, run: Run, period: Period) -> Mapping[str, np.ndarray]:
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

    def predictions(self, run: Run, split: str) -> Predictive:
        """What the members say of a split now."""
        inputs = self.task.dataset.splits[split].inputs
        found: Predictive = run.predict.pooled(run.loop.parameters(), inputs, len(run.numbers))
        return found

    def monitored(self, run: Run) -> dict[str, float]:
        """What an evaluation shows beside scores, by tag."""
        return {}

    def headline(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """What of all scalars a line of the log shows."""
        losses = [
            v
            for tag, v in scalars.items()
            if tag.startswith("train/member_") and tag.endswith("/loss") and np.isfinite(v)
        ]
        return {"train loss": float(np.mean(losses))} if losses else {}

    def may_end(self, scalars: Mapping[str, float]) -> bool:
        """Whether what `monitored` says suffices to end the run."""
        return False

    # In the end.

    def finish(self, run: Run) -> bool:
        """Changes members that have taken all steps, or have stopped; returns whether it did."""
        return False

    def judge(self, run: Run) -> None:
        """Marks members as failed that can be told only in the end."""

    def sections(self, run: Run, timing: Mapping[str, float | None]) -> dict[str, Any]:
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

    @functools.cached_property
    def _known(self) -> dict[str, Any]:
        return {}

    def predict_set(self, sets: Any, split: str) -> Arrays:
        """Predicts a split [M, N, ...] by one set of each member, [M, ...] on the host."""
        placed = self.run.devices.put_members(pytrees.at(sets, np.s_[:, None]), whole=True)
        found: Arrays = self.run.predict(placed, self.task.dataset.splits[split].inputs)
        return found

    def has_predictions(self, run: Run) -> bool:
        """Whether a set is on disk."""
        return bool(run.counters()["num_kept"])

    def predictions(self, run: Run, split: str) -> Predictive:
        """What the sets that are kept so far say of a split."""
        return of_estimators(self.task.likelihood, self._predicted(run, split)[0])

    def average_draw(self, run: Run, split: str) -> Arrays:
        """Returns the mean `Predictive.scores` [C] of single draws on a split, by name."""
        scores = self._predicted(run, split)[1]
        found: Arrays = jax.tree.map(lambda *each: np.mean(each, axis=0), *scores)
        return found

    def _predicted(self, run: Run, split: str) -> tuple[Arrays, list[Arrays]]:
        """Predictions of a split by the draws so far.

        Returns:
            Arrays [C, K, N, ...] of the estimators that the draws have become, and
            `Predictive.scores` of each draw by name, means [C] over the examples.
        """
        numbers = processes.from_main(lambda: run.draws.predicting(self.most).tolist())
        nothing: Any = ([], {}, np.zeros(0, int), [])
        done, arrays, counts, scores = self._known.get(split, nothing)
        if done != numbers[: len(done)]:
            done, arrays, counts, scores = nothing
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
        self._known[split] = numbers, arrays, counts, scores
        return arrays, scores


_draw_scores = jax.jit(draw_scores, static_argnums=0)


def _read(draws: Draws, numbers: Sequence[int]) -> Any:
    """Reads parameters [C, K, ...] of draws, on the main process for all."""
    kept = draws.positions(np.array(numbers))[0] if processes.is_main() else {}
    shapes = processes.from_main(lambda: jax.tree.map(np.shape, kept))
    like = jax.tree.map(
        lambda shape: np.zeros(shape, np.float32), shapes, is_leaf=lambda x: not isinstance(x, dict)
    )
    return processes.tree_from_main(kept or like)


@dataclasses.dataclass(frozen=True)
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

    config: ml_collections.FrozenConfigDict
    task: Any
    num_members: int
    place: Callable[[int], Devices]
    algorithm: Callable[[Devices, Sequence[int]], Algorithm]
    report: Report
    steps_per_epoch: int
    examples_before: Callable[[int], int] = lambda step: 0
    members_learn: Any = None
    tracked_split: str | None = None
    facts: Mapping[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
