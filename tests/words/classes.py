"""Sentences of the evaluation of a classifier."""

import math
from collections.abc import Iterator

from run_parts import of_classes

from ensemble.evaluation import next_member, verdict
from ensemble.evaluation.thresholds import abstention_sentence
from ensemble.metrics import ACCEPT_ALL


def make_test(num_examples=1000, accuracy=0.9, gap=0.0, half_width=0.01, p=(0.5, 0.5), **scores):
    """The section `test` of an evaluation, of so good, so calibrated an ensemble."""
    ensemble = {"accuracy": accuracy, "nll": 0.3, "ece": 0.01, "overconfidence": gap, **scores}
    return {
        "num_examples": num_examples,
        "num_impossible": 3,
        "ece_by_chance": 0.02,
        "calibration_p": {"overconfidence": p[0], "ece": p[1]},
        "ensemble": ensemble,
        "mean": {"accuracy": 0.88, "nll": 0.4},
        "interval": {
            "accuracy": (accuracy - 0.02, accuracy + 0.02),
            "overconfidence": (gap - half_width, gap + half_width),
        },
    }


def make_shift(accuracy, half_width=0.004):
    """A shift that leaves such an accuracy of 0.9 at the middle severity."""
    cost = 0.9 - accuracy
    return {
        "ensemble": {"accuracy": [0.9, 0.9, accuracy, 0, 0], "ece": [0, 0, 0.25, 0, 0]},
        "accuracy_cost_interval": [(0, 0), (0, 0), (cost - half_width, cost + half_width)],
    }


def make_temperature(on_test, on_folds):
    """The section of a temperature with such changes of the NLL."""
    return {
        "value": 1.5,
        "ensemble": {"nll": 0.29, "ece": 0.02},
        "num_examples": 52,
        "nll_change_interval": on_test,
        "on_folds": on_folds,
    }


def make_classes(wins, name="cat\x1b"):
    """The section of unequal classes, of which the most frequent is as often right."""
    excess = (-0.02, 0.04)  # As wide as no other interval.
    majority = {"name": name, "share": 0.5, "wins": wins, "excess_interval": excess}
    return {"majority": majority, "interval": (0.6, 0.8), "balanced_accuracy": 0.7}


FEW_GROUPS = {
    "interval": {"accuracy": None},
    "num_examples": 133,
    "num_groups": 4,
    "mean": {"nll": 1},
    "ensemble": {"accuracy": 0.8, "nll": 0.5},
    "over_groups": "site",
}

QUALITY = {
    "several": (make_test(), 4),
    "one_member": (make_test(), 1),
    "all_right": (make_test(accuracy=1.0), 1),
    "none_right": (make_test(num_examples=1, accuracy=0.0), 1),
    "infinite_nll": (make_test(nll=math.inf), 1),
    "few_groups": (FEW_GROUPS, 1),
}
TRUST = {
    "calibrated": make_test(),
    "overconfident": make_test(gap=0.05, p=(0.02, 0.5)),
    "underconfident": make_test(gap=-0.05, p=(0.02, 0.5)),
    "wrong_by_level": make_test(p=(0.03, 0.02)),
    "too_small": make_test(half_width=0.05),
    "too_small_and_without_0": make_test(gap=-0.06, half_width=0.05, p=(0.04, 0.5)),
    "one_of_two_tests_fails": make_test(gap=-0.0142, p=(0.03, 0.03)),
    "few_examples": make_test(num_examples=29, gap=0.3),
}
ADVICE = {
    "better": ((-0.02, 0.01), (-0.02, -0.01)),
    "worse_on_test": ((0.01, 0.02), (-0.02, -0.01)),
    "not_told": ((-0.02, -0.01), (-0.02, 0.02)),
    "too_few": ((-0.02, -0.01), None),
    "infinite_on_test": ((math.nan, math.nan), (-0.01, 0.02)),
}
SHIFT = {
    "worst": {"blur": make_shift(0.8), "noise": make_shift(0.6)},
    "lowest": {"blur": make_shift(0.8), "noise": make_shift(0.6, 0.25)},
    "lowest_may_be_chance": {"blur": make_shift(0.8), "noise": make_shift(0.7, 0.25)},
    "none_known": {"blur": make_shift(0.88, 0.03), "noise": make_shift(0.7, 0.25)},
    "harmless": {"blur": make_shift(0.9), "noise": make_shift(0.8995)},
    "not_all_harmless": {"blur": make_shift(0.9), "noise": make_shift(0.897)},
}
BALANCE = {"rarer": (0.6, 0.9), "may_be_chance": (0.4, 0.6), "better": (0.1, 0.4)}
NEXT = {
    "stop": (8, 0.0000372, (-0.00001, 0.00006)),
    "more_pay": (8, 0.003, (0.001, 0.005)),
    "not_told": (8, 0.003, (-0.001, 0.007)),
    "copies": (8, 0.0, (0.0, 0.0)),
    "one": (1, None, None),
    "two": (2, None, None),
    "cannot_be_said": (3, None, None),
}


