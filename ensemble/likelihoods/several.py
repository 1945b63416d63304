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
import jax.numpy as jnp

from ensemble import pytrees
from ensemble.likelihoods.likelihood import Likelihood, Params
from ensemble.likelihoods.predictive import Array, Arrays, Predictive, namespace
from ensemble.pytrees import ByName


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
        found = [
            one.predictive(
                {name: array[:, :, d] for name, array in self.arrays.items()},
                self.member_of,
                self.weights,
            )
            for d, one in enumerate(self.likelihoods)
        ]
        return [replace(one, answered=self.answered) for one in found]

    def _of(self, name: str, *arguments) -> Array:
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
        return self._with_answered(self._of("columns"))

    def flat_columns(self) -> Arrays:
        """Arrays [N], such as `target_0_mean`."""
        each = enumerate(one.flat_columns() for one in self.targets)
        found = {f"target_{d}_{name}": one for d, flat in each for name, one in flat.items()}
        return self._with_answered(found)


class SeveralLikelihood(Likelihood):
    """The likelihood of several targets [N, D]; predicted arrays are [B, D, ...].

    Args:
        likelihoods: of the targets, of one class: each has its share of the outputs.
    """

    predictions = Several
    passed_on = ("likelihoods",)

    def __init__(self, likelihoods: Sequence[Any]):
        self.likelihoods = likelihoods
        self.num_targets = len(likelihoods)
        self.num_outputs = self.num_targets * likelihoods[0].num_outputs
        for name in ("name", "loss", "progress", "has_density", "can_be_tempered", "tempered"):
            setattr(self, name, getattr(likelihoods[0], name))

    def to_dict(self) -> ByName:
        return {"targets": [one.to_dict() for one in self.likelihoods]}

    def init(self, rng_key: Array) -> Arrays:
        return _stacked([one.init(rng_key) for one in self.likelihoods], 0)

    def log_prob(self, params: Params, outputs: Array, targets: Any) -> Array:
        parts = jnp.split(outputs, self.num_targets, axis=-1)
        found = [
            one.log_prob(pytrees.at(params, d), parts[d], targets[..., d])
            for d, one in enumerate(self.likelihoods)
        ]
        return jnp.stack(found, axis=-1).sum(axis=-1)

    def predict(self, params: Params, outputs: Array) -> Arrays:
        parts = jnp.split(outputs, self.num_targets, axis=-1)
        each = zip(self.likelihoods, parts, strict=True)
        found = [one.predict(pytrees.at(params, d), part) for d, (one, part) in enumerate(each)]
        return _stacked(found, outputs.ndim - 1)


def _stacked(each: Sequence[Any], axis: int):
    """Stacks arrays, or trees of them, one of each target."""
    return jax.tree.map(lambda *leaves: namespace(*leaves)[0].stack(leaves, axis), *each)
