"""Calibration of predicted numbers: a factor of the scale, and conformal intervals."""

import logging
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.errors import UserError
from ensemble.evaluation.numbers.known_rows import is_known, known_rows, nll_terms
from ensemble.evaluation.numbers.number_intervals import Interval, intervals, of_mean
from ensemble.evaluation.numbers.number_scores import score_rows
from ensemble.evaluation.scoring import CONFORMAL_LEVEL, conformal_range
from ensemble.evaluation.strata import OVER, by_stratum
from ensemble.likelihood import Arrays
from ensemble.metrics import number_calibration
from ensemble.number_likelihood import NumberLikelihood
from ensemble.source import Strata
from ensemble.storage.predictions import StoredPredictions

logger = logging.getLogger("ensemble")

FEW_EXAMPLES = 30
"""Fewer do not tell whether a factor helps."""
NUM_FOLDS = 5
METHODS = ("distance", "quantiles")
"""Split conformal on |y - median| / width, and conformalised quantiles."""


def score_calibrated(
    likelihood: NumberLikelihood,
    test: StoredPredictions,
    calibration: StoredPredictions | None,
    strata: Strata | None = None,
    groups: NDArray | None = None,
) -> dict[str, Any]:
    """Scores the ensemble after one factor of its scale, and its conformal intervals.

    Both are fitted on the calibration split, which has trained and stopped nothing, and scored on
    the test split.

    Args:
        likelihood: of the run.
        test: predictions of the live members.
        calibration: the same; None where the run has no such split.
        strata: groups or times of the test examples, where they have any.
        groups: of the calibration examples [N], where these are split by groups.

    Returns:
        `scale`: `value`, `ensemble` scores, their `interval`, `pit`, and `nll_change` with its
        paired 95% `nll_change_interval`, nats, on test examples; `on_folds`, the interval of the
        change on calibration examples that a factor was not fitted on, which says whether to use
        one, None where it cannot be told; `conformal`: by name of `METHODS` what
        `_score_intervals` returns, with `threshold` and `num_examples` of calibration. One that is
        not available has a `reason` and no numbers; a factor that cannot be fitted is 1.
    """
    if calibration is None:
        absent = {"reason": "not available: the run holds no calibration split out"}
        return {"scale": absent, "conformal": dict.fromkeys(METHODS, absent)}
    return {
        "scale": _score_scale(likelihood, test, calibration, groups),
        "conformal": _score_conformal(likelihood, test, calibration, strata),
    }


def _score_scale(
    likelihood: NumberLikelihood,
    test: StoredPredictions,
    calibration: StoredPredictions,
    groups: NDArray | None = None,
) -> dict[str, Any]:
    try:
        factor = likelihood.fit_temperature(calibration.arrays, calibration.targets)
        scaled = test._replace(arrays=likelihood.scaled(test.arrays, factor))
    except (UserError, ValueError) as error:
        return {"value": 1.0, "reason": f"not available: {error}"}
    after = test if factor == 1 else scaled
    change = nll_terms(likelihood, after) - nll_terms(likelihood, test)
    return {
        "value": factor,
        "num_examples": len(calibration.targets),
        **score_rows(likelihood, after),
        "interval_over": OVER,
        "nll_change": float(change.mean()),
        "nll_change_interval": of_mean(change),
        "on_folds": _change_on_folds(likelihood, calibration, groups),
    }


def _change_on_folds(
    likelihood: NumberLikelihood, calibration: StoredPredictions, groups: NDArray | None = None
) -> Interval | None:
    """What a factor brings on other examples, as far as the calibration split can tell."""
    arrays, targets, members = calibration
    if len(targets) < FEW_EXAMPLES:
        return None

    def surprisal(arrays: Arrays, chosen: NDArray) -> NDArray:
        return nll_terms(likelihood, StoredPredictions(arrays, targets[chosen], members))

    units = np.arange(len(targets))
    if groups is not None:
        units = np.unique(groups, return_inverse=True)[1]
    folds = (np.random.default_rng(0).permutation(units.max() + 1) % NUM_FOLDS)[units]
    change = np.empty(len(targets))
    for k in range(NUM_FOLDS):
        inside, others = (
            {name: one[:, chosen] for name, one in arrays.items()}
            for chosen in (folds == k, folds != k)
        )
        try:
            factor = likelihood.fit_temperature(others, targets[folds != k])
        except (UserError, ValueError):
            return None
        after = surprisal(likelihood.scaled(inside, factor), folds == k)
        change[folds == k] = after - surprisal(inside, folds == k)
    return of_mean(change, groups=groups)


def _score_conformal(
    likelihood: NumberLikelihood,
    test: StoredPredictions,
    calibration: StoredPredictions,
    strata: Strata | None,
) -> dict[str, Any]:
    if not (is_known(calibration.targets).all() and is_known(test.targets).all()):
        reason = (
            "not available: what censored targets are, and so whether they are held, is unknown"
        )
        return {key: {"reason": reason} for key in METHODS}
    test, calibration = (known_rows(likelihood, one) for one in (test, calibration))
    num_held_out, level = len(calibration.targets), CONFORMAL_LEVEL
    needed = math.ceil(level / (1 - level) - 1e-9)
    if num_held_out < needed:
        reason = f"not available: {num_held_out} calibration examples, and it takes {needed}"
        return {key: {"reason": reason} for key in METHODS}
    held_out, ends = (_ends(likelihood, one.arrays) for one in (calibration, test))
    found: dict[str, Any] = {}
    for name, score, make in (
        ("distance", number_calibration.distance_scores, number_calibration.distance_intervals),
        ("quantiles", number_calibration.quantile_scores, number_calibration.quantile_intervals),
    ):
        if name == "distance" and not (held_out.width > 0).all():
            found[name] = {"reason": "not available: some intervals have no width"}
            continue
        scores = score(*held_out.of(name), calibration.targets)
        threshold = number_calibration.conformal_quantile(scores, level)
        found[name] = {
            "level": level,
            "num_examples": num_held_out,
            "threshold": threshold,
            "coverage_range": conformal_range(scores, threshold, len(test.targets)),
            **_score_intervals(make(*ends.of(name), threshold), test.targets, strata),
        }
    return found


class _Ends(NamedTuple):
    """Lower end, median and upper end [N] of the mixture's own intervals."""

    low: NDArray
    middle: NDArray
    high: NDArray

    @property
    def width(self) -> NDArray:
        """[N]."""
        return self.high - self.low

    def of(self, method: str) -> tuple[NDArray, NDArray]:
        """What the scores and the intervals of a method are made of."""
        return (self.middle, self.width) if method == METHODS[0] else (self.low, self.high)


def _ends(likelihood: NumberLikelihood, arrays: Arrays) -> _Ends:
    level = CONFORMAL_LEVEL
    levels = np.array([(1 - level) / 2, 0.5, (1 + level) / 2])
    return _Ends(*likelihood.distribution(arrays).quantiles(levels))


def _score_intervals(
    made: number_calibration.Intervals, targets: NDArray, strata: Strata | None
) -> dict[str, Any]:
    """Scores conformal intervals on the test split.

    Returns:
        `coverage`, `mean_width`, and the `interval` of each; `num_empty`; `by_stratum`,
        as `strata.by_stratum` says, empty where there are none.
    """
    held = made.hold(targets)
    per_example = {"coverage": held, "mean_width": made.widths}
    return {
        "coverage": float(held.mean()),
        "mean_width": float(made.widths.mean()),
        "num_empty": int((made.high < made.low).sum()),
        "interval": intervals(per_example),
        "interval_over": OVER,
        "by_stratum": by_stratum(held, strata),
    }
