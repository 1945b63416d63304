"""Scores of predicted quantiles, which say nothing of a density: pinball loss, bands, coverage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import ndtri

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.evaluation import derived
from ensemble.evaluation.numbers.number_intervals import (
    LEVEL,
    intervals,
    of_mean,
    of_rank_correlation,
)
from ensemble.evaluation.numbers.number_scores import EXCESS_LEVEL, NUM_LISTED
from ensemble.evaluation.scoring import conformal_range
from ensemble.evaluation.shift import SHIFTS
from ensemble.evaluation.strata import OVER, OVER_BOTH, by_stratum, groups_of, over_groups
from ensemble.evaluation.table_shift import TABLE_SHIFTS
from ensemble.likelihood import Arrays
from ensemble.likelihoods.quantiles import QUANTILES, Quantiles, percent_of
from ensemble.metrics import number_calibration, regression
from ensemble.report.simple_predictors import least_squares
from ensemble.source import Source, Strata
from ensemble.storage.predictions import MemberPredictions, StoredPredictions

DETECTION = ("epistemic", "width")
"""What tells unfamiliar inputs from the test split: how far medians disagree, and how wide it is"""


def terms_of(likelihood: Quantiles, quantiles: NDArray, targets: NDArray) -> dict[str, NDArray]:
    """Terms of all scores of quantiles [N, Q], with the `crps` that they tell."""
    return {
        **likelihood.terms(quantiles, targets),
        "crps": likelihood.crps_terms(quantiles, targets),
    }


def ensemble_terms(likelihood: Quantiles, arrays: Arrays, targets: NDArray) -> dict[str, NDArray]:
    """Terms [N] of all that is told of an ensemble, from its members' quantiles."""
    each = np.asarray(arrays[QUANTILES], np.float64)
    spread = {"epistemic": likelihood.medians(each).var(axis=0)}
    return {**terms_of(likelihood, likelihood.averaged(arrays), targets), **spread}


def score_predictions(
    likelihood: Quantiles, test: StoredPredictions, strata: Strata | None = None
) -> dict[str, Any]:
    """Scores the ensemble, with 95% intervals, and every member.

    Returns:
        `num_examples`; `ensemble`: scores by name, with `epistemic`, the mean variance of the
        members' medians; `interval`: (low, high) by the same names; `together`: intervals of the
        coverages that all hold in 95% of cases (Bonferroni); `members`: a list [M] by score;
        `mean` and `sd` of the members by score; `levels`: of each level the share of targets that
        lie `below` its quantile, and the exact `interval` of that share.
    """
    targets = np.asarray(test.targets, np.float64)
    each = np.asarray(test.arrays[QUANTILES], np.float64)
    quantiles = likelihood.averaged(test.arrays)
    terms = ensemble_terms(likelihood, test.arrays, targets)
    one_by_one = [regression.means(terms_of(likelihood, one, targets)) for one in each]
    members = {name: [one[name] for one in one_by_one] for name in one_by_one[0]}
    freedom = 1 if len(each) > 1 else 0
    below = (targets[:, None] <= quantiles).sum(axis=0)
    return {
        "num_examples": len(targets),
        "ensemble": regression.means(terms),
        "interval": intervals(terms),
        "interval_over": OVER,
        "together": together(terms, strata),
        "members": members,
        "mean": {name: float(np.mean(values)) for name, values in members.items()},
        "sd": {name: float(np.std(values, ddof=freedom)) for name, values in members.items()},
        "levels": [
            {
                "level": level,
                "below": int(count) / len(targets),
                "interval": list(metrics.error_interval(int(count), len(targets))),
            }
            for level, count in zip(likelihood.levels, below, strict=True)
        ],
    }


