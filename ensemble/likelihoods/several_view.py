"""What an ensemble says of several targets of an example: of each, and of all together.

Members multiply the densities of the targets, and the ensemble is the mixture of these products, in
which members that are right about one target count more for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ensemble.metrics import regression
from ensemble.metrics.checks import Floats
from ensemble.scoring.view import JointView, SeveralView, View


def of_target(arrays: Mapping[str, Any], d: int) -> dict[str, Any]:
    """The arrays [..., D] of target d."""
    return {name: one[..., d] for name, one in arrays.items()}


@dataclass(frozen=True, eq=False, kw_only=True)
class SideBySide(SeveralView):
    """Arrays have the targets as their last axis. The attributes beside those of `View`:

    Attributes:
        of: the likelihoods of the targets.
    """

    of: Sequence[Any]

    @property
    def measure(self) -> str:
        return self.parts[0].measure

    @cached_property
    def parts(self) -> Sequence[View]:  # type: ignore[override]
        columns = [None] * len(self.of) if self.targets is None else self.targets.T
        return [
            one.view(of_target(self.arrays, d), column, self.member_of, self.weights)
            for d, (one, column) in enumerate(zip(self.of, columns, strict=True))
        ]


@dataclass(frozen=True, eq=False, kw_only=True)
class Product(SideBySide, JointView):
    """The same of targets that have densities."""

    @property
    def log_densities(self) -> Floats:
        """[E, N] of the estimators at all targets."""
        found: Floats = self.shared("log_densities", _log_densities)[self.index]
        return found

    @cached_property
    def log_density(self) -> Floats:  # type: ignore[override]
        return regression.mixture_log_density(self.log_densities, self.estimator_weights)


def _log_densities(view: Product) -> Floats:
    parts: Any = view.parts
    found: Floats = sum(one.log_densities for one in parts)
    return found
