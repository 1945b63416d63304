"""Scores of predicted classes: do their intervals hold the scores of the whole population?"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.evaluation import sections
from ensemble.evaluation.classes import score_classes
from ensemble.evaluation.questions import calibration
from ensemble.evaluation.questions.calibration import is_available
from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax
from ensemble.metrics.analytic_intervals import Interval
from ensemble.scoring.facts import facts_of
from ensemble.scoring.score import scores_of
from ensemble.scoring.sections import score_split, values_of
from ensemble.scoring.view import View
from simulations.populations import mean_log_probs, population, sample
from simulations.settings import named, with_more
from simulations.statement import VERDICT, Outcome, Statement, holds, replication

BOUNDED = (
    "accuracy", "brier", "spherical", "aurc", "accuracy_at_80", "overconfidence", "disagreement",
)  # fmt: skip
ROUNDING = 1e-12
UNEQUAL = (0.8, 0.15, 0.05)
"""Probabilities of unequal classes."""
UNBOUNDED = ("nll", "total", "aleatoric", "epistemic")


@functools.lru_cache(maxsize=1)
def _truth(**setting: Any) -> dict[str, float]:
    return values_of(population(**setting))


@replication
def score_interval(
    rng: np.random.Generator, num_examples: int, names: Sequence[str], **setting: Any
) -> Outcome:
    """Whether the intervals of a test split's scores hold those of the population."""
    view = sample(rng, population(**setting), num_examples)
    scores, truth = scores_of(view), _truth(**setting)
    return {name: holds(scores[name].interval(view), truth[name], ROUNDING) for name in names}


def evaluated(test: Any, held_out: Any, likelihood: Any = None) -> sections.Evaluated:
    """What sections are made of: two splits, and no data."""
    return sections.Evaluated(likelihood, test, held_out, {}, None, "", ())


@replication
def temperature_scores(rng: np.random.Generator, num_examples: int, **setting: Any) -> Outcome:
    """Whether the change of the NLL on test examples holds that of the population."""
    setting |= {"size": 10_000}
    everything = population(**setting)
    test, held_out = (sample(rng, everything, num_examples) for _ in range(2))
    section = sections.score_factor(evaluated(test, held_out))
    if not is_available(section):
        return {"nll_change": None}
    truth = nll_change(section["value"], **setting)
    return {"nll_change": holds(section["nll_change_interval"], truth, ROUNDING)}


def nll_change(temperature: float, **setting: Any) -> float:
    """What a temperature adds to the NLL of the ensemble of a `population`."""
    mean, targets = mean_log_probs(**setting), population(**setting).targets
    changed = metrics.apply_temperature(mean, temperature)
    return metrics.nll(changed, targets) - metrics.nll(mean, targets)


@replication
def balanced_accuracy(
    rng: np.random.Generator, counts: Sequence[int], recalls: Sequence[float]
) -> Outcome:
    """Whether the interval holds the mean of the recalls, of so many examples of each class."""
    labels, num_classes = np.repeat(np.arange(len(counts)), counts), len(counts)
    hits = rng.random(len(labels)) < np.array(recalls)[labels]
    names = [str(i) for i in range(num_classes)]
    predicted = np.where(hits, labels, (labels + 1) % num_classes)
    section = score_classes(answers(predicted, labels, num_classes), names)
    return {"balanced accuracy": holds(section["interval"], float(np.mean(recalls)), ROUNDING)}


def answers(predicted: np.ndarray, labels: np.ndarray, num_classes: int) -> MeanOfSoftmax:
    """One member that is rather sure of the classes [N] that it predicts."""
    probs = np.full((1, len(labels), num_classes), 0.1 / (num_classes - 1))
    probs[0, np.arange(len(labels)), predicted] = 0.9
    return MeanOfSoftmax(arrays={LOG_PROBS: np.log(probs)}, targets=labels)