def together(terms: Mapping[str, NDArray], strata: Strata | None = None) -> dict[str, Any]:
    """Intervals of coverages that all hold in 95% of cases (Bonferroni).

    Args:
        terms: [N] by score.
        strata: groups or times of the examples, where they have any.

    Returns:
        (low, high) by name; None where it cannot be told, of few groups.
    """
    held = {name: one for name, one in terms.items() if name.startswith("coverage_")}
    level = 1 - (1 - LEVEL) / max(len(held), 1)
    rows = {
        name: metrics.error_interval(int(one.sum()), len(one), level) for name, one in held.items()
    }
    return over_groups(rows, regression.resampled_means(held), strata, level) if held else {}


def score_simple(
    likelihood: Quantiles, test: StoredPredictions, source: Source | None, why_no_data: str
) -> dict[str, Any]:
    """Scores what any ensemble should beat, on the test split.

    Returns:
        `constant`: the quantiles of the training targets; `least_squares`: those of a line with
        Gaussian noise. Of each `ensemble` scores, their `interval`, and `excess_interval`, paired,
        of its pinball loss less the ensemble's, of `EXCESS_LEVEL`, over groups if there are any,
        None where it cannot be told; or the `reason` why there are none.
    """
    if source is None:
        absent = {"reason": f"not available: {why_no_data}"}
        return {"constant": absent, "least_squares": absent}
    targets, levels = np.asarray(test.targets, np.float64), np.array(likelihood.levels)
    ours = likelihood.terms(likelihood.averaged(test.arrays), targets)["pinball"]
    groups = groups_of(source.strata("test"))

    def scored(quantiles: NDArray) -> dict[str, Any]:
        terms = terms_of(likelihood, quantiles, targets)
        return {
            "ensemble": regression.means(terms),
            "interval": intervals(terms),
            "interval_over": OVER,
            "excess_interval": {"pinball": of_mean(terms["pinball"] - ours, EXCESS_LEVEL, groups)},
        }

    constant = np.quantile(source.targets("train").astype(np.float64), levels)
    found = {"constant": scored(np.broadcast_to(constant, (len(targets), len(levels))))}
    try:
        means, deviation = least_squares(source)
    except UserError as error:
        return {**found, "least_squares": {"reason": f"{error}"}}
    return {**found, "least_squares": scored(means[:, None] + deviation * ndtri(levels))}


def score_conformal(
    likelihood: Quantiles,
    test: StoredPredictions,
    calibration: StoredPredictions | None,
    strata: Strata | None,
) -> dict[str, Any]:
    """Conformalises every band on the calibration split (Romano et al. 2019).

    Returns:
        By the percent that a band is to hold: `level`, `num_examples` of calibration, `threshold`,
        `coverage_range`, `coverage`, `mean_width`, their `interval`, `num_empty`, `by_stratum`; or
        the `reason` why there are none.
    """
    found: dict[str, Any] = {}
    for i, j in likelihood.bands:
        level = likelihood.levels[j] - likelihood.levels[i]
        needed = math.ceil(level / (1 - level) - 1e-9)
        if calibration is None:
            section = {"reason": "not available: the run holds no calibration split out"}
        elif len(calibration.targets) < needed:
            number = len(calibration.targets)
            reason = f"not available: {number} calibration examples, and it takes {needed}"
            section = {"reason": reason}
        else:
            section = _score_band(likelihood, (i, j), level, test, calibration, strata)
        found[percent_of(level)] = section
    return found


def _score_band(
    likelihood: Quantiles,
    band: tuple[int, int],
    level: float,
    test: StoredPredictions,
    calibration: StoredPredictions,
    strata: Strata | None,
) -> dict[str, Any]:
    (low, high), (held_low, held_high) = (
        likelihood.averaged(one.arrays)[:, list(band)].T for one in (test, calibration)
    )
    scores = number_calibration.quantile_scores(held_low, held_high, calibration.targets)
    threshold = number_calibration.conformal_quantile(scores, level)
    made = number_calibration.quantile_intervals(low, high, threshold)
    held = made.hold(test.targets)
    return {
        "level": level,
        "num_examples": len(calibration.targets),
        "threshold": threshold,
        "coverage_range": conformal_range(scores, threshold, len(held), level),
        "coverage": float(held.mean()),
        "mean_width": float(made.widths.mean()),
        "num_empty": int((made.high < made.low).sum()),
        "interval": intervals({"coverage": held, "mean_width": made.widths}),
        "interval_over": OVER,
        "by_stratum": by_stratum(held, strata),
    }


