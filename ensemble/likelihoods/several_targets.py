"""Several targets of an example, independent of each other given the inputs.

Each target has a likelihood of its own, all of one kind, which knows nothing of the others: its
outputs, its standardisation, its scores. Arrays have the targets as their last axis. Only the NLL
is of all targets together: members multiply the densities of the targets, and the ensemble is the
mixture of these products, in which members that are right about one target count more for others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.errors import UserError
from ensemble.likelihood import (
    Arrays,
    Constant,
    Likelihood,
    Panel,
    Reduce,
    mixture_log_density,
)
from ensemble.likelihoods.number_prediction import join_targets
from ensemble.likelihoods.several_view import Product, SideBySide, of_target
from ensemble.scoring.score import named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.source import Source

TARGETS = "targets"
"""The entry of a description, and of a report's scores, that has one for each target."""
_MAX_DRAWN = 4  # Targets whose pictures are drawn.
_MAX_TARGETS = 1000
_SUMMED = ("nll", "nll_by_moments")


class SeveralTargets:
    """D likelihoods of one kind side by side.

    Args:
        of: the likelihoods of the targets.
    """

    takes_logits = False
    why_not_evaluated = ""
    evaluator = "ensemble.evaluation.several_evaluator:SeveralEvaluator"

    def __init__(self, of: Sequence[Likelihood]):
        self.of, first = tuple(of), of[0]
        self._first: Any = first
        self.name, self.num_targets = first.name, len(of)
        self.num_outputs = len(of) * first.num_outputs
        self.has_density, self.loss = first.has_density, first.loss
        self.columns, self.headline, self.progress = first.columns, first.headline, first.progress
        if first.has_density:  # And so draws.
            self.draw_scores, self.traced = first.draw_scores, first.traced
        self.is_of_numbers = first.is_of_numbers
        self.needs_teacher = getattr(first, "needs_teacher", False)

    # From the data, and from what a workdir says of them.

    @classmethod
    def of_data(
        cls,
        kind: type[Likelihood],
        targets: np.ndarray,
        class_names: Sequence[str],
        **settings: Any,
    ) -> SeveralTargets:
        """Makes the likelihoods of training targets [N, D].

        Args:
            kind: of likelihood.
            targets: of the training examples.
            class_names: of the data set.
            **settings: of the kind.

        Raises:
            UserError: one of the targets is none that this kind can have.
        """
        if targets.shape[1] > _MAX_TARGETS:
            raise UserError(
                f"targets have shape {targets.shape}; there can be {_MAX_TARGETS} for each "
                "example: give [N, D], an example in each row"
            )
        found = []
        for d, column in enumerate(targets.T):
            try:
                found.append(kind.of_data(column, class_names, **settings))
            except UserError as error:
                raise UserError(f"target {d} of {targets.shape[1]}: {error}") from None
        return cls(found)

    @classmethod
    def described(cls, kind: type[Likelihood], description: Mapping[str, Any]) -> SeveralTargets:
        """The inverse of `describe`.

        Raises:
            ValueError: the description is damaged or forged.
        """
        entries = description[TARGETS]
        if not isinstance(entries, list) or not 0 < len(entries) <= _MAX_TARGETS:
            raise ValueError(f"dataset.{TARGETS} must be a list, of one target or more")
        if not all(isinstance(one, dict) for one in entries):
            raise ValueError(f"dataset.{TARGETS} must describe targets")
        return cls([kind.described({**description, **one}) for one in entries])

    def describe(self) -> dict[str, Any]:
        """Returns how each target is standardised, JSON-ready."""
        return {TARGETS: [one.describe() for one in self.of]}

    def _each(self, function: Callable[[Any, int], Any], axis: int = -1) -> dict[str, Any]:
        """What a function says of every target, a dict of arrays, with an axis of the targets."""
        found = [function(one, d) for d, one in enumerate(self.of)]
        stack = jnp.stack if isinstance(next(iter(found[0].values())), jax.Array) else np.stack
        return {name: stack([one[name] for one in found], axis) for name in found[0]}

    # Pure functions on the devices.

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """The likelihoods' own parameters [D, ...]."""
        keys = jax.random.split(rng_key, self.num_targets)
        if not self._first.init(rng_key):
            return {}
        return self._each(lambda one, d: one.init(keys[d]), axis=0)

    def log_prob(self, params: Mapping[str, Any], outputs: jax.Array, targets: Any) -> jax.Array:
        """Log density [B] of all targets [B, D] of an example, nats."""
        return jnp.sum(
            jnp.stack(
                [
                    one.log_prob(*self._inputs_of(params, outputs, d), targets[..., d])
                    for d, one in enumerate(self.of)
                ]
            ),
            axis=0,
        )

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """The predictive distribution of every target: named arrays [B, ..., D] float32."""
        return self._each(lambda one, d: one.predict(*self._inputs_of(params, outputs, d)))

    def tempered(self, predicted: Mapping[str, Any], factor: Any) -> dict[str, Any]:
        """One member's distributions of all targets, as wide times a factor."""
        return self._each(lambda one, d: one.tempered(of_target(predicted, d), factor))

    def _inputs_of(self, params: Mapping[str, Any], outputs: jax.Array, d: int) -> tuple[Any, Any]:
        """The own parameters and the outputs [B, K] of target d, from [B, D * K]."""
        size = self._first.num_outputs
        own = jax.tree.map(lambda leaf: leaf[d], dict(params))
        return own, outputs[..., d * size : (d + 1) * size]

    def example_scores(self, predicted: Mapping[str, Any], targets: Any) -> dict[str, jax.Array]:
        """Scores [..., B] of one predictor: the NLL of all targets, else the mean over them."""
        return self._over_targets(
            self._each(lambda one, d: one.example_scores(of_target(predicted, d), targets[..., d]))
        )

    def mixture_scores(
        self, predicted: Mapping[str, Any], targets: Any, live: jax.Array, over: Reduce
    ) -> dict[str, jax.Array]:
        """Scores [B] of the mixture over live members: the NLL of all targets, else the mean."""
        found = self._over_targets(
            self._each(
                lambda one, d: one.mixture_scores(
                    of_target(predicted, d), targets[..., d], live, over
                )
            )
        )
        if "nll" in found:
            log_density = -self.example_scores(predicted, targets)["nll"]
            found["nll"] = -mixture_log_density(log_density, live, over)
        return found

    def _over_targets(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Scores [..., D] by name as one of all targets."""
        return {
            name: one.sum(axis=-1) if name in _SUMMED else one.mean(axis=-1)
            for name, one in scores.items()
        }

    # On the host.

    def pooled(self, arrays: Arrays, counts: np.ndarray) -> tuple[Arrays, np.ndarray]:
        """Pools draws as for one target."""
        return self._first.pooled(arrays, counts)

    def check_predictions(self, arrays: Arrays, targets: np.ndarray | None = None) -> None:
        """Checks predictions that were read from a file.

        Raises:
            ValueError: they are no predictions [M, N, ..., D], or not of these targets [N, D].
        """
        if targets is not None and targets.shape[1:] != (self.num_targets,):
            raise ValueError(f"targets {targets.shape} must be [N, {self.num_targets}]")
        for name, one in arrays.items():
            if one.ndim < 3 or one.shape[-1] != self.num_targets:
                raise ValueError(f"{name} {one.shape} must be [M, N, ..., {self.num_targets}]")
        for d, likelihood in enumerate(self.of):
            likelihood.check_predictions(
                of_target(arrays, d), None if targets is None else targets[:, d]
            )

    def view(
        self, arrays: Arrays, targets: Any, member_of: Any = None, weights: Any = None
    ) -> SideBySide:
        """What is scored, from predictions [E, N, ..., D], as of `ensemble.scoring.view.View`."""
        kind = Product if self.has_density else SideBySide
        return kind(
            of=self.of, arrays=arrays, targets=targets, member_of=member_of, weights=weights
        )

    def constant(self, train_targets: np.ndarray) -> Constant:
        """Always answers what the constant of each target does."""
        found = [one.constant(train_targets[:, d]) for d, one in enumerate(self.of)]
        what = f"always answering a constant for each of the {self.num_targets} targets"
        plain = self._side_by_side([one.plain for one in found])
        learned = self._side_by_side([one.learned or one.plain for one in found])
        return Constant(what, found[0].score, plain, learned)

    def normal(self, mean: Any, deviation: Any) -> tuple[Any, Arrays]:
        """Normal distributions [N, D] of the targets, independent of each other."""
        of: Any = self.of
        columns = zip(np.asarray(mean).T, np.asarray(deviation).T, of, strict=True)
        return self._side_by_side([one.normal(*pair) for *pair, one in columns])

    def _side_by_side(self, found: Sequence[tuple[Any, Arrays]]) -> tuple[Any, Arrays]:
        """What members say of each target, as of all: arrays [..., D]."""
        arrays = {name: np.stack([one[name] for _, one in found], -1) for name in found[0][1]}
        return SeveralTargets([one for one, _ in found]), arrays

    def sentence(self, section: Mapping[str, Any], split: str, num_members: int) -> str:
        """Says in one line what the ensemble brings over its average member, in the mean target."""
        said = self._first.sentence(section, split, num_members)
        return f"{said} {self._by_target(section)}"

    def posterior_sentence(
        self, section: Mapping[str, Any], average_draw: Mapping[str, float], split: str
    ) -> str:
        """Says in one line what averaging draws brings over a single draw, in the mean target."""
        said = self._first.posterior_sentence(section, average_draw, split)
        return f"{said} {self._by_target(section)}"

    def _by_target(self, section: Mapping[str, Any]) -> str:
        score = self.headline[0]
        first = [one["scores"][score]["value"] for one in section[TARGETS][:_MAX_DRAWN]]
        shown = ", ".join(f"{value:.4g}" for value in first)
        rest = ", ..." if self.num_targets > _MAX_DRAWN else ""
        title = named(score).title
        return f"All but the NLL are means over {self.num_targets} targets ({title} {shown}{rest})."

    def figures(self, arrays: Arrays, source: Source, split: str, title: str) -> dict[str, Figure]:
        """Draws the pictures of the first targets."""
        drawn: dict[str, Figure] = {}
        for d, one in enumerate(self.of[:_MAX_DRAWN]):
            column: Any = _Column(source, d)
            found = one.figures(of_target(arrays, d), column, split, f"{title}, target {d}")
            drawn |= {f"{name}_{d}": figure for name, figure in found.items()}
        return drawn

    def final_figures(
        self, arrays: Arrays, targets: np.ndarray, section: Mapping[str, Any]
    ) -> dict[str, Figure]:
        """Draws the members' scores beside the ensemble's."""
        return self._first.final_figures(of_target(arrays, 0), targets[:, 0], section)

    def curves(self) -> Sequence[Panel]:
        """The panels of one target's learning curves."""
        return self._first.curves()

    def spread(self, arrays: Arrays) -> tuple[str, np.ndarray]:
        """The mean over targets of the uncertainty, in units of the targets' deviations."""
        found = [one.spread(of_target(arrays, d)) for d, one in enumerate(self.of)]
        return found[0][0], self._standardised_mean([values for _, values in found])

    def _standardised_mean(self, values: Sequence[np.ndarray]) -> np.ndarray:
        likelihoods: Any = self.of
        scaled = [one / own.scale for one, own in zip(values, likelihoods, strict=True)]
        return np.mean(scaled, axis=0)

    # Of an ensemble as a function.

    def prediction(
        self,
        arrays: Arrays,
        temperature: float | None,
        threshold: float = 1.0,
        weights: Any = None,
    ) -> Any:
        """What an ensemble says of the D targets of N inputs."""
        found = [
            one.prediction(of_target(arrays, d), None, weights=weights)
            for d, one in enumerate(self.of)
        ]
        return join_targets(found, arrays)

    def quantiles_at(self, arrays: Arrays, levels: np.ndarray, weights: Any = None) -> np.ndarray:
        """Quantiles [N, D, Q] of each target, as of one."""
        of_each: Any = self.of  # Of numbers.
        found = [
            one.quantiles_at(of_target(arrays, d), levels, weights) for d, one in enumerate(of_each)
        ]
        return np.stack(found, axis=1)

    def uncertainty(self, prediction: Any) -> np.ndarray:
        """The mean over targets [N] of what one is sorted by, in units of their deviations."""
        return self._standardised_mean(
            [one.uncertainty(prediction.of_target(d)) for d, one in enumerate(self.of)]
        )

    def entry(self, prediction: Any, i: int) -> dict[str, Any]:
        """Prediction i, with a list of D numbers for each that one target has."""
        return prediction.entry(i)

    def legend(self) -> dict[str, Any]:
        """The legend of one target."""
        return self._first.legend()

    def cells(self, prediction: Any, i: int) -> list[tuple[str, str | float]]:
        """Prediction i as a row: the columns of every target."""
        return prediction.cells(i)

    def as_columns(self, prediction: Any) -> dict[str, np.ndarray]:
        """The columns of every target, whose names begin with `target_` and its number."""
        return {
            f"target_{d}_{name}": values
            for d, one in enumerate(self.of)
            for name, values in one.as_columns(prediction.of_target(d)).items()
        }

    def exported(
        self,
        predicted: Mapping[str, Any],
        temperature: float | None,
        threshold: float = 1.0,
        weights: Any = None,
    ) -> dict[str, jax.Array]:
        """The same as JAX arrays by name: [N, D, ...], and `member_NAME` [M, N, ..., D]."""
        found = self._each(
            lambda one, d: one.exported(of_target(predicted, d), None, weights=weights)
        )
        return {
            name: one if name.startswith("member_") else jnp.moveaxis(one, -1, 1)
            for name, one in found.items()
        }


class _Column:
    """A source that has one of several targets."""

    def __init__(self, source: Source, d: int):
        self._source, self._d = source, d

    def targets(self, split: str) -> np.ndarray:
        """Targets [N] of a split."""
        return self._source.targets(split)[:, self._d]
