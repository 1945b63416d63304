"""Targets are numbers: predictions are the mixture of the samples' distributions.

Never one Gaussian in its place. All that is needed of a family is in `families.py`; a quantile is a
root of the mixture's CDF, the CRPS an integral of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ensemble.errors import InputError
from ensemble.likelihoods import families
from ensemble.likelihoods.likelihood import Likelihood, Params
from ensemble.likelihoods.predictive import Array, Arrays, Predictive
from ensemble.pytrees import ByName

LEVELS = (0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975)
"""Quantiles of `columns`."""
_CUTS = np.array([5e-4, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1 - 5e-4])
_MAX_PAIRED = 128  # Gaussians of a mixture whose CRPS goes through all pairs.
_HALVINGS = 32
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


@dataclass(frozen=True, eq=False, repr=False)
class Ranges(Predictive):
    """The base of predictions with quantiles, in the target's unit.

    Attributes:
        unit: a typical difference between targets, which tells wide intervals from narrow ones.
        levels: [Q] of the quantiles of `columns`, ascending, with 0.5 among them.
    """

    unit: float = 1.0
    levels: Sequence[float] = LEVELS

    def quantiles(self, levels: Any = LEVELS) -> Array:
        """Quantiles [N, Q] at levels [Q] in 0..1."""
        raise NotImplementedError

    @cached_property
    def _at_levels(self) -> dict[float, Array]:
        return dict(zip(np.round(self.levels, 9).tolist(), self.quantiles().T, strict=True))

    @property
    def median(self) -> Array:
        """[N]."""
        return self._at_levels[0.5]

    def central(self, level: float) -> tuple[Array, Array]:
        """Ends [N] of the central interval between two of the `levels`, such as 0.9."""
        low, high = (self._at_levels[round(0.5 + half, 9)] for half in (-level / 2, level / 2))
        return low, high

    @property
    def epistemic_std(self) -> Array:
        """Standard deviation [N] of the members' means, or medians: their disagreement."""
        return self.uncertainty["epistemic"] ** 0.5

    def doubt(self) -> Array:
        """How wide w the 90% interval is, w / (w + unit)."""
        return self._width / (self._width + self.unit)

    @property
    def _width(self) -> Array:
        low, high = self.central(0.9)
        return high - low


