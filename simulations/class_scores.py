"""Scores of predicted classes: do their intervals hold the scores of the whole population?"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.evaluation import scoring, verdict
from ensemble.evaluation.class_predictions import LabelledPredictions
from simulations.populations import means_and_labels, population, sample
from simulations.statement import VERDICT, Outcome, Replicate, Statement

BOUNDED = ("accuracy", "brier", "aurc", "accuracy_at_80", "overconfidence", "disagreement")
UNBOUNDED = ("nll", "total", "aleatoric", "epistemic")


def _truth(of: LabelledPredictions) -> dict[str, float]:
    mean = metrics.ensemble_log_probs(of.log_probs)
    scores = metrics.scores(mean, of.targets)
    uncertainty = metrics.uncertainty(of.log_probs)
    return {
        **scores,
        "overconfidence": float(np.exp(mean.max(axis=-1)).mean()) - scores["accuracy"],
        "disagreement": metrics.disagreement(of.log_probs),
        **{name: float(values.mean()) for name, values in uncertainty.items()},
    }


def score_interval(num_examples: int, names: Sequence[str], **setting: Any) -> Replicate:
    """Whether the intervals of a test split's scores hold those of the population."""
    everything = population(**setting)
    truth = _truth(everything)

    def replicate(rng: np.random.Generator) -> Outcome:
        intervals = scoring.all_intervals(sample(rng, everything, num_examples))
        return {name: holds(intervals[name], truth[name]) for name in names}

    return replicate


def holds(interval: tuple[float, float] | None, truth: float) -> bool | None:
    """Whether the truth lies within, but for rounding; None of no interval."""
    return None if interval is None else interval[0] - 1e-12 <= truth <= interval[1] + 1e-12


def temperature_scores(num_examples: int, **setting: Any) -> Replicate:
    """Whether the change of the NLL on test examples holds that of the population."""
    everything = population(size=10_000, **setting)
    mean = metrics.ensemble_log_probs(everything.log_probs)

    def replicate(rng: np.random.Generator) -> Outcome:
        test, held_out = (sample(rng, everything, num_examples) for _ in range(2))
        section = scoring._score_temperature(*means_and_labels(test, held_out))
        if not scoring.is_available(section):
            return {"nll_change": None}
        changed = metrics.apply_temperature(mean, section["value"])
        truth = metrics.nll(changed, everything.targets) - metrics.nll(mean, everything.targets)
        return {"nll_change": holds(section["nll_change_interval"], truth)}

    return replicate


def balanced_accuracy(counts: Sequence[int], recalls: Sequence[float]) -> Replicate:
    """Whether the interval holds the mean of the recalls, of so many examples of each class."""
    labels, num_classes = np.repeat(np.arange(len(counts)), counts), len(counts)
    truth, names = float(np.mean(recalls)), [str(i) for i in range(num_classes)]

    def replicate(rng: np.random.Generator) -> Outcome:
        hits = rng.random(len(labels)) < np.array(recalls)[labels]
        section = scoring.score_classes(_certain(hits, labels, num_classes), names)
        return {"balanced accuracy": holds(section["interval"], truth)}

    return replicate


def _certain(hits: np.ndarray, labels: np.ndarray, num_classes: int) -> LabelledPredictions:
    """Predictions that are right where asked for, else the next class."""
    predicted = np.where(hits, labels, (labels + 1) % num_classes)
    probs = np.full((1, len(labels), num_classes), 0.1 / (num_classes - 1))
    probs[0, np.arange(len(labels)), predicted] = 0.9
    return LabelledPredictions(np.log(probs), labels, np.arange(1))


def ece_by_chance(num_examples: int, **setting: Any) -> Replicate:
    """Whether the ECE of a calibrated predictor is at most what chance is said to make of it."""
    everything = population(**setting)

    def replicate(rng: np.random.Generator) -> Outcome:
        drawn = sample(rng, everything, num_examples, gap=0.0)
        terms = metrics.terms(metrics.ensemble_log_probs(drawn.log_probs), drawn.targets)
        limit = metrics.calibration_by_chance(terms).ece_quantile
        return {"ECE": terms.ece() <= limit + 1e-12}

    return replicate


