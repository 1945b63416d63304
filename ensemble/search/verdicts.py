"""Says which methods predict as well as the best one: by margins, and with doubt.

The best is chosen by validation rows. Test rows then say how far the others are behind it. The
intervals of these differences hold together: each has its share of the 5% (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ensemble.scoring.score import scores_of
from ensemble.scoring.view import View

AS_GOOD, WORSE, INCONCLUSIVE = "as good", "worse", "inconclusive"
_ERROR = 0.05
_UNKNOWN = (-math.inf, math.inf)


class Margin(NamedTuple):
    """A difference that does not matter.

    Attributes:
        size: of the difference.
        is_share: whether it is a share of the plain network's score, and not in the score's unit.
    """

    size: float
    is_share: bool


MARGINS: Mapping[str, Margin] = {
    "nll": Margin(0.02, True),
    "accuracy": Margin(0.005, False),
    "crps": Margin(0.02, True),
    "rmse": Margin(0.02, True),
}
SECOND = {"nll": "accuracy", "crps": "rmse"}
"""What is compared beside the score that decides."""


def deciding(view: View) -> str | None:
    """The score that decides between methods: NLL of classes, CRPS of numbers; None: neither."""
    name = next(iter(view.recipes.values()), None)
    return name if name in SECOND else None


def compare_with_best(
    views: Mapping[str, View], best: str, score: str, reference: float
) -> dict[str, dict[str, Any]]:
    """Says of each method whether it is as good as the best.

    Args:
        views: what methods say of the same test rows, by name.
        best: the name of the one that was chosen.
        score: of `MARGINS`.
        reference: the score whose share the margin is.

    Returns:
        By name `excess`, by how much the method is behind the best, its simultaneous `interval`,
        the `margin` and the `verdict`: `AS_GOOD` if the interval lies below the margin, `WORSE` if
        it lies above 0 and reaches beyond the margin, `INCONCLUSIVE` otherwise.
    """
    rule = scores_of(views[best])[score]
    sign = -1 if rule.better == "higher" else 1
    size, is_share = MARGINS[score]
    margin = size * abs(reference) if is_share else size
    others = [name for name in views if name != best]
    values = {name: rule.combine.value(rule.known_terms(view)[0]) for name, view in views.items()}
    found = {best: _entry(0.0, (0.0, 0.0), margin)}
    for name in others:
        low, high = rule.difference(views[best], views[name], 1 - _ERROR / len(others)) or _UNKNOWN
        with np.errstate(invalid="ignore"):  # Of two infinite scores.
            excess = float(sign * np.subtract(values[name], values[best]))
        found[name] = _entry(excess, (low, high) if sign > 0 else (-high, -low), margin)
    return found


def _entry(excess: float, interval: tuple[float, float], margin: float) -> dict[str, Any]:
    low, high = interval
    verdict = AS_GOOD if high <= margin else WORSE if low > 0 else INCONCLUSIVE
    return {"excess": excess, "interval": [low, high], "margin": margin, "verdict": verdict}
