"""The base of likelihoods of a number whose outputs are the parameters of a distribution.

A subclass says which distribution follows from its outputs: its density, its CDF and its two
moments. What an estimator predicts is the parameters of its distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.optimize
import scipy.special
from jax.flatten_util import ravel_pytree

from ensemble.likelihood import (
    Arrays,
    Constant,
    Reduce,
    compared,
    mixture_log_density,
    weighted_mean,
)
from ensemble.likelihoods.mixture_density import MixtureDensity
from ensemble.likelihoods.mixture_view import MixtureView, row_log_prob
from ensemble.likelihoods.number_prediction import LEVELS, NumberPrediction, width_90
from ensemble.likelihoods.numbers import Numbers
from ensemble.pictures import intervals
from ensemble.scoring.sections import values_in
from ensemble.target_rows import on_devices, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.source import Source

MIN_SCALE = 1e-3
"""The least scale of a distribution, in standard deviations of the training targets: without it a
density could grow without bound on a target that repeats."""
_PLATEAU = 1e-6  # Of a CDF in float32: between modes far apart it is flat, up to rounding.
_BISECTIONS = 40  # In float32 more change nothing.
_MOST = 2_000  # Targets that a constant is fitted to, evenly spaced among all.


class Parametric(Numbers):
    """A subclass maps K outputs to the parameters of a distribution in the target's units."""

    num_outputs: int
    columns = ("rmse", "nll", "crps", "coverage_90", "width_90")
    headline = ("rmse", "nll", "crps")
    progress = "squared_error"
    draw_scores = ("squared_error", "nll")
    traced = ("squared_error", "nll")
    parts: tuple[str, ...]
    positive_parts: tuple[str, ...] = ()
    part_ndim = 2

    # What a subclass says; its parameters are `parts` by name, and these functions take them as
    # arrays of NumPy or of JAX: `xp` is `numpy` or `jax.numpy`, `special` the SciPy of the same.

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """The distribution's parameters [B, ...], float32."""
        raise NotImplementedError

    def log_density(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log density, or probability, at y in the target's units."""
        raise NotImplementedError

    def cdf(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """CDF at y in the target's units."""
        raise NotImplementedError

    def mean(self, parts: Mapping[str, Any], xp: Any) -> Any:
        """Mean, in the target's units."""
        raise NotImplementedError

    def variance(self, parts: Mapping[str, Any], xp: Any, unit: float = 1.0) -> Any:
        """Variance, where targets are measured in this unit: squares may leave float32."""
        raise NotImplementedError

    def bracket(self, parts: Mapping[str, Any], xp: Any) -> tuple[Any, Any]:
        """Values [N] on the line below and above every quantile of `LEVELS` and of the tails."""
        raise NotImplementedError

    def to_line(self, y: Any, xp: Any) -> Any:
        """Maps a target to where quantiles are searched and grids are even, which is increasing."""
        return y

    def from_line(self, u: Any, xp: Any) -> Any:
        """The inverse of `to_line`."""
        return u

    def snapped(self, quantile: Any, xp: Any) -> Any:
        """A quantile [N] that was found by halving; of whole numbers, the nearest one."""
        return quantile

    def closed_crps(
        self, arrays: Arrays, targets: np.ndarray, weights: Any = None
    ) -> np.ndarray | None:
        """CRPS [N] of the mixture of members in closed form; None where there is none."""
        return None

    def distribution(self, arrays: Arrays, weights: Any = None) -> MixtureDensity:
        """What an ensemble says of N targets, from predictions [M, N, ...] of its members.

        Args:
            arrays: of the members.
            weights: [M] of them, of sum 1; None: all the same.
        """
        return MixtureDensity(self, arrays, weights)

    def view(
        self, arrays: Arrays, targets: Any, member_of: Any = None, weights: Any = None
    ) -> MixtureView:
        """What is scored, from predictions [E, N, ...], as of `ensemble.scoring.view.View`."""
        return MixtureView(
            likelihood=self, arrays=arrays, targets=targets, member_of=member_of, weights=weights
        )

    @property
    def units(self) -> tuple[float, float]:
        """A typical target, and the size of differences between targets."""
        return self.shift, self.scale

    # Pure functions on the devices.

    def log_prob(self, params: Mapping[str, Any], outputs: jax.Array, targets: Any) -> jax.Array:
        """Log density [B] of targets in their own units, nats; log survival of censored ones."""
        parts = self.predict(params, outputs)
        return row_log_prob(self, parts, targets, jnp, jax.scipy.special)

    def example_scores(self, predicted: Mapping[str, Any], targets: Any) -> dict[str, jax.Array]:
        """Squared error and NLL [..., B] of one predictor."""
        log_prob = row_log_prob(self, predicted, targets, jnp, jax.scipy.special)
        error = self.mean(predicted, jnp) - values(targets)
        return {"squared_error": error**2, "nll": -log_prob}

    def mixture_scores(
        self, predicted: Mapping[str, Any], targets: Any, live: jax.Array, over: Reduce
    ) -> dict[str, jax.Array]:
        """NLL of the mixture, and the squared error of its mean, [B]."""
        log_density = row_log_prob(self, predicted, targets, jnp, jax.scipy.special)
        count = over.sum(jnp.sum(live.astype(jnp.float32)))
        means = jnp.where(live[:, None], self.mean(predicted, jnp), 0)
        mean = over.sum(jnp.sum(means, axis=0)) / count
        return {
            "nll": -mixture_log_density(log_density, live, over),
            "squared_error": (mean - values(targets)) ** 2,
        }

    # On the host.

    def check_predictions(self, arrays: Arrays, targets: np.ndarray | None = None) -> None:
        """Checks predictions that were read from a file.

        Raises:
            ValueError: they are none of ours, or not finite, or no distributions.
        """
        if not set(arrays) >= set(self.parts):
            raise ValueError(f"it has the arrays {', '.join(sorted(arrays))}, not a distribution's")
        for name, array in arrays.items():
            if array.dtype.kind != "f" or array.ndim != self.part_ndim:
                raise ValueError(f"{name} must be floating-point numbers [E, N]")
            if not np.isfinite(array).all():
                raise ValueError(f"{name} must be finite")
        for name in self.positive_parts:
            if not (arrays[name] > 0).all():
                raise ValueError(f"{name} must be positive")
        if targets is not None and not np.isfinite(values(targets).astype(np.float64)).all():
            raise ValueError("targets must be finite")

    def constant(self, train_targets: np.ndarray) -> Constant:
        """Always answers one distribution of those that outputs can say, fitted to the targets."""
        found = super().constant(train_targets)
        return found._replace(learned=(self, best_constant(self, train_targets)))

    def sentence(self, section: Mapping[str, Any], split: str, num_members: int) -> str:
        """Says in one line what the ensemble brings over its average member."""
        scores, mean = values_in(section), values_in(section, "mean")
        rmse = f"has an RMSE of {scores['rmse']:.4g} on the {split} split"
        covered = _covered(scores)
        if num_members == 1:
            return f"One member {rmse}, and an NLL of {scores['nll']:.3f} nats; {covered}"
        nats = scores["nll"] - mean["nll"]
        return (
            f"The ensemble of {num_members} {rmse}, {compared(scores['rmse'], mean['rmse'])} than "
            f"its average member. Its NLL is {abs(nats):.3f} nats "
            f"{'higher' if nats > 0 else 'lower'}; {covered}"
        )

    def posterior_sentence(
        self, section: Mapping[str, Any], average_draw: Mapping[str, float], split: str
    ) -> str:
        """Says in one line what averaging draws brings over a single draw."""
        scores = values_in(section)
        return (
            f"The mixture of draws has an RMSE of {scores['rmse']:.4g} on the {split} split, "
            f"a single draw {math.sqrt(average_draw['squared_error']):.4g}; {_covered(scores)}"
        )

    def figures(self, arrays: Arrays, source: Source, split: str, title: str) -> dict[str, Figure]:
        """Draws predictions against targets, and how often intervals cover them."""
        known = self.view(arrays, source.targets(split)).known
        if not known.num_rows:
            return {}
        low, middle, high = known.quantiles([0.05, 0.5, 0.95])
        return {
            "predictions": intervals.predictions(middle, low, high, known.y, title),
            "calibration": intervals.coverage_curve(known.pit, title),
        }

    def spread(self, arrays: Arrays) -> tuple[str, np.ndarray]:
        """The standard deviation of the mixture."""
        _, noise, disagreement = self.distribution(arrays).moments()
        return "standard_deviation", np.sqrt(noise + disagreement)

    # Of an ensemble as a function.

    def scaled(
        self, arrays: Mapping[str, Any], factor: float, weights: Any = None
    ) -> dict[str, Any]:
        """The members' distributions, such that their mixture is as wide times a factor.

        Raises:
            ValueError: these distributions have no such factor.
        """
        raise ValueError(f"the distributions of config.likelihood={self.name!r} have no scale")

    def tolerance(self, wanted: float | None) -> float:
        """The largest distance from the target that is no error: half a standard deviation."""
        return self.units[1] / 2 if wanted is None else wanted

    def widest(self, threshold: float) -> float:
        """The width of 90% intervals that a threshold on `View.doubt` stands for."""
        return self.units[1] * threshold / (1 - threshold) if threshold < 1 else math.inf

    def _doubts(self, widths: Any) -> Any:
        return widths / (widths + self.units[1])

    def prediction(
        self,
        arrays: Arrays,
        temperature: float | None,
        threshold: float = 1.0,
        weights: Any = None,
    ) -> NumberPrediction:
        """What an ensemble says of N inputs.

        Args:
            arrays: of the members.
            temperature: the factor of `scaled`.
            threshold: accepted is where `View.doubt` lies below it.
            weights: [M] of the members, of sum 1; None: all the same.
        """
        mixture, levels = self.distribution(arrays, weights), np.array(LEVELS)
        quantiles = mixture.quantiles(levels)
        accepted = self._doubts(width_90(quantiles)) < threshold  # Before the factor.
        if temperature is not None and temperature != 1:
            arrays = self.scaled(arrays, temperature, weights)
            mixture = self.distribution(arrays, weights)
            quantiles = mixture.quantiles(levels)
        mean, noise, disagreement = mixture.moments()
        return NumberPrediction(
            mean,
            np.sqrt(noise + disagreement),
            quantiles.T,
            noise,
            disagreement,
            levels,
            members=arrays,
            member_means=mixture.member_means(),
            accepted=accepted,
        )

    def quantiles_at(self, arrays: Arrays, levels: np.ndarray, weights: Any = None) -> np.ndarray:
        """Quantiles [N, Q] of the mixture at levels [Q] in 0..1; weights as of `distribution`."""
        return self.distribution(arrays, weights).quantiles(levels).T

    def uncertainty(self, prediction: NumberPrediction) -> np.ndarray:
        """The standard deviation [N] of the mixture."""
        return prediction.standard_deviation

    def entry(self, prediction: NumberPrediction, i: int) -> dict[str, Any]:
        """Moments and quantiles of prediction i, JSON-ready."""
        return prediction.entry(i)

    def legend(self) -> dict[str, Any]:
        """The levels of the quantiles."""
        return {"levels": list(LEVELS)}

    def cells(self, prediction: NumberPrediction, i: int) -> list[tuple[str, str | float]]:
        """Mean, deviation and 90% interval of prediction i."""
        return prediction.cells(i)

    def as_columns(self, prediction: NumberPrediction) -> dict[str, np.ndarray]:
        """Moments, and a column for each quantile."""
        return prediction.as_columns()

    def exported(
        self,
        predicted: Mapping[str, Any],
        temperature: float | None,
        threshold: float = 1.0,
        weights: Any = None,
    ) -> dict[str, jax.Array]:
        """The same as JAX arrays by name; the members' parameters are `member_NAME` [M, N]."""
        quantiles = self._exported_quantiles(predicted, weights)
        accepted = self._doubts(width_90(quantiles)) < threshold  # Before the factor.
        if temperature is not None and temperature != 1:
            predicted = self.scaled(predicted, temperature, weights)
            quantiles = self._exported_quantiles(predicted, weights)
        means = self.mean(predicted, jnp)
        mean = weighted_mean(means, weights)
        noise = weighted_mean(self.variance(predicted, jnp), weights)
        disagreement = weighted_mean(jnp.square(means - mean), weights)
        return {
            "mean": mean,
            "standard_deviation": jnp.sqrt(noise + disagreement),
            "quantiles": quantiles.T,
            "aleatoric": noise,
            "epistemic": disagreement,
            "accepted": accepted,
            **{f"member_{name}": one for name, one in predicted.items()},
        }

    def _exported_quantiles(self, predicted: Mapping[str, Any], weights: Any) -> jax.Array:
        """Quantiles [Q, N] at `LEVELS`, in a program of JAX."""

        def quantile(level: float) -> jax.Array:
            def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                middle = (ends[0] + ends[1]) / 2
                value = self.from_line(middle, jnp)
                cdfs = self.cdf(predicted, value, jnp, jax.scipy.special)
                cdf = weighted_mean(cdfs, weights)
                is_below = cdf < level
                return jnp.where(is_below, middle, ends[0]), jnp.where(is_below, ends[1], middle)

            low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, self.bracket(predicted, jnp))
            return (low + high) / 2

        def between(level: float) -> jax.Array:
            middle = (quantile(level - _PLATEAU) + quantile(level + _PLATEAU)) / 2
            return self.snapped(self.from_line(middle, jnp), jnp)

        return jnp.stack([between(level) for level in LEVELS])


def _covered(scores: Mapping[str, Any]) -> str:
    held = scores["coverage_90"]
    if held is None or math.isnan(held):  # From a file, or not.
        return "how many targets its 90% intervals cover is unknown, since too many are censored."
    return f"its 90% intervals cover {100 * held:.0f}% of the targets."


# How an output becomes the scale of a distribution.


def bounded(raw: jax.Array, most: float) -> jax.Array:
    """Maps a number to a scale between `MIN_SCALE` and `most`, and 0 to 1: a sigmoid, moved."""
    share = (1 - MIN_SCALE) / (most - MIN_SCALE)
    return MIN_SCALE + (most - MIN_SCALE) * jax.nn.sigmoid(raw + math.log(share / (1 - share)))


def positive(raw: jax.Array, start: float = 1.0) -> jax.Array:
    """Maps a number to a scale above `MIN_SCALE`, and 0 to `start`: softplus, moved."""
    return MIN_SCALE + jax.nn.softplus(raw + math.log(math.expm1(start - MIN_SCALE)))


# One distribution for all targets, whatever the inputs are.


def best_constant(family: Parametric, targets: np.ndarray) -> dict[str, np.ndarray]:
    """Fits outputs that are the same for all inputs, and the likelihood's own parameters.

    The search begins where networks begin, so that a mixture may end in a local optimum.

    Args:
        family: of distributions.
        targets: [N], with what is known of them, such as that some are censored.

    Returns:
        What `predict` says of outputs of the largest likelihood found, [1, 1, ...] float64.
    """
    some = on_devices(targets[:: -(-len(targets) // _MOST)])
    start = {"params": family.init(jax.random.key(0)), "outputs": jnp.zeros(family.num_outputs)}
    raveled, nested = ravel_pytree(start)
    shape = (len(values(some)), family.num_outputs)

    @jax.jit
    @jax.value_and_grad
    def loss(flat: jax.Array) -> jax.Array:
        found = nested(flat)
        outputs = jnp.broadcast_to(found["outputs"], shape)
        return -family.log_prob(found["params"], outputs, some).mean()

    def of_doubles(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(jnp.asarray(flat, jnp.float32))
        return float(value), np.asarray(gradient, np.float64)

    flat = np.asarray(raveled, np.float64)
    best = scipy.optimize.minimize(of_doubles, flat, jac=True, method="L-BFGS-B")
    found = nested(jnp.asarray(best.x if best.fun < of_doubles(flat)[0] else flat, jnp.float32))
    predicted = family.predict(found["params"], found["outputs"][None])
    return {name: np.asarray(one, np.float64)[None] for name, one in predicted.items()}