def trust(num_examples: int, gap: float, **setting: Any) -> Replicate:
    """Whether the sentence about probabilities is wrong.

    A calibrated predictor is called overconfident, underconfident or wrong level by level; one that
    is not is said to be to be taken as it is, to within fewer points than it is off.
    """
    everything = population(**setting)

    def replicate(rng: np.random.Generator) -> Outcome:
        test = scoring.score_predictions(sample(rng, everything, num_examples, gap))
        sentence = verdict.trust(test, temperature_helps=False)
        if sentence.startswith(("With", "The test split")):
            return {"sentence": None}
        within = re.search(r"are right to within ([\d.]+) point", sentence)
        if within:
            return {"sentence": float(within[1]) / 100 < gap}
        return {"sentence": not gap}

    return replicate


def power(num_examples: int, gap: float, **setting: Any) -> Replicate:
    """Whether as many examples as are said to show a gap do show it."""
    everything = population(**setting)

    def replicate(rng: np.random.Generator) -> Outcome:
        drawn = sample(rng, everything, num_examples, gap)
        first = scoring.all_intervals(drawn)["overconfidence"]
        assert first is not None
        needed = metrics.num_to_see(gap, first, num_examples)
        drawn = sample(rng, everything, needed, gap)
        second = scoring.all_intervals(drawn)["overconfidence"]
        return {"overconfidence": not holds(second, 0.0)}

    return replicate


