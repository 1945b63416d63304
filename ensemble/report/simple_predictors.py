"""What any ensemble that predicts numbers should beat: a constant, and least squares."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.errors import UserError
from ensemble.likelihood import view_of_all
from ensemble.scoring.sections import summary
from ensemble.scoring.view import View
from ensemble.source import Source, blocks, check_in_memory
from ensemble.target_rows import ERROR, columns, joined, values
from ensemble.task import Scored

MAX_COLUMNS = 2000
"""Of least squares: with more, its equations take longer than the ensemble."""
_MAX_PRODUCTS = 1e10
"""Rows times the square of columns, which least squares multiplies, after a training."""


def simple_scores(scored: Scored, split: str) -> dict[str, Any]:
    """Scores of simpler predictors beside an ensemble's.

    Args:
        scored: what predictions are scored by.
        split: that is scored.

    Returns:
        `simple`: by `constant` and, where it can be had, `least_squares`, their scores by name.
        Empty where targets are classes.
    """
    source, likelihood = scored.dataset, scored.likelihood
    if not likelihood.is_of_numbers:
        return {}
    targets, train = without_errors(source.targets(split)), source.targets("train")
    constant = likelihood.constant(train)
    measure = view_of_all(constant.learned or constant.plain, targets).measure

    def scores(said: Any) -> dict[str, Any]:
        view = view_of_all(said, targets)
        found: dict[str, Any] = summary(view)["ensemble"]
        return {name: one for name, one in found.items() if has_score(measure, view, name)}

    found = {"constant": scores(constant.plain)}
    if source.sizes["train"] * np.prod(source.input_shape, dtype=float) ** 2 < _MAX_PRODUCTS:
        try:
            means, residual = least_squares(source, split)
        except UserError:  # Evaluations say why there is none.
            return {"simple": found}
        deviation = np.broadcast_to(residual, means.shape)
        found["least_squares"] = scores(likelihood.normal(means, deviation))
    return {"simple": found}


def without_errors(targets: NDArray) -> NDArray:
    """Targets whose errors are not known: normal distributions of what was measured hold them."""
    return joined({name: one for name, one in columns(targets).items() if name != ERROR})


def has_score(measure: str, view: View, name: str) -> bool:
    """Whether normal distributions have a score that can stand beside a likelihood's.

    Beside probabilities of counts they have no NLL; where targets are censored, whose bounds they
    have learned as if they were values, neither NLL nor coverage.

    Args:
        measure: of what the likelihood says, as `View.measure`.
        view: of normal distributions.
        name: of the score.
    """
    if name.startswith("nll") and measure != view.measure:
        return False
    return bool(view.is_known.all()) or not name.startswith(("nll", "coverage"))


def least_squares(source: Source, split: str = "test") -> tuple[NDArray, Any]:
    """Predicts a split by least squares, with an intercept.

    The residuals' variance is divided by the degrees of freedom that are left.

    Args:
        source: whose training split is fitted.
        split: that is predicted.

    Returns:
        Predictions [N] of the split, and the standard deviation of the residuals; of several
        targets [N, D] and [D].

    Raises:
        UserError: there are too many columns, or too few examples for them.
    """
    num_columns, num_rows = int(np.prod(source.input_shape)), source.sizes["train"]
    if num_columns > MAX_COLUMNS:
        raise UserError(f"not available: of {num_columns:,} columns it would take long")
    check_in_memory(source, "train")
    inputs = np.concatenate([block.inputs for block in blocks(source, "train")])
    rows = inputs.reshape(num_rows, -1).astype(np.float64)
    centre, scale = rows.mean(axis=0), rows.std(axis=0)
    scale[scale == 0] = 1

    def design(inputs: NDArray) -> NDArray:
        standardised = (inputs.reshape(len(inputs), -1) - centre) / scale
        return np.concatenate([np.ones((len(standardised), 1)), standardised], axis=1)

    targets = values(source.targets("train")).astype(np.float64)
    weights, _, rank, _ = np.linalg.lstsq(design(rows), targets, rcond=None)
    freedom = num_rows - int(rank)
    residuals = targets - design(rows) @ weights
    deviation = np.sqrt((residuals**2).sum(axis=0) / max(freedom, 1))
    if freedom < 1 or not np.all(deviation > 1e-9 * targets.std(axis=0)):
        raise UserError(
            f"not available: {num_rows:,} examples of {num_columns:,} columns leave no residuals"
        )
    means = np.concatenate([design(block.inputs) @ weights for block in blocks(source, split)])
    return means, deviation


def rows_of(section: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    """Labels and scores of the rows that a table has of them, the worst first."""
    titles = {"constant": "a constant", "least_squares": "least squares"}
    simple = section.get("simple", {})
    return [(title, simple[name]) for name, title in titles.items() if name in simple]
