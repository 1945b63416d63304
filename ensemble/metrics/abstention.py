"""When an ensemble should not answer: a threshold on its confidence, fitted on calibration data.

An example is accepted where 1 - max probability lies below the threshold. The probabilities are
those without a temperature, so that the order of examples depends on no calibration label.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from ensemble.errors import InputError

LEVEL = 0.95
"""Confidence of bounds."""
MAX_ERROR = "max_error"
COVERAGE = "coverage"
ACCEPT_ALL = 1.0
"""The threshold that every doubt lies below."""
_STEPS = 50  # Coverages that are tested: 2%, 4%, ..., 100%.
_MARGIN = 1e-3
"""Relative distance of a threshold from the row that sets it: far above what a forward pass rounds
on another device, so that rows of equal confidence are accepted or refused together."""
_LEAST = 1e-30  # Of a doubt, so that a threshold lies above it.


class Rule(NamedTuple):
    """What abstention is to achieve.

    Attributes:
        name: `max_error`, the largest error among accepted rows with 95% confidence, or `coverage`,
            the share of rows to accept.
        value: The share, 0 to 1.
        tolerance: Largest error of a number that is not wrong, in the target's unit; None: the
            default of the predictions.
    """

    name: str
    value: float
    tolerance: float | None = None

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Reads `max_error=0.02`, `coverage=0.9` or, with a tolerance, `max_error=0.1@5`.

        Raises:
            InputError: It is neither.
        """
        name, _, rest = str(text).partition("=")
        value, at, tolerance = rest.partition("@")
        with suppress(ValueError):
            rule = cls(name, float(value), float(tolerance) if at else None)
            is_tolerance = rule.tolerance is None or 0 < rule.tolerance < math.inf
            if name in (MAX_ERROR, COVERAGE) and 0 < rule.value < 1 and is_tolerance:
                return rule
        raise InputError(
            f"{text} must be {MAX_ERROR}=E or {COVERAGE}=C with a number between 0 and 1, such as "
            f"{MAX_ERROR}=0.02; for numbers {MAX_ERROR}=0.1@5, where predictions that are off by "
            "more than the tolerance 5 are wrong"
        )

    def __str__(self) -> str:
        at = "" if self.tolerance is None else f"@{self.tolerance:g}"
        return f"{self.name}={self.value:g}{at}"


class Abstention(NamedTuple):
    """A fitted threshold.

    Attributes:
        threshold: A row is accepted if its doubt lies below it, 0 to 1.
    """

    threshold: float


def are_wrong(p: Any, y: NDArray, tolerance: float | None = None) -> NDArray:
    """Whether predictions are wrong, bool [N]: other classes, or medians too far from the targets.

    Args:
        p: `Predictive`.
        y: Targets [N].
        tolerance: Largest error of a number that is not wrong; None: half of `p.unit`.

    Raises:
        ValueError: Right and wrong are not defined for such targets.
    """
    if p.kind == "classes" and tolerance is None:
        return p.labels != y
    if p.kind in ("numbers", "counts"):
        return np.abs(p.median - y) > (p.unit / 2 if tolerance is None else tolerance)
    raise ValueError(f"predictions of {p.kind} are not off by a tolerance. Remove it, or the rule")


def fit_abstention(rule: Rule, doubts: ArrayLike, errors: ArrayLike) -> Abstention:
    """Fits the threshold of a rule.

    A target error rate is tested at fixed coverages from the strictest on, as long as the exact
    binomial test rejects a larger error at 5% (fixed-sequence testing; Angelopoulos et al. 2021,
    "Learn then Test", arXiv:2110.01052; the aim is that of Geifman & El-Yaniv 2017,
    arXiv:1705.08500). The examples above the confidence of the (k+1)-th are independent draws of
    those that its threshold accepts, so the test is exact for thresholds that are examples' own
    confidences, too. With probability 95% over calibration splits the error among accepted new
    examples is at most the target, if new examples are like those of the split; nothing is assumed
    of the confidences.

    Args:
        rule: What to achieve.
        doubts: `Predictive.doubt()` [N] on the calibration split.
        errors: `are_wrong` [N] there.

    Raises:
        ValueError: No threshold is proved to have the target error rate.
    """
    doubts = np.maximum(np.asarray(doubts, np.float64), _LEAST)
    order = np.argsort(doubts, kind="stable")
    ranked = doubts[order]
    number = len(doubts)
    if rule.name == COVERAGE:
        # This share of new rows is accepted on average, at least, as conformal sets hold labels.
        count = math.ceil(rule.value * (number + 1) - 1e-9)
        return Abstention(
            ACCEPT_ALL if count > number else float(ranked[count - 1] * (1 + _MARGIN))
        )
    needed = math.ceil(math.log(1 - LEVEL) / math.log1p(-rule.value))  # Without a single error.
    counts = -(-np.arange(1, _STEPS + 1) * number // _STEPS)
    # With fewer than needed no test can succeed; among twice as many an error is allowed, which in
    # a large split costs no coverage. All of this is known before any label is.
    counts = counts[counts >= max(needed, min(2 * needed, number // 4))]
    wrong = np.append(0, np.cumsum(np.asarray(errors, bool)[order]))
    best = None
    for threshold in np.append(ranked * (1 - _MARGIN), ACCEPT_ALL)[counts].tolist():
        accepted = np.searchsorted(ranked, threshold)
        if accepted < needed:  # Equal confidences leave fewer than were counted.
            continue
        if special.bdtr(wrong[accepted], accepted, rule.value) > 1 - LEVEL:
            break
        best = threshold
    if best is None:
        raise ValueError(
            f"an error of at most {rule.value:.3g} with {LEVEL:.0%} confidence takes {needed:,} "
            f"or more right answers, and {number:,} calibration examples do not show it. Use a "
            f"larger {MAX_ERROR}, or hold out more"
        )
    return Abstention(best)