@replication
def ece_by_chance(rng: np.random.Generator, num_examples: int, **setting: Any) -> Outcome:
    """Whether the ECE of a calibrated predictor is at most what chance is said to make of it."""
    drawn = sample(rng, population(**setting), num_examples, gap=0.0)
    terms = metrics.terms(drawn.log_probs, drawn.labels)
    limit = metrics.calibration_by_chance(terms).ece_quantile
    return {"ECE": terms.ece() <= limit + ROUNDING}


@replication
def trust(rng: np.random.Generator, num_examples: int, gap: float, **setting: Any) -> Outcome:
    """Whether the sentence about probabilities is wrong.

    A calibrated predictor is called overconfident, underconfident or wrong level by level; one that
    is not is said to be to be taken as it is, to within fewer points than it is off.
    """
    view = sample(rng, population(**setting), num_examples, gap)
    found = calibration.confidence(score_split(view), facts_of(view))
    if found.code in ("calibration.few_examples", "calibration.too_small"):
        return {"sentence": None}
    if found.code == "calibration.consistent":
        margin: Any = found.numbers["margin"]
        return {"sentence": margin / 100 < gap}
    return {"sentence": not gap}


@replication
def power(rng: np.random.Generator, num_examples: int, gap: float, **setting: Any) -> Outcome:
    """Whether as many examples as are said to show a gap do show it."""
    everything = population(**setting)
    first = _overconfidence(sample(rng, everything, num_examples, gap))
    assert first is not None
    needed = metrics.num_to_see(gap, first, num_examples)
    second = _overconfidence(sample(rng, everything, needed, gap))
    return {"overconfidence": not holds(second, 0.0, ROUNDING)}


def _overconfidence(view: View) -> Interval | None:
    return scores_of(view)["overconfidence"].interval(view)


_recalls = named("counts recalls")
_scored = named("num_examples num_members")
_gap = named("num_examples gap")
_SCORED = {
    "N = 30, M = 2, hard": _scored(30, 2, num_classes=5, signal=1.5),
    "N = 30, M = 3, 98% right": _scored(30, 3, num_classes=3, signal=3.5),
    "N = 100, M = 4, overconfident": _scored(100, 4, signal=2.0, sharpness=2.0),
    "N = 300, M = 16, 98% right": _scored(300, 16, num_classes=5, signal=3.5),
    "N = 1000, M = 2, unequal classes": _scored(1000, 2, prior=UNEQUAL),
    "N = 1000, M = 2, 99.9% right": _scored(1000, 2, signal=5.0),
    "N = 1000, M = 8, very overconfident": _scored(1000, 8, signal=2.0, sharpness=5.0),
    "N = 1000, M = 2, all right": _scored(1000, 2, signal=12.0),
    "N = 5000, M = 2, underconfident": _scored(5000, 2, num_classes=2, sharpness=0.6),
}
_CALIBRATED = {
    "N = 30, hard": _gap(30, signal=1.0),
    "N = 100, unequal classes": _gap(100, prior=UNEQUAL),
    "N = 100, M = 16": _gap(100, num_members=16),
    "N = 300, 99% right": _gap(300, signal=4.0),
    "N = 1000": _gap(1000),
    "N = 2000, 5 classes": _gap(2000, num_classes=5),
}

