"""How far a predictive may be from that of infinitely many draws, and its NLL with it.

The predictive density of a target is a mean over draws, and has a Monte Carlo error. Relative to
the mean this is, to first order, the error of its logarithm, in nats.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy

from ensemble.draws.diagnostics import MIN_ESS, Diagnostics
from ensemble.draws.store import LOG_PROB

ERROR = "posterior/predictive/error"
"""The name of the bound among the scalars of a run that goes on."""
OVER = "chains of this length"
"""What the interval is over."""
RHAT_LEVELS = (1.01, 1.05)
"""Levels of R-hat: the report says how many function values are above."""

_MIN_BATCHES, _MAX_BATCHES = 8, 64
_WORTH = 12.0
"""Independent draws of a batch: with fewer, the means of batches vary too little."""


class PredictiveError(NamedTuple):
    """The Monte Carlo error of the mixture over draws, at the targets of n examples.

    Attributes:
        bound: in 95% of runs, the log predictive densities differ from those of infinitely many
            draws by less, as a root mean square over the examples, nats. The NLL is off by no more.
        nll: mean negative log predictive density, nats.
        nll_interval: where the NLL of infinitely many draws lies in 95% of runs.
    """

    bound: float
    nll: float
    nll_interval: tuple[float, float]


def error_of_draws(log_probs: np.ndarray, ess: float) -> PredictiveError | None:
    """Finds the error from the spread of means of batches, and from that of the chains' means.

    The larger of the two counts: where chains differ by more than their batches say, they have not
    seen the same posterior.

    Args:
        log_probs: log densities [C, T, n] of the targets, of every draw.
        ess: the least bulk ESS over the examples, which says how long batches must be.

    Returns:
        The error; None where it is not known: of fewer than 8 draws of a chain, a bulk ESS of 100
        or less, or of densities that are not finite, or zero in all draws.
    """
    num_chains, num_draws, _ = log_probs.shape
    if num_draws < _MIN_BATCHES or not ess > MIN_ESS:
        return None
    wanted = min(max(ess / _WORTH, _MIN_BATCHES), _MAX_BATCHES)
    return _error(log_probs, min(math.ceil(wanted / num_chains), num_draws))


def _error(log_probs: np.ndarray, num_parts: int) -> PredictiveError | None:
    """The error of log densities [C, T, n], by means of so many batches of each chain."""
    top = log_probs.max(axis=(0, 1))  # NaN where one is.
    if not (top.size and np.isfinite(top).all()):
        return None
    num_chains, num_draws, num_examples = log_probs.shape
    length = num_draws // num_parts
    of_batches = np.empty((num_chains * num_parts, num_examples))
    of_chains = np.empty((num_chains, num_examples))
    for n in range(num_examples):  # One by one: all draws in float64 could be too many.
        densities = np.exp(log_probs[..., n].astype(np.float64) - top[n])
        of_chains[:, n] = densities.mean(axis=1)
        last = densities[:, num_draws - num_parts * length :]
        of_batches[:, n] = last.reshape(-1, length).mean(axis=1)
    means = of_chains.mean(axis=0)
    by_batches, by_chains = (_variances(one / means - 1) for one in (of_batches, of_chains))
    variances = np.maximum(by_batches, by_chains)
    freedom = np.where(by_chains > by_batches, num_chains, len(of_batches)) - 1
    # Sums of squares of normal errors, however correlated, are beyond so often at most: Szekely and
    # Bakirov 2003, "Extremal probabilities for Gaussian quadratic forms".
    bound, margin = map(float, scipy.stats.t.ppf(0.975, freedom) * np.sqrt(variances))
    nll = -float(np.mean(np.log(means) + top))
    # The logarithm of a mean with an error is too small on average.
    centre = nll - float(variances[0]) / 2
    return PredictiveError(bound, nll, (centre - margin, centre + margin))


def _variances(errors: np.ndarray) -> np.ndarray:
    """Variances of means over the rows of errors [B, n]: the mean of the examples', and their
    mean's."""
    if len(errors) == 1:
        return np.zeros(2)
    of_examples = errors.var(axis=0, ddof=1).mean()
    return np.array([of_examples, errors.mean(axis=1).var(ddof=1)]) / len(errors)


def predictive_section(
    scalars: Mapping[str, np.ndarray], found: Diagnostics, predicting: np.ndarray
) -> dict[str, Any] | None:
    """What a report says of the chains as functions: of their predictions at fixed examples.

    Args:
        scalars: [C, T] each, of the draws that count, of the live chains; those of the log density
            of a target have names that begin with `LOG_PROB`.
        found: the diagnostics of the scalars whose convergence counts.
        predicting: places of the draws that predict.

    Returns:
        `num_examples`; of their log predictive densities `rhat_max`, `rhat_above`: the shares that
        have a larger R-hat than 1.01 and 1.05, and `ess_bulk_min`; of the draws that predict,
        `num_draws` of each chain: `error`, the bound of `PredictiveError`, `nll` and
        `nll_interval`, all nats, None where these are not known, and `interval_over`. None of a
        run without predictions.
    """
    names = [name for name in scalars if name.startswith(LOG_PROB)]
    varying = [found.scalars[name] for name in names if name in found.scalars]
    if not varying:
        return None
    rhats = np.array([one.rhat for one in varying])
    # NaN, of too few draws, is the worst.
    ess = float(np.min([one.ess_bulk for one in varying]))
    is_told = not np.isnan(rhats).any()
    log_probs = np.stack([scalars[name][:, predicting] for name in names], axis=-1)
    error = error_of_draws(log_probs, min(ess, log_probs[..., 0].size))
    bound, nll, nll_interval = error or (None, None, None)
    return {
        "num_examples": len(names),
        "num_draws": len(predicting),
        "rhat_max": float(rhats.max()),
        "rhat_above": {
            f"{level:g}": float(np.mean(rhats > level)) if is_told else math.nan
            for level in RHAT_LEVELS
        },
        "ess_bulk_min": ess,
        "error": bound,
        "nll": nll,
        "nll_interval": nll_interval,
        "interval_over": OVER,
    }
