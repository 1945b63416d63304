"""Scores of predicted numbers on the test split, and of simpler predictors beside them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from ensemble.errors import UserError
from ensemble.evaluation.numbers.number_intervals import (
    OVER,
    intervals,
    of_rank_correlation,
    of_rmse_difference,
)
from ensemble.likelihood import NumberDistribution, NumberLikelihood
from ensemble.metrics import regression
from ensemble.metrics.number_calibration import pit_uniformity
from ensemble.source import Source, blocks, check_in_memory
from ensemble.storage.predictions import StoredPredictions

MAX_COLUMNS = 2000
"""Of least squares: with more, its equations take longer than the ensemble."""
NUM_BINS = 10
"""Of examples by their predicted uncertainty."""
NUM_LISTED = 10
MAX_SHOWN = 12
"""Columns of an example that are shown."""
EXCESS_LEVEL = 0.975
"""Of two intervals, which then hold both differences with 95% confidence (Bonferroni)."""

Terms = Mapping[str, NDArray]


def score_predictions(likelihood: NumberLikelihood, test: StoredPredictions) -> dict[str, Any]:
    """Scores the ensemble, with 95% intervals, and every member.

    Args:
        likelihood: of the run.
        test: predictions of the live members.

    Returns:
        `num_examples`; `ensemble`: scores by name, with `aleatoric`, `epistemic` and `total`, the
        mean variances in the targets' units, squared; `interval`: (low, high) by the same names, or
        None, as `number_intervals.intervals` says, and `interval_over`, what they are over;
        `members`: a list [M] by score; `mean` and `sd` of the members by score; `pit`, as
        `metrics.number_calibration.pit_uniformity` says; `distinct_targets`, how many there are.
    """
    summary = likelihood.summarise(test.arrays, test.targets)
    distribution = likelihood.distribution(test.arrays)
    terms = {**distribution.terms(test.targets), **variances(distribution)}
    members = summary["members"]
    spread = 1 if len(test.members) > 1 else 0  # Degrees of freedom that the mean takes.
    return {
        "num_examples": len(test.targets),
        "distinct_targets": len(np.unique(test.targets)),
        "ensemble": {**summary["ensemble"], **summary["diversity"]},
        "interval": intervals(terms),
        "interval_over": OVER,
        "members": members,
        "mean": {name: float(np.mean(values)) for name, values in members.items()},
        "sd": {name: float(np.std(values, ddof=spread)) for name, values in members.items()},
        "pit": pit_uniformity(distribution.pit(test.targets)),
    }


def variances(distribution: NumberDistribution) -> dict[str, NDArray]:
    """The members' noise, their disagreement, and the sum, [N] in squared units of the targets."""
    _, noise, disagreement = distribution.moments()
    return {"aleatoric": noise, "epistemic": disagreement, "total": noise + disagreement}


def score_simple(
    likelihood: NumberLikelihood, test: StoredPredictions, source: Source | None, why_no_data: str
) -> dict[str, Any]:
    """Scores what any ensemble should beat, on the test split.

    Args:
        likelihood: of the run.
        test: predictions of the live members.
        source: of the run; None where it cannot be had.
        why_no_data: then.

    Returns:
        `constant`: the normal distribution of the training targets, whatever the inputs are;
        `least_squares`: a line through all of the training examples, with the residuals' standard
        deviation. Of each `ensemble` scores and their `interval`, and `excess_interval`, paired, of
        its RMSE less the ensemble's, of `EXCESS_LEVEL`, or None; or the `reason` why there are
        none. Beside counts, which have probabilities, there is no NLL of their densities.
    """
    if source is None:
        absent = {"reason": f"not available: {why_no_data}"}
        return {"constant": absent, "least_squares": absent}
    squares = (likelihood.distribution(test.arrays).moments()[0] - test.targets) ** 2

    def scored(terms: Terms) -> dict[str, Any]:
        kept = {
            name: one
            for name, one in terms.items()
            if not (likelihood.is_of_counts and name.startswith("nll"))
        }
        return {
            "ensemble": regression.means(kept),
            "interval": intervals(kept),
            "excess_interval": {"rmse": of_rmse_difference(squares, terms["rmse"], EXCESS_LEVEL)},
        }

    train, targets = source.targets("train").astype(np.float64), source.targets("test")
    scale = np.full(len(targets), train.std())
    constant = regression.gaussian_terms(np.full(len(targets), train.mean()), scale, targets)
    try:
        means, deviation = least_squares(source)
    except UserError as error:
        return {"constant": scored(constant), "least_squares": {"reason": f"{error}"}}
    line = regression.gaussian_terms(means, np.full(len(targets), deviation), targets)
    return {"constant": scored(constant), "least_squares": scored(line)}


