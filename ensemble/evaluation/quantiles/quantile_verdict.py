"""The evaluation of quantiles in a few sentences."""

import math
from collections.abc import Mapping
from typing import Any

from ensemble.evaluation import sentences, strata
from ensemble.evaluation.sentences import FEW_EXAMPLES, is_available
from ensemble.pictures.plot_style import plural


def verdict(evaluation: Mapping[str, Any]) -> list[str]:
    """Sums an evaluation up, the most important first.

    Args:
        evaluation: the content of evaluation.json so far.
    """
    test, sets = evaluation["test"], evaluation["conformal"]
    widest: Mapping[str, Any] = next(iter(sets.values()), {"reason": "not available"})
    split = evaluation["config"].get("split", "")
    found = [
        _quality(test, len(evaluation["members"])),
        _beside(test, evaluation["simple"]),
        _trust(test),
        _conformal(sets, test),
        strata.sentence(widest.get("by_stratum", ()), split),
        "" if "over_groups" in test else _uncertainty(evaluation["uncertainty"]),
        sentences.detection(
            evaluation["out_of_distribution"], "epistemic", "members' disagreement"
        ),
        sentences.over(test),
        *(f"Note: {line}" for line in evaluation.get("notes", ())),
    ]
    return [one for one in found if one]


def _quality(test: Mapping[str, Any], num_members: int) -> str:
    loss, interval = test["ensemble"]["pinball"], test["interval"]["pinball"]
    who = "One member" if num_members == 1 else f"The ensemble of {num_members}"
    ends = f"({strata.too_few(test) or 'no interval can be told'})"
    if interval is not None:
        ends = f"[{interval[0]:.4g}, {interval[1]:.4g}]"
    text = (
        f"{who} has a pinball loss of {loss:.4g} {ends} on "
        f"{plural(test['num_examples'], 'test example')}"
    )
    if num_members > 1:
        text += f", {100 * (loss / test['mean']['pinball'] - 1):+.1f}% from its mean member"
    return f"{text}. Quantiles have no density, and so no NLL."


def _beside(test: Mapping[str, Any], simple: Mapping[str, Any]) -> str:
    named = {"least_squares": "Least squares", "constant": "the training targets' quantiles"}
    found = {name: simple[name] for name in named if "ensemble" in simple[name]}
    if not found:
        return "Simpler predictors could not be scored: the data are not here."
    parts = [f"{named[name]} has {one['ensemble']['pinball']:.4g}" for name, one in found.items()]
    text = ", ".join(parts)
    text = f"{text[0].upper()}{text[1:]}"
    if test["num_examples"] < FEW_EXAMPLES:
        return f"{text}."
    best = min(found.values(), key=lambda one: one["ensemble"]["pinball"])
    low, high = best["excess_interval"]["pinball"] or (-math.inf, math.inf)
    if low > 0 or high < 0:
        word, ends = ("better", (low, high)) if low > 0 else ("worse", (-high, -low))
        than = f"than the better of these by [{ends[0]:.4g}, {ends[1]:.4g}]"
        return f"{text}: the ensemble is {word} {than}."
    return f"{text}; this test split alone does not tell which is best."


def _trust(test: Mapping[str, Any]) -> str:
    """Whether each band holds what it says, as far as exact intervals of all bands tell."""
    if reason := strata.too_few(test):
        return f"Whether its bands hold what they say cannot be told: {reason}."
    parts, wrong = [], []
    for name, share in test["ensemble"].items():
        if not name.startswith("coverage_"):
            continue
        percent = name.removeprefix("coverage_")
        low, high = test["interval"][name]
        parts.append(f"those of {percent}% hold {share:.1%} [{low:.1%}, {high:.1%}]")
        least, most = test["together"][name]
        if not least <= float(percent) / 100 <= most:
            wrong.append("too narrow" if most < float(percent) / 100 else "too wide")
    if not parts:
        return "No two of its levels are the ends of a central band."
    text = ", ".join(parts)
    if test["num_examples"] < FEW_EXAMPLES:
        return f"With so few test examples nothing can be said of its bands ({text})."
    if not wrong:
        return f"Nothing speaks against its bands: {text}."
    return f"Some of its bands are {' or '.join(sorted(set(wrong)))}: {text}."


def _conformal(sections: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    if not sections or not is_available(next(iter(sections.values()))):
        return ""
    percent, section = next(iter(sections.items()))
    low, high = section["coverage_range"]
    text = (
        f"Conformalised bands, which hold {percent}% of the targets on average over calibration "
        f"splits, have a mean width of {section['mean_width']:.4g} (as they were learned "
        f"{test['ensemble'][f'width_{percent}']:.4g}) and hold {section['coverage']:.1%} here"
    )
    if low <= section["coverage"] <= high or "over_groups" in test:
        return f"{text}."
    return (
        f"{text}, outside of the {low:.1%} to {high:.1%} that are to be expected: calibration and "
        "test examples may differ."
    )


def _uncertainty(section: Mapping[str, Any]) -> str:
    found = section["rank_correlation"]
    if found is None:
        return "Its bands are as wide for every example as for any other."
    low, high = section["interval"]
    what = f"the rank correlation of error and width is {found:.2f} [{low:.2f}, {high:.2f}]"
    if low > 0:
        return f"Where its bands are wider, it errs more: {what}."
    if high < 0:
        return f"Where its bands are wider, it errs less, which is wrong: {what}."
    return f"That it errs more where its bands are wider cannot be told: {what}."
