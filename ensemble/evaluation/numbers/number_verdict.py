"""The evaluation of predicted numbers in a few sentences.

A sentence concludes only what an interval supports; every number in it is also in the tables.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.special

from ensemble.evaluation import strata
from ensemble.evaluation.sentences import FEW_EXAMPLES, closing, detection, is_available, posterior
from ensemble.metrics import ACCEPT_ALL, MAX_ERROR, Rule
from ensemble.pictures.plot_style import plural

_SURE = 0.025
"""A p-value below which the coverage, or the PIT, speaks against the distributions: of right ones
at most 5% are doubted, because there are two tests (Bonferroni)."""
_POWER = 0.8
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
    sentences += [*posterior(evaluation), trust(test)]
    if "num_measured" in test or "num_censored" in test:
        sentences.append(annotations(test))
    if test["distinct_targets"] < _FEW_DISTINCT * test["num_examples"]:
        sentences.append(
            f"The {test['num_examples']:,} targets have only {test['distinct_targets']} distinct "
            "values: the NLL of a density and the PIT say little there; compare by CRPS and RMSE."
        )
    sets, split = evaluation["calibrated"]["conformal"], evaluation["config"].get("split", "")
    is_enough, is_grouped = test["num_examples"] >= FEW_EXAMPLES, "over_groups" in test
    if is_available(scale) and is_enough:
        sentences.append(advice(test, scale))
    sentences += [
        sentence
        for sentence in (
            conformal(sets, test),
            strata.sentence(sets["quantiles"].get("by_stratum", ()), split),
            uncertainty(evaluation["uncertainty"]) if is_enough and not is_grouped else "",
            strata.no_promise(test) or abstention(evaluation["abstention"]),
            shift(evaluation["shift"], strata.too_few(test)),
            detection(evaluation["out_of_distribution"], "epistemic", "members' disagreement"),
        )
        if sentence
    ]
    return [*sentences, *closing(evaluation)]


def quality(test: Mapping[str, Any], num_members: int) -> str:
    """RMSE, and what the ensemble brings over its mean member.

    Args:
        test: as `sections.score_test` returns it.
        num_members: M.
    """
    scores, mean = test["ensemble"], test["mean"]
    who = "One member" if num_members == 1 else f"The ensemble of {num_members}"
    what = (
        f"{who} has an RMSE of {scores['rmse']:.4g} {_ends(test)} on "
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
        test: as `sections.score_test` returns it.
        simple: as `number_scores.score_simple` returns it.
    """
    named = {"least_squares": "least squares", "constant": "the training targets' mean"}
    found = {name: simple[name] for name in named if "ensemble" in simple[name]}
    if not found:
        return "Simpler predictors could not be scored: the data are not here."
    parts = [f"{named[name]} has {one['ensemble']['rmse']:.4g}" for name, one in found.items()]
    text = ", ".join(parts)
    if test["num_examples"] < FEW_EXAMPLES:
        return f"{text[0].upper()}{text[1:]}."
    text = f"{text[0].upper()}{text[1:]}"
    intervals = {named[name]: one["excess_interval"]["rmse"] for name, one in found.items()}
    told = {name: interval for name, interval in intervals.items() if interval is not None}
    beaten = [name for name, (low, _) in told.items() if low > 0]
    if len(beaten) == len(found):
        low, high = min(told.values())
        return f"{text}: the ensemble is better, by [{low:.4g}, {high:.4g}] at least."
    for name, (low, high) in told.items():
        if high < 0:
            return f"{text}: the ensemble is worse than {name} by [{-high:.4g}, {-low:.4g}]."
    if not told:
        reason = strata.too_few(test) or _FEW_DECIDE
        return f"{text}; {reason}, so it cannot be told which is best."
    name, (low, high) = min(told.items(), key=lambda item: item[1])
    return (
        f"{text}; this test split does not tell which is best: {name} may have [{low:.4g}, "
        f"{high:.4g}] more than the ensemble."
    )


