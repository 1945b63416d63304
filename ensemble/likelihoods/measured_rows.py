"""The density and the scores of targets that are censored, or measured with a known error.

An error of measurement widens the density of what was measured. Of a censored target is known that
it is at least its value: it counts by the probability of that, in the NLL, and in no other score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import scipy.special

from ensemble.likelihood import Arrays, ExampleTerms
from ensemble.likelihoods.mixture_density import GRID, MixtureDensity
from ensemble.metrics import regression
from ensemble.target_rows import CENSORED, ERROR, remark, values


class Family(Protocol):
    """What must be known of a distribution of numbers."""

    def log_density(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log density at y."""

    def log_survival(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log probability of y or more."""

    def with_error(self, parts: Mapping[str, Any], error: Any) -> Mapping[str, Any]:
        """Parameters of the sum with a Gaussian error of this standard deviation."""

    def distribution(self, arrays: Arrays) -> MixtureDensity:
        """What an ensemble says of N targets."""


# On the devices, or on the host.


def as_measured(family: Family, parts: Mapping[str, Any], targets: Any) -> Mapping[str, Any]:
    """The parameters [..., N] of what was measured, where the targets [N] say how well."""
    error = remark(targets, ERROR)
    return parts if error is None else family.with_error(parts, error)


def row_log_prob(
    family: Family, parts: Mapping[str, Any], targets: Any, xp: Any, special: Any
) -> Any:
    """Log density [..., N] of targets as measured, log survival of those that are censored.

    Args:
        family: of the distributions.
        parts: their parameters [..., N], without errors of measurement.
        targets: [N].
        xp: `numpy` or `jax.numpy`.
        special: `scipy.special` or `jax.scipy.special`.
    """
    parts, y = as_measured(family, parts, targets), values(targets)
    log_density = family.log_density(parts, y, xp, special)
    censored = remark(targets, CENSORED)
    if censored is None:
        return log_density
    return xp.where(censored, family.log_survival(parts, y, xp, special), log_density)


# On the host.


def with_errors(family: Family, arrays: Arrays, targets: np.ndarray) -> Arrays:
    """Predictions [M, N, ...] of what was measured, where the targets [N] say how well."""
    error = remark(targets, ERROR)
    if error is None:
        return arrays
    if GRID in arrays:  # Chains: all but the moments is as measured.
        return {**arrays, "noise": arrays["noise"] + error**2}
    return family.with_error(arrays, error)


def observed(family: Family, arrays: Arrays, targets: np.ndarray) -> tuple[Arrays, np.ndarray]:
    """The predictions of the targets that are known, as they are measured, and these.

    Args:
        family: of the members' distributions.
        arrays: predictions [M, N, ...] of members or chains.
        targets: [N], of which K <= N are not censored.

    Returns:
        Predictions [M, K, ...], and the numbers [K].
    """
    arrays, censored = with_errors(family, arrays, targets), remark(targets, CENSORED)
    if censored is None:
        return arrays, values(targets)
    known = ~censored
    return {name: one[:, known] for name, one in arrays.items()}, values(targets)[known]


def row_log_probs(family: Family, arrays: Arrays, targets: np.ndarray) -> np.ndarray:
    """`row_log_prob` [M, N] of every member; of chains, what was kept."""
    if CENSORED not in (targets.dtype.names or ()) or GRID in arrays:
        known, y = observed(family, arrays, targets)
        kept = arrays if GRID in arrays else known
        return family.distribution(kept).log_densities(y)
    exact = {name: np.asarray(one, np.float64) for name, one in arrays.items()}
    return np.asarray(row_log_prob(family, exact, targets, np, scipy.special))


def row_scores(family: Family, arrays: Arrays, targets: np.ndarray) -> dict[str, float]:
    """All scores of the mixture, by name: the NLL of all targets, the others of the known ones.

    Where all targets are censored, all but the NLL are NaN.
    """
    known, y = observed(family, arrays, targets)
    nll = regression.mixture_nll(row_log_probs(family, arrays, targets))
    if not len(y):
        names = family.distribution(arrays).scores(values(targets))
        return {**dict.fromkeys(names, math.nan), "nll": nll}
    return {**family.distribution(known).scores(y), "nll": nll}


def row_terms(family: Family, arrays: Arrays, targets: np.ndarray) -> ExampleTerms:
    """Squared errors of the means, NaN of censored targets, and NLLs in nats."""
    means, censored = family.distribution(arrays).member_means(), remark(targets, CENSORED)
    errors = np.asarray(values(targets), np.float64) - np.stack([means.mean(axis=0), *means])
    squares = errors**2 if censored is None else np.where(censored, math.nan, errors**2)
    log_probs = row_log_probs(family, arrays, targets)
    mixture = regression.mixture_log_density(log_probs)
    return ExampleTerms(squares[0], squares[1:], -mixture, -log_probs)
