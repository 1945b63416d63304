"""What an evaluation of numbers asks and draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ensemble.evaluation import derived
from ensemble.evaluation.evaluator import Evaluator
from ensemble.evaluation.profile import widest_fan
from ensemble.evaluation.questions import calibration, doubts, inputs, others, quality
from ensemble.evaluation.questions.calibration import is_available
from ensemble.pictures import intervals, member_scores, number_plots, uncertainty
from ensemble.scoring.finding import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.sections import Evaluated

_SIZE_TITLES = {"nll": "NLL, nats", "crps": "CRPS"}


class NumberEvaluator(Evaluator):
    """Evaluates runs whose targets are numbers."""

    under_shift = ("rmse", "coverage_90", "deviation")
    captions: ClassVar[Mapping[str, str]] = {
        "predictions": "Medians and 90% intervals against the targets of the test split; those "
        "that miss are orange.",
        "calibration": "Left: how many targets central intervals cover, against what they say. "
        "Right: the predictive CDF at the targets (PIT), which is uniform where the distributions "
        "are right.",
        "uncertainty": "Examples in ten groups of like uncertainty: their RMSE against the "
        "standard deviation that was predicted.",
        "fan": "Predictions where one input moves and the others stay at their training median: "
        "the input that moves the median most within its training range.",
        "sizes": "What each further member brings: scores of ensembles of 1 to M of these members.",
        "shift": "The test split, shifted more and more.",
        "disagreement": "How far the members disagree on the test split and on inputs unlike it.",
        "roc": "Telling out-of-distribution inputs from the test split by the disagreement.",
    }

    def findings(self, evaluation: Mapping[str, Any]) -> list[Finding]:
        """Quality, chains, calibration, groups, doubts, other inputs, and what others bring."""
        test, facts = evaluation["test"], evaluation["facts"]
        members = len(evaluation["members"]), others.noun_of(evaluation)
        sets = evaluation["conformal"]
        return [
            quality.quality(test, "rmse", *members),
            quality.impossible(facts, test["scores"]["nll"]["value"]),
            quality.gain(test, "rmse", *members),
            quality.baseline(test, evaluation["simple"], "rmse"),
            *others.of_chains(evaluation),
            calibration.coverage(test, facts),
            *calibration.targets(test, facts),
            calibration.recalibration(test, evaluation["calibrated"]),
            calibration.conformal(sets, test),
            calibration.strata(evaluation),
            doubts.ranking(test, evaluation["uncertainty"]),
            doubts.abstention(test, evaluation["abstention"]),
            inputs.error_under_shift(test, evaluation["shift"]),
            inputs.detection(evaluation["out_of_distribution"], "epistemic"),
            *others.of_others(evaluation),
        ]

    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """Errors against uncertainty, scores against members, and shifts."""
        drawn = {"uncertainty": number_plots.errors_against_uncertainty(evaluation["uncertainty"])}
        if len(evaluation["members"]) > 1 and evaluation["next_member"]:
            sizes = evaluation["next_member"]
            drawn["sizes"] = member_scores.score_against_size(
                sizes, others.noun_of(evaluation), _SIZE_TITLES
            )
        if evaluation["shift"]:
            drawn["shift"] = number_plots.shift_curves(evaluation["shift"])
        return drawn

    def draw(self, evaluation: Mapping[str, Any], one: Evaluated) -> dict[str, Figure]:
        """Predictions, their calibration, what one input does, and inputs unlike these."""
        view: Any = one.test
        known, calibrated = view.known, evaluation["calibrated"]
        low, middle, high = known.quantiles([0.05, 0.5, 0.95])
        after = view.with_factor(calibrated["value"]).pit if is_available(calibrated) else None
        drawn = {
            **self.figures(evaluation),
            "predictions": intervals.predictions(middle, low, high, known.y, ""),
            "calibration": intervals.coverage_curve(view.pit, "", after, ~view.is_known),
        }
        outside: Mapping[str, Any] = one.outside
        if names := evaluation["out_of_distribution"]:
            inside = np.sqrt(view.disagreement)
            others = {name: np.sqrt(outside[name].disagreement) for name in names}
            drawn["disagreement"] = number_plots.deviations_in_and_out(inside, others)
            drawn["roc"] = uncertainty.roc_curves(inside, others)
        if derived.PROFILE in outside and one.source is not None:
            fan = widest_fan(outside[derived.PROFILE], one.source)
            if fan is not None:
                drawn["fan"] = number_plots.fan(
                    fan.values, fan.quantiles, fan.member_means, (fan.low, fan.high), fan.name
                )
        return drawn
