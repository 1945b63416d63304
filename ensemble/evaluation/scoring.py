"""All numbers of one test split: scores with intervals, by class, calibrated."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.predictions import StoredPredictions

CONFORMAL_LEVEL = 0.9


def score_predictions(predictions: StoredPredictions) -> dict[str, Any]:
    """Scores the ensemble, with 95% bootstrap intervals, and every member.

    Args:
        predictions: of the live members.

    Returns:
        `num_examples`; `ensemble`: scores by name, with `overconfidence` (mean confidence less
        accuracy), `disagreement` and the mean uncertainties; `interval`: (low, high) by the same
        names; `members`: a list [M] by score; `mean` and `sd` of the members by score;
        `disagreement_matrix` [M, M].
    """
    log_probs, labels, _ = predictions
    summary = metrics.summarise(log_probs, labels)
    terms = metrics.terms(metrics.ensemble_log_probs(log_probs), labels)
    overconfidence = np.empty(len(labels))
    overconfidence[terms.order] = terms.confidence - terms.hit
    per_example = {
        "overconfidence": overconfidence,
        "disagreement": metrics.disagreements(log_probs),
        **metrics.uncertainty(log_probs),
    }
    members = summary["members"]
    spread = 1 if len(log_probs) > 1 else 0  # Degrees of freedom that the mean takes.
    return {
        "num_examples": len(labels),
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
        "sd": {name: float(np.std(values, ddof=spread)) for name, values in members.items()},
        "disagreement_matrix": metrics.disagreement_matrix(log_probs).tolist(),
    }


def score_classes(predictions: StoredPredictions, class_names: Sequence[str]) -> dict[str, Any]:
    """Scores the ensemble class by class.

    Args:
        predictions: of the live members.
        class_names: C names.

    Returns:
        `names` and `counts` [C]; `recall` [C], NaN for a class without examples;
        `balanced_accuracy`, the mean recall of the others, and its 95% `interval`; `confusion`
        [C, C], rows are labels.
    """
    log_probs, labels, _ = predictions
    mean = metrics.ensemble_log_probs(log_probs)
    confusion = metrics.confusion_matrix(mean, labels)
    hits = mean.argmax(axis=-1) == labels
    num_classes = len(class_names)

    def balanced_accuracy(counts: NDArray) -> dict[str, float]:
        drawn = np.bincount(labels, weights=counts, minlength=num_classes)
        found = np.bincount(labels, weights=counts * hits, minlength=num_classes)
        return {"balanced_accuracy": float(np.mean(found[drawn > 0] / drawn[drawn > 0]))}

    return {
        "names": list(class_names),
        "counts": confusion.sum(axis=1).tolist(),
        "recall": metrics.recall(confusion).tolist(),
        **balanced_accuracy(np.ones(len(labels))),
        "interval": metrics.intervals(balanced_accuracy, len(labels))["balanced_accuracy"],
        "confusion": confusion.tolist(),
    }


def score_calibrated(
    test: StoredPredictions, calibration: StoredPredictions | None
) -> dict[str, Any]:
    """Scores the ensemble after one temperature, and its conformal sets.

    Both are fitted on the calibration split, which has trained and stopped nothing, and scored on
    the test split.

    Args:
        test: predictions of the live members.
        calibration: the same; None where the run has no such split.

    Returns:
        `temperature`: `value`, `ensemble` scores and their `interval`; `conformal`: `level`,
        `threshold` (nats), `coverage`, `mean_size`, `interval` of the two, and `sizes` [C + 1].
        One that is not available is a dict with nothing but `reason`.
    """
    if calibration is None:
        absent = {"reason": "not available: the run holds no calibration split out"}
        return {"temperature": absent, "conformal": absent}
    mean = metrics.ensemble_log_probs(test.log_probs)
    held_out = metrics.ensemble_log_probs(calibration.log_probs)
    return {
        "temperature": _score_temperature(mean, test.labels, held_out, calibration.labels),
        "conformal": _score_conformal(mean, test.labels, held_out, calibration.labels),
    }


def _score_temperature(
    mean: NDArray, labels: NDArray, held_out: NDArray, held_out_labels: NDArray
) -> dict[str, Any]:
    try:
        temperature = metrics.fit_temperature(held_out, held_out_labels)
    except ValueError as error:
        return {"reason": f"not available: {error}"}
    calibrated = metrics.apply_temperature(mean, temperature)
    return {
        "value": temperature,
        "num_examples": len(held_out_labels),
        "ensemble": metrics.scores(calibrated, labels),
        "interval": metrics.bootstrap_interval(calibrated[None], labels),
    }


def _score_conformal(
    mean: NDArray, labels: NDArray, held_out: NDArray, held_out_labels: NDArray
) -> dict[str, Any]:
    threshold = metrics.conformal_threshold(held_out, held_out_labels, CONFORMAL_LEVEL)
    sets = metrics.conformal_sets(mean, labels, threshold)
    included = -mean <= threshold
    per_example = {
        "coverage": included[np.arange(len(labels)), labels],
        "mean_size": included.sum(axis=-1),
    }
    return {
        "level": CONFORMAL_LEVEL,
        "num_examples": len(held_out_labels),
        "threshold": threshold,
        "coverage": sets.coverage,
        "mean_size": sets.mean_size,
        "interval": metrics.mean_intervals(per_example),
        "sizes": sets.sizes.tolist(),
    }


def is_available(section: Mapping[str, Any]) -> bool:
    """Whether a section of `score_calibrated` has numbers."""
    return "reason" not in section
