"""What any ensemble that predicts numbers should beat: a constant, least squares, a past value."""

import functools
import math
from collections.abc import Callable, Mapping
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
"""The most columns of least squares: with more, its equations take longer than the ensemble."""
MAX_PRODUCTS = 1e10
"""Rows times the square of columns, which least squares multiplies, after a training."""
TITLES = {
    "constant": "baseline",
    "least_squares": "linear regression",
    "last_value": "last value",
    "last_season": "last season",
}
"""What they are called, the worst first; the last two are for rows that are split by time."""
EXCESS_LEVEL = 0.975
"""The level of two intervals, which then hold both differences with 95% confidence (Bonferroni)."""


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
        examples with Gaussian noise; of rows that are split by time, also those of `Strata.lags`,
        which `past_values` predicts. Of each `scores`, by name `value` and `interval`, as of
        `score_split`, and `excess_interval`, paired, of its headline score less the ensemble's, of
        `EXCESS_LEVEL` or, of more than two, so that all hold together with the same confidence,
        over groups if there are any, None where it is not known; or the `reason` why there are
        none.
    """
    strata = source.strata(split)
    lags = {} if strata is None else strata.lags
    level = 1 - 2 * (1 - EXCESS_LEVEL) / (2 + len(lags)) if lags else EXCESS_LEVEL
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
            found["excess_interval"] = {headline: score.change(view, simple, level, groups)}
        return found

    def of_normal(predict: Callable[[], tuple[NDArray, Any]]) -> dict[str, Any]:
        try:
            means, deviation = predict()
        except UserError as error:
            return {"reason": f"{error}"}
        return scored(likelihood.normal(means, np.broadcast_to(deviation, means.shape)))

    def regress() -> tuple[NDArray, Any]:
        if source.sizes["train"] * np.prod(source.input_shape, dtype=float) ** 2 > max_products:
            raise UserError("not available: it would take long; an evaluation has it")
        return least_squares(source, split, target)

    return {
        "constant": scored(likelihood.constant(targets_of(source, "train", target)).plain),
        "least_squares": of_normal(regress),
        **{
            name: of_normal(functools.partial(past_values, source, split, lag, target))
            for name, lag in lags.items()
        },
    }


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


def past_values(
    source: Source, split: str, lag: int, target: int | None = None
) -> tuple[NDArray, Any]:
    """Predicts each row of a split by the target some rows before, in the order of time.

    These may be rows of the same split: it is the forecast of one step, or of one season.

    Args:
        source: whose rows are split by time.
        split: that is predicted.
        lag: how many rows before.
        target: as of `score_simple`.

    Returns:
        Predictions [N] of the split, and the root of the mean square of what they miss by in
        training rows; of several targets [N, D] and [D].

    Raises:
        UserError: rows share a time, so that they have no order, or there are too few of them.
    """
    strata = {name: source.strata(name) for name in source.sizes}
    times = np.concatenate([one.values for one in strata.values() if one is not None])
    if len(np.unique(times)) < len(times):
        raise UserError("not available: several rows have the same time, and so no order")
    order = np.argsort(times)
    names = np.repeat([*source.sizes], [*source.sizes.values()])
    all_targets = [values(targets_of(source, name, target)) for name in source.sizes]
    in_order = np.concatenate(all_targets).astype(np.float64)[order]
    past = np.full_like(in_order, np.nan)
    past[lag:] = in_order[:-lag]
    is_learned = names[order] == "train"
    is_learned[lag:] &= is_learned[:-lag].copy()
    is_learned[:lag] = False
    misses = (in_order - past)[is_learned]
    means = np.empty_like(past)
    means[order] = past
    means = means[names == split]
    if not np.isfinite(means).all() or not len(misses):
        raise UserError(f"not available: some rows have none {lag} rows before them")
    deviation = np.sqrt((misses**2).mean(axis=0))
    if not np.all(deviation > 1e-9 * np.abs(in_order).max(axis=0)):
        raise UserError(f"not available: values {lag} rows before leave no residuals")
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
