"""How far a predictive may be from that of infinitely many draws, and its NLL with it.

The predictive density of a target is a mean over draws, and has a Monte Carlo error. Relative to
the mean this is, to first order, the error of its logarithm, in nats.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ensemble.draws.diagnostics import MIN_ESS, Diagnostics, mcse
from ensemble.draws.store import LOG_PROB

ERROR = "posterior/predictive/error"
"""The name of the bound among the scalars of a run that goes on."""
_MIN_DRAWS = 8
_REACH = 2.13
"""Standard errors of a bound of 95%: Student's on 15 degrees of freedom, for densities are skewed,
and their errors known the less."""


class PredictiveError(NamedTuple):
    """The Monte Carlo error of the mixture over draws, at the targets of n examples; None: unknown.

    Attributes:
        error: Bound in nats: in 95% of runs, the log predictive densities differ from those of
            infinitely many draws by less, as a root mean square over the examples. The NLL is off
            by no more.
        nll: Mean negative log predictive density, nats.
        nll_interval: Interval that holds the NLL of infinitely many draws in 95% of runs.
    """

    error: float | None = None
    nll: float | None = None
    nll_interval: tuple[float, float] | None = None


def error_of_draws(log_probs: np.ndarray, ess: float) -> PredictiveError:
    """Finds the error from the standard errors of mean densities.

    Args:
        log_probs: Log densities [C, T, n] of the targets, of every draw.
        ess: Least bulk ESS over the examples.

    Returns:
        The error; unknown of fewer than 8 draws of a chain, a bulk ESS of 100 or less, or of
        densities that are not finite, or zero in all draws.
    """
    top = log_probs.astype(np.float64).max(axis=(0, 1), initial=-np.inf)  # NaN where one is.
    if log_probs.shape[1] < _MIN_DRAWS or not (ess > MIN_ESS and np.isfinite(top).all()):
        return PredictiveError()
    densities = np.exp(log_probs - top)
    means = densities.mean(axis=(0, 1))
    relative = np.moveaxis(densities / means, -1, 0)
    # Sums of squares of normal errors, however correlated, are beyond so often at most: Szekely and
    # Bakirov 2003, "Extremal probabilities for Gaussian quadratic forms".
    square = float(np.mean([mcse(one) ** 2 for one in relative]))
    bound = _REACH * math.sqrt(square)
    margin = _REACH * mcse(relative.mean(axis=0))
    nll = -float(np.mean(np.log(means) + top))
    centre = nll - square / 2  # The logarithm of a mean with an error is too small on average.
    return PredictiveError(bound, nll, (centre - margin, centre + margin))


def predictive_section(
    scalars: Mapping[str, np.ndarray], found: Diagnostics, predicting: Sequence[int] | np.ndarray
) -> dict[str, Any] | None:
    """Entries of a report for the chains as functions: their predictions at fixed examples.

    Args:
        scalars: Scalars [C, T] of the draws that count, of the live chains; those of the log
            density of a target have names that begin with `LOG_PROB`.
        found: Diagnostics of the scalars whose convergence counts.
        predicting: Places of the draws that predict.

    Returns:
        `num_examples`; of their log predictive densities `rhat_max` and `ess_bulk_min`; `num_draws`
        of each chain that predict, and the `PredictiveError` of these by name. None of a run
        without predictions.
    """
    names = [name for name in scalars if name.startswith(LOG_PROB)]
    varying = [found.scalars[name] for name in names if name in found.scalars]
    if not varying:
        return None
    # NaN, of too few draws, is the worst.
    rhat = float(np.max([one.rhat for one in varying]))
    ess = float(np.min([one.ess_bulk for one in varying]))
    log_probs = np.stack([scalars[name][:, predicting] for name in names], axis=-1)
    return {
        "num_examples": len(names),
        "num_draws": len(predicting),
        "rhat_max": rhat,
        "ess_bulk_min": ess,
        **error_of_draws(log_probs, min(ess, log_probs[..., 0].size))._asdict(),
    }
