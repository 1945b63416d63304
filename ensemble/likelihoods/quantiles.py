"""Quantiles of a number, without a density between them, learned by the pinball loss.

Koenker and Bassett 1978, "Regression quantiles". There is no density, so no NLL, and no posterior.
An ensemble's quantile is the mean of its members' quantiles: as the loss is convex, it is never
worse than theirs in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ensemble.errors import UserError
from ensemble.likelihood import Arrays, Constant, Panel, Reduce, compared, weighted_mean
from ensemble.likelihood_keys import are_levels, parse_levels
from ensemble.likelihoods.number_prediction import cells_of_targets, one_target, quantile_columns
from ensemble.likelihoods.numbers import Numbers
from ensemble.likelihoods.quantile_view import QUANTILES, MeanOfQuantiles
from ensemble.pictures import intervals, member_scores, tabular
from ensemble.pictures.plot_style import plural
from ensemble.scoring.sections import values_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.source import Source


class QuantilePrediction(NamedTuple):
    """What an ensemble says of N inputs, in the target's units.

    Of several targets arrays are [N, D], quantiles [N, D, Q], those of members [M, N, Q, D].

    Attributes:
        median: [N], the mean of the members' medians.
        quantiles: [N, Q], the means of the members' quantiles, at `levels`.
        epistemic: [N], variance of the members' medians: their disagreement.
        levels: [Q], in 0..1, ascending.
        members: `quantile` [M, N, Q] of the members.
    """

    median: np.ndarray
    quantiles: np.ndarray
    epistemic: np.ndarray
    levels: np.ndarray
    members: Mapping[str, np.ndarray]

    @property
    def point(self) -> np.ndarray:
        """[N], what is said where one number is asked for: the median."""
        return self.median

    def first(self, number: int) -> QuantilePrediction:
        """The predictions of the first inputs."""
        rows = {name: getattr(self, name)[:number] for name in ("median", "quantiles", "epistemic")}
        members = {name: one[:, :number] for name, one in self.members.items()}
        return self._replace(**rows, members=members)

    def of_target(self, d: int) -> QuantilePrediction:
        """The prediction of one of several targets."""
        return one_target(self, d)

    def entry(self, i: int) -> dict[str, Any]:
        """Median and quantiles of prediction i, JSON-ready."""
        return {
            "median": self.median[i].tolist(),
            "epistemic": self.epistemic[i].tolist(),
            "quantiles": self.quantiles[i].tolist(),
        }

    def as_columns(self) -> dict[str, np.ndarray]:
        """Medians, their disagreement, and a column for each quantile, [N] each, of one target."""
        found = {"median": self.median, "epistemic": self.epistemic}
        return found | quantile_columns(self.levels, self.quantiles)

    def cells(self, i: int) -> list[tuple[str, str | float]]:
        """Quantiles of prediction i, and how far the members' medians are apart."""
        if self.median.ndim == 2:
            return cells_of_targets(self, i, self.median.shape[1])
        pairs = zip(self.levels, self.quantiles[i], strict=True)
        quantiles = [(f"{100 * level:g}%", value) for level, value in pairs]
        return [*quantiles, ("disagreement sd", math.sqrt(self.epistemic[i]))]

    def __repr__(self) -> str:
        return tabular.preview(self._heading(), len(self.median), self.cells, tabular.NUMBER)

    def _repr_html_(self) -> str:
        return tabular.preview_html(self._heading(), len(self.median), self.cells, tabular.NUMBER)

    def _heading(self) -> str:
        members = plural(len(next(iter(self.members.values()))), "member")
        return f"{plural(len(self.median), 'prediction')} of {members}, in the target's units"


