"""The evaluation in a few sentences: how good, how far its probabilities can be trusted."""

from collections.abc import Mapping
from typing import Any

from ensemble.evaluation.scoring import is_available


def verdict(evaluation: Mapping[str, Any]) -> list[str]:
    """Sums an evaluation up, the most important first; every number is also in its tables.

    Args:
        evaluation: the content of evaluation.json so far.

    Returns:
        Sentences: accuracy and gain, trust in the probabilities, shift, out-of-distribution data,
        and the next member.
    """
    sentences = [_quality(evaluation), _trust(evaluation)]
    if evaluation["shift"]:
        sentences.append(_shift(evaluation))
    if evaluation["out_of_distribution"]:
        sentences.append(_detection(evaluation))
    return [*sentences, evaluation["next_member"]["sentence"]]


def _quality(evaluation: Mapping[str, Any]) -> str:
    test, count = evaluation["test"], len(evaluation["members"])
    low, high = test["interval"]["accuracy"]
    accuracy, nll, mean_nll = (
        test["ensemble"]["accuracy"],
        test["ensemble"]["nll"],
        test["mean"]["nll"],
    )
    who = "One member" if count == 1 else f"The ensemble of {count}"
    what = f"{who} is right on {accuracy:.2%} [{low:.2%}, {high:.2%}] of the test examples"
    if count == 1:
        return f"{what}, at an NLL of {nll:.4f} nats."
    gain = 100 * (accuracy - test["mean"]["accuracy"])
    saving = f", {1 - nll / mean_nll:.0%} below its mean member's" if mean_nll > 0 else ""
    return f"{what}, {gain:+.2f} points from its mean member, at an NLL of {nll:.4f} nats{saving}."


def _trust(evaluation: Mapping[str, Any]) -> str:
    test, calibrated = evaluation["test"], evaluation["calibrated"]["temperature"]
    gap, (low, high) = test["ensemble"]["overconfidence"], test["interval"]["overconfidence"]
    ece = test["ensemble"]["ece"]
    if low <= 0 <= high:
        verdict = (
            "Its probabilities can be taken as they are: confidence and accuracy differ by no more "
            f"than chance ({100 * gap:+.2f} points, ECE {ece:.4f})."
        )
    else:
        word = "over" if gap > 0 else "under"
        verdict = (
            f"It is {word}confident: its confidence is {100 * abs(gap):.2f} points "
            f"{'above' if gap > 0 else 'below'} its accuracy (ECE {ece:.4f})."
        )
    if not is_available(calibrated):
        return verdict
    after = calibrated["ensemble"]
    better = after["nll"] < calibrated_bound(test)
    return (
        f"{verdict} A temperature of {calibrated['value']:.2f} takes its NLL from "
        f"{test['ensemble']['nll']:.4f} to {after['nll']:.4f} and its ECE to {after['ece']:.4f}"
        f"{': use it' if better else ''}."
    )


def calibrated_bound(test: Mapping[str, Any]) -> float:
    """NLL below which a temperature is worth its use: 1% less than without, nats."""
    return 0.99 * test["ensemble"]["nll"]


def _shift(evaluation: Mapping[str, Any]) -> str:
    """The kind of shift that hurts most at the middle severity."""
    middle = 2
    kind, section = min(
        evaluation["shift"].items(), key=lambda item: item[1]["ensemble"]["accuracy"][middle]
    )
    accuracy, ece = section["ensemble"]["accuracy"][middle], section["ensemble"]["ece"][middle]
    return (
        f"Of five shifts at the middle severity {kind} hurts most: {accuracy:.1%} right, with an "
        f"ECE of {ece:.3f}."
    )


def _detection(evaluation: Mapping[str, Any]) -> str:
    """The set that is hardest to tell."""
    name, section = min(
        evaluation["out_of_distribution"].items(), key=lambda item: item[1]["entropy"]["auroc"]
    )
    score = section["entropy"]
    return (
        f"Of what it has never seen, {name} is hardest to tell: AUROC {score['auroc']:.3f} by "
        f"entropy, {score['fpr95']:.1%} false alarms where 95% are found."
    )
