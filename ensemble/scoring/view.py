"""What an ensemble says of the examples of a split: the form that scores are computed from.

A member has one or more estimators. What is kept of a split is `arrays [E, N, ...]` of E estimators
and `member_of [E]`. A member's prediction is the equal mixture of its estimators, and the
ensemble's is the mixture of its members, equal unless they have weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ensemble.errors import UserError
from ensemble.metrics.abstention import one_minus_max
from ensemble.metrics.calibration import fit_temperature
from ensemble.metrics.checks import Floats
from ensemble.metrics.mixture import agreement, total_variation
from ensemble.metrics.score_intervals import FEW_ERRORS
from ensemble.metrics.scores import SCORES

CONFORMAL_LEVEL = 0.9
FEW_EXAMPLES = 30
"""Fewer numbers do not tell whether a factor of their scale helps."""

Arrays = Mapping[str, np.ndarray]


class Conformal(NamedTuple):
    """A conformal predictor, before its threshold is fitted.

    Attributes:
        name: of the method.
        level: that it guarantees.
        scores: [N], how little the target conforms.
        size: how large the predictions [N] are at a threshold; below 0 where they are empty.
        unit: what is counted: "size" of sets, or "width" of intervals.
        holds: [N] bool at a threshold; None: where the score is at most that.
        describe: what more is said of sizes, JSON-ready.
        may_hold_all: whether a threshold may be infinite.
        reason: why it cannot be had; empty where it can.
    """

    name: str
    level: float
    scores: Floats
    size: Callable[[float], Floats]
    unit: str
    holds: Callable[[float], NDArray] | None = None
    describe: Callable[[NDArray], dict[str, Any]] = lambda sizes: {
        "num_empty": int((sizes < 0).sum())
    }
    may_hold_all: bool = False
    reason: str = ""


class _Chosen(Mapping[str, np.ndarray]):
    """Arrays of some estimators, which are copied where they are asked for.

    Most mixtures of some members are scored by what was computed of all of them.
    """

    def __init__(self, arrays: Arrays, index: NDArray):
        self._arrays, self._index = arrays, index

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name][self._index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """What M members say of N examples whose targets are known or bounded; it is never changed.

    Attributes:
        arrays: [E, N, ...] by name, what the E estimators say.
        targets: [N], [N, D], or as `ensemble.target_rows` has them.
        member_of: [E], ascending from 0: the member that each estimator belongs to; None: each is
            a member.
        weights: [M] of the members, positive; None: all the same.
        asked: `ensemble.scoring.score.Score`s that were asked for, beside those of all such views.
        whole: the view that this one has some of the members of; None: it is whole.
        index: the estimators of `whole` that it has.
    """

    factor_name: ClassVar[str] = ""
    """What calibrates it."""
    rules: ClassVar[Sequence[str]] = ()
    """What is wanted of abstention, unless a user wants something else."""
    has_sets: ClassVar[bool] = False
    """Whether conformal predictions are sets, which may be empty."""
    made_rows: ClassVar[Sequence[str]] = ()
    """What is made of the columns of a table beside shifts, by the names of `derived`."""
    recipes: ClassVar[Mapping[str, str]] = {}
    """Scores that decide which of two recipes is better, by the section that says so."""
    sizes: ClassVar[Sequence[str]] = ()
    """Scores that are told of ensembles of fewer members; `nll` must be among them."""
    under_shift: ClassVar[Collection[str] | None] = None
    """Scores that are told of shifted inputs; None: all."""
    members_under_shift: ClassVar[bool] = False
    """Whether the members' means are told of these too."""
    factor_keeps_members: ClassVar[bool] = True
    """Whether what is calibrated are the members, and not their mixture alone."""
    small_gain: ClassVar[float | None] = 0.01
    """Who gains less in nats than this may stop; None: a share of the NLL."""

    arrays: Arrays
    targets: np.ndarray
    member_of: NDArray | None = None
    weights: Floats | None = None
    asked: tuple[Any, ...] = ()
    whole: Self | None = None
    index: Any = field(default_factory=lambda: slice(None))
    _shared: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def num_estimators(self) -> int:
        """E."""
        return len(next(iter(self.arrays.values()))) if self.whole is None else len(self.index)

    @cached_property
    def num_members(self) -> int:
        """M."""
        return self.num_estimators if self.member_of is None else int(self.member_of[-1]) + 1

    @cached_property
    def num_rows(self) -> int:
        """N."""
        whole = self if self.whole is None else self.whole
        return next(iter(whole.arrays.values())).shape[1]

    @cached_property
    def is_known(self) -> NDArray:
        """[N] bool: whether the target of a row is known, and not only bounded."""
        return np.ones(self.num_rows, bool)

    @property
    def known(self) -> Self:
        """The rows whose target is known."""
        return self if self.is_known.all() else self.rows(self.is_known)

    @property
    def measure(self) -> str:
        """What nats are of; those of a density say nothing beside those of a probability."""
        return "probability"

    @property
    def parts(self) -> Sequence[View]:
        """The view of each of several targets; empty for a single one."""
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

    def uncertainties(self) -> Mapping[str, Floats]:
        """What tells out-of-distribution inputs from others, [N] by name, the headline first."""
        return {}

    def outside(self) -> dict[str, float]:
        """What is said of inputs that have no targets."""
        return {}

    def spreads(self) -> Mapping[str, Floats]:
        """What stands, as means, beside the scores of shifted inputs: [N] by name."""
        return {}

    @property
    def doubt(self) -> Floats:
        """How unsure predictions are, [N] in 0..1; abstention accepts those below a threshold.

        Raises:
            ValueError: nothing says how unsure they are.
        """
        raise ValueError("nothing says how unsure predictions are")

    def errs(self, tolerance: float | None) -> NDArray:
        """[N] bool: whether predictions are wrong.

        Args:
            tolerance: of numbers, the largest distance that is no error; None: the usual one.

        Raises:
            ValueError: right and wrong are not defined for such targets.
        """
        raise ValueError("right and wrong are not defined for such targets")

    def accepting(self, threshold: float | None, tolerance: float | None) -> dict[str, Any]:
        """What a threshold on `doubt`, or none, and a tolerance stand for, JSON-ready."""
        return {}

    def conformals(self, is_exact: bool = False) -> list[Conformal]:
        """The conformal predictors that there are.

        Args:
            is_exact: whether sets of classes may be empty.
        """
        return []

    def fit_factor(self) -> float:
        """Fits what calibrates predictions, on these.

        Raises:
            UserError: nothing can ever be fitted to predictions of such targets.
            ValueError: nothing can be fitted to these.
        """
        raise UserError("nothing can be fitted to what is said of such targets")

    def with_factor(self, factor: float) -> View:
        """What is said after calibration."""
        raise ValueError("there is nothing to fit to these predictions")

    @property
    def tells_factor(self) -> bool:
        """Whether there are enough of these to tell whether a factor helps."""
        return False

    def why_not_beside(self, other: View) -> str:
        """Why another ensemble's scores cannot stand beside these; empty where they can."""
        return ""

    def beside(self, other: Any) -> dict[str, float]:
        """How far the predictions of another ensemble are from these."""
        return {}

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
            arrays=_Chosen(self.arrays, index),
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

    factor_name, small_gain, has_sets = "temperature", None, True
    rules = ("max_error=0.01", "max_error=0.02", "max_error=0.05", "coverage=0.9")
    factor_keeps_members, members_under_shift = False, True
    recipes: ClassVar[Mapping[str, str]] = {"recipe": "nll"}
    sizes: ClassVar[Sequence[str]] = SCORES

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

    def uncertainties(self) -> Mapping[str, Floats]:
        return {
            "entropy": self.entropies["total"],
            # The sum of the others: 1 - p would round confident predictions to ties.
            "one_minus_max": np.sort(np.exp(self.log_probs), axis=-1)[:, :-1].sum(axis=-1),
            "mutual_information": self.entropies["epistemic"],
        }

    def outside(self) -> dict[str, float]:
        return {"mean_entropy": float(self.entropies["total"].mean())}

    def spreads(self) -> Mapping[str, Floats]:
        return {"entropy": self.entropies["total"]}

    @property
    def doubt(self) -> Floats:
        """1 - max probability."""
        found: Floats = one_minus_max(self.log_probs)
        return found

    def errs(self, tolerance: float | None) -> NDArray:
        if tolerance is not None:
            raise ValueError(
                f"it has a tolerance, which is for numbers; classes are right or wrong: leave "
                f"@{tolerance:g} out"
            )
        return self.hits == 0

    def conformals(self, is_exact: bool = False) -> list[Conformal]:
        """Sets of the classes whose surprisal is at most a threshold (Sadinle et al. 2019).

        The most probable class is in each of them, unless they are to be exact.
        """
        surprisals = -self.log_probs
        top = np.zeros(surprisals.shape, bool)
        if not is_exact:
            top[np.arange(self.num_rows), self.log_probs.argmax(axis=-1)] = True
        rows = np.arange(self.num_rows)

        def sets(threshold: float) -> NDArray:
            return (surprisals <= threshold) | top

        def describe(sizes: NDArray) -> dict[str, Any]:
            counts = np.bincount(sizes, minlength=surprisals.shape[1] + 1)
            return {"nonempty": not is_exact, "sizes": counts.tolist()}

        return [
            Conformal(
                "sets",
                CONFORMAL_LEVEL,
                surprisals[rows, self.labels],
                lambda threshold: sets(threshold).sum(axis=-1),
                "size",
                (lambda threshold: sets(threshold)[rows, self.labels]) if not is_exact else None,
                describe,
                may_hold_all=True,
            )
        ]

    def fit_factor(self) -> float:
        return fit_temperature(self.log_probs, self.labels)

    @property
    def tells_factor(self) -> bool:
        num_errors = int(np.sum(self.hits == 0))
        return min(num_errors, self.num_rows - num_errors) >= FEW_ERRORS

    def why_not_beside(self, other: Any) -> str:
        ours, theirs = (one.log_probs.shape for one in (self, other))
        if ours == theirs:
            return ""
        return f"{theirs[0]} test examples of {theirs[1]} classes, not {ours[0]} of {ours[1]}"

    def beside(self, other: Any) -> dict[str, float]:
        """`agreement` and `total_variation`."""
        return {
            "agreement": agreement(other.log_probs, self.log_probs),
            "total_variation": total_variation(other.log_probs, self.log_probs),
        }

    @cached_property
    def ranked(self) -> Floats:
        """[N, 2], confidence and hits: what scores by the order of confidence are made of."""
        return np.stack([self.confidence, self.hits], axis=1)


