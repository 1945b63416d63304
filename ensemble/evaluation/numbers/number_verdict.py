"""The evaluation of predicted numbers in a few sentences.

A sentence concludes only what an interval supports; every number in it is also in the tables.
"""

import math
from collections.abc import Mapping
from typing import Any

from ensemble.evaluation import strata
from ensemble.evaluation.scoring import is_available
from ensemble.evaluation.sentences import FEW_EXAMPLES, closing, detection, effect, posterior
from ensemble.metrics import ACCEPT_ALL, MAX_ERROR, Rule
from ensemble.pictures.plot_style import plural

_SURE = 0.05
"""A p-value above which the PIT gives no reason to doubt the distributions."""
_WIDE = 0.06
"""Half-width of an interval of the coverage that is too wide to call it right."""
_MIDDLE = 3  # Of the severities, after the test split itself.
_HARMLESS = 0.05
_FEW_DISTINCT = 0.1
_LEVEL = 0.9


def verdict(evaluation: Mapping[str, Any]) -> list[str]:
    """Sums an evaluation up, the most important first.

    Args:
        evaluation: the content of evaluation.json so far.

    Returns:
        Sentences, fewer where there are few test examples: errors beside those of simpler
        predictors, the chains of a posterior, trust in the intervals, the factor of the scale,
        conformal intervals, groups, whether uncertain predictions are worse, abstention, shift,
        out-of-distribution data, the next member, and the notes of the run.
    """
    test, scale = evaluation["test"], evaluation["calibrated"]["scale"]
    sentences = [quality(test, len(evaluation["members"])), beside(test, evaluation["simple"])]
    sentences += posterior(evaluation)
    sentences.append(trust(test))
    if test["distinct_targets"] < _FEW_DISTINCT * test["num_examples"]:
        sentences.append(
            f"The {test['num_examples']:,} targets have only {test['distinct_targets']} distinct "
            "values: the NLL of a density and the PIT say little there; compare by CRPS and RMSE."
        )
    sets, split = evaluation["calibrated"]["conformal"], evaluation["config"].get("split", "")
    is_enough = test["num_examples"] >= FEW_EXAMPLES
    if is_available(scale) and is_enough:
        sentences.append(advice(test, scale))
    sentences += [
        sentence
        for sentence in (
            conformal(sets, test),
            strata.sentence(sets["quantiles"].get("by_stratum", ()), split),
            uncertainty(evaluation["uncertainty"]) if is_enough else "",
            abstention(evaluation["abstention"]),
            shift(evaluation["shift"]),
            detection(evaluation["out_of_distribution"], "epistemic", "members' disagreement"),
        )
        if sentence
    ]
    return [*sentences, *closing(evaluation)]


def quality(test: Mapping[str, Any], num_members: int) -> str:
    """RMSE, and what the ensemble brings over its mean member.

    Args:
        test: as `number_scores.score_predictions` returns it.
        num_members: M.
    """
    scores, mean, (low, high) = test["ensemble"], test["mean"], test["interval"]["rmse"]
    who = "One member" if num_members == 1 else f"The ensemble of {num_members}"
    what = (
        f"{who} has an RMSE of {scores['rmse']:.4g} [{low:.4g}, {high:.4g}] on "
        f"{plural(test['num_examples'], 'test example')}"
    )
    if num_members > 1:
        what += f", {100 * (scores['rmse'] / mean['rmse'] - 1):+.1f}% from its mean member"
    if not math.isfinite(scores["nll"]):
        return f"{what}; its NLL is infinite."
    what += f", and an NLL of {scores['nll']:.4g} nats"
    if num_members > 1 and math.isfinite(mean["nll"]):
        what += f" ({scores['nll'] - mean['nll']:+.3f})"
    return f"{what}."


def beside(test: Mapping[str, Any], simple: Mapping[str, Any]) -> str:
    """The errors of least squares and of a constant.

    Args:
        test: as `number_scores.score_predictions` returns it.
        simple: as `number_scores.score_simple` returns it.
    """
    named = {"least_squares": "Least squares", "constant": "the training targets' mean"}
    found = {name: simple[name] for name in named if "ensemble" in simple[name]}
    if not found:
        return "Simpler predictors could not be scored: the data are not here."
    parts = [f"{named[name]} has {one['ensemble']['rmse']:.4g}" for name, one in found.items()]
    text = ", ".join(parts)
    if test["num_examples"] < FEW_EXAMPLES:
        return f"{text[0].upper()}{text[1:]}."
    best = min(found.values(), key=lambda one: one["ensemble"]["rmse"])
    low, high = best["excess_interval"]["rmse"]
    text = f"{text[0].upper()}{text[1:]}"
    than = f"than the better of these by [{low:.4g}, {high:.4g}]"
    if low > 0:
        return f"{text}: the ensemble is better {than}."
    if high < 0:
        than = f"than the better of these by [{-high:.4g}, {-low:.4g}]"
        return f"{text}: the ensemble is worse {than}."
    return f"{text}; this test split alone does not tell which is best."


