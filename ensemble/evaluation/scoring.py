"""All numbers of one test split: scores with intervals, by class, calibrated."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.evaluation.class_predictions import LabelledPredictions
from ensemble.evaluation.strata import OVER, by_stratum, groups_of
from ensemble.metrics.analytic_intervals import Interval
from ensemble.metrics.grouped import mean_over_groups
from ensemble.metrics.regression import resampled_means
from ensemble.source import Strata

logger = logging.getLogger("ensemble")

CONFORMAL_LEVEL = 0.9
NOTABLE_SHARE = 0.2
"""By what share of N / C a class must differ from it for classes to be called unequal."""


def score_predictions(predictions: LabelledPredictions) -> dict[str, Any]:
    """Scores the ensemble, with 95% intervals over test examples, and every member.

    Args:
        predictions: of the live members.

    Returns:
        `num_examples`; `ensemble`: scores by name, with `overconfidence` (mean confidence less
        accuracy), `disagreement` and the mean uncertainties; `interval`: (low, high) by the same
        names, None where it cannot be told, and `interval_over`, what would be drawn anew;
        `members`: a list [M] by score; `mean` and `sd` of the members by score;
        `disagreement_matrix` [M, M]; `num_impossible`: labels that the ensemble gave probability 0;
        `ece_by_chance`: below it lie 95% of the ECEs that labels drawn from the prediction give;
        `calibration_p`: how probable such labels make an `overconfidence` so far from 0, and an
        `ece` so large.
    """
    log_probs, labels = predictions.log_probs, predictions.targets
    summary = metrics.summarise(log_probs, labels, predictions.entropies)
    terms = metrics.terms(metrics.ensemble_log_probs(log_probs), labels)
    chance = metrics.calibration_by_chance(terms)
    members = summary["members"]
    spread = 1 if len(log_probs) > 1 else 0  # Degrees of freedom that the mean takes.
    with np.errstate(invalid="ignore"):  # The sd of infinite scores is NaN.
        sd = {name: float(np.std(values, ddof=spread)) for name, values in members.items()}
    return {
        "num_examples": len(labels),
        "num_impossible": int(np.isinf(terms.surprisal).sum()),
        "ece_by_chance": chance.ece_quantile,
        "calibration_p": {"overconfidence": chance.p_overconfidence, "ece": chance.p_ece},
        "ensemble": {
            **summary["ensemble"],
            "overconfidence": float(np.mean(terms.confidence - terms.hit)),
            **summary["diversity"],
        },
        "interval": all_intervals(predictions),
        "interval_over": OVER,
        "members": members,
        "mean": {name: float(np.mean(values)) for name, values in members.items()},
        "sd": sd,
        "disagreement_matrix": metrics.disagreement_matrix(log_probs).tolist(),
    }


def all_intervals(predictions: LabelledPredictions) -> dict[str, Interval | None]:
    """95% intervals over test examples of all that `score_predictions` has of the ensemble.

    Args:
        predictions: of the live members.

    Returns:
        (low, high) by name; None where it cannot be told.
    """
    log_probs = predictions.log_probs
    return {
        **metrics.score_intervals(log_probs, predictions.targets),
        "disagreement": metrics.bounded_interval(metrics.disagreements(log_probs)),
        **metrics.mean_intervals(metrics.uncertainty(log_probs, predictions.entropies)),
    }


def resampled_scores(predictions: LabelledPredictions) -> Callable[[NDArray], dict[str, float]]:
    """Makes all that `all_intervals` is about a function of how often each example is drawn.

    Args:
        predictions: of the live members.

    Returns:
        A function of counts [N].
    """
    log_probs = predictions.log_probs
    terms = metrics.terms(metrics.ensemble_log_probs(log_probs), predictions.targets)
    overconfidence = np.empty(len(terms.order))
    overconfidence[terms.order] = terms.confidence - terms.hit
    means = resampled_means(
        {
            "overconfidence": overconfidence,
            "disagreement": metrics.disagreements(log_probs),
            **metrics.uncertainty(log_probs, predictions.entropies),
        }
    )
    return lambda counts: {**terms.resampled(counts).scores(), **means(counts)}


def score_classes(predictions: LabelledPredictions, class_names: Sequence[str]) -> dict[str, Any]:
    """Scores the ensemble class by class.

    Args:
        predictions: of the live members.
        class_names: C names.

    Returns:
        `names` and `counts` [C]; `are_unequal`, as `are_unequal` says; `majority`, the `name` of
        the most frequent class and its `share` of the examples, which always answering it would be
        right on, an exact 95% interval of `wins`, how often the ensemble is the right one of the
        two where one alone is right, and the paired `excess_interval` of the ensemble's accuracy
        less that share; `recall` [C], NaN for a class without examples;
        `balanced_accuracy`, the mean recall of the others, and its 95% `interval`; `confusion`
        [C, C], rows are labels.
    """
    log_probs, labels = predictions.log_probs, predictions.targets
    mean = metrics.ensemble_log_probs(log_probs)
    confusion = metrics.confusion_matrix(mean, labels)
    hits = mean.argmax(axis=-1) == labels
    counts = confusion.sum(axis=1)
    top, recall = int(counts.argmax()), metrics.recall(confusion)
    is_top = labels == top
    wins, losses = int(np.sum(hits & ~is_top)), int(np.sum(~hits & is_top))
    return {
        "names": list(class_names),
        "counts": counts.tolist(),
        "are_unequal": are_unequal(counts),
        "majority": {
            "name": class_names[top],
            "share": float(counts[top] / len(labels)),
            "wins": metrics.error_interval(wins, wins + losses),
            "excess_interval": metrics.bounded_interval(hits - 1.0 * is_top, -1, 1),
        },
        "recall": recall.tolist(),
        "balanced_accuracy": float(np.nanmean(recall)),
        "interval_over": f"{OVER}, and so does how many are of each class",
        "interval": metrics.balanced_accuracy_interval(hits, labels),
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
    groups: NDArray | None = None,
) -> dict[str, Any]:
    """Scores the ensemble after one temperature, and its conformal sets.

    Both are fitted on the calibration split, which has trained and stopped nothing, and scored on
    the test split.

    Args:
        test: predictions of the live members.
        calibration: the same; None where the run has no such split.
        nonempty_sets: whether every conformal set is to hold the most probable class at least.
        strata: groups or times of the test examples, where they have any.
        groups: of the calibration examples [N], where these are split by groups.

    Returns:
        `temperature`: `value`, `ensemble` scores and their `interval`, and `nll_change` with its
        paired 95% `nll_change_interval`, nats, on test examples; `on_folds`, the interval of the
        change on calibration examples that a temperature was not fitted on, which says whether to
        use one, None where it cannot be told; `conformal`: `level`, `threshold` (nats),
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
        "temperature": _score_temperature(
            mean, test.targets, held_out, calibration.targets, groups, groups_of(strata)
        ),
        "conformal": _score_conformal(
            mean, test.targets, held_out, calibration.targets, nonempty_sets, strata
        ),
    }


