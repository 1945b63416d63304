"""Scores of predictions: one definition per number, on host arrays, in float64.

Everything starts from log-probabilities: `[M, N, C]` for M members, N examples and C classes, or
`[N, C]` for one predictor. Labels are integers `[N]` in 0..C-1. The ensemble's prediction is the
mean of the members' probabilities, so it is scored as one more predictor. Members that failed (NaN)
are for the caller to leave out.
"""

from ensemble.metrics.abstention import (
    ACCEPT_ALL,
    MAX_ERROR,
    Abstention,
    Rule,
    error_bound,
    error_interval,
    fit_abstention,
    one_minus_max,
)
from ensemble.metrics.analytic_intervals import (
    bounded_interval,
    mean_interval,
    num_to_see,
    share_interval,
)
from ensemble.metrics.bootstrap import intervals
from ensemble.metrics.calibration import (
    apply_temperature,
    calibration_by_chance,
    fit_temperature,
)
from ensemble.metrics.detection import RankedScores, detection_scores, rank
from ensemble.metrics.mixture import (
    agreement,
    disagreement,
    disagreement_matrix,
    disagreements,
    ensemble_log_probs,
    total_variation,
    uncertainty,
)
from ensemble.metrics.score_intervals import (
    FEW_ERRORS,
    balanced_accuracy_interval,
)
from ensemble.metrics.scores import (
    SCORES,
    ReliabilityBins,
    Terms,
    accuracy,
    accuracy_at_coverage,
    adaptive_ece,
    aurc,
    brier,
    confusion_matrix,
    ece,
    entropies,
    nll,
    recall,
    reliability_bins,
    scores,
    terms,
)

__all__ = [
    "ACCEPT_ALL",
    "FEW_ERRORS",
    "MAX_ERROR",
    "SCORES",
    "Abstention",
    "RankedScores",
    "ReliabilityBins",
    "Rule",
    "Terms",
    "accuracy",
    "accuracy_at_coverage",
    "adaptive_ece",
    "agreement",
    "apply_temperature",
    "aurc",
    "balanced_accuracy_interval",
    "bounded_interval",
    "brier",
    "calibration_by_chance",
    "confusion_matrix",
    "detection_scores",
    "disagreement",
    "disagreement_matrix",
    "disagreements",
    "ece",
    "ensemble_log_probs",
    "entropies",
    "error_bound",
    "error_interval",
    "fit_abstention",
    "fit_temperature",
    "intervals",
    "mean_interval",
    "nll",
    "num_to_see",
    "one_minus_max",
    "rank",
    "recall",
    "reliability_bins",
    "scores",
    "share_interval",
    "terms",
    "total_variation",
    "uncertainty",
]
