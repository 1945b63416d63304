"""Scores of an ensemble class by class."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.scoring.sections import OVER
from ensemble.scoring.view import ClassView

NOTABLE_SHARE = 0.2
"""By what share of N / C a class must differ from it for classes to be called unequal."""


def score_classes(view: ClassView, class_names: Sequence[str]) -> dict[str, Any]:
    """Scores the ensemble class by class.

    Args:
        view: of the live members.
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
    labels, hits = view.labels, view.hits == 1
    confusion = metrics.confusion_matrix(view.log_probs, labels)
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
