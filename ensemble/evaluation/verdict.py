"""The evaluation in a few sentences: how good, how far its probabilities can be trusted.

A sentence concludes only what an interval supports; every number in it is also in the tables.
"""

import math
from collections.abc import Mapping
from typing import Any

from ensemble import metrics
from ensemble.errors import shown
from ensemble.evaluation import strata
from ensemble.evaluation.sentences import (
    FEW_EXAMPLES,
    closing,
    detection,
    effect,
    is_available,
    posterior,
)
from ensemble.evaluation.thresholds import abstention_sentence
from ensemble.likelihoods.classes import gain
from ensemble.pictures.plot_style import shorten

WIDE = 0.02
"""Half-width of an interval of confidence less accuracy that is too wide to call it calibrated."""

FALSE_ALARMS = 0.05
MIDDLE = 2
HARMLESS = 0.005
NOTABLE = 0.01
"""Difference in accuracy, or in nats, of which is said how many examples would show it."""


def verdict(evaluation: Mapping[str, Any]) -> list[str]:
    """Sums an evaluation up, the most important first.

    Args:
        evaluation: the content of evaluation.json so far.

    Returns:
        Sentences: accuracy and gain, the majority class where classes are unequal, the chains of a
        posterior, trust in the probabilities, the temperature, groups, abstention, shift,
        out-of-distribution data, the next member, and the notes of the run.
    """
    temperature = evaluation["calibrated"]["temperature"]
    sentences = [quality(evaluation["test"], len(evaluation["members"]))]
    is_grouped = "over_groups" in evaluation["test"]
    if evaluation["classes"]["are_unequal"]:
        sentences.append(balance(evaluation["test"], evaluation["classes"]))
    sentences += posterior(evaluation)
    sentences.append(trust(evaluation["test"], effect(temperature) < 0))
    if is_available(temperature):
        sentences.append(advice(evaluation["test"], temperature))
    elif "value" in temperature:
        sentences.append(f"No temperature can be fitted; it is {temperature['reason']}.")
    by_stratum = evaluation["calibrated"]["conformal"].get("by_stratum", ())
    if sentence := strata.sentence(by_stratum, evaluation["config"].get("split", "")):
        sentences.append(sentence)
    no_promise = strata.no_promise(evaluation["test"])
    if sentence := no_promise or abstention_sentence(evaluation["abstention"]):
        sentences.append(sentence)
    if evaluation["shift"] and not is_grouped:
        sentences.append(shift(evaluation["shift"]))
    if sentence := detection(evaluation["out_of_distribution"], "entropy", "entropy"):
        sentences.append(sentence)
    return [*sentences, *closing(evaluation)]


def quality(test: Mapping[str, Any], num_members: int) -> str:
    """Accuracy and NLL, beside the mean member's.

    Args:
        test: as `sections.score_test` returns it.
        num_members: M.
    """
    accuracy, nll = test["ensemble"]["accuracy"], test["ensemble"]["nll"]
    interval = test["interval"]["accuracy"]
    who = "One member" if num_members == 1 else f"The ensemble of {num_members}"
    count = f"{test['num_examples']:,} test example{'s' if test['num_examples'] > 1 else ''}"
    share = {0: "none", 1: "all"}.get(accuracy, f"{accuracy:.2%}")
    ends = "" if interval is None else f" [{interval[0]:.2%}, {interval[1]:.2%}]"
    what = f"{who} is right on {share}{ends} of {count}"
    if reason := strata.too_few(test):
        what += f" ({reason})"
    if num_members > 1:
        what += f", {gain(accuracy, test['mean']['accuracy'])}"
    if not math.isfinite(nll):
        return f"{what}; its NLL is infinite: labels of probability 0: {test['num_impossible']}."
    what += f", at an NLL of {nll:.4f} nats"
    mean_nll = test["mean"]["nll"]
    if num_members > 1 and math.isfinite(mean_nll) and mean_nll > 0:
        what += f", {1 - nll / mean_nll:.0%} below its mean member's"
    return f"{what}."


def balance(test: Mapping[str, Any], classes: Mapping[str, Any]) -> str:
    """What stands beside the accuracy where classes are unequal.

    Args:
        test: as `sections.score_test` returns it.
        classes: as `classes.score_classes` returns it.
    """
    majority, (low, high) = classes["majority"], classes["interval"]
    rarer, more = majority["wins"]
    text = (
        f"Classes are unequal: always answering {shown(shorten(majority['name']))}, the most "
        f"frequent, is right on {majority['share']:.2%}"
    )
    if "over_groups" in test:  # Rows of one group may be alike, and are counted one by one here.
        balanced = f"{classes['balanced_accuracy']:.2%}"
        return f"{text}; the balanced accuracy, the mean recall of the classes, is {balanced}."
    if more < 0.5:
        text += ", which is better"
    elif rarer <= 0.5:
        needed = metrics.num_to_see(NOTABLE, majority["excess_interval"], test["num_examples"])
        text += (
            f", and the difference may be chance (some {needed:,} examples would show one of "
            f"{100 * NOTABLE:g} point)"
        )
    balanced = f"{classes['balanced_accuracy']:.2%} [{low:.2%}, {high:.2%}]"
    return f"{text}; the balanced accuracy, the mean recall of the classes, is {balanced}."