def least_squares(source: Source) -> tuple[NDArray, float]:
    """Predicts the test split by least squares, with an intercept.

    The residuals' variance is divided by the degrees of freedom that are left.

    Args:
        source: whose training split is fitted.

    Returns:
        Predictions [N] of the test split, and the standard deviation of the residuals.

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
        values = (inputs.reshape(len(inputs), -1) - centre) / scale
        return np.concatenate([np.ones((len(values), 1)), values], axis=1)

    targets = source.targets("train").astype(np.float64)
    weights, _, rank, _ = np.linalg.lstsq(design(rows), targets, rcond=None)
    freedom = num_rows - int(rank)
    residuals = targets - design(rows) @ weights
    deviation = float(np.sqrt((residuals**2).sum() / freedom)) if freedom > 0 else 0.0
    if not deviation > 1e-9 * targets.std():
        raise UserError(
            f"not available: {num_rows:,} examples of {num_columns:,} columns leave no residuals"
        )
    means = np.concatenate([design(block.inputs) @ weights for block in blocks(source, "test")])
    return means, deviation


def score_uncertainty(likelihood: NumberLikelihood, test: StoredPredictions) -> dict[str, Any]:
    """Whether predictions that are less certain are worse.

    Args:
        likelihood: of the run.
        test: predictions of the live members.

    Returns:
        `rank_correlation` of the predicted standard deviation and the absolute error of the mean
        (Spearman's; None where either is constant) and its 95% `interval`; `bins` of examples of
        like standard deviation, the most certain first: their `counts`, the root mean square of the
        predicted `deviation`, and the `rmse`.
    """
    mean, noise, disagreement = likelihood.distribution(test.arrays).moments()
    deviation, errors = np.sqrt(noise + disagreement), np.abs(mean - test.targets)
    groups = np.array_split(np.argsort(deviation, kind="stable"), min(NUM_BINS, len(errors)))
    section: dict[str, Any] = {
        "bins": {
            "counts": [len(one) for one in groups],
            "deviation": [float(np.sqrt(np.mean(deviation[one] ** 2))) for one in groups],
            "rmse": [float(np.sqrt(np.mean(errors[one] ** 2))) for one in groups],
        }
    }
    if np.ptp(deviation) < 1e-6 * deviation.mean() or np.ptp(errors) == 0:
        return {**section, "rank_correlation": None, "interval": None}

    found = float(spearmanr(deviation, errors).statistic)
    interval = of_rank_correlation(deviation, errors)
    return {**section, "rank_correlation": found, "interval": interval}


def least_certain(
    likelihood: NumberLikelihood, test: StoredPredictions, source: Source | None
) -> list[dict[str, Any]]:
    """The examples whose predictions have the largest standard deviation, that of most first.

    Args:
        likelihood: of the run.
        test: predictions of the live members.
        source: of the run; None where it cannot be had.

    Returns:
        Of each `index` in the test split, `target`, `median`, `low` and `high` ends of the 90%
        interval, the standard deviations `noise` and `disagreement`; `inputs`, where examples have
        at most twelve, of tables texts by column.
    """
    distribution = likelihood.distribution(test.arrays)
    _, noise, disagreement = distribution.moments()
    low, middle, high = distribution.quantiles(np.array([0.05, 0.5, 0.95]))
    chosen = np.argsort(-(noise + disagreement), kind="stable")[:NUM_LISTED]
    inputs: list[Any] | None = None
    if source is not None and source.table is not None:
        rows = source.table.rows(source.read("test", chosen).inputs)
        inputs = rows if len(rows[0]) <= MAX_SHOWN else None
    elif source is not None and np.prod(source.input_shape) <= MAX_SHOWN:
        inputs = source.read("test", chosen).inputs.reshape(len(chosen), -1).tolist()
    return [
        {
            "index": int(n),
            "target": float(test.targets[n]),
            "median": float(middle[n]),
            "low": float(low[n]),
            "high": float(high[n]),
            "noise": float(np.sqrt(noise[n])),
            "disagreement": float(np.sqrt(disagreement[n])),
            **({} if inputs is None else {"inputs": inputs[i]}),
        }
        for i, n in enumerate(chosen)
    ]