STATEMENTS = (
    Statement(
        name="classes.scores_within_bounds",
        claim="Accuracy, Brier score, spherical score, AURC, accuracy at 80%, confidence less "
        "accuracy and disagreement lie in [low, high]",
        over="test examples",
        made_by=(
            "ensemble.scoring.combine.Mean",
            "ensemble.scoring.combine.Order",
            "ensemble.scoring.combine.Share",
            "ensemble.scoring.score.Score.interval",
            "ensemble.metrics.analytic_intervals.bounded_interval",
            "ensemble.metrics.analytic_intervals.share_interval",
            "ensemble.metrics.analytic_intervals.influence_interval",
            "ensemble.metrics.analytic_intervals._upper",
            "ensemble.metrics.abstention._clopper_pearson",
        ),
        settings=with_more(_SCORED, names=BOUNDED),
        prepare=score_interval,
        at_least=True,
    ),
    Statement(
        name="classes.scores_without_bounds",
        claim="NLL and mean uncertainties lie in [low, high]",
        over="test examples",
        made_by=(
            "ensemble.scoring.combine.Mean",
            "ensemble.metrics.analytic_intervals.mean_interval",
        ),
        # Where all are right, they are 0.
        settings=with_more(
            {title: one for title, one in _SCORED.items() if "all right" not in title},
            names=UNBOUNDED,
        ),
        prepare=score_interval,
    ),
    Statement(
        name="classes.temperature_change",
        claim="The temperature changes the NLL by [low, high]",
        over="test examples",
        made_by=("ensemble.evaluation.sections.score_factor",),
        settings={
            "N = 100": _gap(100),
            "N = 100, overconfident": _gap(100, sharpness=2.0),
            "N = 300, M = 4, hard": _gap(300, num_members=4, signal=1.0),
            "N = 300, 98% right": _gap(300, signal=3.5),
            "N = 300, unequal classes": _gap(300, prior=UNEQUAL),
            "N = 600, underconfident": _gap(600, sharpness=0.6),
        },
        prepare=temperature_scores,
    ),
    Statement(
        name="classes.balanced_accuracy",
        claim="The balanced accuracy lies in [low, high]",
        over="test examples of each class",
        made_by=(
            "ensemble.evaluation.classes.score_classes",
            "ensemble.metrics.score_intervals.balanced_accuracy_interval",
        ),
        settings={
            "100, 100 and 3 examples": _recalls((100, 100, 3), (0.95, 0.9, 0.5)),
            "20 classes of 3": _recalls((3,) * 20, (0.9,) * 20),
            "1000, 5 and 1": _recalls((1000, 5, 1), (0.99, 0.6, 0.4)),
            "500 and 20, hard": _recalls((500, 20), (0.95, 0.3)),
            "10 classes of 10, unequal recalls": _recalls((10,) * 10, np.linspace(0.5, 1.0, 10)),
            "10 classes of 300, all right": _recalls((300,) * 10, (1.0,) * 10),
            "5 classes of 1000": _recalls((1000,) * 5, (0.99, 0.9, 0.8, 0.7, 0.6)),
        },
        prepare=balanced_accuracy,
        at_least=True,
    ),
    Statement(
        name="classes.ece_by_chance",
        claim="The ECE of a calibrated predictor is at most this by chance",
        over="test examples",
        made_by=("ensemble.metrics.calibration.calibration_by_chance",),
        settings=_CALIBRATED,
        prepare=ece_by_chance,
        at_least=True,
    ),
    Statement(
        name="classes.trust",
        claim="It is overconfident, or underconfident, or not right level by level, or to be taken "
        "as it is",
        over="test examples",
        made_by=("ensemble.evaluation.questions.calibration.confidence",),
        settings={
            **with_more(_CALIBRATED, gap=0.0),
            "N = 2000, 1 point too sure": _gap(2000, 0.01),
            "N = 3000, 2 points too sure, hard": _gap(3000, 0.02, signal=1.0),
            "N = 1000, 98% right, 1 point too sure": _gap(1000, 0.01, signal=4.0),
        },
        prepare=trust,
        kind=VERDICT,
    ),
    Statement(
        name="classes.num_to_see",
        claim="So many examples would show a difference of this size in at least 4 of 5 cases",
        over="test examples",
        made_by=("ensemble.metrics.analytic_intervals.num_to_see",),
        settings={
            "3 points, 300 so far": _gap(300, 0.03),
            "4 points, 300 so far, hard": _gap(300, 0.04, signal=1.0),
            "2 points, 300 so far": _gap(300, 0.02),
            "2 points, 1000 so far": _gap(1000, 0.02),
            "3 points, 1000 so far, M = 4": _gap(1000, 0.03, num_members=4),
            "3 points, unequal classes": _gap(300, 0.03, prior=UNEQUAL),
        },
        prepare=power,
        level=0.8,
        at_least=True,
    ),
)
