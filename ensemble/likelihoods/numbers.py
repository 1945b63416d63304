"""The base of all likelihoods of a number, which a network sees standardised.

What a subclass predicts, and how that is scored, is its own; `parametric.py` has what those share
whose outputs are the parameters of a distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from ensemble.errors import UserError
from ensemble.likelihood import Arrays, Constant, Panel
from ensemble.pictures import member_scores
from ensemble.target_rows import values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALLEST, LARGEST = 1e-15, 1e15
"""Limits of targets and of their spread: the squares of what is beyond would leave float32."""
_MIN_SPREAD = 1e-3  # Relative to the targets' size: float32 has seven digits.


class Numbers:
    """Targets are numbers, which a network sees standardised.

    Args:
        shift: mean of the training targets.
        scale: their standard deviation.
        low: their minimum.
        high: their maximum.
    """

    name: str
    loss = "nll"
    has_density = True
    takes_logits = False
    is_of_numbers = True
    num_targets = 1
    is_of_counts = False
    can_be_censored: bool = False
    can_have_errors: bool = False
    annotations: tuple[str, ...] = ()
    """On training targets, of `ensemble.target_rows`."""
    why_not_evaluated = ""
    evaluator = "ensemble.evaluation.numbers.number_evaluator:NumberEvaluator"

    def __init__(self, shift: float, scale: float, low: float, high: float):
        self.shift, self.scale, self.low, self.high = shift, scale, low, high

    # From the data, and from what a workdir says of them.

    @classmethod
    def of_data(cls, targets: np.ndarray, class_names: Sequence[str], **settings: Any) -> Self:
        """Makes the likelihood of training targets [N].

        Args:
            targets: of the training examples.
            class_names: empty.
            **settings: of a subclass that has keys in the configuration.

        Raises:
            UserError: the targets are classes, or all alike, or not finite, or none of this kind.
        """
        if class_names:
            raise UserError(
                f"config.likelihood={cls.name!r} is for numbers, and the targets are the classes "
                f"{', '.join(class_names[:3])}...: set config.likelihood='categorical'"
            )
        cls.check_targets(values(targets), "train")
        return cls(*cls.standardisation(values(targets)), **settings)

    @classmethod
    def check_targets(cls, targets: np.ndarray, split: str) -> None:
        """Checks targets [N] of any split; any finite numbers can be targets.

        Raises:
            UserError: of subclasses whose targets are of one kind: some are of another.
        """

    @classmethod
    def standardisation(cls, targets: np.ndarray) -> tuple[float, float, float, float]:
        """Shift, scale, least and largest value of training targets [N]."""
        return target_range(targets)

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> Self:
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
        return cls(shift, scale, low, high, **cls.described_settings(description))

    @classmethod
    def described_settings(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of `of_data` that a subclass has put into its description.

        Raises:
            ValueError: the description is damaged or forged.
        """
        return {}

    def describe(self) -> dict[str, Any]:
        """Returns how targets are standardised, JSON-ready."""
        return {
            "target_shift": self.shift,
            "target_scale": self.scale,
            "target_low": self.low,
            "target_high": self.high,
            **({"target_remarks": list(self.annotations)} if self.annotations else {}),
        }

    # Of annotations on targets, as functions of arrays of NumPy or of JAX.

    def log_survival(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log probability of y or more, in the target's units, of those that `can_be_censored`."""
        raise NotImplementedError

    def with_error(self, parts: Mapping[str, Any], error: Any) -> Mapping[str, Any]:
        """Parameters of the sum with a Gaussian error, of those that `can_have_errors`.

        Args:
            parts: of `predict`.
            error: standard deviation, in the target's units.
        """
        raise NotImplementedError

    # On the devices.

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """No parameters beside the network's, unless a subclass has some."""
        return {}

    # On the host.

    def pooled(self, arrays: Arrays, counts: np.ndarray) -> tuple[Arrays, np.ndarray]:
        """The same: no single distribution stands for a mixture of several."""
        return arrays, counts

    def constant(self, train_targets: np.ndarray) -> Constant:
        """Always answers the normal distribution of the training targets."""
        learned = np.asarray(values(train_targets), np.float64)
        what = f"always answering the mean {learned.mean():.4g}"
        return Constant(what, "rmse", self.normal(learned.mean(), learned.std()))

    def normal(self, mean: Any, deviation: Any) -> tuple[Any, Arrays]:
        """A likelihood, and what one member predicts by it that says a normal distribution.

        Args:
            mean: [N], or one of all examples.
            deviation: likewise.
        """
        from ensemble.likelihoods.gaussian import Gaussian  # It is one of these itself.

        parts = {"loc": mean, "scale": deviation}
        arrays = {name: np.asarray(one, np.float64).reshape(1, -1) for name, one in parts.items()}
        return Gaussian(self.shift, self.scale, self.low, self.high), arrays

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


def target_range(targets: np.ndarray) -> tuple[float, float, float, float]:
    """Mean, standard deviation, least and largest value of training targets [N].

    Raises:
        UserError: there is one target, they are all alike, or too large, small or near each other.
    """
    values = np.asarray(targets, np.float64)
    if len(values) < 2:
        raise UserError("there is one sample to learn from; a spread needs two or more")
    spread, largest = float(values.std()), float(np.abs(values).max())
    if not np.isfinite(spread) or spread == 0:
        raise UserError(
            f"the training targets have the standard deviation {spread:g}; it must be positive and "
            "finite: give targets that differ"
        )
    if not SMALLEST < spread <= largest < LARGEST:
        raise UserError(
            f"the training targets have the standard deviation {spread:g} and values up to "
            f"{largest:g}; both must be within {SMALLEST:g} and {LARGEST:g}: give them in other "
            "units"
        )
    if spread < _MIN_SPREAD * largest:
        raise UserError(
            f"the training targets are near {values.mean():g} and differ by only {spread:g}, which "
            "float32 cannot resolve well: subtract a constant from them"
        )
    return float(values.mean()), spread, float(values.min()), float(values.max())