def make_abstention(rule, threshold=0.3, accepted=80, reason=""):
    """A section of abstention by a rule; with a reason, one that is not proved."""
    if reason:
        return {"rule": rule, "reason": reason}
    test = {"num_accepted": accepted, "coverage": accepted / 100, "error": 0.1}
    return {"rule": rule, "threshold": threshold, "test": {**test, "interval": (0.05, 0.2)}}


def cases() -> Iterator[tuple[str, str]]:
    """Every case, and what is said in it."""
    for case, (test, num_members) in QUALITY.items():
        yield f"quality.{case}", verdict.quality(test, num_members)
    for case, test in TRUST.items():
        yield f"trust.{case}", verdict.trust(test, temperature_helps=False)
        few_groups = {**test, "over_groups": "patient", "interval": {"overconfidence": None}}
        yield f"trust_of_groups.{case}", verdict.trust(few_groups, temperature_helps=False)
    yield "trust.temperature_helps", verdict.trust(make_test(), temperature_helps=True)
    for case, changes in ADVICE.items():
        yield f"temperature.{case}", verdict.advice(make_test(), make_temperature(*changes))
    for case, sections in SHIFT.items():
        yield f"shift.{case}", verdict.shift(sections)
    for case, wins in BALANCE.items():
        yield f"balance.{case}", verdict.balance(make_test(), make_classes(wins))
    of_groups = {**make_test(), "over_groups": "site"}
    yield "balance.groups", verdict.balance(of_groups, make_classes((0.4, 0.6)))
    for case, (num_members, gain, interval) in NEXT.items():
        said = next_member._sentence(num_members, gain, interval, nll=0.02)
        yield f"next_member.{case}", said
    density = next_member._sentence(8, 0.003, (0.001, 0.005), nll=-1.0, small=0.001)
    yield "next_member.density", density
    proved = [make_abstention("max_error=0.001", reason="few"), make_abstention("coverage=0.1")]
    proved += [make_abstention("max_error=0.5"), make_abstention("max_error=0.2")]
    yield "abstention.smallest_proved", abstention_sentence(proved)
    yield "abstention.none_proved", abstention_sentence(proved[:2])
    everything = make_abstention("max_error=0.9", ACCEPT_ALL, accepted=100)
    yield "abstention.everything", abstention_sentence([everything])
    section = {
        "ensemble": {"accuracy": 0.92, "nll": 0.15},
        "members": {"accuracy": [0.9, 0.8], "nll": [0.2, 0.4]},
    }
    yield "classes.ensemble", of_classes("ab").sentence(section, "test", 2)
    posterior = of_classes("ab").posterior_sentence(section, {"accuracy": 0.93}, "test")
    yield "classes.posterior", posterior
