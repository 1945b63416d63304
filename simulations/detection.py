"""What is said of how well inputs are detected that are unlike those learned from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from ensemble import metrics
from ensemble.evaluation.questions import inputs
from ensemble.scoring.scores.ranked_class import Ranked
from simulations.settings import named
from simulations.statement import VERDICT, Outcome, Replicate, Statement, holds, replication


def detection_intervals(
    num_in: int, num_out: int, distance: float, scale: float = 1.0
) -> Replicate:
    """Whether the intervals hold the rates of scores that are normal on either side."""
    truth = _rates(distance, scale)

    def replicate(rng: np.random.Generator) -> Outcome:
        outside = distance + scale * rng.normal(size=num_out)
        found = metrics.rank(rng.normal(size=num_in), outside).intervals()
        return {name: holds(found[name], truth[name]) for name in truth}

    return replicate


def ranked_class(num_examples: int, share: float, distance: float) -> Replicate:
    """Whether the intervals hold what a probability of a class does among all examples.

    Scores are normal on either side, and the number of examples of the class is a draw, too.

    Args:
        num_examples: N.
        share: of the class among all examples.
        distance: between the sides.
    """
    position = (np.arange(200_000) + 0.5) / 200_000
    found = distance - ndtri(position)  # Of the class, the highest first.
    caught, false = share * position, (1 - share) * ndtr(-found)
    truth = {
        "auroc": float(ndtr(distance / np.sqrt(2))),
        "aupr": float(np.mean(caught / (caught + false))),
    }

    def replicate(rng: np.random.Generator) -> Outcome:
        is_of_class = rng.uniform(size=num_examples) < share
        scores = rng.normal(size=num_examples) + distance * is_of_class
        terms = np.stack([scores, is_of_class], axis=1)
        return {name: holds(Ranked(name).interval(terms), truth[name]) for name in truth}

    return replicate


def _rates(distance: float, scale: float) -> dict[str, float]:
    """AUROC, by quadrature, and FPR at 95% TPR."""
    position = (np.arange(200_000) + 0.5) / 200_000
    outside = distance + scale * -ndtri(position)  # The highest first.
    false = ndtr(-outside)
    return {
        "auroc": float(np.mean(1 - false)),
        "fpr95": float(ndtr(scale * ndtri(0.95) - distance)),
    }


@replication
def detection(
    rng: np.random.Generator, num_in: int, num_out: int, aurocs: Sequence[float]
) -> Outcome:
    """Whether the sentence about unfamiliar inputs is wrong of sets with these AUROCs."""
    inside = rng.normal(size=num_in)
    sections: dict[str, Any] = {}
    for i, distance in enumerate(np.sqrt(2) * ndtri(np.array(aurocs))):
        ranked = metrics.rank(inside, distance + rng.normal(size=num_out))
        found = {**ranked.scores(), "interval": ranked.intervals()}
        sections[f"set {i}"] = {"num_rows": num_out, "entropy": found}
    said = inputs.detection(sections, "entropy")
    worst = list(sections).index(str(said.numbers["set"]))
    is_all, is_lower = (said.code == f"detection.{one}" for one in ("all", "inverted"))
    return {
        "all are recognised": min(aurocs) < 0.99 if is_all else None,
        "its entropy is lower": aurocs[worst] >= 0.5 if is_lower else None,
    }


_normal = named("num_in num_out distance scale")
_sets = named("num_in num_out aurocs")
_of_class = named("num_examples share distance")

STATEMENTS = (
    Statement(
        name="classes.detection_intervals",
        claim="AUROC and FPR at 95% TPR lie in [low, high]",
        over="test examples and unfamiliar ones",
        made_by=(
            "ensemble.metrics.detection.RankedScores.intervals",
            "ensemble.metrics.detection.RankedScores._fpr95_interval",
            "ensemble.evaluation.sections.score_detections",
        ),
        settings={
            "150 and 17": _normal(150, 17, 1.0),
            "30 and 30": _normal(30, 30, 2.0),
            "300 and 100, narrow": _normal(300, 100, 2.0, 0.3),
            "300 and 1000, wide": _normal(300, 1000, 0.5, 2.0),
            "1000 and 256, easy": _normal(1000, 256, 3.0),
            "1000 and 200, chance": _normal(1000, 200, 0.0),
            "1000 and 1000, apart": _normal(1000, 1000, 6.0),
        },
        prepare=detection_intervals,
        at_least=True,
    ),
    Statement(
        name="classes.ranked_class",
        claim="AUROC and AUPRC of a class lie in [low, high]",
        over="test examples",
        made_by=(
            "ensemble.metrics.detection.RankedScores.auroc_interval",
            "ensemble.scoring.scores.ranked_class.Ranked.interval",
            "ensemble.scoring.scores.ranked_class.average_precision_interval",
        ),
        settings={
            "N = 300, a tenth": _of_class(300, 0.1, 1.5),
            "N = 300, a tenth, easy": _of_class(300, 0.1, 4.0),
            "N = 300, half, hard": _of_class(300, 0.5, 0.5),
            "N = 300, half": _of_class(300, 0.5, 2.5),
            "N = 1000, 2%": _of_class(1000, 0.02, 1.5),
            "N = 2000, 1.5%, hard": _of_class(2000, 0.015, 0.5),
            "N = 2000, 1.5%": _of_class(2000, 0.015, 1.5),
            "N = 2000, 1.5%, easy": _of_class(2000, 0.015, 4.0),
            "N = 10,000, 1.5%": _of_class(10_000, 0.015, 2.5),
        },
        prepare=ranked_class,
        at_least=True,
    ),
    Statement(
        name="classes.detection",
        claim="Its entropy recognises all unfamiliar inputs, or is lower on some",
        over="test examples and unfamiliar ones",
        made_by=("ensemble.evaluation.questions.inputs.detection",),
        settings={
            "30 and 20, chance": _sets(30, 20, (0.5,) * 4),
            "300 and 17, chance": _sets(300, 17, (0.5,) * 8),
            "300 and 300, chance": _sets(300, 300, (0.5,) * 4),
            "300 and 300, one at 98.9%": _sets(300, 300, (0.989, 0.9999, 0.9999, 0.9999)),
            "1000 and 256, all at 98.9%": _sets(1000, 256, (0.989,) * 3),
            "1000 and 1000, one at 98.9%": _sets(1000, 1000, (0.989,)),
        },
        prepare=detection,
        kind=VERDICT,
    ),
)