def trust(test: Mapping[str, Any], temperature_helps: bool) -> str:
    """Whether confidence and accuracy agree.

    Args:
        test: as `sections.score_test` returns it.
        temperature_helps: whether a temperature is to be used.
    """
    gap, ece = test["ensemble"]["overconfidence"], test["ensemble"]["ece"]
    chance, found = test["ece_by_chance"], test["calibration_p"]
    if test["num_examples"] < FEW_EXAMPLES:
        return (
            f"With {test['num_examples']} test examples nothing can be said of its calibration "
            f"(confidence less accuracy: {100 * gap:+.2f} points)."
        )
    if "over_groups" in test:
        return (
            f"Rows of one group may be alike, so whether confidence less accuracy, "
            f"{100 * gap:+.2f} points, is more than chance cannot be told (ECE {ece:.4f})."
        )
    low, high = test["interval"]["overconfidence"]
    numbers = f"{100 * gap:+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}], ECE {ece:.4f}"
    # A calibrated predictor is to fail neither of two tests in 95% of cases: each is at half of it.
    if found["overconfidence"] <= FALSE_ALARMS / 2:
        word, side = ("over", "above") if gap > 0 else ("under", "below")
        return f"It is {word}confident: its mean confidence lies {side} its accuracy ({numbers})."
    if found["ece"] <= FALSE_ALARMS / 2:
        return (
            "Its confidence is right on average, but not level by level: confidence less accuracy "
            f"is {numbers}, and by chance the ECE would hardly exceed {chance:.4f}."
        )
    if low > 0 or high < 0:
        numbers += "; it leaves out 0, but of two tests one fails by chance in more than 5%"
    if (high - low) / 2 > WIDE:
        needed = metrics.num_to_see(WIDE, (low, high), test["num_examples"])
        return (
            f"The test split is too small to tell whether it is calibrated ({numbers}): some "
            f"{needed:,} examples would show a difference of {100 * WIDE:g} points."
        )
    agree = f"confidence and accuracy differ by no more than chance ({numbers})"
    if temperature_helps:
        return f"On average its {agree}."
    margin = math.ceil(1000 * max(-low, high) - 1e-9) / 10
    within = f"{margin:g} point{'' if margin == 1 else 's'}"
    return (
        f"On average its probabilities are right to within {within}: {agree}. Level by level "
        f"nothing speaks against them; an ECE of up to {max(ece, chance):.4f} may be chance."
    )


def advice(test: Mapping[str, Any], section: Mapping[str, Any]) -> str:
    """Whether to use the temperature, as calibration examples say, and what it does to the test's.

    Args:
        test: as `sections.score_test` returns it.
        section: `temperature` of `scoring.score_calibrated`.
    """
    before, after = test["ensemble"], section["ensemble"]
    what = (
        f"NLL from {before['nll']:.4f} to {after['nll']:.4f}, ECE from {before['ece']:.4f} to "
        f"{after['ece']:.4f}"
    )
    found = effect(section)
    if found < 0:
        return f"A temperature of {section['value']:.2f} makes them better ({what}): use it."
    if found > 0:
        return f"The temperature {section['value']:.2f} makes them worse ({what}): leave it out."
    text = f"A temperature ({section['value']:.2f}) changes nothing that can be told ({what})"
    if section["on_folds"] is None:
        few = "groups" if "over_groups" in test else "examples are wrong, or right"
        return f"{text}: too few calibration {few}."
    needed = metrics.num_to_see(NOTABLE, section["on_folds"], section["num_examples"])
    return f"{text}: some {needed:,} calibration examples would show a change of {NOTABLE:g} nats."


def shift(sections: Mapping[str, Any]) -> str:
    """The kind of shift that hurts most at the middle severity, if one is known to.

    The intervals of the costs hold together, over all kinds of shift, in 95% of cases.

    Args:
        sections: by kind of shift, as `class_evaluator.score_shifts` returns them.
    """
    costs = {kind: one["accuracy_cost_interval"][MIDDLE] for kind, one in sections.items()}
    if all(high < HARMLESS for _, high in costs.values()):
        return (
            f"At the middle severity none of {len(sections)} shifts costs more than half a point "
            "of accuracy."
        )
    kind, section = min(sections.items(), key=lambda item: item[1]["ensemble"]["accuracy"][MIDDLE])
    accuracy, ece = section["ensemble"]["accuracy"][MIDDLE], section["ensemble"]["ece"][MIDDLE]
    low, high = costs.pop(kind)
    found = (
        f"{accuracy:.1%} right, {100 * low:.1f} to {100 * high:.1f} points less than without, with "
        f"an ECE of {ece:.3f}"
    )
    if low <= 0:
        known = [other for other, (least, _) in costs.items() if least > 0]
        if not known:
            return (
                f"At the middle severity none of {len(sections)} shifts is known to cost accuracy; "
                f"the lowest found is that of {kind}: {found}."
            )
        return (
            f"Of {len(sections)} shifts at the middle severity {kind} has the lowest accuracy "
            f"found, which may be chance: {found}. Known to cost accuracy: {', '.join(known)}."
        )
    what = f"Of {len(sections)} shifts at the middle severity"
    if all(other < low for _, other in costs.values()):
        return f"{what} {kind} hurts most: {found}."
    return f"{what} the lowest accuracy found is that of {kind}: {found}; others may hurt as much."
