"""What an evaluation computes of several targets: that of each, and the NLL of all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ensemble import likelihoods, registry
from ensemble.evaluation import sentences
from ensemble.evaluation.evaluator import Evaluator, Options, PredictedSets
from ensemble.evaluation.next_member import score_sizes
from ensemble.evaluation.sections import score_test
from ensemble.evaluation.strata import too_few
from ensemble.likelihoods.several_targets import SeveralTargets
from ensemble.likelihoods.several_view import of_target
from ensemble.storage.predictions import MemberPredictions, StoredPredictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject
    from ensemble.source import Source

MAX_SHOWN = 8
"""Targets that the verdict and the table are about; the page and evaluation.json have all."""
_NUM_SENTENCES = 3  # Of a target in the verdict: its errors, simpler predictors, and trust.


class SeveralEvaluator(Evaluator):
    """Evaluates each target as if it were alone, by the evaluator of its kind."""

    def check(self, subject: Subject, options: Options) -> None:
        """Refuses what cannot be evaluated of one of the targets.

        Raises:
            UserError: as said.
        """
        for one in _each(subject):
            _kind(subject.config).check(one, options)

    def default_sets(self, source: Source, others: Sequence[str]) -> list[str]:
        """Those of numbers: classes have no several targets."""
        # Evaluators of one target are imported by their names in the registry.
        from ensemble.evaluation.numbers.number_evaluator import NumberEvaluator

        return NumberEvaluator().default_sets(source, others)

    def sections(
        self, subject: Subject, predicted: PredictedSets, options: Options
    ) -> dict[str, Any]:
        """The NLL of all targets under `test`, one more member, and `targets`: those of each."""
        kind = _kind(subject.config)
        parts = [
            kind.sections(one, _predicted(predicted, d), options)
            for d, one in enumerate(_each(subject))
        ]
        joint = self.evaluated(subject, {}, options)
        test, sizes = score_test(joint), score_sizes(subject.view)
        return {"test": test, "next_member": sizes, "targets": parts}

    def verdict(self, evaluation: Mapping[str, Any]) -> list[str]:
        """The NLL of all, the first sentences on each target, and what further members bring."""
        test, found = evaluation["test"], []
        if "nll" in test["ensemble"]:
            interval = test["interval"]["nll"]
            ends = f"({too_few(test)})"
            if interval is not None:
                ends = f"[{interval[0]:.4g}, {interval[1]:.4g}]"
            found.append(
                f"The NLL of all {len(evaluation['targets'])} targets together is "
                f"{test['ensemble']['nll']:.4g} nats {ends} on "
                f"{test['num_examples']:,} test examples, "
                f"{test['ensemble']['nll'] - test['mean']['nll']:+.3f} from its mean member."
            )
        found += sentences.posterior(evaluation)
        kind = _kind(evaluation["config"])
        parts = parts_of(evaluation)
        for d, part in enumerate(parts[:MAX_SHOWN]):
            found.append(f"Target {d}: {' '.join(kind.verdict(part)[:_NUM_SENTENCES])}")
        if len(parts) > MAX_SHOWN:
            found.append(f"The report has the other {len(parts) - MAX_SHOWN} targets.")
        return [one for one in [*found, *sentences.closing(evaluation)] if one]

    def render(
        self, evaluation: Mapping[str, Any], subject: Subject, predicted: PredictedSets
    ) -> str:
        """The page of an evaluation, with a part for each target."""
        from ensemble.evaluation import several_page  # It imports Matplotlib: a second.

        kind = _kind(subject.config)
        parts = parts_of(evaluation)
        pages = [
            kind.render({**part, "verdict": kind.verdict(part)}, one, _predicted(predicted, d))
            for d, (part, one) in enumerate(zip(parts, _each(subject), strict=True))
        ]
        return several_page.render(evaluation, subject, pages, [kind.table(one) for one in parts])

    def table(self, evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
        """Each score of the first targets with its interval, and the NLL of all."""
        kind, test = _kind(evaluation["config"]), evaluation["test"]
        tables = [kind.table(one)[1] for one in parts_of(evaluation)[:MAX_SHOWN]]
        each = zip(*tables, strict=True)
        rows = [[one[0][0], *(f"{cell[1]} {cell[2]}" for cell in one)] for one in each]
        if "nll" in test["ensemble"]:
            said = f"{test['ensemble']['nll']:.4f}"
            if test["interval"]["nll"] is not None:
                low, high = test["interval"]["nll"]
                said += f" [{low:.4f}, {high:.4f}]"
            rows.append(["NLL of all", said, *[""] * (len(tables) - 1)])
        return ["test", *(f"target {d}" for d in range(len(tables)))], rows

    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """The pictures of the first targets."""
        kind = _kind(evaluation["config"])
        return {
            f"{name}_{d}": figure
            for d, part in enumerate(parts_of(evaluation)[:MAX_SHOWN])
            for name, figure in kind.figures(part).items()
        }


def parts_of(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations of each target, as the evaluator of one has them; `target` is its number."""
    whole: dict[str, Any] = {
        "notes": [],
        "posterior": None,
        "temperature": 1.0,
    }  # Said of all of them.
    return [
        {
            **evaluation,
            **part,
            **whole,
            "target": d,
            "compare": [one["targets"][d] for one in evaluation.get("compare", ())],
        }
        for d, part in enumerate(evaluation["targets"])
    ]


def _kind(config: Mapping[str, Any]) -> Evaluator:
    """The evaluator of one target."""
    found: Evaluator = registry.load(likelihoods.named(config["likelihood"]).evaluator)()
    return found


def _several(subject: Subject) -> SeveralTargets:
    return cast(SeveralTargets, subject.likelihood)


def _predicted(predicted: PredictedSets, d: int) -> PredictedSets:
    """Predictions of one target by set."""
    return {
        name: MemberPredictions(of_target(one.arrays, d), one.member_of)
        for name, one in predicted.items()
    }


def _each(subject: Subject) -> list[Subject]:
    """What is evaluated, once for every target: `_OneTarget` in the place of a `Subject`."""
    return [cast("Subject", _OneTarget(subject, d)) for d in range(subject.likelihood.num_targets)]


class _OneTarget:
    """A subject with one of its targets."""

    def __init__(self, subject: Subject, d: int):
        self._subject, self._d = subject, d
        self.likelihood = _several(subject).of[d]
        self.view = subject.view.parts[d]
        whole = subject.calibration_view
        self.calibration_view = None if whole is None else whole.parts[d]
        self.dataset = None if subject.dataset is None else _OneColumn(subject.dataset, d)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    @property
    def test(self) -> StoredPredictions:
        return self._of(self._subject.test)

    @property
    def calibration(self) -> StoredPredictions | None:
        found = self._subject.calibration
        return None if found is None else self._of(found)

    def _of(self, stored: StoredPredictions) -> StoredPredictions:
        arrays = of_target(stored.arrays, self._d)
        return stored._replace(arrays=arrays, targets=stored.targets[:, self._d])


class _OneColumn:
    """A source with one of its targets."""

    def __init__(self, source: Source, d: int):
        self._source, self._d = source, d

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def targets(self, split: str) -> np.ndarray:
        return self._source.targets(split)[:, self._d]
