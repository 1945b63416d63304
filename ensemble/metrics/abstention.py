"""When an ensemble should not answer: a threshold on its confidence, fitted on calibration data.

An example is accepted where 1 - max probability lies below the threshold. The probabilities are
those without a temperature, so that the order of examples depends on no calibration label.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from ensemble.errors import UserError

LEVEL = 0.95
"""Confidence of bounds and intervals."""

MAX_ERROR, COVERAGE = "max_error", "coverage"

ACCEPT_ALL = 1.0
"""The threshold that every prediction lies below."""

_STEPS = 50  # Coverages that are tested: 2%, 4%, ..., 100%.
_MARGIN = 1e-3
"""Relative distance of a threshold from the example that sets it: far above what a forward pass
rounds on another device, so that examples of equal confidence are accepted or refused together."""
_RANGE = (1e-30, 1 - 1e-6)  # Of 1 - max probability: what float32 still tells from 0 and 1.


class Rule(NamedTuple):
    """What is wanted of abstention.

    Attributes:
        name: `max_error`, the largest error among accepted examples with 95% confidence, or
            `coverage`, the share of examples to accept.
        value: of it, in 0..1.
        tolerance: of numbers, how far a prediction that is no error may lie from its target, in the
            target's units; None: the likelihood's own.
    """

    name: str
    value: float
    tolerance: float | None = None

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Reads `max_error=0.02`, `coverage=0.9` or, with a tolerance, `max_error=0.1@5`.

        Raises:
            UserError: it is neither.
        """
        name, _, number = str(text).partition("=")
        number, _, tolerance = number.partition("@")
        value, allowed = _number(number), _number(tolerance) if "@" in str(text) else None
        is_tolerance = allowed is None or 0 < allowed < math.inf
        if name not in (MAX_ERROR, COVERAGE) or not 0 < value < 1 or not is_tolerance:
            raise UserError(
                f"abstain={text!r} must be {MAX_ERROR}=E or {COVERAGE}=C with a number between 0 "
                f"and 1, such as {MAX_ERROR}=0.02; of targets that are numbers {MAX_ERROR}=0.1@5 "
                "says that predictions err which are off by more than 5"
            )
        return cls(name, value, allowed)

    def __str__(self) -> str:
        at = "" if self.tolerance is None else f"@{self.tolerance:g}"
        return f"{self.name}={self.value:g}{at}"


class Abstention(NamedTuple):
    """A fitted threshold, and what it does to the calibration split.

    Attributes:
        rule: that it follows.
        threshold: an example is accepted where 1 - max probability lies below it, 0..1.
        num_examples: N of the calibration split.
        num_accepted: of them.
        num_errors: of those accepted.
    """

    rule: Rule
    threshold: float
    num_examples: int
    num_accepted: int
    num_errors: int


def one_minus_max(log_probs: Any, xp: Any = np) -> Any:
    """1 - max probability, summed over the other classes: exact also where it is tiny.

    Args:
        log_probs: `[N, C]` log-probabilities of the ensemble's mean.
        xp: `numpy`, or `jax.numpy` for JAX arrays.

    Returns:
        `[N]` in 0..1.
    """
    others = xp.arange(log_probs.shape[-1]) != xp.argmax(log_probs, axis=-1)[..., None]
    return xp.clip(xp.where(others, xp.exp(log_probs), 0).sum(axis=-1), *_RANGE)


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
        rule: what is wanted.
        doubts: `[N]`, `one_minus_max` on the calibration split.
        errors: `[N]` bool, whether the most probable class is wrong.

    Raises:
        ValueError: no threshold is proved to have the target error rate; the message says what is.
    """
    ranked, num_errors = _ranked(doubts, errors)
    fit = _max_error_threshold if rule.name == MAX_ERROR else _coverage_threshold
    threshold = fit(ranked, num_errors, rule.value)
    accepted = int(np.searchsorted(ranked, threshold, side="left"))
    return Abstention(rule, threshold, len(ranked), accepted, int(num_errors[accepted]))


def smallest_provable_error(num_examples: int) -> float:
    """The error that so many examples without a single error prove, with 95% confidence."""
    return 1 - (1 - LEVEL) ** (1 / num_examples)


def num_needed(max_error: float) -> int:
    """How many examples without a single error prove an error, with 95% confidence."""
    return math.ceil(math.log(1 - LEVEL) / math.log1p(-max_error))


def error_bound(num_errors: int, num_examples: int) -> float:
    """Upper 95% bound of the error (Clopper & Pearson 1934); 1 where there are no examples."""
    return _clopper_pearson(num_errors, num_examples, 1 - LEVEL)[1]


def error_interval(num_errors: int, num_examples: int, level: float = LEVEL) -> tuple[float, float]:
    """Two-sided interval of the error (Clopper & Pearson 1934); 0..1 without examples."""
    return _clopper_pearson(num_errors, num_examples, (1 - level) / 2)


def _clopper_pearson(num_errors: int, num_examples: int, tail: float) -> tuple[float, float]:
    num_right = num_examples - num_errors
    low = special.betaincinv(num_errors, num_right + 1, tail) if num_errors else 0.0
    high = special.betaincinv(num_errors + 1, num_right, 1 - tail) if num_right else 1.0
    return float(low), float(high)


def _number(text: str) -> float:
    """A number, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _ranked(doubts: ArrayLike, errors: ArrayLike) -> tuple[NDArray, NDArray]:
    """The doubts `[N]`, the least first, and how many of the first n err, `[N + 1]`."""
    doubts, errors = np.asarray(doubts, np.float64), np.asarray(errors, bool)
    if doubts.ndim != 1 or doubts.shape != errors.shape or not len(doubts):
        raise ValueError(f"doubts {doubts.shape} and errors {errors.shape} must be [N], N > 0")
    order = np.argsort(doubts, kind="stable")
    return doubts[order], np.concatenate([[0], np.cumsum(errors[order])])