class Quantiles(Numbers):
    """One output for each level: the median, and how far each quantile is from its neighbour.

    Quantiles cannot cross: distances are positive. Where the outputs are 0, the quantiles are those
    of the normal distribution with the training targets' mean and deviation.

    Args:
        shift: mean of the training targets.
        scale: their standard deviation.
        low: their minimum.
        high: their maximum.
        levels: [Q], ascending, one of them 0.5; or the same as text.
    """

    name = "quantiles"
    loss = "pinball"
    has_density = False
    headline = ("pinball", "mae")
    progress = "absolute_error"
    evaluator = "ensemble.evaluation.quantiles.quantile_evaluator:QuantileEvaluator"

    def __init__(
        self, shift: float, scale: float, low: float, high: float, levels: str | Sequence[float]
    ):
        super().__init__(shift, scale, low, high)
        self.levels = parse_levels(levels) if isinstance(levels, str) else tuple(levels)
        self._middle = self.levels.index(0.5)

    @property
    def num_outputs(self) -> int:
        """Q."""
        return len(self.levels)

    @property
    def columns(self) -> Sequence[str]:
        """The scores that the table of a training shows; the interval is the widest central one."""
        found = ["pinball", "mae"]
        for low, high in self.bands[:1]:
            percent = percent_of(self.levels[high] - self.levels[low])
            found += [f"coverage_{percent}", f"width_{percent}"]
        return found

    @property
    def bands(self) -> list[tuple[int, int]]:
        """Positions of the levels q and 1 - q, the widest band first."""
        mirrored = {round(1 - level, 9): j for j, level in enumerate(self.levels)}
        return [
            (i, mirrored[round(level, 9)])
            for i, level in enumerate(self.levels[: self._middle])
            if round(level, 9) in mirrored
        ]

    # From the data, and from what a workdir says of them.

    @classmethod
    def described_settings(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        """The levels."""
        levels = description["levels"]
        if not isinstance(levels, list) or not all(type(one) is float for one in levels):
            raise ValueError("dataset.levels must be numbers")
        if not are_levels(tuple(levels)):
            raise ValueError("dataset.levels must ascend from 0 to 1, with 0.5 among them")
        return {"levels": levels}

    def describe(self) -> dict[str, Any]:
        """Returns how targets are standardised, and the levels, JSON-ready."""
        return {**super().describe(), "levels": list(self.levels)}

    # Pure functions on the devices.

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """Quantiles [B, Q]."""
        outputs, middle = outputs.astype(jnp.float32), self._middle
        gaps = np.diff(scipy.special.ndtri(self.levels))
        starts = jnp.asarray(np.log(np.expm1(gaps)), jnp.float32)
        median = outputs[..., middle : middle + 1]
        below = jax.nn.softplus(outputs[..., :middle] + starts[:middle])
        above = jax.nn.softplus(outputs[..., middle + 1 :] + starts[middle:])
        down = jnp.flip(jnp.cumsum(jnp.flip(below, axis=-1), axis=-1), axis=-1)
        z = jnp.concatenate([median - down, median, median + jnp.cumsum(above, axis=-1)], axis=-1)
        return {QUANTILES: self.shift + self.scale * z}

    def log_prob(self, params: Mapping[str, Any], outputs: jax.Array, targets: Any) -> jax.Array:
        """Minus the pinball loss [B] of standardised targets: what is maximised, no density."""
        return -self._pinball(self.predict(params, outputs)[QUANTILES], targets, jnp) / self.scale

    def example_scores(self, predicted: Mapping[str, Any], targets: Any) -> dict[str, jax.Array]:
        """Pinball loss, and absolute error of the median, [..., B] of one predictor."""
        return self._scores(predicted[QUANTILES], targets)

    def mixture_scores(
        self, predicted: Mapping[str, Any], targets: Any, live: jax.Array, over: Reduce
    ) -> dict[str, jax.Array]:
        """The same [B] of the mean of live members' quantiles."""
        kept = jnp.where(live[:, None, None], predicted[QUANTILES], 0)
        count = over.sum(jnp.sum(live.astype(jnp.float32)))
        return self._scores(over.sum(jnp.sum(kept, axis=0)) / count, targets)

    def _scores(self, quantiles: jax.Array, targets: Any) -> dict[str, jax.Array]:
        median = quantiles[..., self._middle]
        pinball = self._pinball(quantiles, targets, jnp)
        return {"pinball": pinball, "absolute_error": jnp.abs(median - targets)}

    def _pinball(self, quantiles: Any, targets: Any, xp: Any) -> Any:
        """Mean over the levels of the pinball loss, in the target's units."""
        missed, levels = targets[..., None] - quantiles, xp.asarray(self.levels, quantiles.dtype)
        return xp.maximum(levels * missed, (levels - 1) * missed).mean(axis=-1)

    # On the host.

    def check_predictions(self, arrays: Arrays, targets: np.ndarray | None = None) -> None:
        """Checks predictions that were read from a file.

        Raises:
            ValueError: they are no quantiles of these levels, or not finite, or cross.
        """
        if arrays.keys() != {QUANTILES}:
            raise ValueError(f"it has the arrays {', '.join(sorted(arrays))}, not a {QUANTILES}")
        quantiles = arrays[QUANTILES]
        if quantiles.dtype.kind != "f" or quantiles.shape[2:] != (len(self.levels),):
            raise ValueError(f"{QUANTILES} must be floating-point numbers [M, N, Q]")
        if not (np.isfinite(quantiles).all() and (np.diff(quantiles, axis=2) >= 0).all()):
            raise ValueError(f"{QUANTILES} must be finite and ascend")
        if targets is not None and not np.isfinite(targets.astype(np.float64)).all():
            raise ValueError("targets must be finite")

    def view(
        self, arrays: Arrays, targets: Any, member_of: Any = None, weights: Any = None
    ) -> MeanOfQuantiles:
        """What is scored, from predictions [E, N, Q], as of `ensemble.scoring.view.View`."""
        return MeanOfQuantiles(
            levels=np.array(self.levels),
            pairs=self.bands,
            arrays=arrays,
            targets=targets,
            member_of=member_of,
            weights=weights,
        )

    def constant(self, train_targets: np.ndarray) -> Constant:
        """Always answers the quantiles of the training targets."""
        found = np.quantile(np.asarray(train_targets, np.float64), self.levels)
        what = "always answering the quantiles of the training targets"
        ours: Any = self  # It has no draws, and so not all that a likelihood may have.
        return Constant(what, "pinball", (ours, {QUANTILES: found[None, None]}))

    def normal(self, mean: Any, deviation: Any) -> tuple[Any, Arrays]:
        """This likelihood, and the quantiles of normal distributions."""
        mean, deviation = (np.reshape(one, (1, -1, 1)) for one in (mean, deviation))
        return self, {QUANTILES: mean + deviation * scipy.special.ndtri(self.levels)}

    def sentence(self, section: Mapping[str, Any], split: str, num_members: int) -> str:
        """Says in one line what the ensemble brings over its average member."""
        scores, mean = values_in(section), values_in(section, "mean")
        text = f"has a pinball loss of {scores['pinball']:.4g} on the {split} split"
        if num_members == 1:
            text = f"One member {text}"
        else:
            than = f"{compared(scores['pinball'], mean['pinball'])} than its average member"
            text = f"The ensemble of {num_members} {text}, {than}"
        for i, j in self.bands[:1]:
            percent = percent_of(self.levels[j] - self.levels[i])
            held = 100 * scores[f"coverage_{percent}"]
            text += f"; its {percent}% intervals cover {held:.0f}% of the targets"
        return f"{text}."

    def figures(self, arrays: Arrays, source: Source, split: str, title: str) -> dict[str, Figure]:
        """Draws predictions against targets, and how many targets lie below each quantile."""
        quantiles = np.asarray(arrays[QUANTILES], np.float64).mean(axis=0)
        targets = source.targets(split)
        shares = np.mean(targets[:, None] <= quantiles, axis=0)
        asked = f"{title}: do quantiles hold what they say?"
        found = {"calibration": intervals.quantile_curve(self.levels, shares, len(targets), asked)}
        for i, j in self.bands[:1]:
            percent = percent_of(self.levels[j] - self.levels[i])
            middle, low, high = (quantiles[:, k] for k in (self._middle, i, j))
            found["predictions"] = intervals.predictions(middle, low, high, targets, title, percent)
        return found

    def final_figures(
        self, arrays: Arrays, targets: np.ndarray, section: Mapping[str, Any]
    ) -> dict[str, Figure]:
        """Draws the members' scores beside the ensemble's."""
        titles = {"pinball": "pinball loss (lower is better)", "mae": "MAE (lower is better)"}
        return {"members": member_scores.member_scores(section, titles)}

    def curves(self) -> Sequence[Panel]:
        """Training loss, validation pinball loss and validation MAE."""
        loss = Panel("train", "loss", "Training loss", "loss of standardised targets")
        title = "Validation pinball loss (lower is better)"
        pinball = Panel("validation", "pinball", title, "pinball loss")
        return loss, pinball, Panel("validation", "mae", "Validation MAE (lower is better)", "MAE")

    def spread(self, arrays: Arrays) -> tuple[str, np.ndarray]:
        """The distance between the outermost quantiles."""
        quantiles = arrays[QUANTILES].mean(axis=0)
        return "width", quantiles[:, -1] - quantiles[:, 0]

    # Of an ensemble as a function.

    def prediction(
        self, arrays: Arrays, temperature: Any, threshold: Any = 1, weights: Any = None
    ) -> Any:
        """What an ensemble says of N inputs: a `QuantilePrediction`."""
        found = _averaged(arrays[QUANTILES].astype(np.float64), self._middle, weights)
        return QuantilePrediction(**found, levels=np.array(self.levels), members=arrays)

    def quantiles_at(self, arrays: Arrays, levels: np.ndarray, weights: Any = None) -> np.ndarray:
        """Quantiles [N, Q] at levels that were learned, of the weighted members.

        Raises:
            UserError: one was not.
        """
        places = [int(np.argmin(np.abs(np.array(self.levels) - level))) for level in levels]
        for place, level in zip(places, levels, strict=True):
            if not math.isclose(self.levels[place], level):
                raise UserError(
                    f"the level {level:g} was not learned, but {', '.join(map(str, self.levels))}; "
                    "ask for these, or set config.quantiles.levels"
                )
        found: np.ndarray = np.average(
            arrays[QUANTILES].astype(np.float64), axis=0, weights=weights
        )
        return found[:, places]

    def uncertainty(self, prediction: QuantilePrediction) -> np.ndarray:
        """The distance [N] between the outermost quantiles."""
        return prediction.quantiles[:, -1] - prediction.quantiles[:, 0]

    def entry(self, prediction: QuantilePrediction, i: int) -> dict[str, Any]:
        """Median and quantiles of prediction i, JSON-ready."""
        return prediction.entry(i)

    def legend(self) -> dict[str, Any]:
        """The levels of the quantiles."""
        return {"levels": list(self.levels)}

    def cells(self, prediction: QuantilePrediction, i: int) -> list[tuple[str, str | float]]:
        """Quantiles of prediction i."""
        return prediction.cells(i)

    def as_columns(self, prediction: QuantilePrediction) -> dict[str, np.ndarray]:
        """Medians, their disagreement, and a column for each quantile."""
        return prediction.as_columns()

    def exported(
        self,
        predicted: Mapping[str, Any],
        temperature: float | None,
        threshold: float = 1.0,
        weights: Any = None,
    ) -> dict[str, jax.Array]:
        """The same as JAX arrays by name; the members' quantiles are `member_quantile`."""
        found = _averaged(predicted[QUANTILES], self._middle, weights)
        return {**found, f"member_{QUANTILES}": predicted[QUANTILES]}


def _averaged(members: Any, middle: int, weights: Any) -> dict[str, Any]:
    """What follows from members' quantiles [M, N, Q], of weights [M]."""
    quantiles = weighted_mean(members, weights)
    squares = (members[..., middle] - quantiles[:, middle]) ** 2
    return {
        "median": quantiles[:, middle],
        "quantiles": quantiles,
        "epistemic": weighted_mean(squares, weights),
    }


def percent_of(level: float) -> str:
    """How much a band is to hold, as names of scores have it."""
    return f"{100 * level:.4g}"
