"""The evaluation in a few sentences: how good, how far its probabilities can be trusted.

A sentence concludes only what an interval supports; every number in it is also in the tables.
"""

import math
from collections.abc import Mapping
from typing import Any

from ensemble.errors import shown
from ensemble.evaluation import strata
from ensemble.evaluation.scoring import is_available
from ensemble.evaluation.sentences import FEW_EXAMPLES, closing, detection, effect, posterior
from ensemble.evaluation.thresholds import abstention_sentence
from ensemble.likelihoods.classes import gain
from ensemble.pictures.plot_style import shorten

WIDE = 0.02
"""Half-width of an interval of confidence less accuracy that is too wide to call it calibrated."""

MIDDLE = 2
HARMLESS = 0.005


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
    if sentence := abstention_sentence(evaluation["abstention"]):
        sentences.append(sentence)
    if evaluation["shift"]:
        sentences.append(shift(evaluation["test"], evaluation["shift"]))
    if sentence := detection(evaluation["out_of_distribution"], "entropy", "entropy"):
        sentences.append(sentence)
    return [*sentences, *closing(evaluation)]


def quality(test: Mapping[str, Any], num_members: int) -> str:
    """Accuracy and NLL, beside the mean member's.

    Args:
        test: as `scoring.score_predictions` returns it.
        num_members: M.
    """
    accuracy, nll = test["ensemble"]["accuracy"], test["ensemble"]["nll"]
    low, high = test["interval"]["accuracy"]
    who = "One member" if num_members == 1 else f"The ensemble of {num_members}"
    count = f"{test['num_examples']:,} test example{'s' if test['num_examples'] > 1 else ''}"
    if accuracy in (0, 1):
        what = f"{who} is right on {'all' if accuracy else 'none'} of {count}"
    else:
        what = f"{who} is right on {accuracy:.2%} [{low:.2%}, {high:.2%}] of {count}"
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
        test: as `scoring.score_predictions` returns it.
        classes: as `scoring.score_classes` returns it.
    """
    majority, (low, high) = classes["majority"], classes["interval"]
    text = (
        f"Classes are unequal: always answering {shown(shorten(majority['name']))}, the most "
        f"frequent, is right on {majority['share']:.2%}"
    )
    least, most = test["interval"]["accuracy"]
    if most < majority["share"]:
        text += ", which is better"
    elif least <= majority["share"]:
        text += ", and the difference may be chance"
    balanced = f"{classes['balanced_accuracy']:.2%} [{low:.2%}, {high:.2%}]"
    return f"{text}; the balanced accuracy, the mean recall of the classes, is {balanced}."


def trust(test: Mapping[str, Any], temperature_helps: bool) -> str:
    """Whether confidence and accuracy agree.

    Args:
        test: as `scoring.score_predictions` returns it.
        temperature_helps: whether a temperature is to be used.
    """
    gap, (low, high) = test["ensemble"]["overconfidence"], test["interval"]["overconfidence"]
    ece, chance = test["ensemble"]["ece"], test["ece_by_chance"]
    numbers = f"{100 * gap:+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}], ECE {ece:.4f}"
    if test["num_examples"] < FEW_EXAMPLES:
        return (
            f"With {test['num_examples']} test examples nothing can be said of its calibration "
            f"(confidence less accuracy: {100 * gap:+.2f} points)."
        )
    if not low <= 0 <= high:
        word, side = ("over", "above") if gap > 0 else ("under", "below")
        return f"It is {word}confident: its mean confidence lies {side} its accuracy ({numbers})."
    if ece > chance:
        return (
            "Its confidence is right on average, but not level by level: confidence less accuracy "
            f"is {numbers}, and by chance the ECE would hardly exceed {chance:.4f}."
        )
    if (high - low) / 2 > WIDE:
        return f"The test split is too small to tell whether it is calibrated ({numbers})."
    agree = f"confidence and accuracy differ by no more than chance ({numbers})."
    if temperature_helps:
        return f"On average its {agree}"
    return f"Its probabilities can be taken as they are: {agree}"


def advice(test: Mapping[str, Any], section: Mapping[str, Any]) -> str:
    """What the temperature does to the test split.

    Args:
        test: as `scoring.score_predictions` returns it.
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
    return f"A temperature ({section['value']:.2f}) changes nothing that can be told ({what})."


def shift(test: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """The kind of shift that hurts most at the middle severity.

    Args:
        test: as `scoring.score_predictions` returns it.
        sections: by kind of shift.
    """
    kind, section = min(sections.items(), key=lambda item: item[1]["ensemble"]["accuracy"][MIDDLE])
    accuracy, ece = section["ensemble"]["accuracy"][MIDDLE], section["ensemble"]["ece"][MIDDLE]
    if accuracy >= test["ensemble"]["accuracy"] - HARMLESS:
        return (
            f"At the middle severity none of {len(sections)} shifts costs more than half a point "
            "of accuracy."
        )
    return (
        f"Of {len(sections)} shifts at the middle severity {kind} hurts most: {accuracy:.1%} "
        f"right, with an ECE of {ece:.3f}."
    )
