"""Which methods predict as well as the best one, by margins.

The best is chosen by validation rows. Test rows then say how far the others are behind it. The
intervals of these differences hold together: each has its share of the 5% (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ensemble.metrics import Estimate, metrics_of

AS_GOOD, WORSE, UNDECIDED = "as good", "worse", "undecided"
MARGINS: Mapping[str, tuple[float, bool]] = {
    "nll": (0.02, True),
    "accuracy": (0.005, False),
    "crps": (0.02, True),
    "rmse": (0.02, True),
}
"""Differences that do not matter, by metric: size, and whether it is relative to one network."""
SECOND = {"nll": "accuracy", "crps": "rmse"}
"""Metric that is compared besides the one that decides."""


def compare_with_best(
    predictions: Mapping[str, Any], y: np.ndarray, best: str, name: str, reference: float
) -> dict[str, dict[str, Any]]:
    """Compares each method with the best.

    Args:
        predictions: `Predictive` of the same test rows by method.
        y: Targets [N].
        best: The method that was chosen.
        name: Metric of `MARGINS`.
        reference: The metric of one network.

    Returns:
        By method `value`, how far it is behind the best, its simultaneous interval `low` and `high`
        (None if unknown), the `margin` and the `verdict`: `AS_GOOD` if the interval lies below the
        margin, `WORSE` if it lies above 0 and reaches beyond the margin, else `UNDECIDED`.
    """
    metric = metrics_of(predictions[best])[name]
    size, is_relative = MARGINS[name]
    margin = size * abs(reference) if is_relative else size
    level = 1 - 0.05 / max(len(predictions) - 1, 1)
    ours, found = -metric.better * metric.terms(predictions[best], y), {}
    for method, p in predictions.items():
        one = Estimate(0.0, 0.0, 0.0)
        if method != best:
            one = metric.difference(ours, -metric.better * metric.terms(p, y), level=level)
        is_as_good = one.high is not None and one.high <= margin
        verdict = AS_GOOD if is_as_good else WORSE if one.above() else UNDECIDED
        found[method] = {**one._asdict(), "margin": margin, "verdict": verdict}
    return found
