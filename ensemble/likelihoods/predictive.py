"""Predictions of an ensemble: the base of one class for each kind of target.

A member has one parameter sample or, as a chain has draws, several. `arrays` are [S, N, ...] of S
samples. A member's prediction is the equal mixture of its samples, the ensemble's the mixture of
its members. Arrays are NumPy's or, within a program that is exported, JAX's: every formula is
written once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.special

from ensemble import pytrees
from ensemble.errors import plural, shown
from ensemble.pytrees import ByName

Array = Any
"""[...] of NumPy or of JAX."""
Arrays = dict[str, Array]
"""By name, all with the same first axes."""
_ROWS = 10
_MOST_CLASSES = 4
_LONGEST = 80
_LEVELS = ("quantile_0.05", "quantile_0.95")
_PIECE = 1 << 15  # Numbers of an array that caches of a CPU hold in addition to others.


def namespace(*arrays: Array) -> tuple[Any, Any]:
    """`numpy` and `scipy.special`, or their namesakes in JAX if one of the arrays is JAX's."""
    if any(isinstance(one, jax.Array) for one in arrays):
        return jnp, jax.scipy.special
    return np, scipy.special


@dataclass(frozen=True, eq=False, repr=False)
class Predictive:
    """Predictions of M members for N examples.

    Attributes:
        arrays: [S, N, ...] by name, from `Likelihood.predict` with each parameter sample.
        member_of: [S], ascending from 0: the member of each sample; None: each is a member.
        weights: [M] of the members, of sum 1; None: equal weights.
        answered: [N] bool, the predictions that are given; None: all.
    """

    kind: ClassVar[str]
    """Key of its metrics in `ensemble.metrics.METRICS`."""
    can_scale: ClassVar[bool] = False
    """Whether it has `scaled(factor)`, which calibrates it."""

    arrays: Arrays
    member_of: Array | None = None
    weights: Array | None = None
    answered: Array | None = field(default=None, kw_only=True)

    @property
    def xp(self) -> Any:
        """`numpy`, or `jax.numpy` if the arrays are JAX's."""
        return namespace(*self.arrays.values())[0]

    @property
    def shape(self) -> tuple[int, int]:
        """S and N."""
        return next(iter(self.arrays.values())).shape[:2]

    def __len__(self) -> int:
        return self.shape[1]

    # Members.

    @cached_property
    def members_of(self) -> Array:
        """`member_of`, also if it is None."""
        return np.arange(self.shape[0]) if self.member_of is None else self.member_of

    @property
    def num_members(self) -> int:
        """M."""
        return int(self.members_of[-1]) + 1

    @cached_property
    def shares(self) -> Array:
        """Weights [S] of the parameter samples, of sum 1."""
        counts = np.bincount(self.members_of)
        each = np.full(len(counts), 1 / len(counts)) if self.weights is None else self.weights
        return (each / counts)[self.members_of]

    def average(self, values: Array) -> Array:
        """Mean [N, ...] over the samples of values [S, N, ...]."""
        shares = self._shares_like(values)
        # No product of matrices, which accelerators compute in a lower precision. A member on
        # devices that has failed has weight 0 and NaN.
        return self.xp.where(shares > 0, shares * values, 0).sum(axis=0)

    def log_mean(self, logs: Array) -> Array:
        """Log of the mean of exp over the samples, [N, ...] of [S, N, ...]."""
        if len(logs) == 1 and self.weights is None:
            return logs[0]
        top = self.xp.where(self._shares_like(logs) > 0, logs, -np.inf).max(axis=0)
        top = self.xp.where(self.xp.isneginf(top), 0, top)
        with np.errstate(divide="ignore"):  # Impossible by all of them.
            return self.xp.log(self.average(self.xp.exp(logs - top))) + top

    def _shares_like(self, values: Array) -> Array:
        return self.xp.asarray(self.shares, values.dtype).reshape(-1, *[1] * (values.ndim - 1))

    def of(self, members: Array) -> Self:
        """The ensemble of some members, by their positions."""
        chosen = np.unique(members)
        if len(chosen) == self.num_members:
            return self
        where = np.isin(self.members_of, chosen)
        weights = self.weights
        if weights is not None:
            weights = weights[chosen] / weights[chosen].sum()
        return replace(
            self,
            arrays=pytrees.at(self.arrays, where),
            member_of=np.searchsorted(chosen, self.members_of[where]),
            weights=weights,
        )

    @cached_property
    def members(self) -> list[Self]:
        """The predictions of every single member, M."""
        return [self.of([k]) for k in range(self.num_members)]

    def have_nan(self) -> Array:
        """Whether a member predicts NaN anywhere, bool [M]."""
        each = [[np.isnan(one).any() for one in array] for array in self.arrays.values()]
        return np.bincount(self.members_of, np.any(each, axis=0)) > 0

    # Rows and targets.

    def rows(self, where: Any) -> Self:
        """The predictions of some rows: a mask [N], a slice, or positions."""
        return replace(
            self,
            arrays=pytrees.at(self.arrays, np.s_[:, where]),
            answered=pytrees.at(self.answered, where),
        )

    def by_pieces(self, function: Callable[..., Array], *others: Array) -> Array:
        """`function(self, *others)` [N, ...], by so few rows that the caches of a CPU hold them.

        Args:
            function: Of predictions and the others, by consecutive rows if arrays are NumPy's.
            *others: Arrays [N].
        """
        if self.xp is jnp:  # Of any number of rows.
            return function(self, *others)
        number = max(one.size for one in self.arrays.values()) // _PIECE + 1
        pieces = np.array_split(np.arange(len(self)), number)
        found = [function(self.rows(some), *(one[some] for one in others)) for some in pieces]
        return np.concatenate(found)

    @property
    def targets(self) -> list[Any]:
        """The predictions of each target, if an example has several; else these alone."""
        return [self]

    def of_target(self, d: int) -> Any:
        """The predictions of one of several targets."""
        return self.targets[d]

    @cached_property
    def values(self) -> Arrays:
        """`arrays`, in float64 if they are NumPy's."""
        dtype = None if self.xp is jnp else np.float64
        return {name: one.astype(dtype or one.dtype) for name, one in self.arrays.items()}

    # What is predicted.

    @property
    def point(self) -> Array:
        """The prediction [N] as one value: the most probable class, the mean, or the median."""
        raise NotImplementedError

    def each_log_prob(self, y: Array) -> Array:
        """Log density or probability [S, N] of targets by each parameter sample, nats."""
        raise NotImplementedError

    def log_prob(self, y: Array) -> Array:
        """Log density or probability [N] of targets by the mixture, nats."""
        return self.log_mean(self.each_log_prob(y))

    def scores(self, y: Array) -> Arrays:
        """The scores [N] that training and sampling follow, by name."""
        raise NotImplementedError

    @cached_property
    def uncertainty(self) -> Arrays:
        """`total`, `aleatoric` and `epistemic` [N]: nats of classes, else variances.

        The two parts are the mean of the members' own uncertainty, and their disagreement (Depeweg
        et al. 2018). No method separates noise and ignorance in practice (Mucsanyi et al. 2024).
        """
        raise NotImplementedError

    def doubt(self) -> Array:
        """How unsure each prediction is, [N] in 0..1: abstention answers the smallest first."""
        raise NotImplementedError

    def scaled(self, factor: float) -> Self:
        """Calibrated predictions, if `can_scale`."""
        raise NotImplementedError

    def abstaining(self, threshold: float) -> Self:
        """The same predictions, of which those with a `doubt` below a threshold are accepted."""
        return replace(self, answered=self.doubt() < threshold)

    @property
    def accepted(self) -> Array:
        """[N] bool: whether the ensemble is sure enough to answer; all, unless it abstains."""
        return np.ones(len(self), bool) if self.answered is None else self.answered

    # Files, notebooks and exported programs.

    def columns(self) -> Arrays:
        """The predictions as arrays [N, ...] by name: JSON, notebooks and exports have these."""
        raise NotImplementedError

    def flat_columns(self) -> Arrays:
        """`columns` as arrays [N], such as `prob_cat`: files of tables have these."""
        flat: Arrays = {}
        for name, values in self.columns().items():
            of_axis = (f"{name.removesuffix('s')}_{one}" for one in self.axis)
            names = [name] if values.ndim == 1 else of_axis
            flat |= zip(names, np.atleast_2d(values.T), strict=True)
        return flat

    @property
    def axis(self) -> Any:
        """The names along the second axis of a column: classes or levels."""
        return getattr(self, "levels", ())

    def __repr__(self) -> str:
        lines = [f"{plural(len(self), 'prediction')} of {plural(self.num_members, 'member')}"]
        lines.append(as_text(short(self.rows(slice(_ROWS)))))
        if len(self) > _ROWS:
            lines.append(f"and {len(self) - _ROWS:,} more")
        return "\n".join(lines)

    def _with_answered(self, columns: Arrays) -> Arrays:
        return columns if self.answered is None else columns | {"accepted": self.answered}


