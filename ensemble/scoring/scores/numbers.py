"""Scores of predicted numbers; all but the NLL are of targets that are known."""

from typing import Any

import numpy as np

from ensemble.metrics import regression
from ensemble.scoring.combine import Coverage, Mean, RootMean
from ensemble.scoring.score import score
from ensemble.scoring.view import IntervalView, JointView, NumberView, QuantileView

FEW_MISSED = 10
"""With fewer targets outside of the intervals, the few decide on the interval score."""
_BANDS: dict[str, Any] = {"of": IntervalView, "each": lambda view: view.bands}


def _known(view, values):
    """Values [N], NaN where the target is not known."""
    return np.where(view.is_known, values, np.nan)


@score(of=NumberView, title="NLL", combine=Mean(tail="light", over_groups="signed"), unit="nats")
def nll(view):
    """Mean of -log of the mixture's density at the target, or of its survival at a bound."""
    return -view.log_density


@score(
    of=NumberView,
    title="NLL by moments",
    combine=Mean(tail="light", over_groups="signed"),
    unit="nats",
)
def nll_by_moments(view):
    """The NLL of a Gaussian with the mixture's mean and variance, as some tables score mixtures."""
    return _known(view, regression.gaussian_nll(view.point, view.measured_variance, view.y))


@score(
    of=JointView,
    title="NLL of all",
    combine=Mean(tail="any", over_groups="signed"),
    name="nll",
    unit="nats",
)
def joint_nll(view):
    """Mean of -log of the mixture's density at all targets of an example."""
    return -view.log_density


@score(of=QuantileView, title="pinball loss", combine=Mean(), unit="target")
def pinball(view):
    """Mean over the levels (Koenker and Bassett 1978)."""
    return regression.pinball(view.quantiles, view.levels, view.y)


@score(of=IntervalView, title="RMSE", combine=RootMean(), unit="target", under_shift="ratio")
def rmse(view):
    """Root of the mean squared error of the mean; of quantiles, of the median."""
    return _known(view, (view.point - view.y) ** 2)


@score(of=IntervalView, title="MAE", combine=Mean(), unit="target")
def mae(view):
    """Mean absolute error of the median."""
    return _known(view, np.abs(view.median - view.y))


@score(of=IntervalView, title="CRPS", combine=Mean(), unit="target")
def crps(view):
    """Integral of the squared difference of the CDF and a step at the target.

    Gneiting and Raftery 2007; of quantiles, what these tell of it.
    """
    return _known(view, view.crps)


@score(
    **_BANDS, name="coverage_{}", title="in {}%", combine=Coverage, unit="share", better="nearest"
)
def coverage(view, band):
    """Share of targets in their central intervals."""
    if view.is_known.all():
        return view.held(band).astype(np.float64)
    return np.stack([view.pit, view.is_known], axis=1)


@score(
    **_BANDS, name="width_{}", title="{}% width", combine=lambda _: Mean(), unit="target",
    better="neither",
)  # fmt: skip
def width(view, band):
    """Mean width of central intervals."""
    low, high = view.ends(band)
    return _known(view, high - low)


@score(
    **_BANDS,
    name="interval_score_{}",
    title="{}% interval score",
    combine=lambda _: Mean(fewest=FEW_MISSED),
    unit="target",
)
def interval_score(view, band):
    """Width, and 2 / (1 - P) times how far the target lies outside.

    Gneiting and Raftery 2007, section 6.2.
    """
    terms = regression.interval_score(*view.ends(band), view.y, band)
    return np.stack([_known(view, terms), ~view.held(band)], axis=1)