@dataclass(frozen=True, eq=False, repr=False)
class Numbers(Ranges):
    """Predictions of numbers: a mixture of distributions of one family.

    Attributes:
        family: of `families.py`, whose parameters `arrays` has.
    """

    kind = "numbers"
    can_scale = True
    family: Any = families.Normal

    @cached_property
    def law(self) -> Any:
        """The samples' distributions [S, N]."""
        return self.family(self.values)

    def each_log_prob(self, y: Array) -> Array:
        return self.law.log_density(y)

    def cdf(self, y: Array) -> Array:
        """CDF [..., N] of the mixture at values [..., N], any number for each row."""
        return self.average(self.xp.moveaxis(self.law.cdf(y[..., None, :]), -2, 0))

    # Moments.

    @property
    def member_means(self) -> Array:
        """Means [M, N] of the members; of a posterior [S, N] of its draws, one function each."""
        return self.law.moments()[0]

    @cached_property
    def mean(self) -> Array:
        """Mean [N] of the mixture."""
        return self.average(self.member_means)

    @property
    def point(self) -> Array:
        return self.mean

    @cached_property
    def uncertainty(self) -> Arrays:
        """Variance [N] of the mixture: mean of the variances, and variance of the means."""
        means, variances = self.law.moments()
        noise = self.average(variances)
        disagreement = self.average((means - self.mean) ** 2)
        return {"total": noise + disagreement, "aleatoric": noise, "epistemic": disagreement}

    @property
    def std(self) -> Array:
        """Standard deviation [N] of the mixture."""
        return self.uncertainty["total"] ** 0.5

    @property
    def aleatoric_std(self) -> Array:
        """Root [N] of the mean of the members' variances: their noise."""
        return self.uncertainty["aleatoric"] ** 0.5

    # Quantiles.

    def quantiles(self, levels: Array = LEVELS) -> Array:
        return self.by_pieces(lambda some: some._roots(np.asarray(levels)).T)

    def _roots(self, levels: Array) -> Array:
        """Solves CDF = level [Q, N] by halving brackets of Cantelli's inequality."""
        if self.family.of_log is not None:
            logs = replace(self, family=self.family.of_log)._roots(levels)
            return self.xp.exp(logs.clip(-80, 80))
        xp = self.xp
        exact = 1e-12 if xp is np else 1e-7
        odds = xp.asarray(np.sqrt(levels / (1 - levels))[:, None], self.mean.dtype)
        level = xp.asarray(levels[:, None], self.mean.dtype)

        def halve(_, ends):
            low, high = ends
            middle = (low + high) / 2
            beyond = self.cdf(middle) - level
            # The middle stays if it is exact, as where the CDF is flat between modes far apart.
            low = xp.where(beyond < exact, middle, low)
            return low, xp.where(beyond > -exact, middle, high)

        ends = self.mean - 1.01 * self.std / odds, self.mean + 1.01 * self.std * odds
        if xp is jnp:
            ends = jax.lax.fori_loop(0, _HALVINGS, halve, ends)
        else:
            for k in range(_HALVINGS):
                ends = halve(k, ends)
        return sum(ends) / 2

    # In comparison with targets.

    def scores(self, y: Array) -> Arrays:
        """NLL in nats, and the squared error of the mean."""
        return {"nll": -self.log_prob(y), "squared_error": (self.mean - y) ** 2}

    def pit(self, y: Array) -> Array:
        """CDF [N] at the targets: uniform if the predictions are right (Dawid 1984)."""
        return self.cdf(np.asarray(y, np.float64))

    def crps(self, y: Array) -> Array:
        """CRPS [N], the integral of (F(x) - 1[x >= y])^2 (Gneiting and Raftery 2007, eq. 20).

        In closed form of few Gaussians; else by Gauss and Legendre's rule between quantiles and the
        target, while beyond the outermost quantiles the distance of the target counts.
        """
        y = np.asarray(y, np.float64)
        if self.family is families.Normal and len(self.shares) <= _MAX_PAIRED:
            return _crps_of_normals(self.law.loc, self.law.scale, self.shares[:, None], y)
        return self.by_pieces(Numbers._integral, y)

    def _integral(self, y: Array) -> Array:
        ends = self._roots(_CUTS)
        inside = np.clip(y, ends[0], ends[-1])
        cuts = np.sort(np.concatenate([ends, inside[None]]), axis=0)
        middle = (cuts[1:] + cuts[:-1]) / 2
        half = np.diff(cuts, axis=0) / 2
        is_reached = middle > inside
        found = np.abs(y - inside)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            squares = (self.cdf(middle + node * half) - is_reached) ** 2
            found = found + weight * (half * squares).sum(axis=0)
        return found

    # What follows.

    def scaled(self, factor: float) -> Numbers:
        """The mixture, wider by a factor about its mean."""
        law = (self.family.of_log or self.family)(self.values)
        centre = self.average(law.moments()[0])
        return replace(self, arrays=law.widened(centre, factor))

    def columns(self) -> Arrays:
        names = ("mean", "std", "aleatoric_std", "epistemic_std")
        moments = {name: getattr(self, name) for name in names}
        return self._with_answered(moments | {"quantiles": self.quantiles()})


def _crps_of_normals(loc: Array, scale: Array, weights: Array, y: Array) -> Array:
    """CRPS [N] of a mixture, by all pairs of Gaussians [S, N] (Grimit et al. 2006, eq. 5)."""
    found = (weights * _expected_distance(y - loc, scale)).sum(axis=0)
    for k, weight in enumerate(weights):  # Memory: [S, N].
        distance = _expected_distance(loc[k] - loc, np.hypot(scale[k], scale))
        found -= weight * (weights * distance).sum(axis=0) / 2
    return found


def _expected_distance(offset: Array, scale: Array) -> Array:
    """E|X| of X ~ N(offset, scale^2)."""
    z = offset / scale
    twice = math.sqrt(2 / math.pi) * np.exp(-0.5 * z**2)
    return np.asarray(scale * twice + offset * (2 * scipy.special.ndtr(z) - 1))


