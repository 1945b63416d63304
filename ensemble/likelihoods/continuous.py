"""What all likelihoods of a number share: targets are standardised, predictions are in their units.

A tenant says which location-scale family follows from its outputs. A member's prediction is the
parameters of its distribution; a chain's is what remains of the mixture over its draws: the density
and the CDF at the target, two moments, and the CDF on a fixed grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from ensemble.errors import UserError
from ensemble.likelihood import Arrays, Column, Constant, Panel, Reduce
from ensemble.likelihoods.mixture_density import GRID, LOC, SCALE, MixtureDensity
from ensemble.likelihoods.number_prediction import LEVELS, NumberPrediction
from ensemble.likelihoods.target_range import LARGEST, SMALLEST, normal_constant, target_range
from ensemble.pictures import intervals, member_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.source import Source

NUM_GRID_POINTS = 200
"""Where the CDF of a chain is kept, from a range below the least training target to one above."""
_PLATEAU = 1e-6  # Of a CDF in float32: between modes far apart it is flat, up to rounding.
_BISECTIONS = 40  # In float32 more change nothing.


class Continuous:
    """Targets are numbers; a tenant maps K outputs to a distribution of a standardised target.

    Args:
        shift: mean of the training targets.
        scale: their standard deviation.
        low: their minimum.
        high: their maximum.
    """

    name: str
    num_outputs: int
    columns: Mapping[str, Column] = {
        "rmse": Column("RMSE", has_units=True),
        "nll": Column("NLL nats"),
        "crps": Column("CRPS", has_units=True),
        "coverage_90": Column("in 90% %", 100, 1),
        "width_90": Column("90% width", has_units=True),
    }
    headline = ("rmse", "nll", "crps")
    progress = "squared_error"
    takes_logits = False
    why_not_evaluated = (
        "has learned numbers, and evaluations are of classifiers; its scores are in report.json"
    )
    draw_scores = ("squared_error", "nll")
    traced = ("squared_error", "nll")
    relative = "density"

    def __init__(self, shift: float, scale: float, low: float, high: float):
        self.shift, self.scale, self.low, self.high = shift, scale, low, high

    # What a tenant says, of standardised targets, by the names of `predict`.

    def parameters(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """The parameters of the distribution [B], `loc` and `scale` among them."""
        raise NotImplementedError

    def standard_log_density(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """Log density at z = (y - loc) / scale, times the scale.

        Args:
            parts: of `predict`.
            z: of the shape of the parts.
            xp: `numpy` or `jax.numpy`.
            special: `scipy.special` or `jax.scipy.special`.
        """
        raise NotImplementedError

    def standard_cdf(self, parts: Mapping[str, Any], z: Any, xp: Any, special: Any) -> Any:
        """CDF at z; the arguments are those of `standard_log_density`."""
        raise NotImplementedError

    def standard_variance(self, parts: Mapping[str, Any]) -> Any:
        """Variance of z."""
        return 1.0

    def closed_crps(self, arrays: Arrays, targets: np.ndarray) -> np.ndarray | None:
        """CRPS [N] of the mixture of members in closed form; None where there is none."""
        return None

    # From the data, and from what a workdir says of them.

    @classmethod
    def of_data(cls, targets: np.ndarray, class_names: Sequence[str]) -> Continuous:
        """Makes the likelihood of training targets [N].

        Raises:
            UserError: the targets are classes, or all alike, or not finite.
        """
        if class_names:
            raise UserError(
                f"config.likelihood={cls.name!r} is for numbers, and the targets are the classes "
                f"{', '.join(class_names[:3])}...: set config.likelihood='categorical'"
            )
        return cls(*target_range(targets))

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> Continuous:
        """The inverse of `describe`.

        Raises:
            ValueError: the description is damaged or forged.
        """
        numbers = [description[f"target_{name}"] for name in ("shift", "scale", "low", "high")]
        if not all(type(one) in (int, float) and abs(one) < LARGEST for one in numbers):
            raise ValueError("dataset.target_shift, _scale, _low and _high must be numbers")
        shift, scale, low, high = map(float, numbers)
        if not (scale > SMALLEST and low < high):
            raise ValueError("dataset.target_scale must be positive, target_low below target_high")
        return cls(shift, scale, low, high)

    def describe(self) -> dict[str, Any]:
        """Returns how targets are standardised, JSON-ready."""
        return {
            "target_shift": self.shift,
            "target_scale": self.scale,
            "target_low": self.low,
            "target_high": self.high,
        }

    @property
    def grid(self) -> np.ndarray:
        """[G] values of a target at which the CDF of a chain is kept."""
        margin = self.high - self.low
        return np.linspace(self.low - margin, self.high + margin, NUM_GRID_POINTS)

    # Pure functions on the devices.

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """No parameters beside the network's, unless a tenant has some."""
        return {}

    def log_prob(self, params: Mapping[str, Any], outputs: jax.Array, targets: Any) -> jax.Array:
        """Log density [B] of targets in their own units, nats."""
        return self.log_density(self.predict(params, outputs), targets, jnp, jax.scipy.special)

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """The distribution's parameters [B] in the target's units."""
        parts = self.parameters(params, outputs.astype(jnp.float32))
        ours = {LOC: self.shift + self.scale * parts[LOC], SCALE: self.scale * parts[SCALE]}
        return {**parts, **ours}

    def example_scores(self, predicted: Mapping[str, Any], targets: Any) -> dict[str, jax.Array]:
        """Squared error and NLL [..., B] of one predictor."""
        log_density = self.log_density(predicted, targets, jnp, jax.scipy.special)
        return {"squared_error": (predicted[LOC] - targets) ** 2, "nll": -log_density}

    def mixture_scores(
        self, predicted: Mapping[str, Any], targets: Any, live: jax.Array, over: Reduce
    ) -> dict[str, jax.Array]:
        """NLL of the mixture, and the squared error of its mean, [B]."""
        log_density = self.log_density(predicted, targets, jnp, jax.scipy.special)
        log_density = jnp.where(live[:, None], log_density, -jnp.inf)
        top = over.max(jnp.max(log_density, axis=0))
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        total = over.sum(jnp.sum(jnp.exp(log_density - top), axis=0))
        count = over.sum(jnp.sum(live.astype(jnp.float32)))
        mean = over.sum(jnp.sum(jnp.where(live[:, None], predicted[LOC], 0), axis=0)) / count
        return {
            "nll": jnp.log(count) - top - jnp.log(total),
            "squared_error": (mean - targets) ** 2,
        }

    def draw_terms(self, predicted: Mapping[str, Any], targets: Any) -> dict[str, jax.Array]:
        """Log density and CDF at the target, standardised moments, and the CDF on the grid."""
        special = jax.scipy.special
        mean = (predicted[LOC] - self.shift) / self.scale
        noise = self.standard_variance(predicted) * (predicted[SCALE] / self.scale) ** 2
        on_grid = {name: part[..., None] for name, part in predicted.items()}
        grid = jnp.asarray(self.grid, jnp.float32)
        return {
            self.relative: self.log_density(predicted, targets, jnp, special),
            "cdf": self.cdf(predicted, targets, jnp, special),
            "mean": mean,
            "square": mean**2,
            "noise": noise,
            GRID: self.cdf(on_grid, grid, jnp, special),
        }

    # On the host.

    def average(self, means: Arrays) -> dict[str, np.ndarray]:
        """The mixtures over the draws of chains, in the target's units."""
        variance = self.scale**2
        spread = np.maximum(means["square"] - means["mean"] ** 2, 0)
        found = {
            "log_density": means[self.relative],
            "cdf": means["cdf"],
            "mean": self.shift + self.scale * means["mean"],
            "noise": variance * means["noise"],
            "spread": variance * spread,
            GRID: means[GRID],
        }
        return {name: one.astype(np.float32) for name, one in found.items()}

    def check_predictions(self, arrays: Arrays, targets: np.ndarray | None = None) -> None:
        """Checks predictions that were read from a file.

        Raises:
            ValueError: they are none of ours, or not finite, or no distributions.
        """
        own = {"log_density", "cdf", "mean", "noise", "spread", GRID}
        names = set(arrays)
        if names != own and not names >= {LOC, SCALE}:
            raise ValueError(f"it has the arrays {', '.join(sorted(names))}, not a distribution's")
        for name, array in arrays.items():
            if array.dtype.kind != "f" or array.ndim != (3 if name == GRID else 2):
                raise ValueError(f"{name} must be floating-point numbers [M, N]")
            if not np.isfinite(array).all() and name != "log_density":
                raise ValueError(f"{name} must be finite")
        if SCALE in names and not (arrays[SCALE] > 0).all():
            raise ValueError("scale must be positive")
        if targets is not None and not np.isfinite(targets.astype(np.float64)).all():
            raise ValueError("targets must be finite")

    def member_nll(self, arrays: Arrays, targets: np.ndarray) -> np.ndarray:
        """Mean NLL [M] of every member, nats."""
        return -MixtureDensity(self, arrays).log_densities(targets).mean(axis=1)

    def summarise(self, arrays: Arrays, targets: np.ndarray) -> dict[str, dict[str, Any]]:
        """Scores of the mixture, of the members, and how far these differ."""
        targets = np.asarray(targets, np.float64)
        one_by_one = [
            MixtureDensity(self, {name: one[[m]] for name, one in arrays.items()}).scores(targets)
            for m in range(len(next(iter(arrays.values()))))
        ]
        mixture = MixtureDensity(self, arrays)
        _, noise, disagreement = mixture.moments()
        return {
            "ensemble": mixture.scores(targets),
            "members": {name: [one[name] for one in one_by_one] for name in one_by_one[0]},
            "diversity": {
                "aleatoric": float(noise.mean()),
                "epistemic": float(disagreement.mean()),
                "total": float((noise + disagreement).mean()),
            },
        }

    def constant(self, train_targets: np.ndarray, targets: np.ndarray) -> Constant:
        """Always answers the normal distribution of the training targets."""
        return normal_constant(self.shift, self.scale, targets)

    def sentence(self, section: Mapping[str, Any], split: str, num_members: int) -> str:
        """Says in one line what the ensemble brings over its mean member."""
        scores, members = section["ensemble"], section["members"]
        rmse = f"has an RMSE of {scores['rmse']:.4g} on the {split} split"
        covered = f"its 90% intervals hold {100 * scores['coverage_90']:.0f}% of the targets."
        if num_members == 1:
            return f"One member {rmse}, and an NLL of {scores['nll']:.3f} nats; {covered}"
        saving = 100 * (1 - scores["rmse"] / float(np.mean(members["rmse"])))
        gained = float(np.mean(members["nll"])) - scores["nll"]
        return (
            f"The ensemble of {num_members} {rmse}, {-saving:+.1f}% from its mean member, and an "
            f"NLL of {-gained:+.3f} nats from it; {covered}"
        )

    def posterior_sentence(
        self, section: Mapping[str, Any], average_draw: Mapping[str, float], split: str
    ) -> str:
        """Says in one line what averaging draws brings over a single draw."""
        scores = section["ensemble"]
        return (
            f"The mixture of all draws has an RMSE of {scores['rmse']:.4g} on the {split} split, "
            f"a single draw {math.sqrt(average_draw['squared_error']):.4g}; its 90% intervals hold "
            f"{100 * scores['coverage_90']:.0f}% of the targets."
        )

    def figures(self, arrays: Arrays, source: Source, split: str, title: str) -> dict[str, Figure]:
        """Draws predictions against targets, and how often intervals hold what they say."""
        mixture = MixtureDensity(self, arrays)
        low, middle, high = mixture.quantiles(np.array([0.05, 0.5, 0.95]))
        targets = source.targets(split)
        pit = mixture.pit(targets)
        return {
            "predictions": intervals.predictions(middle, low, high, targets, title),
            "calibration": intervals.coverage_curve(pit, title),
        }

    def final_figures(
        self, arrays: Arrays, targets: np.ndarray, section: Mapping[str, Any]
    ) -> dict[str, Figure]:
        """Draws the members' scores beside the ensemble's."""
        titles = {"rmse": "RMSE (lower is better)", "nll": "NLL in nats (lower is better)"}
        return {"members": member_scores.member_scores(section, titles)}

    def curves(self) -> Sequence[Panel]:
        """Training loss, validation NLL and validation RMSE."""
        loss = Panel("train", "loss", "Training loss", "loss (nats)")
        nll = Panel("validation", "nll", "Validation NLL (lower is better)", "NLL (nats)")
        return loss, nll, Panel("validation", "rmse", "Validation RMSE (lower is better)", "RMSE")

    def spread(self, arrays: Arrays) -> tuple[str, np.ndarray]:
        """The standard deviation of the mixture."""
        _, noise, disagreement = MixtureDensity(self, arrays).moments()
        return "standard_deviation", np.sqrt(noise + disagreement)

    # Of an ensemble as a function.

    def average_of_draws(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Of numbers the draws of all chains are one mixture: [C, K, N] to [C * K, N]."""
        return {name: one.reshape(-1, *one.shape[2:]) for name, one in arrays.items()}

    def fit_temperature(self, arrays: Arrays, targets: np.ndarray) -> float:
        """Numbers have no temperature: a `UserError`."""
        raise UserError("a temperature is fitted to probabilities of classes, not to densities")

    def abstention_terms(self, arrays: Arrays, targets: np.ndarray) -> Any:
        """Numbers are neither right nor wrong: a `ValueError`."""
        raise ValueError("classes are right or wrong; of numbers, look at the width of intervals")

    def prediction(self, arrays: Arrays, temperature: Any, threshold: Any = 1) -> NumberPrediction:
        """What an ensemble says of N inputs."""
        mixture = MixtureDensity(self, arrays)
        mean, noise, disagreement = mixture.moments()
        deviation, levels = np.sqrt(noise + disagreement), np.array(LEVELS)
        quantiles = mixture.quantiles(levels).T
        return NumberPrediction(
            mean, deviation, quantiles, noise, disagreement, levels, members=arrays
        )

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

    def exported(
        self, predicted: Mapping[str, Any], temperature: float | None, threshold: float = 1.0
    ) -> dict[str, jax.Array]:
        """The same as JAX arrays by name; the members' parameters are `member_NAME` [M, N]."""
        loc, scale = predicted[LOC], predicted[SCALE]
        mean = loc.mean(axis=0)
        noise = (self.standard_variance(predicted) * scale**2).mean(axis=0)
        disagreement = jnp.square(loc - mean).mean(axis=0)

        def quantile(level: float) -> jax.Array:
            def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                middle = (ends[0] + ends[1]) / 2
                cdf = self.cdf(predicted, middle, jnp, jax.scipy.special).mean(axis=0)
                is_below = cdf < level
                return jnp.where(is_below, middle, ends[0]), jnp.where(is_below, ends[1], middle)

            low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, self.bracket(predicted, jnp))
            return (low + high) / 2

        return {
            "mean": mean,
            "standard_deviation": jnp.sqrt(noise + disagreement),
            "quantiles": jnp.stack(
                [(quantile(q - _PLATEAU) + quantile(q + _PLATEAU)) / 2 for q in LEVELS], axis=-1
            ),
            "aleatoric": noise,
            "epistemic": disagreement,
            **{f"member_{name}": one for name, one in predicted.items()},
        }

    # Mixtures.

    def log_density(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log density of targets y in their units; the other arguments as of the standard one."""
        z = (y - parts[LOC]) / parts[SCALE]
        return self.standard_log_density(parts, z, xp, special) - xp.log(parts[SCALE])

    def cdf(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """CDF at y in the target's units; the other arguments as of the standard one."""
        return self.standard_cdf(parts, (y - parts[LOC]) / parts[SCALE], xp, special)

    def bracket(self, parts: Mapping[str, Any], xp: Any) -> tuple[Any, Any]:
        """Values [N] below and above every quantile of `LEVELS` and of the tails."""
        reach = 1e4 * parts[SCALE].max(axis=0)
        return parts[LOC].min(axis=0) - reach, parts[LOC].max(axis=0) + reach
