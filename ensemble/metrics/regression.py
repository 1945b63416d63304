"""Scores of predictive distributions of a number: `[M, N]` of M members, or `[N]` of a mixture.

A predictive distribution comes as its density or its CDF at the target, as moments, or as its CDF
on a grid. Units are the target's own; a density has its inverse.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, ndtr

from ensemble.metrics.checks import Floats

LEVELS = (0.5, 0.9, 0.95)
"""Levels of the central intervals whose coverage is reported."""
_PLATEAU = 1e-9  # Of a CDF: between modes far apart it is flat, up to rounding.
_RESOLVED = 1e-13  # Share of a bracket to which quantiles are known,
_EXACT = 1e-12  # or the distance of their CDF from the level.
_PATIENCE = 3  # Steps within which a bracket must be halved.
_MAX_STEPS = 120
_NEAR = 1e-6  # Share of a bracket within which a CDF that is not flat moves by `_PLATEAU`.
_NUM_NODES = 12  # Of the rule of Gauss and Legendre, between two quantiles.


def mixture_log_density(log_density: ArrayLike, weights: ArrayLike | None = None) -> Floats:
    """Log density `[N]` of a mixture, nats, from those of its members `[M, N]`.

    Args:
        log_density: of the members.
        weights: `[M]`, of sum 1; None: all the same.
    """
    log_density = np.asarray(log_density, np.float64)
    if weights is not None:
        return logsumexp(log_density + np.log(weights)[:, None], axis=0)
    # Sorted, so that the order of the members does not change a bit.
    return logsumexp(np.sort(log_density, axis=0), axis=0) - np.log(len(log_density))


def gaussian_nll(mean: ArrayLike, variance: ArrayLike, targets: ArrayLike) -> Floats:
    """NLL `[N]` of a Gaussian of these moments `[N]`, as some tables score mixtures, nats."""
    variance = np.asarray(variance, np.float64)
    errors = np.asarray(targets, np.float64) - np.asarray(mean, np.float64)
    squares = errors**2 / variance
    return 0.5 * (squares + np.log(2 * math.pi * variance))


def quantiles(
    cdf: Callable[[Floats], Floats], low: ArrayLike, high: ArrayLike, levels: ArrayLike
) -> Floats:
    """Quantiles of N distributions.

    Args:
        cdf: from values `[N]` to the distributions' CDF there, `[N]`.
        low: `[N]` or `[Q, N]`, below the quantiles that are asked for.
        high: likewise, above them.
        levels: `[Q]` in 0..1.

    Returns:
        `[Q, N]`; where the CDF is flat at a level, the middle of the flat part.
    """
    wanted = np.atleast_1d(np.asarray(levels, np.float64))
    lows, highs = np.broadcast_arrays(*np.atleast_2d(low, high))
    shape = (len(wanted), lows.shape[1])
    lows, highs = np.broadcast_to(lows, shape), np.broadcast_to(highs, shape)
    return np.stack([_quantile(cdf, *one) for one in zip(lows, highs, wanted, strict=True)])


def _quantile(cdf: Callable[[Floats], Floats], low: Floats, high: Floats, level: float) -> Floats:
    found, near = _root(cdf, low, high, level), _NEAR * (high - low)
    is_flat = (cdf(found - near) > level - _PLATEAU) | (cdf(found + near) < level + _PLATEAU)
    if not is_flat.any():
        return found
    ends = [_root(cdf, low, high, level + sign * _PLATEAU) for sign in (-1, 1)]
    return np.where(is_flat, np.mean(ends, axis=0), found)


def _root(cdf: Callable[[Floats], Floats], low: Floats, high: Floats, level: float) -> Floats:
    """Finds where CDFs reach a level, in brackets: by secants, and halving where these are slow.

    Anderson and Bjoerck 1973, "A new high order method of regula falsi type".
    """
    below, above = np.array(low, np.float64), np.array(high, np.float64)
    of_below, of_above = cdf(below) - level, cdf(above) - level
    goal, was_below = _RESOLVED * (above - below), np.zeros(below.shape, int)
    sizes = [above - below] * _PATIENCE
    for _ in range(_MAX_STEPS):
        with np.errstate(invalid="ignore", divide="ignore"):
            tried = (of_above * below - of_below * above) / (of_above - of_below)
        is_slow = (sizes[-1] > sizes[-_PATIENCE] / 2) & (len(sizes) > _PATIENCE)
        is_inside = (tried > below) & (tried < above) & ~is_slow
        tried = np.where(is_inside, tried, (below + above) / 2)
        value = cdf(tried) - level
        is_below = value < 0
        with np.errstate(invalid="ignore", divide="ignore"):
            share = 1 - value / np.where(is_below, of_below, of_above)
        share = np.where(share > 0, share, 0.5)
        again = np.where(is_below, 1, -1) == was_below
        of_above = np.where(is_below, np.where(again, share * of_above, of_above), value)
        of_below = np.where(is_below, value, np.where(again, share * of_below, of_below))
        is_found = np.abs(value) <= _EXACT
        below = np.where(is_below | is_found, tried, below)
        above = np.where(is_below & ~is_found, above, tried)
        was_below = np.where(is_below, 1, -1)
        sizes.append(above - below)
        if (sizes[-1] <= goal).all():
            break
    return (below + above) / 2


def gaussian_mixture_crps(
    mean: ArrayLike, scale: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
) -> Floats:
    """CRPS `[N]` of mixtures of Gaussians, in closed form.

    Grimit et al. 2006, "The continuous ranked probability score for circular variables and its
    application to mesoscale forecast ensemble verification", equation 5.

    Args:
        mean: `[M, N]`.
        scale: `[M, N]`, standard deviations.
        targets: `[N]`.
        weights: `[M, N]`, of sum 1 over M; None: all the same.
    """
    mean, scale = np.asarray(mean, np.float64), np.asarray(scale, np.float64)
    weights = np.full(mean.shape, 1 / len(mean)) if weights is None else np.asarray(weights)
    to_target = _expected_distance(np.asarray(targets, np.float64) - mean, scale)
    found = (weights * to_target).sum(axis=0)
    for one, its_scale, weight in zip(mean, scale, weights, strict=True):  # [M, N] of memory.
        distance = _expected_distance(one - mean, np.hypot(its_scale, scale))
        found -= weight * (weights * distance).sum(axis=0) / 2
    return found


def grid_crps(grid: ArrayLike, cdf: ArrayLike, targets: ArrayLike) -> Floats:
    """CRPS `[N]` of distributions whose CDF is known on a grid and linear in between.

    The integral of (F(x) - 1[x >= y])^2 over the grid (Gneiting and Raftery 2007, equation 20), and
    the distance of a target that lies beyond it. A grid of spacing h errs by at most 2 h / 3.

    Args:
        grid: `[G]` or `[N, G]`, ascending.
        cdf: `[N, G]`.
        targets: `[N]`.
    """
    cdf = np.asarray(cdf, np.float64)
    grid = np.broadcast_to(np.asarray(grid, np.float64), cdf.shape)
    targets = np.asarray(targets, np.float64)
    inside = np.clip(targets, grid[:, 0], grid[:, -1])[:, None]
    left, right = grid[:, :-1], grid[:, 1:]
    slope = np.diff(cdf, axis=1) / (right - left)
    # Each cell is cut at the target: before it F counts, behind it 1 - F.
    cut = np.clip(inside, left, right)
    at_cut = cdf[:, :-1] + slope * (cut - left)
    before = _square_integral(cut - left, cdf[:, :-1], at_cut)
    behind = _square_integral(right - cut, 1 - at_cut, 1 - cdf[:, 1:])
    return (before + behind).sum(axis=1) + np.abs(targets - inside[:, 0])


def smooth_crps(
    cdf: Callable[[Floats], Floats],
    from_line: Callable[[Floats], Floats],
    ends: Floats,
    middle: Floats,
    targets: ArrayLike,
) -> Floats:
    """CRPS `[N]` of distributions whose CDF is smooth: the integral of `grid_crps` by quadrature.

    Args:
        cdf: from values `[N]` to the distributions' CDF there, `[N]`.
        from_line: from numbers `[N]` on a line to values, an increasing function.
        ends: on the line, `[P, N]`, ascending: quantiles, from below almost all of the distribution
            to above it. The integral is cut there, so that narrow parts are not passed over.
        middle: on the line, `[N]`, what is nearest to the target between the first end and the
            last; there it is cut, too.
        targets: `[N]`.
    """
    nodes, weights = np.polynomial.legendre.leggauss(_NUM_NODES)
    cuts = np.sort(np.concatenate([ends, middle[None]]), axis=0)
    found = np.abs(np.asarray(targets, np.float64) - from_line(middle))
    for first, last in itertools.pairwise(cuts):
        is_reached = (first + last) / 2 > middle
        step = np.maximum(1e-5 * (last - first), 1e-9 * (cuts[-1] - cuts[0]))
        for node, weight in zip(nodes, weights, strict=True):
            at = ((1 - node) * first + (1 + node) * last) / 2
            slope = (from_line(at + step) - from_line(at - step)) / (2 * step)
            found += weight * (last - first) / 2 * slope * (cdf(from_line(at)) - is_reached) ** 2
    return found


def count_quantiles(cdf: Callable[[Floats], Floats], high: ArrayLike, levels: ArrayLike) -> Floats:
    """Quantiles of N distributions of counts: the least whole numbers whose CDF reaches a level.

    Args:
        cdf: from whole numbers `[N]` to the distributions' CDF there, `[N]`.
        high: `[N]`, not below any quantile that is asked for.
        levels: `[Q]` in 0..1.

    Returns:
        `[Q, N]`.
    """
    most = np.floor(np.asarray(high, np.float64)) + 1

    def bisect(level: float) -> Floats:
        below, above = np.full(most.shape, -1.0), most.copy()
        while (above - below > 1).any():
            middle = np.floor((below + above) / 2)
            is_below = cdf(middle) < level
            # Where both ends have met, the middle is the lower one, and nothing moves.
            below, above = np.where(is_below, middle, below), np.where(is_below, above, middle)
            below = np.minimum(below, above - 1)
        return above

    return np.stack([bisect(level) for level in np.atleast_1d(levels)])


def count_crps(values: ArrayLike, cdf: ArrayLike, targets: ArrayLike) -> Floats:
    """CRPS `[N]` of distributions of counts: the sum of (F(k) - 1[k >= y])^2 over k.

    Epstein 1969, "A scoring system for probability forecasts of ranked categories": the integral of
    `grid_crps` of a CDF that is constant between whole numbers.

    Args:
        values: `[N, G]` or `[G]`, ascending whole numbers; where some are left out between two, the
            CDF is taken for linear there.
        cdf: `[N, G]`; below and above the values it counts as 0 and 1.
        targets: `[N]`, whole numbers.
    """
    cdf, targets = np.asarray(cdf, np.float64), np.asarray(targets, np.float64)
    values = np.broadcast_to(np.asarray(values, np.float64), cdf.shape)
    if (np.diff(values, axis=1) > 1).any():
        return grid_crps(values + 0.5, cdf, targets)
    squares = (cdf - (values >= targets[:, None])) ** 2
    missed = np.maximum(values[:, 0] - targets, 0) + np.maximum(targets - values[:, -1] - 1, 0)
    return squares.sum(axis=1) + missed


def pinball(quantiles: Floats, levels: Floats, targets: Floats) -> Floats:
    """Pinball loss `[..., N]` of quantiles `[..., N, Q]`, mean over their levels `[Q]`."""
    missed = targets[..., None] - quantiles
    return np.maximum(levels * missed, (levels - 1) * missed).mean(axis=-1)


def interval_score(low: ArrayLike, high: ArrayLike, targets: ArrayLike, level: float) -> Floats:
    """Width `[N]` of central intervals, and 2 / (1 - level) of what targets miss them by.

    Gneiting and Raftery 2007, section 6.2.
    """
    low, high, targets = (np.asarray(one, np.float64) for one in (low, high, targets))
    missed = np.maximum(low - targets, 0) + np.maximum(targets - high, 0)
    return high - low + 2 / (1 - level) * missed


def _expected_distance(offset: Floats, scale: Floats) -> Floats:
    """E|X| of X ~ N(offset, scale^2)."""
    z = offset / scale
    return 2 * scale * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) + offset * (2 * ndtr(z) - 1)


def _square_integral(width: Floats, first: Floats, last: Floats) -> Floats:
    """Integral of the square of a line from `first` to `last` over that width."""
    return width * (first**2 + first * last + last**2) / 3