def _score_settings(names: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    settings: dict[str, dict[str, Any]] = {
        "N = 30, M = 2, hard": {"num_classes": 5, "signal": 1.5},
        "N = 30, M = 3, 98% right": {"num_classes": 3, "signal": 3.5},
        "N = 100, M = 4, overconfident": {"signal": 2.0, "sharpness": 2.0},
        "N = 300, M = 16, 98% right": {"num_classes": 5, "signal": 3.5},
        "N = 1000, M = 2, unequal classes": {"prior": (0.8, 0.15, 0.05)},
        "N = 1000, M = 2, 99.9% right": {"signal": 5.0},
        "N = 1000, M = 8, very overconfident": {"signal": 2.0, "sharpness": 5.0},
        "N = 1000, M = 2, all right": {"signal": 12.0},
        "N = 5000, M = 2, underconfident": {"num_classes": 2, "sharpness": 0.6},
    }
    if "nll" in names:
        del settings["N = 1000, M = 2, all right"]  # There all are 0.
    for title, setting in settings.items():
        sizes = [int(part.split(" = ")[1]) for part in title.split(", ")[:2]]
        setting |= {"num_examples": sizes[0], "num_members": sizes[1], "names": names}
    return settings


_CALIBRATED: dict[str, dict[str, Any]] = {
    "N = 30, hard": {"num_examples": 30, "signal": 1.0},
    "N = 100, unequal classes": {"num_examples": 100, "prior": (0.8, 0.15, 0.05)},
    "N = 100, M = 16": {"num_examples": 100, "num_members": 16},
    "N = 300, 99% right": {"num_examples": 300, "signal": 4.0},
    "N = 1000": {"num_examples": 1000},
    "N = 2000, 5 classes": {"num_examples": 2000, "num_classes": 5},
}

STATEMENTS = (
    Statement(
        name="classes.scores_within_bounds",
        claim="Accuracy, Brier score, AURC, accuracy at 80%, confidence less accuracy and "
        "disagreement lie in [low, high]",
        over="test examples",
        made_by=(
            "ensemble.evaluation.scoring.all_intervals",
            "ensemble.metrics.score_intervals.score_intervals",
            "ensemble.metrics.score_intervals._accuracy_at_coverage",
            "ensemble.metrics.analytic_intervals.bounded_interval",
            "ensemble.metrics.analytic_intervals.share_interval",
            "ensemble.metrics.analytic_intervals.influence_interval",
            "ensemble.metrics.analytic_intervals._upper",
            "ensemble.metrics.abstention._clopper_pearson",
        ),
        settings=_score_settings(BOUNDED),
        prepare=score_interval,
        at_least=True,
    ),
    Statement(
        name="classes.scores_without_bounds",
        claim="NLL and mean uncertainties lie in [low, high]",
        over="test examples",
        made_by=(
            "ensemble.evaluation.scoring.all_intervals",
            "ensemble.metrics.analytic_intervals.mean_interval",
            "ensemble.metrics.analytic_intervals.mean_intervals",
        ),
        settings=_score_settings(UNBOUNDED),
        prepare=score_interval,
    ),
    Statement(
        name="classes.temperature_change",
        claim="The temperature changes the NLL by [low, high]",
        over="test examples",
        made_by=("ensemble.evaluation.scoring._score_temperature",),
        settings={
            "N = 100": {"num_examples": 100},
            "N = 100, overconfident": {"num_examples": 100, "sharpness": 2.0},
            "N = 300, M = 4, hard": {"num_examples": 300, "num_members": 4, "signal": 1.0},
            "N = 300, 98% right": {"num_examples": 300, "signal": 3.5},
            "N = 300, unequal classes": {"num_examples": 300, "prior": (0.8, 0.15, 0.05)},
            "N = 600, underconfident": {"num_examples": 600, "sharpness": 0.6},
        },
        prepare=temperature_scores,
    ),
    Statement(
        name="classes.balanced_accuracy",
        claim="The balanced accuracy lies in [low, high]",
        over="test examples of each class",
        made_by=(
            "ensemble.evaluation.scoring.score_classes",
            "ensemble.metrics.score_intervals.balanced_accuracy_interval",
        ),
        settings={
            "100, 100 and 3 examples": {"counts": (100, 100, 3), "recalls": (0.95, 0.9, 0.5)},
            "20 classes of 3": {"counts": (3,) * 20, "recalls": (0.9,) * 20},
            "1000, 5 and 1": {"counts": (1000, 5, 1), "recalls": (0.99, 0.6, 0.4)},
            "500 and 20, hard": {"counts": (500, 20), "recalls": (0.95, 0.3)},
            "10 classes of 10, unequal recalls": {
                "counts": (10,) * 10,
                "recalls": tuple(np.linspace(0.5, 1.0, 10)),
            },
            "10 classes of 300, all right": {"counts": (300,) * 10, "recalls": (1.0,) * 10},
            "5 classes of 1000": {"counts": (1000,) * 5, "recalls": (0.99, 0.9, 0.8, 0.7, 0.6)},
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
        made_by=("ensemble.evaluation.verdict.trust",),
        settings={
            **{title: {**setting, "gap": 0.0} for title, setting in _CALIBRATED.items()},
            "N = 2000, 1 point too sure": {"num_examples": 2000, "gap": 0.01},
            "N = 3000, 2 points too sure, hard": {"num_examples": 3000, "gap": 0.02, "signal": 1.0},
            "N = 1000, 98% right, 1 point too sure": {
                "num_examples": 1000,
                "gap": 0.01,
                "signal": 4.0,
            },
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
            "3 points, 300 so far": {"num_examples": 300, "gap": 0.03},
            "4 points, 300 so far, hard": {"num_examples": 300, "gap": 0.04, "signal": 1.0},
            "2 points, 300 so far": {"num_examples": 300, "gap": 0.02},
            "2 points, 1000 so far": {"num_examples": 1000, "gap": 0.02},
            "3 points, 1000 so far, M = 4": {"num_examples": 1000, "gap": 0.03, "num_members": 4},
            "3 points, unequal classes": {
                "num_examples": 300,
                "gap": 0.03,
                "prior": (0.8, 0.15, 0.05),
            },
        },
        prepare=power,
        level=0.8,
        at_least=True,
    ),
)
