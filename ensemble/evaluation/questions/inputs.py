"""What does it do on inputs unlike its training data?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ensemble.evaluation.questions.quality import has_few_groups
from ensemble.scoring.finding import Finding

MIDDLE = 3
"""The position of the middle severity, after the test split itself."""
HARMLESS = 0.005
"""Accuracy that a shift may cost and be called harmless."""
HARMLESS_RATIO = 0.05
"""The same of the RMSE, by how much it may rise."""
_TOLD = 0.99
_quantile = statistics.NormalDist().inv_cdf


def accuracy_under_shift(test: Mapping[str, Any], sections: Mapping[str, Any]) -> Finding:
    """The kind of shift that costs most accuracy at the middle severity, if one is known to.

    The intervals of the changes hold together, over all kinds of shift, in 95% of cases.

    Args:
        test: as `score_split` returns it.
        sections: by kind of shift, as `sections.score_shifts` returns them.
    """
    if not sections:
        return Finding("shift.none")
    if "over_groups" in test:  # The intervals take rows one by one.
        return Finding("shift.groups", numbers={"column": test["over_groups"]})
    changes = {kind: one["change"]["accuracy"][MIDDLE - 1] for kind, one in sections.items()}
    costs = {kind: (-high, -low) for kind, (low, high) in changes.items()}
    if all(high < HARMLESS for _, high in costs.values()):
        most = {"number": len(sections), "points": 100 * HARMLESS}
        return Finding("shift.harmless", numbers=most, tone="good")
    kind, section = min(sections.items(), key=lambda item: item[1]["scores"]["accuracy"][MIDDLE])
    low, high = costs.pop(kind)
    numbers: dict[str, Any] = {
        "kind": kind,
        "accuracy": section["scores"]["accuracy"][MIDDLE],
        "cost": (100 * low, 100 * high),
        "ece": section["scores"]["ece"][MIDDLE],
        "number": len(sections),
    }
    about = f"shift/{kind}"
    if low <= 0:
        known = [other for other, (least, _) in costs.items() if least > 0]
        if not known:
            return Finding("shift.none_significant", about, numbers)
        numbers["known"] = ", ".join(known)
        return Finding("shift.others_significant", about, numbers, "warning")
    if all(other < low for _, other in costs.values()):
        return Finding("shift.worst", about, numbers, "warning")
    return Finding("shift.lowest", about, numbers, "warning")


def error_under_shift(test: Mapping[str, Any], sections: Mapping[str, Any]) -> Finding:
    """The kind of shift with the largest RMSE at the middle severity.

    Args:
        test: as `score_split` returns it.
        sections: by kind, as `sections.score_shifts` returns them.
    """
    if not sections:
        return Finding("shift.none")
    kind, section = max(sections.items(), key=lambda item: item[1]["scores"]["rmse"][MIDDLE])
    intervals = [one["change"]["rmse"][MIDDLE - 1] for one in sections.values()]
    numbers: dict[str, Any] = {
        "kind": kind,
        "rmse": section["scores"]["rmse"][MIDDLE],
        "coverage": section["scores"]["coverage_90"][MIDDLE],
        "number": len(sections),
    }
    if all(one is not None and one[1] <= 1 + HARMLESS_RATIO for one in intervals):
        return Finding("shift.error_harmless", "test", numbers | {"share": HARMLESS_RATIO}, "good")
    about, interval = f"shift/{kind}", section["change"]["rmse"][MIDDLE - 1]
    if interval is None:
        which = "few_groups" if has_few_groups(test) else "heavy_tail"
        return Finding(f"shift.error_{which}", about, numbers)
    low, high = (100 * (one - 1) for one in interval)
    numbers["percent"] = (low, high)
    if low > 0:
        return Finding("shift.error_higher", about, numbers, "warning")
    which = "lower" if high < 0 else "inconclusive"
    return Finding(f"shift.error_{which}", about, numbers)


def detection(sections: Mapping[str, Any], score: str) -> Finding:
    """The out-of-distribution inputs that are told worst from the test split.

    Args:
        sections: by set, with `num_rows` and the detection by a score.
        score: by which they are told.
    """
    if not sections:
        return Finding("detection.none")
    name, section = min(sections.items(), key=lambda item: item[1][score]["auroc"])
    found = section[score]
    low, high = found["interval"]["auroc"]
    numbers = {
        "score": score,
        "set": name,
        "num_rows": section["num_rows"],
        "auroc": found["auroc"],
        "interval": (low, high),
        "flagged": found["fpr95"],
        "flagged_interval": tuple(found["interval"]["fpr95"]),
    }
    about = f"out_of_distribution/{name}"
    if all(one[score]["interval"]["auroc"][0] >= _TOLD for one in sections.values()):
        return Finding("detection.all", about, numbers, "good")
    # The worst of several is below 1/2 by chance more often than one is (Bonferroni).
    wider = _quantile(0.025 / len(sections)) / _quantile(0.025)
    if found["auroc"] + (high - found["auroc"]) * wider < 0.5:
        return Finding("detection.inverted", about, numbers, "warning")
    return Finding("detection.worst", about, numbers)
