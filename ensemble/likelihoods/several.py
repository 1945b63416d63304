"""Several targets of an example, independent of each other given the inputs and the member.

Only the NLL is of all targets together: members multiply the densities of the targets, and the
ensemble is the mixture of these products, in which a member that is right about one target counts
more for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def _of(self, name: str) -> Array:
        """A property [N, D] of all targets."""
        return _stacked([getattr(one, name) for one in self.targets])

    def each_log_prob(self, y: Array) -> Array:
        return sum(one.each_log_prob(y[..., d]) for d, one in enumerate(self.targets))

    def scores(self, y: Array) -> Arrays:
        """The NLL of all targets together; of other scores the mean over the targets."""
        found = [one.scores(y[..., d]) for d, one in enumerate(self.targets)]
        means = {name: sum(one[name] for one in found) / len(found) for name in found[0]}
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
        return _stacked([one.quantiles(*levels) for one in self.targets])

    def doubt(self) -> Array:
        """The mean [N] over the targets."""
        return _stacked([one.doubt() for one in self.targets]).mean(axis=1)

    def columns(self) -> Arrays:
        """Arrays [N, D, ...]."""
        each = [one.columns() for one in self.targets]
        return self._with_answered({k: _stacked([one[k] for one in each]) for k in each[0]})

    def flat_columns(self) -> Arrays:
        """Arrays [N], such as `target_0_mean`."""
        return self._with_answered(
            {
                f"target_{d}_{name}": values
                for d, one in enumerate(self.targets)
                for name, values in one.flat_columns().items()
            }
        )


def _stacked(values: Sequence[Array]) -> Array:
    """[N, D, ...] of values [N, ...] of each target."""
    return namespace(*values)[0].stack(values, axis=1)


def of_target(arrays: Arrays, d: int) -> Arrays:
    """The arrays [..., D] of target d."""
    return {name: one[..., d] for name, one in arrays.items()}


class SeveralTargets(Likelihood):
    """D likelihoods of one kind side by side; predicted arrays have the targets as last axis.

    Args:
        likelihoods: of the targets.
    """

    predictions, passed_on = Several, ("likelihoods",)

    def __init__(self, likelihoods: Sequence[Any]):
        self.likelihoods, first = tuple(likelihoods), likelihoods[0]
        self.num_targets = len(likelihoods)
        self.num_outputs = self.num_targets * first.num_outputs
        for name in ("name", "has_density", "can_be_tempered", "loss", "progress"):
            setattr(self, name, getattr(first, name))

    def to_dict(self) -> dict[str, Any]:
        return {"targets": [one.to_dict() for one in self.likelihoods]}

    def init(self, rng_key: Array) -> Arrays:
        """The likelihoods' own parameters [D, ...]."""
        keys = jax.random.split(rng_key, self.num_targets)
        return self._each(lambda one, d: one.init(keys[d]), axis=0)

    def log_prob(self, params: Params, outputs: Array, targets: Any) -> Array:
        """Log density [B] of all targets [B, D] of an example, nats."""
        each = self._each(
            lambda one, d: one.log_prob(*self._inputs_of(params, outputs, d), targets[..., d])
        )
        return each.sum(axis=-1)

    def predict(self, params: Params, outputs: Array) -> Arrays:
        """The predictive distribution of every target: named arrays [B, ..., D] float32."""
        return self._each(lambda one, d: one.predict(*self._inputs_of(params, outputs, d)))

    def tempered(self, predicted: Arrays, factor: Any) -> Arrays:
        return self._each(lambda one, d: one.tempered(of_target(predicted, d), factor))

    def _each(self, function: Callable[[Any, int], Any], axis: int = -1) -> Any:
        """What a function returns for every target, with an axis of the targets."""
        found = [function(one, d) for d, one in enumerate(self.likelihoods)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis), *found)

    def _inputs_of(self, params: Params, outputs: Array, d: int) -> tuple[Any, Array]:
        """The own parameters and the outputs [B, K] of target d, from [B, D * K]."""
        size = self.num_outputs // self.num_targets
        own = jax.tree.map(lambda leaf: leaf[d], dict(params))
        return own, outputs[..., d * size : (d + 1) * size]


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
