"""Predicted numbers on inputs unlike the training data: shifts, made rows, other sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.evaluation import derived
from ensemble.evaluation.numbers.known_rows import is_known, known_rows
from ensemble.evaluation.numbers.number_intervals import LEVEL, intervals, of_rmse_ratio
from ensemble.evaluation.numbers.number_scores import variances
from ensemble.evaluation.shift import SHIFTS
from ensemble.evaluation.strata import OVER, OVER_BOTH, OVER_GROUPS
from ensemble.evaluation.table_shift import TABLE_SHIFTS, columns_of, is_table
from ensemble.likelihood import Arrays
from ensemble.metrics import regression
from ensemble.number_likelihood import NumberLikelihood
from ensemble.source import Source, SplitInputs
from ensemble.storage.predictions import MemberPredictions, StoredPredictions

_FEW = 20
"""With fewer examples there are no intervals."""

DETECTION = ("epistemic", "total", "aleatoric")
"""Variances that tell unfamiliar inputs from the test split; the first is the headline."""


def quick_terms(likelihood: NumberLikelihood, arrays: Arrays, targets: NDArray) -> dict[str, Any]:
    """Terms of the scores that need no quantiles, which many draws on many shifts would take long
    for: NLL, RMSE, coverage of 90% intervals, and the mixture's standard deviation; of the rows
    whose target is known."""
    known = known_rows(likelihood, StoredPredictions(arrays, targets, np.arange(0)))
    distribution, targets = likelihood.distribution(known.arrays), known.targets
    mean, noise, disagreement = distribution.moments()
    return {
        "rmse": (mean - targets) ** 2,
        "nll": -regression.mixture_log_density(distribution.log_densities(targets)),
        "coverage_90": (np.abs(distribution.pit(targets) - 0.5) <= 0.45).astype(float),
        "deviation": np.sqrt(noise + disagreement),
        "disagreement": np.sqrt(disagreement),
    }


def score_shifts(
    likelihood: NumberLikelihood,
    test: StoredPredictions,
    predicted: Mapping[str, MemberPredictions],
    groups: NDArray | None = None,
) -> dict[str, Any]:
    """Scores by kind of shift.

    Args:
        likelihood: of the run.
        test: predictions of the test split.
        predicted: beside it, by the names of `derived.plan`.
        groups: of the test rows [N], where these are split by groups.

    Returns:
        By kind `unit`, `amounts` [5], and `ensemble`, [6] by score, the first without a shift:
        `rmse`, `nll`, `coverage_90`, and the mean standard deviations, of the prediction
        (`deviation`) and of the members' means (`disagreement`), in the targets' units; and
        `rmse_ratio_interval` [5], paired, of the RMSE with the shift over that without: of all
        kinds together, each severity's hold their ratios with 95% confidence.
    """
    plain_terms = quick_terms(likelihood, test.arrays, test.targets)
    plain = regression.means(plain_terms)
    names_of = {
        kind: [f"{derived.SHIFT}/{kind}/{severity}" for severity in derived.SEVERITIES]
        for kind in (*SHIFTS, *TABLE_SHIFTS)
    }
    found = [kind for kind, names in names_of.items() if set(names) <= predicted.keys()]
    sections = {}
    groups = None if groups is None else groups[is_known(test.targets)]
    for kind in found:
        shift = {**SHIFTS, **TABLE_SHIFTS}[kind]
        terms = [
            quick_terms(likelihood, predicted[name].arrays, test.targets) for name in names_of[kind]
        ]
        shifted = [regression.means(one) for one in terms]
        level = 1 - (1 - LEVEL) / len(found)
        sections[kind] = {
            "rmse_ratio_interval": [
                of_rmse_ratio(plain_terms["rmse"], one["rmse"], level, groups) for one in terms
            ],
            "interval_over": OVER if groups is None else OVER_GROUPS,
            "unit": shift.unit,
            "amounts": list(shift.amounts),
            "ensemble": {name: [one[name] for one in (plain, *shifted)] for name in plain},
        }
    return sections


def score_detections(
    likelihood: NumberLikelihood,
    test: StoredPredictions,
    predicted: Mapping[str, MemberPredictions],
) -> dict[str, Any]:
    """How well variances tell each set from the test split.

    Args:
        likelihood: of the run.
        test: predictions of the test split.
        predicted: beside it, by the names of `derived.plan`.

    Returns:
        By set `num_examples`; `deviation`, the median of the predicted standard deviation there;
        by variance of `DETECTION` `auroc`, `aupr` and `fpr95`, and the `interval` of each.
    """
    inside = variances(likelihood.distribution(test.arrays))
    return {
        name: _score_detection(inside, variances(likelihood.distribution(one.arrays)))
        for name, one in predicted.items()
        if not name.startswith(f"{derived.SHIFT}/")
        and name not in (derived.TEST_AGAIN, derived.PROFILE)
    }


def _score_detection(inside: Mapping[str, NDArray], outside: Mapping[str, NDArray]) -> Any:
    section: dict[str, Any] = {
        "num_examples": len(outside["total"]),
        "interval_over": OVER_BOTH,
        "deviation": float(np.sqrt(np.median(outside["total"]))),
    }
    for name in DETECTION:
        ranked = metrics.rank(inside[name], outside[name])
        section[name] = {**ranked.scores(), "interval": ranked.intervals()}
    return section


def score_beyond(
    likelihood: NumberLikelihood, test: StoredPredictions, source: Source | None
) -> dict[str, Any] | None:
    """Scores test rows within the range of every training column, and those beyond one.

    Args:
        likelihood: of the run.
        test: predictions of the test split.
        source: of the run; None where it cannot be had.

    Returns:
        `within` and `beyond`: `num_examples`; where there are any, `ensemble` scores; where there
        are enough, their `interval`. None of data that are no table, or that cannot
        be had.
    """
    if source is None or not is_table(source):
        return None
    columns, inputs = columns_of(source), SplitInputs(source, "test")[:]
    inputs = inputs[is_known(test.targets)]
    is_beyond = ((inputs < columns.low) | (inputs > columns.high)).any(axis=1)
    terms = quick_terms(likelihood, test.arrays, test.targets)
    sections: dict[str, dict[str, Any]] = {}
    for name, chosen in (("within", ~is_beyond), ("beyond", is_beyond)):
        sections[name] = {"num_examples": int(chosen.sum())}
        if chosen.any():
            some = {score: values[chosen] for score, values in terms.items()}
            sections[name]["ensemble"] = regression.means(some)
        if chosen.sum() >= _FEW:
            sections[name]["interval"] = intervals(some)
    return sections
