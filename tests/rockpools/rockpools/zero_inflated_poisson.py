"""A Poisson count that is 0 for another reason, too: a dry pool has no animals."""

import jax

from ensemble.likelihoods.counts import RATE
from ensemble.likelihoods.poisson import Poisson

DRY = "dry"
"""The probability of a zero that is no Poisson count."""


class ZeroInflatedPoisson(Poisson):
    name = "zero_inflated_poisson"
    num_outputs = 2
    parts = (RATE, DRY)

    def predict(self, params, outputs):
        return {**super().predict(params, outputs), DRY: 0.99 * jax.nn.sigmoid(outputs[..., 1])}

    def wet(self, parts):
        """The Poisson distribution of pools that are not dry; `RATE` is the mean of all."""
        return {RATE: parts[RATE] / (1 - parts[DRY])}

    def log_density(self, parts, y, xp, special):
        of_wet = super().log_density(self.wet(parts), y, xp, special) + xp.log1p(-parts[DRY])
        return xp.where(y > 0, of_wet, xp.logaddexp(of_wet, xp.log(parts[DRY])))

    def count_cdf(self, parts, k, xp, special):
        of_wet = super().count_cdf(self.wet(parts), k, xp, special)
        return parts[DRY] + (1 - parts[DRY]) * of_wet

    def variance(self, parts, xp, unit=1.0):
        return parts[RATE] / unit * (1 + parts[DRY] * self.wet(parts)[RATE]) / unit
