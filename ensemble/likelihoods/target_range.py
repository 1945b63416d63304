"""Which numbers can be targets, as float32 must tell them apart, and what a constant scores."""

import math

import numpy as np
from scipy.special import log_ndtr

from ensemble.errors import UserError
from ensemble.likelihood import Constant
from ensemble.target_rows import CENSORED, ERROR, remark, values

SMALLEST, LARGEST = 1e-15, 1e15
"""Limits of targets and of their spread: the squares of what is beyond would leave float32."""
_MIN_SPREAD = 1e-3  # Relative to the targets' size: float32 has seven digits.


def target_range(targets: np.ndarray) -> tuple[float, float, float, float]:
    """Mean, standard deviation, least and largest value of training targets [N].

    Raises:
        UserError: there is one target, they are all alike, or too large, small or near each other.
    """
    values = np.asarray(targets, np.float64)
    if len(values) < 2:
        raise UserError("there is one sample to learn from; a spread needs two or more")
    spread, largest = float(values.std()), float(np.abs(values).max())
    if not np.isfinite(spread) or spread == 0:
        raise UserError(
            f"the training targets have the standard deviation {spread:g}; it must be positive and "
            "finite: give targets that differ"
        )
    if not SMALLEST < spread <= largest < LARGEST:
        raise UserError(
            f"the training targets have the standard deviation {spread:g} and values up to "
            f"{largest:g}; both must be within {SMALLEST:g} and {LARGEST:g}: give them in other "
            "units"
        )
    if spread < _MIN_SPREAD * largest:
        raise UserError(
            f"the training targets are near {values.mean():g} and differ by only {spread:g}, which "
            "float32 cannot resolve well: subtract a constant from them"
        )
    return float(values.mean()), spread, float(values.min()), float(values.max())


def normal_constant(mean: float, deviation: float, targets: np.ndarray) -> Constant:
    """Scores the normal distribution of the training targets on other targets [N]."""
    censored, error = remark(targets, CENSORED), remark(targets, ERROR)
    errors = np.asarray(values(targets), np.float64) - mean
    total = deviation if error is None else np.hypot(deviation, error)
    nll = 0.5 * (errors / total) ** 2 + np.log(total * math.sqrt(math.tau))
    squares = errors**2
    if censored is not None:
        nll = np.where(censored, -log_ndtr(-errors / total), nll)
        squares = np.where(censored, math.nan, squares)
    return Constant(
        f"always answering the mean {mean:.4g}",
        "rmse",
        math.nan if np.isnan(squares).all() else float(np.sqrt(np.nanmean(squares))),
        False,
        float(nll.mean()),
        squares,
        nll,
    )