# Tables, for a terminal and for a notebook's cell. Texts may be a stranger's, such as names of
# classes: none of them steers a terminal.


def short(p: Any) -> ByName:
    """The columns [N] that a table shows: of many classes the largest probability alone, and of a
    distribution's quantiles the ends of its 90% interval."""
    flat = p.flat_columns()
    hidden = {"label"} if "class" in flat else set()
    if any(name.endswith("mean") for name in flat):
        hidden = {name for name in flat if "quantile_" in name and not name.endswith(_LEVELS)}
    probs = [name for name in flat if name.startswith("prob_")]
    if len(probs) > _MOST_CLASSES:
        hidden |= {*probs}
        flat = {"class": flat["class"], "prob": p.confidence, **flat}
    return {name: one for name, one in flat.items() if name not in hidden}


def as_text(columns: ByName) -> str:
    """An aligned table of columns [N] by their titles."""
    import pandas as pd  # Slow: of tables alone.

    def cell(one):
        return shown(one) if isinstance(one, str) else one

    frame = pd.DataFrame(columns).map(cell).rename(columns=cell)
    text = frame.to_string(index=False, max_colwidth=_LONGEST, float_format="{:.4g}".format)
    titles, *rows = text.splitlines()
    return "\n".join([titles, "-" * len(titles), *rows])
