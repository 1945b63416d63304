"""What an evaluation of quantiles asks and draws: no density, and so no NLL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ensemble.evaluation.evaluator import Evaluator
from ensemble.evaluation.questions import calibration, doubts, inputs, others, quality
from ensemble.pictures import intervals
from ensemble.scoring.finding import Finding
from ensemble.scoring.score import percent_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.sections import Evaluated


class QuantileEvaluator(Evaluator):
    """Evaluates runs that have learned quantiles."""

    under_shift = ("pinball", "rmse", "coverage", "disagreement")
    captions: ClassVar[Mapping[str, str]] = {
        "predictions": "Medians and the widest band against the targets of the test split; those "
        "that miss are orange.",
        "calibration": "The share of targets below each quantile, against its level.",
    }

    def findings(self, evaluation: Mapping[str, Any]) -> list[Finding]:
        """Quality, calibration of bands, groups, doubts, other inputs, and what others bring."""
        test, sets = evaluation["test"], evaluation["conformal"]
        members = len(evaluation["members"]), others.noun_of(evaluation)
        return [
            quality.quality(test, "pinball", *members),
            quality.gain(test, "pinball", *members),
            quality.baseline(test, evaluation["simple"], "pinball"),
            calibration.bands(test, evaluation["facts"]),
            calibration.conformal(sets, test),
            calibration.strata(evaluation),
            doubts.ranking(test, evaluation["uncertainty"]),
            inputs.detection(evaluation["out_of_distribution"], "epistemic"),
            *others.of_others(evaluation),
        ]

    def figures(self, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """How many targets lie below each quantile."""
        told = evaluation["facts"]["levels"]
        levels, below = ([one[key] for one in told] for key in ("level", "below"))
        number = evaluation["test"]["num_rows"]
        return {
            "calibration": intervals.quantile_curve(
                levels, below, number, "Do quantiles hold what they say?"
            )
        }

    def draw(self, evaluation: Mapping[str, Any], one: Evaluated) -> dict[str, Figure]:
        """The same, and the widest band of each example."""
        view: Any = one.test
        drawn = self.figures(evaluation)
        for band in view.bands[:1]:
            ends = view.ends(band)
            drawn["predictions"] = intervals.predictions(
                view.median, ends[0], ends[1], view.y, "", percent_of(band)
            )
        return drawn