SMALLEST = 1e-15
"""The least spread of targets: squares of what is below would leave float32."""
MIN_SCALE = 1e-3
"""Least scale of a distribution, in standard deviations of the training targets: without it a
density could grow without bound on a target that repeats."""
_MIN_SPREAD = 1e-3  # Relative to the targets' size: float32 has seven digits.


def mean_and_spread(targets: Array) -> tuple[float, float]:
    """Mean and standard deviation of training targets [N].

    Raises:
        InputError: they are all alike, or too large, small or near each other.
    """
    values = np.asarray(targets, np.float64)
    spread = float(values.std())
    largest = float(np.abs(values).max())
    if not max(SMALLEST, _MIN_SPREAD * largest) < spread <= largest < families.LARGEST:
        raise InputError(
            f"The training targets have the standard deviation {spread:g} and values up to "
            f"{largest:g}, which float32 does not resolve. Use two or more different targets; "
            "rescale them, or subtract a constant."
        )
    return float(values.mean()), spread


class NumberLikelihood(Likelihood):
    """The base of likelihoods of numbers, which a network sees standardised.

    Args:
        shift: mean of the training targets.
        scale: their standard deviation.
    """

    progress = "squared_error"
    predictions: type[Predictive] = Numbers
    passed_on: Sequence[str] = ("family", "unit")
    family: Any
    standardisation = staticmethod(mean_and_spread)
    num_outputs = 1
    own: Sequence[str] = ()
    """Parameters of a member, numbers which begin with 0."""
    settings: Sequence[str] = ()
    """Further arguments, which are attributes and kept in a workdir."""

    def __init__(self, shift: float, scale: float):
        self.shift = shift
        self.scale = scale

    @classmethod
    def from_data(cls, targets: Array, class_names: Sequence[str], **settings: Any) -> Self:
        if class_names:
            raise InputError(
                f"config.likelihood={cls.name!r} is for numbers, and the targets are the classes "
                f"{', '.join(class_names[:3])}... Set config.likelihood='categorical'."
            )
        cls.check_targets(targets, "train")
        return cls(*cls.standardisation(targets), **settings)

    @classmethod
    def from_dict(cls, description: ByName) -> Self:
        own = {name: description[name] for name in cls.settings}
        return cls(description["target_shift"], description["target_scale"], **own)

    def to_dict(self) -> ByName:
        own = {name: getattr(self, name) for name in self.settings}
        return {"target_shift": self.shift, "target_scale": self.scale, **own}

    @property
    def unit(self) -> float:
        """A typical difference between targets."""
        return self.scale

    def init(self, rng_key: Array) -> Arrays:
        return {name: jnp.zeros(()) for name in self.own}

    def log_prob(self, params: Params, outputs: Array, targets: Any) -> Array:
        return self.family(self.predict(params, outputs)).log_density(targets)


class LocationScale(NumberLikelihood):
    """A subclass maps K outputs to a location and a scale of a standardised target."""

    num_outputs = 2
    can_be_tempered = True

    def parameters(self, params: Params, outputs: Array) -> Arrays:
        """Parameters [B] of the family for standardised targets."""
        return {"loc": outputs[..., 0], "scale": positive(outputs[..., 1])}

    def predict(self, params: Params, outputs: Array) -> Arrays:
        found = self.parameters(params, outputs)
        loc = self.shift + self.scale * found["loc"]
        return {**found, "loc": loc, "scale": self.scale * found["scale"]}

    def tempered(self, predicted: Arrays, factor: Any) -> Arrays:
        return {**predicted, "scale": factor * predicted["scale"]}


class Gaussian(LocationScale):
    """Two outputs: the mean, and what `positive` makes the standard deviation."""

    name = "gaussian"
    family = families.Normal

    def expected_log_prob(self, params: Params, outputs: Array, taught: Numbers) -> Array:
        """Expected log density [B] of a target that a teacher predicts.

        It is largest at the mean and the variance of the teacher's mixture.
        """
        ours = self.predict(params, outputs)
        density = self.family(ours).log_density(taught.mean)
        return density - 0.5 * taught.uncertainty["total"] / ours["scale"] ** 2