def score_uncertainty(likelihood: Quantiles, test: StoredPredictions) -> dict[str, Any]:
    """Whether predictions with wider bands are worse.

    Returns:
        `rank_correlation` (Spearman's) of the distance between the outermost quantiles and the
        absolute error of the median, None where either is constant, and its 95% `interval`.
    """
    quantiles = likelihood.averaged(test.arrays)
    widths = quantiles[:, -1] - quantiles[:, 0]
    errors = np.abs(likelihood.medians(quantiles) - test.targets)
    if np.ptp(widths) < 1e-6 * widths.mean() or np.ptp(errors) == 0:
        return {"rank_correlation": None, "interval": None}

    found = float(scipy.stats.spearmanr(widths, errors).statistic)
    return {
        "rank_correlation": found,
        "interval": of_rank_correlation(widths, errors),
        "interval_over": OVER,
    }


def score_shifts(
    likelihood: Quantiles, test: StoredPredictions, predicted: Mapping[str, MemberPredictions]
) -> dict[str, Any]:
    """Scores by kind of shift: `unit`, `amounts` [5], and `ensemble`, [6] by score."""

    def scores(arrays: Mapping[str, NDArray]) -> dict[str, float]:
        quantiles = likelihood.averaged(arrays)
        found = regression.means(likelihood.terms(quantiles, np.asarray(test.targets, np.float64)))
        medians = likelihood.medians(np.asarray(arrays[QUANTILES], np.float64))
        return {**found, "disagreement": float(np.sqrt(medians.var(axis=0)).mean())}

    plain, sections = scores(test.arrays), {}
    for kind, shift in {**SHIFTS, **TABLE_SHIFTS}.items():
        names = [f"{derived.SHIFT}/{kind}/{severity}" for severity in derived.SEVERITIES]
        if set(names) <= predicted.keys():
            shifted = [scores(predicted[name].arrays) for name in names]
            sections[kind] = {
                "unit": shift.unit,
                "amounts": list(shift.amounts),
                "ensemble": {name: [one[name] for one in (plain, *shifted)] for name in plain},
            }
    return sections


def score_detections(
    likelihood: Quantiles, test: StoredPredictions, predicted: Mapping[str, MemberPredictions]
) -> dict[str, Any]:
    """How well `DETECTION` tells each set from the test split, as `unfamiliar` has it."""

    def values(arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
        each, quantiles = np.asarray(arrays[QUANTILES], np.float64), likelihood.averaged(arrays)
        return {
            "epistemic": likelihood.medians(each).var(axis=0),
            "width": quantiles[:, -1] - quantiles[:, 0],
        }

    inside = values(test.arrays)

    def detection(outside: Mapping[str, NDArray]) -> dict[str, Any]:
        section: dict[str, Any] = {
            "num_examples": len(outside["width"]),
            "interval_over": OVER_BOTH,
        }
        for key in DETECTION:
            ranked = metrics.rank(inside[key], outside[key])
            section[key] = {**ranked.scores(), "interval": ranked.intervals()}
        return section

    return {
        name: detection(values(one.arrays))
        for name, one in predicted.items()
        if not name.startswith(f"{derived.SHIFT}/")
    }


def least_certain(likelihood: Quantiles, test: StoredPredictions) -> list[dict[str, Any]]:
    """The examples whose outermost quantiles are farthest apart: `index`, `target`, `quantiles`."""
    quantiles = likelihood.averaged(test.arrays)
    chosen = np.argsort(quantiles[:, 0] - quantiles[:, -1], kind="stable")[:NUM_LISTED]
    return [
        {"index": int(n), "target": float(test.targets[n]), "quantiles": quantiles[n].tolist()}
        for n in chosen
    ]