def _score_temperature(
    mean: NDArray,
    labels: NDArray,
    held_out: NDArray,
    held_out_labels: NDArray,
    groups: NDArray | None = None,
    test_groups: NDArray | None = None,
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
        "interval": metrics.score_intervals(calibrated[None], labels),
        "interval_over": OVER,
        "nll_change": float(change.mean()),
        "nll_change_interval": _mean_interval(change, test_groups),
        "on_folds": _change_on_folds(held_out, held_out_labels, groups),
    }


def _change_on_folds(
    log_probs: NDArray, labels: NDArray, groups: NDArray | None = None
) -> Interval | None:
    """What a temperature brings on other examples, as far as the calibration split can tell."""
    num_errors = np.sum(log_probs.argmax(axis=-1) != labels)
    if num_errors < metrics.FEW_ERRORS or len(labels) - num_errors < metrics.FEW_ERRORS:
        return None
    try:
        change = metrics.nll_change_on_folds(log_probs, labels, groups=groups)
    except ValueError:
        return None
    return _mean_interval(change, groups)


def _mean_interval(values: NDArray, groups: NDArray | None) -> Interval | None:
    return metrics.mean_interval(values) if groups is None else mean_over_groups(values, groups)


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
    surprisals = -held_out[np.arange(num_held_out), held_out_labels]
    coverage_range = conformal_range(surprisals, threshold, len(labels))
    if math.isinf(threshold):
        coverage_range = [1.0, 1.0]  # Every class is in every set.
    elif nonempty:
        coverage_range[1] = 1.0  # Classes are added: coverage is no less, and its law not known.
    sets = metrics.conformal_sets(mean, labels, threshold, nonempty)
    held = sets.included[np.arange(len(labels)), labels]
    sizes = sets.included.sum(axis=-1)
    return {
        "level": CONFORMAL_LEVEL,
        "num_examples": num_held_out,
        "threshold": threshold,
        "nonempty": nonempty,
        "coverage": sets.coverage,
        "coverage_range": coverage_range,
        "mean_size": sets.mean_size,
        "interval": {
            "coverage": metrics.error_interval(int(held.sum()), len(labels)),
            "mean_size": metrics.mean_interval(sizes),
        },
        "interval_over": OVER,
        "sizes": sets.sizes.tolist(),
        "by_stratum": by_stratum(held, strata),
    }


def conformal_range(
    scores: NDArray, threshold: float, num_examples: int, level: float = CONFORMAL_LEVEL
) -> list[float]:
    """What holds the coverage of at least 95% of pairs of calibration and test splits.

    The coverage of a test split is beta-binomial (Angelopoulos & Bates 2021, arXiv:2107.07511).
    Where scores tie at the threshold, as those of counts do, it is higher, by an unknown law: then
    the upper end is 1.

    Args:
        scores: [N] of the calibration examples.
        threshold: that they gave.
        num_examples: test examples.
        level: that is promised.
    """
    num_held_out = len(scores)
    rank = min(math.ceil((num_held_out + 1) * level - 1e-9), num_held_out)
    spread = scipy.stats.betabinom(num_examples, rank, num_held_out + 1 - rank)
    low, high = (float(spread.ppf(tail)) / num_examples for tail in (0.025, 0.975))
    return [low, 1.0 if np.sum(scores == threshold) > 1 else high]


def is_available(section: Mapping[str, Any]) -> bool:
    """Whether a section of `score_calibrated` has numbers."""
    return "reason" not in section