class IntervalView(View):
    """Targets are numbers, of which intervals are said.

    Numbers are in the targets' units, those of rows whose target is not known among them.

    Attributes:
        says: what is said of each number.
    """

    says: ClassVar[str] = ""
    made_rows: ClassVar[Sequence[str]] = ("box", "outside")

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

    @property
    @abstractmethod
    def deviation(self) -> Floats:
        """[N], how far off the point may be: what examples are ranked by."""

    @abstractmethod
    def listed(self, chosen: NDArray) -> list[dict[str, Any]]:
        """What a list says of some rows, JSON-ready."""

    def spreads(self) -> Mapping[str, Floats]:
        return {"disagreement": np.sqrt(self.disagreement)}

    def why_not_beside(self, other: Any) -> str:
        return "" if other.says == self.says else f"{other.says}, not {self.says}"


class NumberView(IntervalView):
    """What is said of a number is a distribution."""

    says, factor_name = "distributions", "scale"
    rules = ("max_error=0.05", "max_error=0.1", "max_error=0.2", "coverage=0.9", "coverage=0.5")
    made_rows = ("profile", "box", "outside")
    recipes: ClassVar[Mapping[str, str]] = {"recipe": "crps", "recipe_by_nll": "nll"}
    sizes: ClassVar[Sequence[str]] = ("nll", "rmse", "crps")
    under_shift: ClassVar[Collection[str] | None] = ("rmse", "nll", "coverage_90")

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

    @property
    def deviation(self) -> Floats:
        return np.sqrt(self.measured_variance)

    def uncertainties(self) -> Mapping[str, Floats]:
        total = self.noise + self.disagreement
        return {"epistemic": self.disagreement, "total": total, "aleatoric": self.noise}

    def outside(self) -> dict[str, float]:
        """The median of the standard deviations."""
        return {"deviation": float(np.sqrt(np.median(self.noise + self.disagreement)))}

    def spreads(self) -> Mapping[str, Floats]:
        return {"deviation": self.deviation, "disagreement": np.sqrt(self.disagreement)}

    @property
    def tells_factor(self) -> bool:
        return self.num_rows >= FEW_EXAMPLES

    def conformals(self, is_exact: bool = False) -> list[Conformal]:
        """Split conformal on |y - median| / width, and conformalised quantiles."""
        low, middle, high = self.quantiles(
            [(1 - CONFORMAL_LEVEL) / 2, 0.5, (1 + CONFORMAL_LEVEL) / 2]
        )
        return [
            of_distance(CONFORMAL_LEVEL, middle, high - low, self.y),
            of_ends("quantiles", CONFORMAL_LEVEL, low, high, self.y),
        ]

    def beside(self, other: Any) -> dict[str, float]:
        """`distance`, root mean square of the means' difference; `overlap` of 90% intervals."""
        (low, high), (their_low, their_high) = (
            one.quantiles([0.05, 0.95]) for one in (self, other)
        )
        shared = np.maximum(np.minimum(high, their_high) - np.maximum(low, their_low), 0)
        narrower = np.minimum(high - low, their_high - their_low)
        return {
            "distance": float(np.sqrt(np.mean((other.point - self.point) ** 2))),
            "overlap": float(np.mean(shared / np.maximum(narrower, 1e-300))),
        }


