"""Several targets of an example, independent of each other given the inputs and the member.

Only the NLL is of all targets together: members multiply the densities of the targets, and the
ensemble is the mixture of these products, in which a member that is right about one target counts
more for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.errors import InputError
from ensemble.likelihoods.likelihood import Likelihood, Params
from ensemble.likelihoods.predictive import Array, Arrays, Predictive, namespace


@dataclass(frozen=True, eq=False, repr=False)
class Several(Predictive):
    """Predictions of D targets. `arrays` are [S, N, ..., D].

    Attributes:
        likelihoods: of the targets, each of which makes its own predictions.
    """

    kind = "several"
    likelihoods: Sequence[Any] = ()

    @cached_property
    def targets(self) -> list[Any]:  # type: ignore[override]
        found = [
            one.predictive(of_target(self.arrays, d), self.member_of, self.weights)
            for d, one in enumerate(self.likelihoods)
        ]
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


def of_target(arrays: Arrays, d: int) -> Arrays:
    """The arrays [..., D] of target d."""
    return {name: one[..., d] for name, one in arrays.items()}


class SeveralTargets(Likelihood):
    """D likelihoods of one kind side by side; predicted arrays have the targets as last axis.

    Args:
        likelihoods: of the targets.
    """

    predictions = Several
    passed_on = ("likelihoods",)

    def __init__(self, likelihoods: Sequence[Any]):
        self.likelihoods = tuple(likelihoods)
        first = likelihoods[0]
        self.num_targets = len(likelihoods)
        self.num_outputs = self.num_targets * first.num_outputs
        for name in ("name", "has_density", "can_be_tempered", "loss", "progress"):
            setattr(self, name, getattr(first, name))

    def to_dict(self) -> dict[str, Any]:
        return {"targets": [one.to_dict() for one in self.likelihoods]}

    def init(self, rng_key: Array) -> Arrays:
        """The likelihoods' own parameters [D, ...]."""
        keys = jax.random.split(rng_key, self.num_targets)
        return _stacked([one.init(key) for one, key in zip(self.likelihoods, keys, strict=True)], 0)

    def log_prob(self, params: Params, outputs: Array, targets: Any) -> Array:
        """Log density [B] of all targets [B, D] of an example, nats."""
        each = enumerate(self._inputs(params, outputs))
        found = [one.log_prob(own, part, targets[..., d]) for d, (one, own, part) in each]
        return jnp.stack(found, -1).sum(axis=-1)

    def predict(self, params: Params, outputs: Array) -> Arrays:
        """The predictive distribution of every target: named arrays [B, ..., D] float32."""
        each = self._inputs(params, outputs)
        return _stacked([one.predict(own, part) for one, own, part in each], -1)

    def tempered(self, predicted: Arrays, factor: Any) -> Arrays:
        each = enumerate(self.likelihoods)
        return _stacked([one.tempered(of_target(predicted, d), factor) for d, one in each], -1)

    def _inputs(self, params: Params, outputs: Array) -> Iterator[tuple[Any, Any, Array]]:
        """Each likelihood with its parameters and outputs [B, K], from [B, D * K]."""
        parts = jnp.split(outputs, self.num_targets, axis=-1)
        for d, (one, part) in enumerate(zip(self.likelihoods, parts, strict=True)):
            yield one, {name: own[d] for name, own in params.items()}, part


def several_from_data(
    kind: type[Likelihood], targets: np.ndarray, class_names: Sequence[str], **settings: Any
) -> SeveralTargets:
    """Makes the likelihoods of training targets [N, D].

    Raises:
        InputError: one of the targets does not suit this kind.
    """
    if targets.shape[1] > 1000:
        raise InputError(
            f"Targets of shape {targets.shape} are {targets.shape[1]} for each example; at most "
            "1000 are possible. Use [N, D], an example in each row."
        )
    found = []
    for d, column in enumerate(targets.T):
        try:
            found.append(kind.from_data(column, class_names, **settings))
        except InputError as error:
            raise InputError(f"Target {d} of {targets.shape[1]}: {error}") from None
    return SeveralTargets(found)
