"""What an ensemble says of the examples of a split: the form that scores are computed from.

A member has one or more estimators. What is kept of a split is `arrays [E, N, ...]` of E estimators
and `member_of [E]`. A member's prediction is the equal mixture of its estimators, and the
ensemble's is the mixture of its members, equal unless they have weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.checks import Floats

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """What M members say of N examples whose targets are known or bounded; it is never changed.

    Attributes:
        arrays: [E, N, ...] by name, what the E estimators say.
        targets: [N], [N, D], or as `ensemble.target_rows` has them.
        member_of: [E], ascending from 0: the member that each estimator belongs to; None: each is
            a member.
        weights: [M] of the members, positive; None: all the same.
        whole: the view that this one has some of the members of; None: it is whole.
        index: the estimators of `whole` that it has.
    """

    arrays: Arrays
    targets: np.ndarray
    member_of: NDArray | None = None
    weights: Floats | None = None
    whole: Self | None = None
    index: Any = field(default_factory=lambda: slice(None))
    _shared: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def num_estimators(self) -> int:
        """E."""
        return len(next(iter(self.arrays.values())))

    @cached_property
    def num_members(self) -> int:
        """M."""
        return self.num_estimators if self.member_of is None else int(self.member_of[-1]) + 1

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.targets)

    @property
    def is_known(self) -> NDArray:
        """[N] bool: whether the target of a row is known, and not only bounded."""
        return np.ones(self.num_rows, bool)

    @property
    def has_rows(self) -> bool:
        """Whether the target of any row is known."""
        return bool(self.is_known.any())

    @property
    def parts(self) -> Sequence[View]:
        """Of several targets, the view of each; empty of a single one."""
        return ()

    @cached_property
    def estimator_weights(self) -> Floats | None:
        """[E] of the estimators, of sum 1; None: all the same."""
        if self.member_of is None:
            return None if self.weights is None else self.weights / np.sum(self.weights)
        counts = np.bincount(self.member_of)
        if self.weights is None and (counts == counts[0]).all():
            return None
        of_members = np.ones(len(counts)) if self.weights is None else self.weights
        return (of_members / counts / np.sum(of_members))[self.member_of]

    def members(self, which: Sequence[int]) -> Self:
        """What the mixture of some members says, by their places; it shares what is computed."""
        chosen = np.unique(which)
        if len(chosen) == self.num_members:
            return self
        weights = None if self.weights is None else self.weights[chosen]
        if self.member_of is None:
            index, member_of = chosen, None
        else:
            index = np.flatnonzero(np.isin(self.member_of, chosen))
            member_of = np.searchsorted(chosen, self.member_of[index])
        whole = self if self.whole is None else self.whole
        return replace(
            self,
            arrays={name: one[index] for name, one in self.arrays.items()},
            member_of=member_of,
            weights=weights,
            whole=whole,
            index=np.arange(whole.num_estimators)[self.index][index],
            _shared={},
        )

    def each(self) -> list[Self]:
        """What every member says by itself."""
        return [self.members([m]) for m in range(self.num_members)]

    def rows(self, where: NDArray) -> Self:
        """What is said of some rows: a mask [N], or their places."""
        return replace(
            self,
            arrays={name: one[:, where] for name, one in self.arrays.items()},
            targets=self.targets[where],
            whole=None,
            index=slice(None),
            _shared={},
        )

    def shared(self, name: str, make: Callable[[Self], Any]) -> Any:
        """What is made once of all estimators, for all mixtures of some of the members.

        Args:
            name: of the result.
            make: of the whole view.
        """
        whole = self if self.whole is None else self.whole
        if name not in whole._shared:
            whole._shared[name] = make(whole)
        return whole._shared[name]

    def mean(self, values: NDArray) -> Floats:
        """Mean over the estimators [...] of values [E, ...], by their weights."""
        weights = self.estimator_weights
        if weights is None:
            return np.asarray(values, np.float64).mean(axis=0)
        return np.tensordot(weights, np.asarray(values, np.float64), axes=1)

    def variance(self, values: NDArray) -> Floats:
        """Variance over the estimators [...] of values [E, ...], by their weights."""
        values = np.asarray(values, np.float64)
        return self.mean((values - self.mean(values)) ** 2)


class ClassView(View):
    """Targets are classes 0..C-1."""

    @property
    def labels(self) -> NDArray:
        """[N]."""
        return self.targets

    @property
    @abstractmethod
    def log_probs(self) -> Floats:
        """Log-probabilities [N, C] of the mixture."""

    @property
    @abstractmethod
    def votes(self) -> NDArray:
        """[M, N], the most probable class of each member."""

    @property
    @abstractmethod
    def entropies(self) -> Mapping[str, Floats]:
        """`total`, `aleatoric` and `epistemic` [N], nats, as `metrics.uncertainty` says."""

    @cached_property
    def hits(self) -> Floats:
        """[N], 1 where the most probable class is the label, else 0."""
        return (self.log_probs.argmax(axis=-1) == self.labels).astype(np.float64)

    @cached_property
    def confidence(self) -> Floats:
        """Probability [N] of the most probable class; a rounding excess over 1 is cut."""
        return np.minimum(np.exp(self.log_probs.max(axis=-1)), 1.0)

    @cached_property
    def ranked(self) -> Floats:
        """[N, 2], confidence and hits: what scores by the order of confidence are made of."""
        return np.stack([self.confidence, self.hits], axis=1)


class IntervalView(View):
    """Targets are numbers, of which intervals are said.

    Numbers are in the targets' units, those of rows whose target is not known among them.
    """

    @property
    @abstractmethod
    def y(self) -> Floats:
        """Targets [N]; of those that are not known, their bounds."""

    @property
    @abstractmethod
    def bands(self) -> Sequence[float]:
        """The levels of the central intervals that are scored."""

    @property
    @abstractmethod
    def point(self) -> Floats:
        """[N], what squared errors are taken from."""

    @property
    @abstractmethod
    def median(self) -> Floats:
        """[N]."""

    @property
    @abstractmethod
    def crps(self) -> Floats:
        """CRPS [N]."""

    @property
    @abstractmethod
    def disagreement(self) -> Floats:
        """[N], variance of what members expect."""

    @abstractmethod
    def ends(self, band: float) -> tuple[Floats, Floats]:
        """The lower and upper ends [N] of the central intervals of a level."""

    @abstractmethod
    def held(self, band: float) -> NDArray:
        """[N] bool: whether these hold the targets."""


class NumberView(IntervalView):
    """What is said of a number is a distribution."""

    @property
    @abstractmethod
    def log_density(self) -> Floats:
        """[N] at what is known of the target: log survival at a bound; nats."""

    @property
    @abstractmethod
    def pit(self) -> Floats:
        """CDF [N] of the mixture at the targets or, where they are not known, their bounds."""

    @property
    @abstractmethod
    def noise(self) -> Floats:
        """[N], mean of the members' variances."""

    @property
    @abstractmethod
    def measured_variance(self) -> Floats:
        """[N], of the mixture, with that of the error with which a target was measured."""

    @abstractmethod
    def quantiles(self, levels: Sequence[float]) -> Floats:
        """Quantiles [Q, N] of the mixture."""


class QuantileView(IntervalView):
    """What is said of a number are quantiles of some levels, and no density.

    Attributes:
        levels: [Q], ascending.
    """

    levels: Floats

    @property
    @abstractmethod
    def quantiles(self) -> Floats:
        """[N, Q] of the mixture."""


class SeveralView(View):
    """Several targets of an example, each with a view of its own among `parts`."""


class JointView(SeveralView):
    """Several targets that have a density together."""

    @property
    @abstractmethod
    def log_density(self) -> Floats:
        """[N] at all targets of an example, nats."""
