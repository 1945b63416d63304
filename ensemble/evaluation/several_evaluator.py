"""What an evaluation asks of several targets: of each, and of all together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ensemble import likelihoods, registry
from ensemble.evaluation.evaluator import Evaluator
from ensemble.evaluation.questions import others, quality
from ensemble.scoring.finding import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.sections import Evaluated

MAX_SHOWN = 8
"""Targets that the summary and the table are about; the page and evaluation.json have all."""
_OF_A_TARGET = ("quality", "gain", "baseline", "coverage", "bands")
"""Questions whose answers are told of each target among those of all."""


class SeveralEvaluator(Evaluator):
    """Evaluates each target as if it were alone, by the evaluator of its kind."""

    captions: ClassVar[Mapping[str, str]] = {}
    under_shift = ()

    def findings(self, evaluation: Mapping[str, Any]) -> list[Finding]:
        """The NLL of all, the first findings on each target, and what further members bring."""
        test, found = evaluation["test"], []
        members = len(evaluation["members"]), others.noun_of(evaluation)
        if "nll" in test["scores"]:
            found = [quality.quality(test, "nll", *members), quality.gain(test, "nll", *members)]
        found += others.of_chains(evaluation)
        kind = evaluator_of_one(evaluation)
        for d, part in enumerate(parts_of(evaluation)):
            for one in kind.findings(part):
                if one.code.partition(".")[0] in _OF_A_TARGET:
                    about = f"targets/{d}" if one.about == "test" else f"targets/{d}/{one.about}"
                    found.append(replace(one, about=about))
        return [*found, *others.of_others(evaluation)]

    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """The pictures of the first targets."""
        kind = evaluator_of_one(evaluation)
        return {
            f"{name}_{d}": figure
            for d, part in enumerate(parts_of(evaluation)[:MAX_SHOWN])
            for name, figure in kind.figures(part).items()
        }

    def draw(self, evaluation: Mapping[str, Any], one: Evaluated) -> dict[str, Figure]:
        """None of all together."""
        return {}


def parts_of(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations of each target, as if it were alone; none of a single one."""
    whole: dict[str, Any] = {  # Said of all of them.
        "notes": [],
        "posterior": None,
        "temperature": 1.0,
    }
    return [
        {
            **evaluation,
            **part,
            **whole,
            "test": evaluation["test"]["targets"][d],
            "compare": [one["targets"][d] for one in evaluation.get("compare", ())],
        }
        for d, part in enumerate(evaluation.get("targets", ()))
    ]


def evaluator_of_one(evaluation: Mapping[str, Any]) -> Evaluator:
    """The evaluator of each target."""
    named = evaluation["config"]["likelihood"]
    found: Evaluator = registry.load(likelihoods.named(named).evaluator)()
    return found
