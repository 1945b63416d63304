"""What an ensemble of quantiles says of inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ensemble.likelihoods.number_prediction import cells_of_targets, one_target
from ensemble.pictures import tabular
from ensemble.pictures.plot_style import plural


class QuantilePrediction(NamedTuple):
    """What an ensemble says of N inputs, in the target's units.

    Of several targets arrays are [N, D], quantiles [N, D, Q], those of members [M, N, Q, D].

    Attributes:
        median: [N], the mean of the members' medians.
        quantiles: [N, Q], the means of the members' quantiles, at `levels`.
        epistemic: [N], variance of the members' medians: their disagreement.
        levels: [Q], in 0..1, ascending.
        members: `quantile` [M, N, Q] of the members.
    """

    median: np.ndarray
    quantiles: np.ndarray
    epistemic: np.ndarray
    levels: np.ndarray
    members: Mapping[str, np.ndarray]

    @property
    def point(self) -> np.ndarray:
        """[N], what is said where one number is asked for: the median."""
        return self.median

    def first(self, number: int) -> QuantilePrediction:
        """The predictions of the first inputs."""
        rows = {name: getattr(self, name)[:number] for name in ("median", "quantiles", "epistemic")}
        members = {name: one[:, :number] for name, one in self.members.items()}
        return self._replace(**rows, members=members)

    def of_target(self, d: int) -> QuantilePrediction:
        """The prediction of one of several targets."""
        return one_target(self, d)

    def entry(self, i: int) -> dict[str, Any]:
        """Median and quantiles of prediction i, JSON-ready."""
        return {
            "median": self.median[i].tolist(),
            "epistemic": self.epistemic[i].tolist(),
            "quantiles": self.quantiles[i].tolist(),
        }

    def cells(self, i: int) -> list[tuple[str, str | float]]:
        """Quantiles of prediction i, and how far the members' medians are apart."""
        if self.median.ndim == 2:
            return cells_of_targets(self, i, self.median.shape[1])
        pairs = zip(self.levels, self.quantiles[i], strict=True)
        quantiles = [(f"{100 * level:g}%", value) for level, value in pairs]
        return [*quantiles, ("disagreement sd", math.sqrt(self.epistemic[i]))]

    def __repr__(self) -> str:
        return tabular.preview(self._heading(), len(self.median), self.cells, tabular.NUMBER)

    def _repr_html_(self) -> str:
        return tabular.preview_html(self._heading(), len(self.median), self.cells, tabular.NUMBER)

    def _heading(self) -> str:
        members = plural(len(next(iter(self.members.values()))), "member")
        return f"{plural(len(self.median), 'prediction')} of {members}, in the target's units"
