"""Scores of predicted numbers on the test split, and of simpler predictors beside them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble.errors import UserError
from ensemble.evaluation.numbers.known_rows import (
    as_measured,
    describe_annotations,
    is_known,
    known_rows,
    nll_terms,
    score_censored,
)
from ensemble.evaluation.numbers.number_intervals import (
    intervals,
    of_rank_correlation,
    of_rmse_difference,
)
from ensemble.evaluation.strata import OVER, groups_of
from ensemble.metrics import regression
from ensemble.metrics.number_calibration import pit_uniformity
from ensemble.number_likelihood import NumberDistribution, NumberLikelihood
from ensemble.report.simple_predictors import least_squares
from ensemble.scoring import sections
from ensemble.source import Source
from ensemble.storage.predictions import StoredPredictions
from ensemble.target_rows import values

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
        `num_examples`; `is_of_counts`, whether targets are counts; `ensemble`: scores by name, with
        `aleatoric`, `epistemic` and `total`, the mean variances in the targets' units, squared;
        `interval`: (low, high) by the same names, or None, as `number_intervals.intervals` says,
        and `interval_over`, what they are over;
        `members`: a list [M] by score; `mean` and `sd` of the members by score; `pit`, as
        `metrics.number_calibration.pit_uniformity` says; `distinct_targets`, how many there are.
        Of targets that are measured or censored also how many, by `known_rows`;
        where some are censored, coverage and PIT are those of `known_rows.score_censored`, with
        `coverage_bounds`, the NLL is of all targets, and the other scores are of the known ones.
    """
    summary, found = (
        sections.summary(likelihood.view(test.arrays, test.targets)),
        score_rows(likelihood, test),
    )
    members, partly_known = summary["members"], found.get("coverage_bounds", ())
    # Shares of the known targets are no shares of all.
    members = {name: one for name, one in members.items() if name not in partly_known}
    scores = {**summary["ensemble"], **summary["diversity"]}
    spread = 1 if len(test.members) > 1 else 0  # Degrees of freedom that the mean takes.
    return {
        "num_examples": len(test.targets),
        "is_of_counts": likelihood.is_of_counts,
        **describe_annotations(test),
        "distinct_targets": len(np.unique(values(test.targets)[is_known(test.targets)])),
        **found,
        "interval_over": OVER,
        "ensemble": {**scores, **{name: found["ensemble"][name] for name in partly_known}},
        "members": members,
        "mean": {name: float(np.mean(each)) for name, each in members.items()},
        "sd": {name: float(np.std(each, ddof=spread)) for name, each in members.items()},
    }


def score_rows(likelihood: NumberLikelihood, stored: StoredPredictions) -> dict[str, Any]:
    """Scores the ensemble by what is known of the targets.

    Returns:
        `ensemble`, `interval` and `pit`, as `score_predictions` does, and `coverage_bounds` where
        targets are censored.
    """
    known = known_rows(likelihood, stored)
    distribution = likelihood.distribution(known.arrays)
    terms = {**distribution.terms(known.targets), **variances(distribution)}
    scores, ends = regression.means(terms), intervals(terms)
    if len(known.targets) == len(stored.targets):
        pit = pit_uniformity(distribution.pit(known.targets))
        return {"ensemble": scores, "interval": ends, "pit": pit}
    nll, found = {"nll": nll_terms(likelihood, stored)}, score_censored(likelihood, stored)
    return {
        "ensemble": {**scores, **regression.means(nll), **found["coverage"]},
        "interval": {**ends, **intervals(nll), **found["interval"]},
        "pit": found["pit"],
        "coverage_bounds": found["bounds"],
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
        its RMSE less the ensemble's, of `EXCESS_LEVEL`, over groups if there are any, or None; or
        the `reason` why there are none. Beside counts, which have probabilities, there is no NLL of
        their densities; beside censored targets, whose bounds both learn as if they were values,
        neither NLL nor coverage.
    """
    if source is None:
        absent = {"reason": f"not available: {why_no_data}"}
        return {"constant": absent, "least_squares": absent}
    ensemble, known = known_rows(likelihood, test), is_known(test.targets)
    squares = (likelihood.distribution(ensemble.arrays).moments()[0] - ensemble.targets) ** 2

    groups = groups_of(source.strata("test"))
    groups = None if groups is None else groups[known]
    left_out: tuple[str, ...] = () if known.all() else ("nll", "coverage")
    left_out = ("nll",) if likelihood.is_of_counts else left_out

    def scored(terms: Terms) -> dict[str, Any]:
        kept = {name: one for name, one in terms.items() if not name.startswith(left_out)}
        excess = of_rmse_difference(squares, terms["rmse"], EXCESS_LEVEL, groups)
        return {
            "ensemble": regression.means(kept),
            "interval": intervals(kept),
            "interval_over": OVER,
            "excess_interval": {"rmse": excess},
        }

    train, targets = values(source.targets("train")).astype(np.float64), ensemble.targets
    scale = np.full(len(targets), train.std())
    constant = regression.gaussian_terms(np.full(len(targets), train.mean()), scale, targets)
    try:
        means, deviation = least_squares(source)
    except UserError as error:
        return {"constant": scored(constant), "least_squares": {"reason": f"{error}"}}
    line = regression.gaussian_terms(means[known], np.full(len(targets), deviation), targets)
    return {"constant": scored(constant), "least_squares": scored(line)}


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

    found = float(scipy.stats.spearmanr(deviation, errors).statistic)
    interval = of_rank_correlation(deviation, errors)
    return {**section, "rank_correlation": found, "interval": interval, "interval_over": OVER}


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
    distribution = likelihood.distribution(as_measured(likelihood, test))
    targets, known = values(test.targets), is_known(test.targets)
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
            "target": float(targets[n]),
            **({} if known[n] else {"is_censored": True}),
            "median": float(middle[n]),
            "low": float(low[n]),
            "high": float(high[n]),
            "noise": float(np.sqrt(noise[n])),
            "disagreement": float(np.sqrt(disagreement[n])),
            **({} if inputs is None else {"inputs": inputs[i]}),
        }
        for i, n in enumerate(chosen)
    ]