class QuantileView(IntervalView):
    """What is said of a number are quantiles of some levels, and no density.

    Attributes:
        levels: [Q], ascending.
    """

    says = "quantiles"

    levels: Floats

    @property
    def deviation(self) -> Floats:
        """The distance between the outermost quantiles."""
        return self.quantiles[:, -1] - self.quantiles[:, 0]

    def uncertainties(self) -> Mapping[str, Floats]:
        return {"epistemic": self.disagreement, "width": self.deviation}

    def conformals(self, is_exact: bool = False) -> list[Conformal]:
        """Every band, conformalised."""
        found = []
        for band in self.bands:
            found.append(of_ends(f"{100 * band:.4g}", band, *self.ends(band), self.y))
        return found

    def why_not_beside(self, other: Any) -> str:
        if why := super().why_not_beside(other):
            return why
        ours, theirs = (tuple(one.levels.tolist()) for one in (self, other))
        return "" if ours == theirs else f"the levels {theirs}, not {ours}"

    def listed(self, chosen: NDArray) -> list[dict[str, Any]]:
        return [
            {"index": int(n), "target": float(self.y[n]), "quantiles": self.quantiles[n].tolist()}
            for n in chosen
        ]

    @property
    @abstractmethod
    def quantiles(self) -> Floats:
        """[N, Q] of the mixture."""


