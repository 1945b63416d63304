"""All numbers of one test split: scores with intervals, by class, calibrated."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.evaluation.class_predictions import LabelledPredictions
from ensemble.evaluation.strata import by_stratum
from ensemble.source import Strata

logger = logging.getLogger("ensemble")


CONFORMAL_LEVEL = 0.9
NOTABLE_SHARE = 0.2
"""By what share of N / C a class must differ from it for classes to be called unequal."""


def score_predictions(predictions: LabelledPredictions) -> dict[str, Any]:
    """Scores the ensemble, with 95% bootstrap intervals, and every member.

    Args:
        predictions: of the live members.

    Returns:
        `num_examples`; `ensemble`: scores by name, with `overconfidence` (mean confidence less
        accuracy), `disagreement` and the mean uncertainties; `interval`: (low, high) by the same
        names; `members`: a list [M] by score; `mean` and `sd` of the members by score;
        `disagreement_matrix` [M, M]; `num_impossible`: labels that the ensemble gave probability 0;
        `ece_by_chance`: below it lie 95% of the ECEs that labels drawn from the prediction give.
    """
    log_probs, labels = predictions.log_probs, predictions.targets
    summary = metrics.summarise(log_probs, labels, predictions.entropies)
    terms = metrics.terms(metrics.ensemble_log_probs(log_probs), labels)
    overconfidence = np.empty(len(labels))
    overconfidence[terms.order] = terms.confidence - terms.hit
    per_example = {
        "overconfidence": overconfidence,
        "disagreement": metrics.disagreements(log_probs),
        **metrics.uncertainty(log_probs, predictions.entropies),
    }
    members = summary["members"]
    spread = 1 if len(log_probs) > 1 else 0  # Degrees of freedom that the mean takes.
    with np.errstate(invalid="ignore"):  # The sd of infinite scores is NaN.
        sd = {name: float(np.std(values, ddof=spread)) for name, values in members.items()}
    return {
        "num_examples": len(labels),
        "num_impossible": int(np.isinf(terms.surprisal).sum()),
        "ece_by_chance": _ece_by_chance(terms),
        "ensemble": {
            **summary["ensemble"],
            **{name: float(np.mean(values)) for name, values in per_example.items()},
        },
        "interval": {
            **metrics.bootstrap_interval(log_probs, labels),
            **metrics.mean_intervals(per_example),
        },
        "members": members,
        "mean": {name: float(np.mean(values)) for name, values in members.items()},
        "sd": sd,
        "disagreement_matrix": metrics.disagreement_matrix(log_probs).tolist(),
    }


def _ece_by_chance(terms: metrics.Terms, num_draws: int = 200) -> float:
    """The 95% quantile of the ECE where the confidences are right."""
    rng = np.random.default_rng(0)
    draws = [
        terms._replace(hit=(rng.random(len(terms.hit)) < terms.confidence).astype(float)).ece()
        for _ in range(num_draws)
    ]
    return float(np.quantile(draws, 0.95))


def score_classes(predictions: LabelledPredictions, class_names: Sequence[str]) -> dict[str, Any]:
    """Scores the ensemble class by class.

    Args:
        predictions: of the live members.
        class_names: C names.

    Returns:
        `names` and `counts` [C]; `are_unequal`, as `are_unequal` says; `majority`, the `name` of
        the most frequent class and its `share` of the examples, which always answering it would be
        right on; `recall` [C], NaN for a class without examples; `balanced_accuracy`, the mean
        recall of the others, and its 95% `interval`; `confusion` [C, C], rows are labels.
    """
    log_probs, labels = predictions.log_probs, predictions.targets
    mean = metrics.ensemble_log_probs(log_probs)
    confusion = metrics.confusion_matrix(mean, labels)
    hits = mean.argmax(axis=-1) == labels
    num_classes = len(class_names)

    def balanced_accuracy(counts: NDArray) -> dict[str, float]:
        drawn = np.bincount(labels, weights=counts, minlength=num_classes)
        found = np.bincount(labels, weights=counts * hits, minlength=num_classes)
        return {"balanced_accuracy": float(np.mean(found[drawn > 0] / drawn[drawn > 0]))}

    counts = confusion.sum(axis=1)
    top = int(counts.argmax())
    return {
        "names": list(class_names),
        "counts": counts.tolist(),
        "are_unequal": are_unequal(counts),
        "majority": {"name": class_names[top], "share": float(counts[top] / len(labels))},
        "recall": metrics.recall(confusion).tolist(),
        **balanced_accuracy(np.ones(len(labels))),
        "interval": metrics.intervals(balanced_accuracy, len(labels))["balanced_accuracy"],
        "confusion": confusion.tolist(),
    }


def are_unequal(counts: NDArray) -> bool:
    """Whether a class is so frequent or so rare that accuracy alone would mislead.

    It differs from the mean class, N / C, by more than a fifth of that, and by more than four
    standard deviations of its count in N draws from C equally frequent classes.

    Args:
        counts: examples of each class, `[C]`.
    """
    mean = counts.sum() / len(counts)
    by_chance = 4 * math.sqrt(mean * (1 - 1 / len(counts)))
    return bool(np.abs(counts - mean).max() > max(NOTABLE_SHARE * mean, by_chance))


def worst_classes(classes: Mapping[str, Any], number: int) -> list[int]:
    """The classes of the lowest recall, the worst first, of a tie the most frequent.

    Args:
        classes: as `score_classes` returns it.
        number: how many at most; classes without examples come last.
    """
    recall, counts = np.array(classes["recall"], float), np.array(classes["counts"])
    return np.lexsort((-counts, np.where(counts > 0, recall, np.inf)))[:number].tolist()


def score_calibrated(
    test: LabelledPredictions,
    calibration: LabelledPredictions | None,
    nonempty_sets: bool = False,
    strata: Strata | None = None,
) -> dict[str, Any]:
    """Scores the ensemble after one temperature, and its conformal sets.

    Both are fitted on the calibration split, which has trained and stopped nothing, and scored on
    the test split.

    Args:
        test: predictions of the live members.
        calibration: the same; None where the run has no such split.
        nonempty_sets: whether every conformal set is to hold the most probable class at least.
        strata: groups or times of the test examples, where they have any.

    Returns:
        `temperature`: `value`, `ensemble` scores and their `interval`, and `nll_change` with its
        paired 95% `nll_change_interval`, nats; `conformal`: `level`, `threshold` (nats),
        `nonempty`, `coverage`, `mean_size`, `interval` of the two, `sizes` [C + 1], and
        `coverage_range`, which holds the coverage of at least 95% of such pairs of calibration and
        test splits, and `by_stratum`, the coverage as of `strata.by_stratum`. One that is not
        available has a `reason` and no numbers; a temperature that cannot be fitted also has its
        `value`, 1.
    """
    if calibration is None:
        absent = {"reason": "not available: the run holds no calibration split out"}
        return {"temperature": absent, "conformal": absent}
    mean = metrics.ensemble_log_probs(test.log_probs)
    held_out = metrics.ensemble_log_probs(calibration.log_probs)
    return {
        "temperature": _score_temperature(mean, test.targets, held_out, calibration.targets),
        "conformal": _score_conformal(
            mean, test.targets, held_out, calibration.targets, nonempty_sets, strata
        ),
    }


def _score_temperature(
    mean: NDArray, labels: NDArray, held_out: NDArray, held_out_labels: NDArray
) -> dict[str, Any]:
    try:
        temperature = metrics.fit_temperature(held_out, held_out_labels)
    except ValueError as error:
        logger.warning("The temperature stays 1: %s.", error)
        return {"value": 1.0, "reason": f"left at 1: {error}"}
    # At 1 nothing is better than no temperature, and normalising again would only round.
    calibrated = mean if temperature == 1 else metrics.apply_temperature(mean, temperature)
    rows = np.arange(len(labels))
    with np.errstate(invalid="ignore"):  # A label of probability 0 stays so: inf - inf.
        change = mean[rows, labels] - calibrated[rows, labels]
    return {
        "value": temperature,
        "num_examples": len(held_out_labels),
        "ensemble": metrics.scores(calibrated, labels),
        "interval": metrics.bootstrap_interval(calibrated[None], labels),
        "nll_change": float(change.mean()),
        "nll_change_interval": metrics.mean_intervals({"nll": change})["nll"],
    }


def _score_conformal(
    mean: NDArray,
    labels: NDArray,
    held_out: NDArray,
    held_out_labels: NDArray,
    nonempty: bool,
    strata: Strata | None,
) -> dict[str, Any]:
    threshold = metrics.conformal_threshold(held_out, held_out_labels, CONFORMAL_LEVEL)
    num_held_out = len(held_out_labels)
    coverage_range = conformal_range(num_held_out, len(labels))
    if math.isinf(threshold):
        coverage_range = [1.0, 1.0]  # Every class is in every set.
    elif nonempty:
        coverage_range[1] = 1.0  # Classes are added: coverage is no less, and its law not known.
    sets = metrics.conformal_sets(mean, labels, threshold, nonempty)
    per_example = {
        "coverage": sets.included[np.arange(len(labels)), labels],
        "mean_size": sets.included.sum(axis=-1),
    }
    return {
        "level": CONFORMAL_LEVEL,
        "num_examples": num_held_out,
        "threshold": threshold,
        "nonempty": nonempty,
        "coverage": sets.coverage,
        "coverage_range": coverage_range,
        "mean_size": sets.mean_size,
        "interval": metrics.mean_intervals(per_example),
        "sizes": sets.sizes.tolist(),
        "by_stratum": by_stratum(per_example["coverage"], strata),
    }


def conformal_range(num_held_out: int, num_examples: int) -> list[float]:
    """What holds the coverage of at least 95% of pairs of calibration and test splits.

    The coverage of a test split is beta-binomial (Angelopoulos & Bates 2021, arXiv:2107.07511).

    Args:
        num_held_out: calibration examples.
        num_examples: test examples.
    """
    rank = min(math.ceil((num_held_out + 1) * CONFORMAL_LEVEL - 1e-9), num_held_out)
    spread = scipy.stats.betabinom(num_examples, rank, num_held_out + 1 - rank)
    return [float(spread.ppf(tail)) / num_examples for tail in (0.025, 0.975)]


def is_available(section: Mapping[str, Any]) -> bool:
    """Whether a section of `score_calibrated` has numbers."""
    return "reason" not in section
