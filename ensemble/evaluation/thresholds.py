"""How often an ensemble abstains for a wanted error, and how often it then errs on test data."""

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble import metrics

Terms = tuple[Any, ...]

RULES = ("max_error=0.01", "max_error=0.02", "max_error=0.05", "coverage=0.9")
"""What an evaluation of classes fits unless it is asked for others."""
NUMBER_RULES = (
    "max_error=0.05", "max_error=0.1", "max_error=0.2", "coverage=0.9", "coverage=0.5",
)  # fmt: skip
"""The same of numbers."""


def score_rule(test: Terms, calibration: Terms | None, rule: metrics.Rule) -> dict[str, Any]:
    """Fits and scores one rule.

    Args:
        test: how unsure each prediction is, and whether it errs, [N] each.
        calibration: the same; None where the run has no such split.
        rule: what is wanted.

    Returns:
        `rule`, as text, and `reason`, why there is none, or: `threshold`, below which doubts are
        accepted; `calibration` and `test`, dicts of `num_examples`, `num_accepted`, `coverage`,
        `num_errors` among those accepted, `error`, their share (None where none is accepted), and
        its 95% `interval`: one-sided on calibration, where a wanted error has chosen the threshold,
        else two-sided (Clopper & Pearson 1934).
    """
    if calibration is None:
        reason = "not available: the run holds no calibration split out"
        return {"rule": str(rule), "reason": reason}
    try:
        fitted = metrics.fit_abstention(rule, *calibration)
    except ValueError as error:
        return {"rule": str(rule), "reason": f"not available: {error}"}
    doubts, errors = test
    accepted = doubts < fitted.threshold
    return {
        "rule": str(rule),
        "threshold": fitted.threshold,
        "calibration": _section(
            fitted.num_examples,
            fitted.num_accepted,
            fitted.num_errors,
            is_chosen=rule.name == metrics.MAX_ERROR,
        ),
        "test": _section(len(errors), int(accepted.sum()), int(errors[accepted].sum())),
    }


def _section(
    num_examples: int, num_accepted: int, num_errors: int, is_chosen: bool = False
) -> dict[str, Any]:
    interval = metrics.error_interval(num_errors, num_accepted)
    if is_chosen:
        interval = (0.0, metrics.error_bound(num_errors, num_accepted))
    return {
        "num_examples": num_examples,
        "num_accepted": num_accepted,
        "coverage": num_accepted / num_examples,
        "num_errors": num_errors,
        "error": num_errors / num_accepted if num_accepted else None,
        "interval": interval,
    }


def abstention_sentence(sections: Sequence[Mapping[str, Any]]) -> str:
    """What the smallest wanted error that is proved costs; empty where none is.

    Args:
        sections: as `sections.score_abstention` returns them.
    """
    proved = [(metrics.Rule.parse(one["rule"]), one) for one in sections if "reason" not in one]
    for rule, section in sorted(proved, key=lambda pair: pair[0].value):
        test = section["test"]
        if rule.name != metrics.MAX_ERROR or not test["num_accepted"]:
            continue
        low, high = test["interval"]
        wanted = f"err on at most {100 * rule.value:.3g}% of what it accepts, with 95% confidence"
        found = f"{test['error']:.2%} [{low:.2%}, {high:.2%}]"
        if section["threshold"] == metrics.ACCEPT_ALL:
            return f"To {wanted}, it need not abstain: it errs on {found} of the test examples."
        return (
            f"To {wanted}, it abstains on {1 - test['coverage']:.1%} of the test examples, and "
            f"errs on {found} of the others."
        )
    return ""
