"""Targets are numbers of which quantiles are predicted, without a density between them.

An ensemble's quantile is the mean of its members': as the pinball loss is convex, its loss is at
most theirs on average (Koenker and Bassett 1978 for the loss).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ensemble.errors import InputError
from ensemble.likelihoods.likelihood import Params
from ensemble.likelihoods.numbers import NumberLikelihood, Ranges
from ensemble.likelihoods.predictive import Array, Arrays, namespace


@dataclass(frozen=True, eq=False, repr=False)
class Quantiles(Ranges):
    """Predictions of the quantiles at `levels`; `arrays` has `quantile` [S, N, Q]."""

    kind = "quantiles"

    @cached_property
    def at_levels(self) -> Array:
        """Quantiles [N, Q] at `levels`."""
        return self.average(self.values["quantile"])

    def quantiles(self, levels: Array | None = None) -> Array:
        """Quantiles [N, Q] at levels that were learned; by default at all.

        Raises:
            InputError: one was not.
        """
        if levels is None:
            return self.at_levels
        known = self._at_levels
        wanted = np.asarray(levels).round(9).tolist()
        if missing := sorted({*wanted} - known.keys()):
            raise InputError(
                f"The quantile {missing[0]:g} was not learned, but {[*known]} were. Use these, or "
                "set config.quantiles.levels and train."
            )
        return self.xp.stack([known[level] for level in wanted], axis=-1)

    @property
    def point(self) -> Array:
        return self.median

    @property
    def bands(self) -> tuple[float, ...]:
        """Levels of the central intervals that two quantiles are the ends of, the widest first."""
        known = self._at_levels
        return tuple(round(1 - 2 * q, 9) for q in known if q < 0.5 and round(1 - q, 9) in known)

    @cached_property
    def uncertainty(self) -> Arrays:
        """`epistemic` alone: the variance [N] of the members' medians."""
        medians = self.values["quantile"][..., [*self.levels].index(0.5)]
        return {"epistemic": self.average((medians - self.median) ** 2)}

    @property
    def _width(self) -> Array:
        return self.at_levels[..., -1] - self.at_levels[..., 0]

    def scores(self, y: Array) -> Arrays:
        """Pinball loss, and the absolute error of the median."""
        loss = pinball(self.at_levels, self.levels, y).mean(axis=-1)
        return {"pinball": loss, "absolute_error": abs(self.median - y)}

    def crps(self, y: Array) -> Array:
        """The CRPS [N] as quantiles tell it: twice the pinball loss, integrated over levels.

        Each level stands for those that are nearer to it than to another (Gneiting and Ranjan 2011,
        equation 10).
        """
        levels = np.array(self.levels)
        ends = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [1.0]])
        return 2 * pinball(self.at_levels, levels, y) @ np.diff(ends)

    def columns(self) -> Arrays:
        found = {"median": self.median, "epistemic_std": self.epistemic_std}
        return self._with_answered(found | {"quantiles": self.at_levels})


def pinball(quantiles: Array, levels: Array, y: Array) -> Array:
    """Pinball loss [..., Q] of quantiles [..., Q], in the target's unit."""
    xp, _ = namespace(quantiles)
    missed = y[..., None] - quantiles
    shares = xp.asarray(levels, quantiles.dtype)
    return xp.maximum(shares * missed, (shares - 1) * missed)


class QuantileRegression(NumberLikelihood):
    """One output for each level: the median, and how far each quantile is from its neighbour.

    There is no density, so no NLL, and no posterior. Quantiles cannot cross: distances are
    positive. Where the outputs are 0, the quantiles are those of the normal distribution with the
    training targets' mean and deviation.

    Args:
        *standardisation: as of `NumberLikelihood`.
        levels: [Q], ascending, one of them 0.5; or the same as text.
    """

    name = "quantiles"
    has_density = False
    settings = ("levels",)
    loss = "pinball"
    progress = "absolute_error"
    predictions = Quantiles
    passed_on = ("levels", "unit")

    def __init__(self, *standardisation: Any, levels: Sequence[float]):
        self.levels = [*map(float, levels)]
        self.num_outputs = len(self.levels)
        super().__init__(*standardisation)

    def predict(self, params: Params, outputs: Array) -> Arrays:
        middle = self.levels.index(0.5)
        starts = np.log(np.expm1(np.diff(scipy.special.ndtri(self.levels))))
        gaps = jax.nn.softplus(jnp.delete(outputs, middle, axis=-1) + jnp.float32(starts))
        below = gaps[..., :middle][..., ::-1]
        above = gaps[..., middle:]
        down = -jnp.cumsum(below, axis=-1)[..., ::-1]
        up = jnp.cumsum(above, axis=-1)
        median = outputs[..., middle : middle + 1]
        z = jnp.concatenate([median + down, median, median + up], axis=-1)
        return {"quantile": self.shift + self.scale * z}

    def log_prob(self, params: Params, outputs: Array, targets: Any) -> Array:
        """Minus the pinball loss [B] of standardised targets: maximised, but no density."""
        quantiles = self.predict(params, outputs)["quantile"]
        return -pinball(quantiles, self.levels, targets).mean(axis=-1) / self.scale
