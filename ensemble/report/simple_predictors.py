"""What any ensemble that predicts numbers should beat: a constant, and least squares."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.errors import UserError
from ensemble.likelihood import Likelihood, view_of_all
from ensemble.scoring.score import scores_of
from ensemble.scoring.sections import OVER, score_split, values_in
from ensemble.scoring.view import View
from ensemble.source import Source, blocks, check_in_memory
from ensemble.target_rows import ERROR, columns, joined, values

MAX_COLUMNS = 2000
"""Of least squares: with more, its equations take longer than the ensemble."""
MAX_PRODUCTS = 1e10
"""Rows times the square of columns, which least squares multiplies, after a training."""
TITLES = {"constant": "baseline", "least_squares": "linear regression"}
"""What they are called, the worst first."""
EXCESS_LEVEL = 0.975
"""Of two intervals, which then hold both differences with 95% confidence (Bonferroni)."""


def score_simple(
    likelihood: Likelihood,
    source: Source,
    split: str,
    view: View,
    *,
    target: int | None = None,
    groups: NDArray | None = None,
    max_products: float = math.inf,
) -> dict[str, Any]:
    """Scores what any ensemble that predicts numbers should beat.

    Args:
        likelihood: of the run; of one of several targets, that of this one.
        source: of the run.
        split: that is scored.
        view: what the ensemble says of it.
        target: the number of this target; None: all that there are.
        groups: of the rows [N], where those of one may be alike.
        max_products: rows times the square of columns above which there is no least squares.

    Returns:
        `constant`, which looks at no input, and `least_squares`, a line through all of the training
        examples with Gaussian noise. Of each `scores`, by name `value` and `interval`, as of
        `score_split`, and `excess_interval`, paired, of its headline score less the ensemble's, of
        `EXCESS_LEVEL`, over groups if there are any, None where it is not known; or the `reason`
        why there are none.
    """
    targets = without_errors(targets_of(source, split, target))

    def scored(said: Any) -> dict[str, Any]:
        simple, headline = view_of_all(said, targets), likelihood.headline[0]
        section = score_split(simple)
        found: dict[str, Any] = {
            "scores": {
                name: {key: one[key] for key in ("value", "interval")}
                for name, one in section["scores"].items()
                if "members" in one and has_score(view.measure, simple, name)
            },
            "interval_over": OVER,
        }
        if score := scores_of(simple).get(headline):
            found["excess_interval"] = {headline: score.change(view, simple, EXCESS_LEVEL, groups)}
        return found

    found = {"constant": scored(likelihood.constant(targets_of(source, "train", target)).plain)}
    try:
        if source.sizes["train"] * np.prod(source.input_shape, dtype=float) ** 2 > max_products:
            raise UserError("not available: it would take long; an evaluation has it")
        means, deviation = least_squares(source, split, target)
    except UserError as error:
        return {**found, "least_squares": {"reason": f"{error}"}}
    said = likelihood.normal(means, np.broadcast_to(deviation, means.shape))
    return {**found, "least_squares": scored(said)}


def targets_of(source: Source, split: str, target: int | None) -> NDArray:
    """The targets of a split: [N] of one of several, or all that there are."""
    found = source.targets(split)
    return found if target is None else found[:, target]


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


def least_squares(
    source: Source, split: str = "test", target: int | None = None
) -> tuple[NDArray, Any]:
    """Predicts a split by least squares, with an intercept.

    The residuals' variance is divided by the degrees of freedom that are left.

    Args:
        source: whose training split is fitted.
        split: that is predicted.
        target: as of `score_simple`.

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

    targets = values(targets_of(source, "train", target)).astype(np.float64)
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


def rows_of(content: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    """Labels and scores of the rows that a table has of them, the worst first.

    Args:
        content: of report.json or evaluation.json.
    """
    simple = content.get("simple", {})
    return [
        (title, values_in(simple[name]))
        for name, title in TITLES.items()
        if "scores" in simple.get(name, {})
    ]
