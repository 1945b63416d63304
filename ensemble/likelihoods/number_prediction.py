"""What an ensemble says of inputs whose targets are numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ensemble.pictures import tabular
from ensemble.pictures.plot_style import plural

LEVELS = (0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975)
"""Levels of the quantiles that an ensemble as a function gives."""
_MOMENTS = ("mean", "standard_deviation", "aleatoric", "epistemic")


def width_90(quantiles: Any) -> Any:
    """Width [N] of 90% intervals, from quantiles [Q, N] at `LEVELS`."""
    return quantiles[LEVELS.index(0.95)] - quantiles[LEVELS.index(0.05)]


class NumberPrediction(NamedTuple):
    """What an ensemble says of N inputs, in the target's units.

    Where it has learned several targets, arrays have an axis for these: [N, D] in place of [N],
    quantiles [N, D, Q], and the members' parameters [M, N, ..., D].

    Attributes:
        mean: [N], of the mixture of members.
        standard_deviation: [N], of the mixture.
        quantiles: [N, Q], of the mixture, at `levels`.
        aleatoric: [N], mean of the members' variances: their noise.
        epistemic: [N], variance of the members' means: their disagreement.
        levels: [Q], in 0..1.
        members: the members' distributions by parameter, [M, N] each; of a posterior every draw is
            a member.
        member_means: [M, N], the means of the members. A row is one function of the inputs: its
            values at different inputs belong together, so that rows are joint draws.
        accepted: [N] bool: whether the 90% interval is narrow enough for the predictor to answer;
            all, unless it abstains.
    """

    mean: np.ndarray
    standard_deviation: np.ndarray
    quantiles: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    levels: np.ndarray
    members: Mapping[str, np.ndarray]
    member_means: np.ndarray
    accepted: np.ndarray

    @property
    def point(self) -> np.ndarray:
        """[N], what is said where one number is asked for: the mean."""
        return self.mean

    def first(self, number: int) -> NumberPrediction:
        """The predictions of the first inputs."""
        names = ("mean", "standard_deviation", "quantiles", "aleatoric", "epistemic", "accepted")
        rows = {name: getattr(self, name)[:number] for name in names}
        members = {name: one[:, :number] for name, one in self.members.items()}
        means = self.member_means[:, :number]
        return self._replace(**rows, members=members, member_means=means)

    def of_target(self, d: int) -> NumberPrediction:
        """The prediction of one of several targets."""
        return one_target(self, d)

    def entry(self, i: int) -> dict[str, Any]:
        """Moments and quantiles of prediction i, JSON-ready."""
        return {
            **{name: getattr(self, name)[i].tolist() for name in _MOMENTS},
            "quantiles": self.quantiles[i].tolist(),
        }

    def as_columns(self) -> dict[str, np.ndarray]:
        """Moments, and a column for each quantile, [N] each, of one target."""
        moments = {name: getattr(self, name) for name in _MOMENTS}
        return moments | quantile_columns(self.levels, self.quantiles)

    def cells(self, i: int) -> list[tuple[str, str | float]]:
        """Mean and deviation of prediction i, its 90% interval, and what the deviation is of."""
        if self.mean.ndim == 2:
            return cells_of_targets(self, i, self.mean.shape[1])
        low, high = (self.quantiles[i, LEVELS.index(level)] for level in (0.05, 0.95))
        return [
            ("mean", self.mean[i]),
            ("sd", self.standard_deviation[i]),
            ("5%", low),
            ("95%", high),
            ("noise sd", math.sqrt(self.aleatoric[i])),
            ("disagreement sd", math.sqrt(self.epistemic[i])),
        ]

    def __repr__(self) -> str:
        return tabular.preview(self._heading(), len(self.mean), self.cells, tabular.NUMBER)

    def _repr_html_(self) -> str:
        return tabular.preview_html(self._heading(), len(self.mean), self.cells, tabular.NUMBER)

    def _heading(self) -> str:
        members = plural(len(next(iter(self.members.values()))), "member")
        return f"{plural(len(self.mean), 'prediction')} of {members}, in the target's units"


Made = TypeVar("Made", bound=Any)
"""A named tuple of arrays [N, ...], with `levels` and `members`."""
_SHARED = ("levels", "members")


def join_targets(found: Sequence[Made], members: Mapping[str, np.ndarray]) -> Made:
    """Joins the predictions of D targets, [N, ...] each, to [N, D, ...].

    Args:
        found: of each.
        members: the members' predictions, [M, N, ..., D].
    """
    joined = {
        name: np.stack([getattr(one, name) for one in found], axis=_axis(name))
        for name in found[0]._fields
        if name not in _SHARED
    }
    return found[0]._replace(**joined, members=members)


def one_target(joined: Made, d: int) -> Made:
    """The inverse of `join_targets`, for one target."""
    mine = {
        name: np.take(getattr(joined, name), d, axis=_axis(name))
        for name in joined._fields
        if name not in _SHARED
    }
    members = {name: one[..., d] for name, one in joined.members.items()}
    return joined._replace(**mine, members=members)


def _axis(name: str) -> int:
    """Finds the axis of targets in an array: [N, D, ...], or of members [M, N, D]."""
    return -1 if name.startswith("member") else 1


def quantile_columns(levels: np.ndarray, quantiles: np.ndarray) -> dict[str, np.ndarray]:
    """Quantiles [N, Q] at levels [Q] as columns [N], such as `quantile_0.05`."""
    pairs = zip(levels.tolist(), quantiles.T, strict=True)
    return {f"quantile_{level}": values for level, values in pairs}


def cells_of_targets(joined: Any, i: int, num_targets: int) -> list[tuple[str, str | float]]:
    """Prediction i as a row: the cells of each target, whose titles have its number."""
    return [
        (f"{title} {d}", value)
        for d in range(num_targets)
        for title, value in joined.of_target(d).cells(i)
    ]