def trust(test: Mapping[str, Any]) -> str:
    """Whether intervals hold as many targets as they say, and whether the PIT is uniform.

    Args:
        test: as `sections.score_test` returns it.
    """
    if reason := strata.too_few(test):
        return (
            f"Its 90% intervals hold {_held(test['ensemble'])} of these targets; {reason}, so "
            "whether it is calibrated cannot be told."
        )
    coverage, (low, high) = test["ensemble"]["coverage_90"], test["interval"]["coverage_90"]
    number, pit = test["num_examples"], test["pit"]
    numbers = f"90% intervals hold {_held(test['ensemble'])} [{low:.1%}, {high:.1%}] of the targets"
    uniform = f"the PIT is {pit['distance']:.3f} from uniform, p = {pit['p_value']:.2g}"
    if number < FEW_EXAMPLES:
        return (
            f"With {number} test examples nothing can be said of its calibration (its {numbers})."
        )
    if "over_groups" in test:  # Rows of one group may be alike: tests count them one by one.
        may_be_cautious = low > _LEVEL and not test.get("is_of_counts")
        word = "too sure" if high < _LEVEL else "too cautious" if may_be_cautious else ""
        if word:
            return f"It is {word}: its {numbers}, over groups."
        return f"Over groups nothing speaks against its intervals: its {numbers}."
    is_doubted = pit["p_value"] < _SURE
    if "num_censored" in test:  # Of which some are held, or not, to an unknown share.
        is_wrong, is_low = not low <= _LEVEL <= high, high < _LEVEL
    else:
        is_wrong = _coverage_p_value(round(coverage * number), number) < _SURE
        is_low = coverage < _LEVEL
    if is_wrong:
        if test.get("is_of_counts") and not is_low and not is_doubted:  # They hold their ends.
            return (
                f"It is not too sure: its {numbers}, and nothing speaks against its PIT "
                f"({uniform})."
            )
        word = "too sure" if is_low else "too cautious"
        return f"It is {word}: its {numbers}, and {uniform}."
    if is_doubted:
        return f"Its {numbers}, but its distributions are not right: {uniform}."
    if "num_censored" in test and (high - low) / 2 > _WIDE:
        return f"Nothing that is known speaks against its distributions: its {numbers}, {uniform}."
    seen = visible_coverage(number)
    seen_text = (
        f"with so many examples, one of {seen:.0%} would be noticed in {_POWER:.0%} of cases"
    )
    if (high - low) / 2 > _WIDE:
        return (
            f"The test split is too small to tell whether it is calibrated: its {numbers}; "
            f"{seen_text}."
        )
    return (
        f"Nothing speaks against its distributions: its {numbers}, and {uniform}. If the coverage "
        f"was wrong: {seen_text}."
    )


def visible_coverage(num_examples: int) -> float:
    """The coverage below 90% that `trust` would notice in 80% of test splits of this size.

    Args:
        num_examples: N of the test split.

    Returns:
        A share; 0 where even that would not be noticed.
    """
    counts = np.arange(num_examples + 1)
    noticed = scipy.special.bdtr(counts, num_examples, _LEVEL) < _SURE / 2
    most = int(noticed.sum()) - 1  # Targets held, as one sees at most of a coverage too low.
    return float(scipy.special.bdtri(most, num_examples, _POWER)) if most >= 0 else 0.0


def _coverage_p_value(num_held: int, num_examples: int) -> float:
    """Exact and two-sided, of a coverage of 90%."""
    below = scipy.special.bdtr(num_held, num_examples, _LEVEL)
    above = scipy.special.bdtrc(num_held - 1, num_examples, _LEVEL) if num_held else 1.0
    return float(min(1.0, 2 * min(below, above)))


def annotations(test: Mapping[str, Any]) -> str:
    """How targets are scored that are censored, or measured with errors.

    Args:
        test: as `sections.score_test` returns it.
    """
    sentences = []
    if "num_measured" in test:
        sentences.append(
            f"{test['num_measured']:,} of {test['num_examples']:,} targets have an error of "
            "measurement: all are scored as they were measured, so the error's variance is added "
            "to what is predicted."
        )
    if "num_censored" in test:
        low, high = test["coverage_bounds"]["coverage_90"]
        sentences.append(
            f"{test['num_censored']:,} of {test['num_examples']:,} targets are censored: the NLL "
            "is of all; coverage and PIT are estimated for all (Kaplan and Meier), which supposes "
            "that being censored says nothing of a target but its bound. Without supposing that, "
            f"90% intervals hold between {low:.1%} and {high:.1%} of these targets. All other "
            "scores are of the targets that are known, which are lower than others like them."
        )
    return " ".join(sentences)


