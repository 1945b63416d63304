"""What an ensemble says of numbers by the mixture of its estimators' distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special
from numpy.typing import NDArray

from ensemble.likelihoods.mixture_density import MixtureDensity
from ensemble.metrics import regression
from ensemble.metrics.checks import Floats
from ensemble.metrics.number_calibration import fit_scale
from ensemble.scoring.view import Arrays, NumberView
from ensemble.target_rows import CENSORED, ERROR, annotation, values

if TYPE_CHECKING:
    from ensemble.likelihoods.parametric import Parametric


# Targets that are censored, or measured with a known error, on the devices or on the host.
#
# An error of measurement widens the density of what was measured. Of a censored target is known
# that it is at least its value: it counts by the probability of that, in the NLL, and in no other
# score.


def as_measured(family: Parametric, parts: Mapping[str, Any], targets: Any) -> Mapping[str, Any]:
    """The parameters [..., N] of what was measured, where the targets [N] say how well."""
    error = annotation(targets, ERROR)
    return parts if error is None else family.with_error(parts, error)


def row_log_prob(
    family: Parametric, parts: Mapping[str, Any], targets: Any, xp: Any, special: Any
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
    censored = annotation(targets, CENSORED)
    if censored is None:
        return log_density
    return xp.where(censored, family.log_survival(parts, y, xp, special), log_density)


@dataclass(frozen=True, eq=False, kw_only=True)
class MixtureView(NumberView):
    """The attributes beside those of `View`:

    Attributes:
        likelihood: of the distributions.
    """

    likelihood: Parametric

    @cached_property
    def is_known(self) -> NDArray:  # type: ignore[override]
        censored = annotation(self.targets, CENSORED)
        return np.ones(self.num_rows, bool) if censored is None else ~np.asarray(censored)

    @cached_property
    def measured(self) -> Arrays:
        """Predictions [E, N, ...] of what was measured, where targets say with which errors."""
        error = annotation(self.targets, ERROR)
        if error is None:
            return self.arrays
        return self.likelihood.with_error(self.arrays, error)

    @cached_property
    def distribution(self) -> MixtureDensity:
        """The mixture, of what was measured."""
        return self.likelihood.distribution(self.measured, self.estimator_weights)

    @cached_property
    def y(self) -> Floats:  # type: ignore[override]
        return np.asarray(values(self.targets), np.float64)

    @property
    def measure(self) -> str:
        return "probability" if self.likelihood.is_of_counts else "density"

    @property
    def doubt(self) -> Floats:
        """How wide the 90% interval is, w / (w + scale)."""
        low, _, high = self._predicted
        return (high - low) / (high - low + self.likelihood.units[1])

    @cached_property
    def _predicted(self) -> Floats:
        """Quantiles [3, N] at 5, 50 and 95%, as they are predicted: without measurement errors."""
        mixture = self.likelihood.distribution(self.arrays, self.estimator_weights)
        return mixture.quantiles(np.array([0.05, 0.5, 0.95]))

    def errs(self, tolerance: float | None) -> NDArray:
        """Whether the median misses the target by more than a tolerance."""
        if not self.is_known.all():
            raise ValueError("how wrong predictions of censored targets are is not known")
        return np.abs(self._predicted[1] - self.y) > self.likelihood.tolerance(tolerance)

    def accepting(self, threshold: float | None, tolerance: float | None) -> dict[str, Any]:
        """`tolerance`; `max_width`, of the 90% intervals that are accepted, None of all."""
        found: dict[str, Any] = {"tolerance": self.likelihood.tolerance(tolerance)}
        if threshold is None:
            return found
        width = self.likelihood.widest(threshold)
        return {**found, "max_width": float(width) if np.isfinite(width) else None}

    def fit_factor(self) -> float:
        def nll(factor: float) -> float:
            return -float(np.mean(self.with_factor(factor).log_density))

        return fit_scale(nll)

    def with_factor(self, factor: float) -> MixtureView:
        if factor == 1:
            return self
        arrays = self.likelihood.scaled(self.arrays, factor, self.estimator_weights)
        return replace(self, arrays=arrays, whole=None, index=slice(None), _shared={})

    def listed(self, chosen: NDArray) -> list[dict[str, Any]]:
        low, middle, high = self.quantiles([0.05, 0.5, 0.95])
        _, noise, disagreement = self.distribution.moments()
        return [
            {
                "index": int(n),
                "target": float(self.y[n]),
                **({} if self.is_known[n] else {"is_censored": True}),
                "median": float(middle[n]),
                "low": float(low[n]),
                "high": float(high[n]),
                "noise": float(np.sqrt(noise[n])),
                "disagreement": float(np.sqrt(disagreement[n])),
            }
            for n in chosen
        ]

    def describe(self) -> dict[str, Any]:
        """What kind of targets these are, and how many are known by more or less than a value."""
        error, num_censored = annotation(self.targets, ERROR), int((~self.is_known).sum())
        return {
            "is_of_counts": self.likelihood.is_of_counts,
            "distinct_targets": len(np.unique(values(self.targets)[self.is_known])),
            **({"num_censored": num_censored} if num_censored else {}),
            **({} if error is None else {"num_measured": int((error > 0).sum())}),
        }

    @property
    def bands(self) -> Sequence[float]:
        return regression.LEVELS

    @property
    def log_densities(self) -> Floats:
        """[E, N] of the estimators at what is known of the targets."""
        found: Floats = self.shared("log_densities", _log_densities)[self.index]
        return found

    @cached_property
    def log_density(self) -> Floats:  # type: ignore[override]
        return regression.mixture_log_density(self.log_densities, self.estimator_weights)

    @cached_property
    def pit(self) -> Floats:  # type: ignore[override]
        return self.distribution.pit(self.y)

    @cached_property
    def _moments(self) -> tuple[Floats, Floats, Floats]:
        """Mean, noise and disagreement, as they are predicted: without errors of measurement."""
        return self.likelihood.distribution(self.arrays, self.estimator_weights).moments()

    @property
    def point(self) -> Floats:
        return self._moments[0]

    @property
    def noise(self) -> Floats:
        return self._moments[1]

    @property
    def disagreement(self) -> Floats:
        return self._moments[2]

    @cached_property
    def measured_variance(self) -> Floats:  # type: ignore[override]
        if annotation(self.targets, ERROR) is None:
            return self.noise + self.disagreement
        _, noise, disagreement = self.distribution.moments()
        return noise + disagreement

    @cached_property
    def _intervals(self) -> dict[float, Floats]:
        """Quantiles [N] by level: the median, and the ends of all bands."""
        ends = {(1 + sign * band) / 2 for band in self.bands for sign in (-1, 1)}
        levels = sorted({0.5, *ends})
        return dict(zip(levels, self.quantiles(levels), strict=True))

    def quantiles(self, levels: Sequence[float]) -> Floats:
        return self.distribution.quantiles(np.array(levels))

    @property
    def median(self) -> Floats:
        return self._intervals[0.5]

    def ends(self, band: float) -> tuple[Floats, Floats]:
        return self._intervals[(1 - band) / 2], self._intervals[(1 + band) / 2]

    def held(self, band: float) -> NDArray:
        return self.distribution.held(self.y, lambda: self.ends(band), band)

    @cached_property
    def crps(self) -> Floats:  # type: ignore[override]
        return self.distribution.crps(self.y)


def _log_densities(view: MixtureView) -> Floats:
    found = view.distribution.log_densities(view.y)
    if view.is_known.all():
        return found
    parts = view.distribution.arrays
    return np.where(
        view.is_known,
        found,
        view.likelihood.log_survival(parts, view.y, np, scipy.special),
    )
