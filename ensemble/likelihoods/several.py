"""Several targets of an example, independent of each other given the inputs and the member.

Only the NLL is of all targets together: members multiply the densities of the targets, and the
ensemble is the mixture of these products, in which a member that is right about one target counts
more for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from ensemble.likelihoods.predictive import Array, Arrays, Predictive, namespace


@dataclass(frozen=True, eq=False, repr=False)
class Several(Predictive):
    """Predictions of D targets. `arrays` are [S, N, D, ...].

    Attributes:
        likelihoods: of the targets, each of which makes its own predictions.
    """

    kind = "several"
    likelihoods: Sequence[Any] = ()

    @cached_property
    def targets(self) -> list[Any]:  # type: ignore[override]
        found = []
        for d, one in enumerate(self.likelihoods):
            own = {name: array[:, :, d] for name, array in self.arrays.items()}
            found.append(one.predictive(own, self.member_of, self.weights))
        return [replace(one, answered=self.answered) for one in found]

    def _of(self, name: str, *arguments: Any) -> Array:
        """A property, or what a method returns, of all targets: [N, D, ...]."""
        found = [getattr(one, name) for one in self.targets]
        return _stacked([one(*arguments) if callable(one) else one for one in found], 1)

    def each_log_prob(self, y: Array) -> Array:
        return sum(one.each_log_prob(y[..., d]) for d, one in enumerate(self.targets))

    def scores(self, y: Array) -> Arrays:
        """The NLL of all targets together; of other scores the mean over the targets."""
        found = [one.scores(y[..., d]) for d, one in enumerate(self.targets)]
        means = jax.tree.map(lambda *each: sum(each) / len(each), *found)
        return means | ({"nll": -self.log_prob(y)} if "nll" in means else {})

    @property
    def point(self) -> Array:
        """[N, D]."""
        return self._of("point")

    mean = point

    @property
    def median(self) -> Array:
        """[N, D]."""
        return self._of("median")

    @property
    def std(self) -> Array:
        """Standard deviations [N, D]."""
        return self._of("std")

    @property
    def levels(self) -> Sequence[float]:
        """[Q] of the quantiles."""
        return self.targets[0].levels

    def quantiles(self, *levels: Any) -> Array:
        """Quantiles [N, D, Q], as of one target."""
        return self._of("quantiles", *levels)

    def doubt(self) -> Array:
        """The mean [N] over the targets."""
        return self._of("doubt").mean(axis=1)

    def columns(self) -> Arrays:
        """Arrays [N, D, ...]."""
        found = _stacked([one.columns() for one in self.targets], 1)
        return self._with_answered(found)

    def flat_columns(self) -> Arrays:
        """Arrays [N], such as `target_0_mean`."""
        each = enumerate(one.flat_columns() for one in self.targets)
        found = {f"target_{d}_{name}": one for d, flat in each for name, one in flat.items()}
        return self._with_answered(found)


def _stacked(each: Sequence[Any], axis: int) -> Any:
    """Stacks arrays, or trees of them, one of each target."""
    return jax.tree.map(lambda *leaves: namespace(*leaves)[0].stack(leaves, axis), *each)