def _held(scores: Mapping[str, Any]) -> str:
    """The share that 90% intervals hold."""
    share = scores["coverage_90"]
    return "an unknown share" if share is None else f"{share:.1%}"


def advice(test: Mapping[str, Any], section: Mapping[str, Any]) -> str:
    """What the factor of the scale does to the test split.

    Args:
        test: as `sections.score_test` returns it.
        section: `scale` of `calibrated_numbers.score_calibrated`.
    """
    before, after = test["ensemble"], section["ensemble"]
    what = (
        f"NLL from {before['nll']:.4g} to {after['nll']:.4g}, 90% intervals from "
        f"{_held(before)} to {_held(after)} of the targets"
    )
    found = section.get("on_folds")
    factor = f"{section['value']:.2f}"
    if found is None:
        return f"Whether a factor on its scale ({factor}) helps cannot be told ({what})."
    low, high = found
    folds = f"on folds of the calibration split it changes the NLL by [{low:.3g}, {high:.3g}] nats"
    if high < 0:
        return f"A factor of {factor} on its scale makes it better, use it: {folds} (test: {what})."
    return (
        f"A factor of {factor} on its scale is not seen to help, leave it out: {folds} "
        f"(test: {what})."
    )


def conformal(sections: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    """The narrower kind of conformal intervals.

    Args:
        sections: of `calibrated_numbers.score_calibrated`, by method.
        test: as `sections.score_test` returns it.
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
    if low <= section["coverage"] <= high or "over_groups" in test:  # Whose rows may be alike.
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


def shift(sections: Mapping[str, Any], why_unknown: str = "") -> str:
    """The kind of shift that hurts most at the middle severity; empty where there is none.

    Args:
        sections: by kind, as `unfamiliar.score_shifts` returns them.
        why_unknown: why there are no intervals, if that is not the tail of the errors.
    """
    if not sections:
        return ""
    kind, section = max(sections.items(), key=lambda item: item[1]["ensemble"]["rmse"][_MIDDLE])
    intervals = [one["rmse_ratio_interval"][_MIDDLE - 1] for one in sections.values()]
    scores = section["ensemble"]
    if all(one is not None and one[1] <= 1 + _HARMLESS for one in intervals):
        return (
            f"At the middle severity none of {len(sections)} shifts raises the RMSE by more than "
            f"{_HARMLESS:.0%} on inputs like these."
        )
    text = (
        f"Of {len(sections)} shifts at the middle severity {kind!r} has the largest RMSE on this "
        f"test split: {scores['rmse'][_MIDDLE]:.4g}, and 90% intervals that hold "
        f"{scores['coverage_90'][_MIDDLE]:.0%}"
    )
    interval = section["rmse_ratio_interval"][_MIDDLE - 1]
    if interval is None:
        return f"{text}; {why_unknown or _FEW_DECIDE}."
    low, high = (100 * (one - 1) for one in interval)
    if low > 0 or high < 0:
        return f"{text}. The shift changes the RMSE by [{low:+.1f}, {high:+.1f}]%."
    return (
        f"{text}. Whether it harms is not told: it changes the RMSE by [{low:+.1f}, {high:+.1f}]%."
    )


_FEW_DECIDE = "a few large errors decide the RMSE"


def _ends(test: Mapping[str, Any]) -> str:
    interval = test["interval"]["rmse"]
    if interval is None and (reason := strata.too_few(test)):
        return f"({reason})"
    if interval is None:
        return f"({_FEW_DECIDE}, so no interval can be told: see the CRPS)"
    return f"[{interval[0]:.4g}, {interval[1]:.4g}]"