class SharedGaussian(Gaussian):
    """One output, the mean; the standard deviation is a parameter that each member learns."""

    name = "gaussian_homoscedastic"
    num_outputs = 1

    own = ("raw_scale",)
    """0: the standard deviation of the training targets."""

    def parameters(self, params: Params, outputs: Array) -> Arrays:
        scale = jnp.broadcast_to(positive(params["raw_scale"]), outputs.shape[:-1])
        return {"loc": outputs[..., 0], "scale": scale}


class Laplace(LocationScale):
    """Two outputs: the median, and what `positive` makes the mean absolute deviation."""

    name = "laplace"
    family = families.LaplaceNoise


class StudentT(LocationScale):
    """Two outputs, location and scale; the degrees of freedom are a parameter of each member."""

    name = "student_t"
    family = families.StudentT

    own = ("raw_df",)
    """0: some seven degrees of freedom."""

    def parameters(self, params: Params, outputs: Array) -> Arrays:
        # More than 2, so that there is a variance.
        df = 2.1 + jax.nn.softplus(params["raw_df"] + math.log(math.expm1(5.0)))
        found = super().parameters(params, outputs)
        return {**found, "df": jnp.broadcast_to(df, outputs.shape[:-1])}


class LogNormal(LocationScale):
    """Two outputs, mean and standard deviation of the logarithm, which is standardised.

    Targets are positive. `loc` and `scale` are of the logarithm; moments and scores are of the
    target itself.
    """

    name = "log_normal"
    family = families.LogNormal

    def parameters(self, params: Params, outputs: Array) -> Arrays:
        # A mean grows with exp of half the square of this deviation.
        return {"loc": outputs[..., 0], "scale": bounded(outputs[..., 1], 3.0)}

    @classmethod
    def check_targets(cls, targets: Array, split: str) -> None:
        if not np.min(targets) > 0:
            raise InputError(
                f"config.likelihood='log_normal' is for positive numbers, and the {split} targets "
                f"have {np.min(targets):g}. Remove such rows, or set config.likelihood='gaussian'."
            )

    @staticmethod
    def standardisation(targets: Array) -> tuple[float, float]:
        mean_and_spread(targets)  # Checks them: logarithms differ by less.
        logs = np.log(np.asarray(targets, np.float64))
        return float(logs.mean()), float(logs.std())

    @property
    def unit(self) -> float:
        """About the standard deviation of the training targets."""
        return float(np.exp(self.shift) * self.scale)


class MixtureOfGaussians(NumberLikelihood):
    """Three outputs for each of K components: the logit of its weight, its mean, its deviation.

    Mixture density networks (Bishop 1994, NCRG/94/004). Where the outputs are 0, components are at
    quantiles of the standard normal distribution, and their mixture has mean 0 and variance 1.

    Args:
        *standardisation: as of `NumberLikelihood`.
        components: K.
    """

    name = "mixture_of_gaussians"
    family = families.NormalMixture
    settings = ("components",)

    def __init__(self, *standardisation: Any, components: int):
        self.components = components
        self.num_outputs = 3 * components
        super().__init__(*standardisation)

    def predict(self, params: Params, outputs: Array) -> Arrays:
        logits, locs, raw_scales = jnp.split(outputs, 3, axis=-1)
        starts = scipy.special.ndtri((np.arange(self.components) + 0.5) / self.components)
        deviation = math.sqrt(1 - starts.var())
        return {
            "log_weight": jax.nn.log_softmax(logits),
            "loc": self.shift + self.scale * (jnp.asarray(starts, jnp.float32) + locs),
            "scale": self.scale * positive(raw_scales, deviation),
        }


def bounded(raw: Array, most: float) -> Array:
    """Maps a number to a scale between `MIN_SCALE` and `most`, and 0 to 1: a sigmoid, moved."""
    share = (1 - MIN_SCALE) / (most - MIN_SCALE)
    return MIN_SCALE + (most - MIN_SCALE) * jax.nn.sigmoid(raw + math.log(share / (1 - share)))


def positive(raw: Array, start: float = 1.0) -> Array:
    """Maps a number to a scale above `MIN_SCALE`, and 0 to `start`: softplus, moved."""
    return MIN_SCALE + jax.nn.softplus(raw + math.log(math.expm1(start - MIN_SCALE)))