class SeveralView(View):
    """Several targets of an example, each with a view of its own among `parts`."""

    @property
    def made_rows(self) -> Sequence[str]:  # type: ignore[override]
        return self.parts[0].made_rows

    @property
    def doubt(self) -> Floats:
        raise ValueError("several targets have no common right and wrong: train one at a time")

    def fit_factor(self) -> float:
        raise UserError("nothing that all targets share can be fitted to them: train one at a time")

    def why_not_beside(self, other: View) -> str:
        ours, theirs = len(self.parts), len(other.parts)
        if ours != theirs:
            return f"{theirs} targets, not {ours}"
        pairs = zip(self.parts, other.parts, strict=True)
        return next(filter(None, (one.why_not_beside(beside) for one, beside in pairs)), "")


class JointView(SeveralView):
    """Several targets that have a density together."""

    recipes: ClassVar[Mapping[str, str]] = {"recipe_by_nll": "nll"}
    sizes: ClassVar[Sequence[str]] = ("nll",)

    @property
    @abstractmethod
    def log_density(self) -> Floats:
        """[N] at all targets of an example, nats."""


def of_distance(level: float, median: Floats, width: Floats, y: Floats) -> Conformal:
    """Split conformal intervals around medians, in proportion to widths (Lei et al. 2018, 5.2)."""
    if not (width > 0).all():
        why = "some intervals have no width"
        return Conformal("distance", level, y, lambda threshold: width, "width", reason=why)
    scores = np.abs(y - median) / width
    return Conformal("distance", level, scores, lambda one: 2 * one * width, "width")


def of_ends(name: str, level: float, low: Floats, high: Floats, y: Floats) -> Conformal:
    """Conformalised quantiles (Romano et al. 2019, 6): scores are how far targets lie outside."""
    scores = np.maximum(low - y, y - high)
    return Conformal(name, level, scores, lambda one: high - low + 2 * one, "width")