def trust(test: Mapping[str, Any]) -> str:
    """Whether intervals hold as many targets as they say, and whether the PIT is uniform.

    Args:
        test: as `number_scores.score_predictions` returns it.
    """
    coverage, (low, high) = test["ensemble"]["coverage_90"], test["interval"]["coverage_90"]
    pit = test["pit"]
    numbers = f"90% intervals hold {coverage:.1%} [{low:.1%}, {high:.1%}] of the targets"
    uniform = f"the PIT is {pit['distance']:.3f} from uniform, p = {pit['p_value']:.2g}"
    if test["num_examples"] < FEW_EXAMPLES:
        return (
            f"With {test['num_examples']} test examples nothing can be said of its calibration "
            f"(its {numbers})."
        )
    if low > _LEVEL and pit["p_value"] >= _SURE:  # As of counts, whose intervals hold their ends.
        return f"It is not too sure: its {numbers}, and nothing speaks against its PIT ({uniform})."
    if not low <= _LEVEL <= high:
        word = "too sure" if coverage < _LEVEL else "too cautious"
        return f"It is {word}: its {numbers}, and {uniform}."
    if pit["p_value"] < _SURE:
        return f"Its {numbers}, but its distributions are not right: {uniform}."
    if (high - low) / 2 > _WIDE:
        return f"The test split is too small to tell whether it is calibrated: its {numbers}."
    return f"Its distributions can be taken as they are: its {numbers}, and {uniform}."


def advice(test: Mapping[str, Any], section: Mapping[str, Any]) -> str:
    """What the factor of the scale does to the test split.

    Args:
        test: as `number_scores.score_predictions` returns it.
        section: `scale` of `calibrated_numbers.score_calibrated`.
    """
    before, after = test["ensemble"], section["ensemble"]
    what = (
        f"NLL from {before['nll']:.4g} to {after['nll']:.4g}, 90% intervals from "
        f"{before['coverage_90']:.1%} to {after['coverage_90']:.1%} of the targets"
    )
    found = effect(section)
    if found < 0:
        return f"A factor of {section['value']:.2f} on its scale makes it better ({what}): use it."
    if found > 0:
        return f"The factor {section['value']:.2f} on its scale makes it worse ({what}): leave it."
    return f"A factor on its scale ({section['value']:.2f}) changes nothing that is told ({what})."


def conformal(sections: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    """The narrower kind of conformal intervals.

    Args:
        sections: of `calibrated_numbers.score_calibrated`, by method.
        test: as `number_scores.score_predictions` returns it.
    """
    found = {name: one for name, one in sections.items() if is_available(one)}
    if not found:
        return ""
    named = {"distance": "Split conformal", "quantiles": "Conformalised quantile"}
    name, section = min(found.items(), key=lambda item: item[1]["mean_width"])
    low, high = section["coverage_range"]
    text = (
        f"{named[name]} intervals, which hold 90% of the targets on average over calibration "
        f"splits, have a mean width of {section['mean_width']:.4g} (its own 90% intervals "
        f"{test['ensemble']['width_90']:.4g}) and hold {section['coverage']:.1%} here"
    )
    if low <= section["coverage"] <= high:
        return f"{text}."
    return (
        f"{text}, outside of the {low:.1%} to {high:.1%} that are to be expected: calibration and "
        "test examples may differ."
    )


def uncertainty(section: Mapping[str, Any]) -> str:
    """Whether predictions that are less certain are worse.

    Args:
        section: as `number_scores.score_uncertainty` returns it.
    """
    found = section["rank_correlation"]
    if found is None:
        return "It is as uncertain of every example as of any other."
    low, high = section["interval"]
    what = f"the rank correlation of error and predicted deviation is {found:.2f}"
    what += f" [{low:.2f}, {high:.2f}]"
    if low > 0:
        return f"Where it is less certain, it errs more: {what}."
    if high < 0:
        return f"Where it is less certain, it errs less, which is wrong: {what}."
    return f"That it errs more where it is less certain cannot be told: {what}."


def abstention(sections: Any) -> str:
    """What the smallest wanted error that is proved costs; empty where none is.

    Args:
        sections: as `widths.score_abstention` returns them.
    """
    proved = [(Rule.parse(one["rule"]), one) for one in sections if "reason" not in one]
    for rule, section in sorted(proved, key=lambda pair: pair[0].value):
        test = section["test"]
        if rule.name != MAX_ERROR or not test["num_accepted"]:
            continue
        low, high = test["interval"]
        wanted = (
            f"miss by more than {section['tolerance']:.4g} on at most {100 * rule.value:.3g}% of "
            "what it accepts, with 95% confidence"
        )
        found = f"{test['error']:.1%} [{low:.1%}, {high:.1%}]"
        if section["threshold"] == ACCEPT_ALL:
            return f"To {wanted}, it need not abstain: so wrong are {found} of the test examples."
        return (
            f"To {wanted}, it abstains where its 90% interval is wider than "
            f"{section['max_width']:.4g}: on {1 - test['coverage']:.1%} of the test examples. Of "
            f"the others {found} are so wrong."
        )
    return ""


def shift(sections: Mapping[str, Any]) -> str:
    """The kind of shift that hurts most at the middle severity; empty where there is none.

    Args:
        sections: by kind, as `unfamiliar.score_shifts` returns them.
    """
    if not sections:
        return ""
    kind, section = max(sections.items(), key=lambda item: item[1]["ensemble"]["rmse"][_MIDDLE])
    scores = section["ensemble"]
    rmse, plain = scores["rmse"][_MIDDLE], scores["rmse"][0]
    if rmse <= (1 + _HARMLESS) * plain:
        return (
            f"At the middle severity none of {len(sections)} shifts raises the RMSE by more than "
            f"{_HARMLESS:.0%}."
        )
    return (
        f"Of {len(sections)} shifts at the middle severity {kind!r} hurts most: an RMSE of "
        f"{rmse:.4g}, and 90% intervals that hold {scores['coverage_90'][_MIDDLE]:.0%}."
    )
