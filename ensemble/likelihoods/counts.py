"""Targets are counts, whole numbers from 0 on: sums stand for integrals, quantiles are whole."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ensemble.errors import InputError
from ensemble.likelihoods import families
from ensemble.likelihoods.likelihood import Params
from ensemble.likelihoods.numbers import NumberLikelihood, Numbers, positive
from ensemble.likelihoods.predictive import Array, Arrays

_MOST_STEPS = 500  # Between the tails of a distribution.
_TAILS = (1e-4, 1 - 1e-4)


@dataclass(frozen=True, eq=False, repr=False)
class Counts(Numbers):
    """Predictions of counts: a mixture of distributions of one family."""

    kind = "counts"
    can_scale = False
    family: Any = families.Poisson

    def _roots(self, levels: Array) -> Array:
        """Quantiles [Q, N]: the least whole numbers whose CDF reaches the levels."""
        return abs(super()._roots(levels).round())  # No -0.

    def pit(self, y: Array) -> Array:
        """Uniform between the CDF below the target and the CDF at it (Smith 1985)."""
        share = np.random.default_rng(0).uniform(size=len(y))
        return super().pit(y) - share * np.exp(self.log_prob(np.asarray(y, np.float64)))

    def crps(self, y: Array) -> Array:
        """The sum over counts k of (F(k) - 1[k >= y])^2 (Epstein 1969); of many in steps."""
        y = np.asarray(y, np.float64)
        low, high = self.quantiles(_TAILS).T
        high = high + 1
        inside = np.clip(y, low, high)
        found = np.abs(y - inside)
        number = int(np.clip((high - low).max(initial=1), 1, _MOST_STEPS))
        cuts = np.linspace(low, high, number + 1).round()
        cuts = np.sort(np.concatenate([cuts, inside[None]]), axis=0)
        for start, end in pairwise(cuts):
            some = np.flatnonzero(end > start)
            middle = ((start + end - 1) / 2)[some]
            # Of an even number of counts both middle ones: the lower one alone would be biased.
            both = np.unique([np.floor(middle), np.ceil(middle)], axis=0)
            squares = (self.rows(some).cdf(both) - (start >= y)[some]) ** 2
            found[some] += (end - start)[some] * squares.mean(axis=0)
        return found


LARGEST = 2**24
"""The largest count: float32 tells no larger ones apart."""


class CountLikelihood(NumberLikelihood):
    """The base of likelihoods of counts."""

    predictions = Counts

    @classmethod
    def check_targets(cls, targets: Array, split: str) -> None:
        bad = targets[(targets < 0) | (targets != np.floor(targets)) | (targets > LARGEST)]
        if len(bad):
            raise InputError(
                f"config.likelihood={cls.name!r} is for counts, whole numbers from 0 to {LARGEST}, "
                f"and the {split} targets have {bad[0]:g}. Set config.likelihood to "
                "'gaussian', or to 'log_normal' for positive numbers."
            )

    def rate(self, outputs: Array) -> Array:
        """The mean [B]; as an output moves by 1, it moves by about a deviation of the targets.

        It grows as fast as the output, and no faster: a rate beyond the targets stays finite.
        """
        return self.shift * positive(self.scale / self.shift * outputs[..., 0])


class Poisson(CountLikelihood):
    """One output, of which the rate follows: the variance is the mean."""

    name = "poisson"
    family = families.Poisson

    def predict(self, params: Params, outputs: Array) -> Arrays:
        return {"rate": self.rate(outputs)}


class NegativeBinomial(CountLikelihood):
    """Two outputs, of which the rate and the dispersion follow: the variance is above the mean.

    Where they are 0, mean and variance are those of the training targets.
    """

    name = "negative_binomial"
    num_outputs = 2
    family = families.NegativeBinomial

    def predict(self, params: Params, outputs: Array) -> Arrays:
        beyond = np.maximum(self.scale**2 - self.shift, 0.1 * self.shift)
        start = beyond / self.shift**2
        return {
            "rate": self.rate(outputs),
            "dispersion": start * positive(outputs[..., 1]),
        }
