"""What an evaluation of classes asks and draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ensemble.evaluation.classes import worst_classes
from ensemble.evaluation.derived import SHIFT
from ensemble.evaluation.evaluator import Evaluator
from ensemble.evaluation.questions import calibration, doubts, inputs, others, quality
from ensemble.evaluation.questions.calibration import is_available
from ensemble.pictures import curves, examples, matrices, member_scores, reliability, uncertainty
from ensemble.scoring.finding import Finding
from ensemble.scoring.score import scores_of
from ensemble.scoring.scores.ranked_class import sides_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.sections import Evaluated

_MAX_CLASSES = 20
"""The number of classes of which a matrix of counts can be read in a cell."""


class ClassEvaluator(Evaluator):
    """Evaluates runs whose targets are classes."""

    under_shift = ("accuracy", "ece")
    captions: ClassVar[Mapping[str, str]] = {
        "reliability": "Accuracy against confidence; below the diagonal it is overconfident.",
        "sizes": "What each further member brings: scores of ensembles of 1 to M of these members.",
        "entropy": "Entropy of the predictions on the test split and on inputs unlike it.",
        "precision_recall": "Precision against recall of a class, called by its probability; a "
        "line of dashes is the share of its examples, which is the precision of calling all.",
        "roc": "Telling out-of-distribution inputs from the test split by the entropy.",
        "shift": "The test split, shifted more and more.",
        "disagreement": "Percent of test examples on which two members predict different classes.",
        "confusion": "Labels and predictions of the ensemble on the test split.",
        "least_certain": "The least certain: the highest entropy.",
        "confidently_wrong": "The most confidently wrong. Bars: the ensemble; dots: its members.",
    }

    def findings(self, evaluation: Mapping[str, Any]) -> list[Finding]:
        """Quality, chains, calibration, groups, abstention, other inputs, and what others bring."""
        test, facts, classes = (evaluation[name] for name in ("test", "facts", "classes"))
        members = len(evaluation["members"]), others.noun_of(evaluation)
        return [
            quality.quality(test, "accuracy", *members),
            quality.impossible(facts, test["scores"]["nll"]["value"]),
            quality.gain(test, "accuracy", *members),
            quality.majority(test, classes),
            quality.balance(test, classes),
            *others.of_chains(evaluation),
            calibration.confidence(test, facts),
            calibration.weights(evaluation["config"], evaluation["dataset"]),
            calibration.recalibration(test, evaluation["calibrated"]),
            calibration.conformal(evaluation["conformal"], test),
            calibration.strata(evaluation),
            doubts.abstention(test, evaluation["abstention"]),
            inputs.accuracy_under_shift(test, evaluation["shift"]),
            inputs.detection(evaluation["out_of_distribution"], "entropy"),
            *others.of_others(evaluation),
        ]

    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """Scores against members, shifts, and the confusion of few classes."""
        drawn = {}
        if len(evaluation["members"]) > 1 and evaluation["next_member"]:
            drawn["sizes"] = member_scores.score_against_size(
                evaluation["next_member"], others.noun_of(evaluation)
            )
        if evaluation["shift"]:
            drawn["shift"] = curves.shift_curves(evaluation["shift"])
        classes = evaluation["classes"]
        if len(classes["names"]) <= _MAX_CLASSES:
            drawn["confusion"] = matrices.confusion_matrix(
                classes["confusion"], classes["names"], range(len(classes["names"]))
            )
        return drawn

    def draw(self, evaluation: Mapping[str, Any], one: Evaluated) -> dict[str, Figure]:
        """Reliability, what tells members apart, shifts, other inputs, classes, and examples."""
        view: Any = one.test
        calibrated, classes = evaluation["calibrated"], evaluation["classes"]
        scores, value = {"ece": evaluation["test"]["scores"]["ece"]["value"]}, None
        if is_available(calibrated):
            scores["calibrated_ece"] = calibrated["scores"]["ece"]["value"]
            value = calibrated["value"]
        drawn = {
            **self.figures(evaluation),
            "reliability": reliability.tempered_diagram(view.log_probs, view.labels, value, scores),
            "confusion": matrices.confusion_matrix(
                classes["confusion"], classes["names"], shown_classes(classes)
            ),
        }
        if len(evaluation["members"]) > 1:
            drawn["disagreement"] = member_scores.disagreement_dots(
                evaluation["facts"]["disagreement_matrix"],
                evaluation["members"],
                others.noun_of(evaluation),
            )
        outside: dict[str, Any] = {
            name: each for name, each in one.outside.items() if not name.startswith(f"{SHIFT}/")
        }
        if outside:
            entropies = {name: each.entropies["total"] for name, each in outside.items()}
            inside, num_classes = view.entropies["total"], view.log_probs.shape[1]
            drawn["entropy"] = uncertainty.entropies_in_and_out(inside, entropies, num_classes)
            drawn["roc"] = uncertainty.roc_curves(inside, entropies)
        return drawn | _draw_ranked(view, classes["names"]) | _draw_examples(one)


def shown_classes(classes: Mapping[str, Any]) -> list[int]:
    """All classes or, of more than there is room for, those of the lowest recall."""
    if len(classes["names"]) <= matrices.MAX_NUMBERED:
        return list(range(len(classes["names"])))
    return worst_classes(classes, matrices.MAX_NUMBERED)


def _draw_ranked(view: Any, names: list[str]) -> dict[str, Figure]:
    """Precision against recall of the classes whose average precision is scored."""
    ranked = {
        names[score.setting]: sides_of(view, score.setting)
        for name, score in scores_of(view).items()
        if name.partition(":")[0] == "auprc" and not math.isnan(score.value(view))
    }
    return {"precision_recall": uncertainty.precision_recall(ranked)} if ranked else {}


def _draw_examples(one: Evaluated) -> dict[str, Figure]:
    """The least certain pictures, and those that are wrong and most certain."""
    source = one.source
    if source is None or not source.has_pictures:
        return {}
    log_probs, labels = one.test.arrays["log_probs"], one.test.targets
    chosen = {
        "least_certain": examples.least_certain(log_probs),
        "confidently_wrong": examples.confidently_wrong(log_probs, labels),
    }
    names = one.likelihood.class_names
    return {
        name: examples.examples(
            source.read("test", indices).inputs, log_probs, labels, names, indices
        )
        for name, indices in chosen.items()
        if len(indices)
    }