def _max_error_threshold(ranked: NDArray, num_errors: NDArray, max_error: float) -> float:
    num_examples, needed = len(ranked), num_needed(max_error)
    best = smallest_provable_error(num_examples)
    if num_examples < needed:
        larger = f"a larger {MAX_ERROR}"
        if not num_errors[-1]:
            larger = f"{MAX_ERROR}={math.ceil(1000 * best) / 1000:g} at least"
        raise ValueError(
            f"{num_examples} calibration examples without a single error would prove {best:.2%} at "
            f"best, with {LEVEL:.0%} confidence; {max_error:.3g} takes {needed:,}: hold out more, "
            f"or ask for {larger}"
        )
    counts = -(-np.arange(1, _STEPS + 1) * num_examples // _STEPS)
    # With fewer than needed no test can succeed; among twice as many an error is allowed, which in
    # a large split costs no coverage. All of this is known before any label is.
    counts = counts[counts >= max(needed, min(2 * needed, num_examples // 4))]
    thresholds = np.append(ranked * (1 - _MARGIN), ACCEPT_ALL)[counts]
    accepted = np.searchsorted(ranked, thresholds, side="left")
    thresholds = thresholds[accepted >= needed]  # Equal confidences leave fewer than were counted.
    accepted = accepted[accepted >= needed]
    wrong = num_errors[accepted]
    passed = special.bdtr(wrong, accepted, max_error) <= 1 - LEVEL
    if not passed[0]:
        raise ValueError(_why_not(num_examples, accepted[0], wrong[0], max_error))
    return float(thresholds[np.argmin(np.append(passed, False)) - 1])


def _why_not(num_examples: int, accepted: int, wrong: int, max_error: float) -> str:
    """Says what the first test found, and how many examples it would take."""
    text = (
        f"no threshold keeps the error at most {max_error:.3g} with {LEVEL:.0%} confidence: of the "
        f"{accepted} most confident of {num_examples} calibration examples {wrong} "
        f"{'is' if wrong == 1 else 'are'} wrong, "
        f"so that the error may be up to {error_bound(wrong, accepted):.2%}"
    )
    rate, times = wrong / accepted, 1.1 ** np.arange(50)
    counts = np.ceil(accepted * times).astype(int)
    enough = special.bdtr(np.floor(rate * counts), counts, max_error) <= 1 - LEVEL
    if rate >= max_error or not enough.any():
        return f"{text}; ask for a larger {MAX_ERROR}, for this ensemble errs too often"
    needed = math.ceil(num_examples * times[np.argmax(enough)])
    return (
        f"{text}; at this rate it takes some {needed:,} examples: hold out more, or ask for a "
        f"larger {MAX_ERROR}"
    )


def _coverage_threshold(ranked: NDArray, num_errors: NDArray, coverage: float) -> float:
    """Accepts this share of new examples on average, at least, as conformal sets hold labels."""
    count = math.ceil(coverage * (len(ranked) + 1) - 1e-9)
    return ACCEPT_ALL if count > len(ranked) else float(ranked[count - 1] * (1 + _MARGIN))
