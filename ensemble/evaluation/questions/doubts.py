"""Does it know where it errs, and when should it abstain?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.evaluation.questions.quality import FEW_EXAMPLES
from ensemble.metrics import ACCEPT_ALL, MAX_ERROR, Rule
from ensemble.scoring.finding import Finding, Tone


def ranking(test: Mapping[str, Any], section: Mapping[str, Any]) -> Finding:
    """Whether predictions that are less certain are worse.

    Args:
        test: as `score_split` returns it.
        section: as `sections.score_uncertainty` returns it.
    """
    if test["num_rows"] < FEW_EXAMPLES:
        return Finding("ranking.few_examples", numbers={"num_rows": test["num_rows"]})
    if "over_groups" in test:
        return Finding("ranking.groups", numbers={"column": test["over_groups"]})
    if section["rank_correlation"] is None:
        return Finding("ranking.constant", tone="warning")
    low, high = section["interval"]
    numbers = {"correlation": section["rank_correlation"], "interval": (low, high)}
    if low > 0:
        return Finding("ranking.right", numbers=numbers, tone="good")
    if high < 0:
        return Finding("ranking.inverted", numbers=numbers, tone="warning")
    return Finding("ranking.inconclusive", numbers=numbers)


def abstention(test: Mapping[str, Any], sections: Sequence[Mapping[str, Any]]) -> Finding:
    """What the smallest target error rate that is proved costs.

    Args:
        test: as `score_split` returns it.
        sections: as `sections.score_abstention` returns them.
    """
    if "over_groups" in test:  # Thresholds count rows one by one.
        return Finding("abstention.groups", numbers={"column": test["over_groups"]})
    proved = [(Rule.parse(one["rule"]), one) for one in sections if "reason" not in one]
    for rule, section in sorted(proved, key=lambda pair: pair[0].value):
        found = section["test"]
        if rule.name != MAX_ERROR or not found["num_accepted"]:
            continue
        numbers = {
            "max_error": rule.value,
            "error": found["error"],
            "interval": tuple(found["interval"]),
            "abstained": 1 - found["coverage"],
            "tolerance": section.get("tolerance"),
            "max_width": section.get("max_width"),
        }
        if section["threshold"] == ACCEPT_ALL:
            return Finding("abstention.accepts_all", numbers=numbers, tone="good")
        kind = "widths" if "max_width" in section else "confidence"
        tone: Tone = "good" if found["interval"][0] <= rule.value else "warning"
        return Finding(f"abstention.{kind}", numbers=numbers, tone=tone)
    return Finding("abstention.none_proved")
