"""How often an ensemble abstains for a target error rate, and how often it then errs."""

from typing import Any

from ensemble import metrics

Terms = tuple[Any, ...]


def score_rule(test: Terms, calibration: Terms | None, rule: metrics.Rule) -> dict[str, Any]:
    """Fits and scores one rule.

    Args:
        test: how unsure each prediction is, and whether it errs, [N] each.
        calibration: the same; None where the run has no such split.
        rule: what is wanted.

    Returns:
        `rule`, as text, and `reason`, why there is none, or: `threshold`, below which doubts are
        accepted; `calibration` and `test`, dicts of `num_rows`, `num_accepted`, `coverage`,
        `num_errors` among those accepted, `error`, their share (None where none is accepted), and
        its 95% `interval`: one-sided on calibration, where a target error rate has chosen the
        threshold, else two-sided (Clopper & Pearson 1934).
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
        "num_rows": num_examples,
        "num_accepted": num_accepted,
        "coverage": num_accepted / num_examples,
        "num_errors": num_errors,
        "error": num_errors / num_accepted if num_accepted else None,
        "interval": interval,
    }
