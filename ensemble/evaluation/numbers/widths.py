"""How often an ensemble of numbers should not answer, by the width of its intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.evaluation.numbers.known_rows import is_known, known_rows
from ensemble.evaluation.numbers.number_intervals import intervals
from ensemble.evaluation.thresholds import score_rule
from ensemble.metrics import regression
from ensemble.number_likelihood import NumberLikelihood
from ensemble.storage.predictions import StoredPredictions

RULES = ("max_error=0.05", "max_error=0.1", "max_error=0.2", "coverage=0.9", "coverage=0.5")
"""What an evaluation fits unless it is asked for others."""
_SHOWN = ("rmse", "mae", "coverage_90", "width_90")


def score_abstention(
    likelihood: NumberLikelihood,
    test: StoredPredictions,
    calibration: StoredPredictions | None,
    rules: Sequence[metrics.Rule],
) -> list[dict[str, Any]]:
    """Fits on the calibration split which intervals are accepted, and scores the test split.

    A prediction errs if its median misses the target by more than the rule's tolerance. The promise
    of a wanted error is that of `metrics.fit_abstention`.

    Args:
        likelihood: of the run.
        test: predictions of the live members.
        calibration: the same; None where the run has no such split.
        rules: what is wanted.

    Returns:
        For each rule what `thresholds.score_rule` says, with `tolerance`, in the targets' units;
        `max_width`, the width of a 90% interval below which predictions are accepted, None if all
        are; and in `test` the `scores` of what is accepted, with their 95% `score_intervals`.
    """
    held_out = test if calibration is None else calibration
    if not (is_known(test.targets).all() and is_known(held_out.targets).all()):
        reason = "not available: how wrong predictions of censored targets are is not known"
        return [{"rule": str(rule), "reason": reason} for rule in rules]
    known = known_rows(likelihood, test)
    terms = likelihood.distribution(known.arrays).terms(known.targets)
    if np.isnan(terms["width_90"]).any():
        reason = "not available: the intervals have no known width"
        return [{"rule": str(rule), "reason": reason} for rule in rules]
    shown = {name: terms[name] for name in _SHOWN}
    return [_score(likelihood, test, calibration, rule, shown) for rule in rules]


def _score(
    likelihood: NumberLikelihood,
    test: StoredPredictions,
    calibration: StoredPredictions | None,
    rule: metrics.Rule,
    shown: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    def terms_of(one: StoredPredictions) -> tuple[np.ndarray, ...]:
        return likelihood.abstention_terms(one.arrays, one.targets, rule.tolerance)

    doubts, errors = terms_of(test)
    held_out = None if calibration is None else terms_of(calibration)
    section = score_rule((doubts, errors), held_out, rule)
    section["tolerance"] = likelihood.tolerance(rule.tolerance)
    if "reason" in section:
        return section
    accepted = doubts < section["threshold"]
    width = likelihood.widest(section["threshold"])
    section["max_width"] = float(width) if np.isfinite(width) else None
    chosen = {name: terms[accepted] for name, terms in shown.items()}
    if accepted.any():
        section["test"]["scores"] = regression.means(chosen)
        section["test"]["score_intervals"] = intervals(chosen)
    return section
