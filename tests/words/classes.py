"""Sentences of the evaluation of a classifier."""

import math
from collections.abc import Iterator

from run_parts import of_classes, scores_told

from ensemble.evaluation.questions import calibration, doubts, inputs, others, quality
from ensemble.metrics import ACCEPT_ALL
from ensemble.scoring.finding import Finding


def make_test(num_examples=1000, accuracy=0.9, gap=0.0, half_width=0.01, p=(0.5, 0.5), **scores):
    """Sections `test` and `facts` of an evaluation, of so good, so calibrated an ensemble."""
    values = {"accuracy": accuracy, "nll": 0.3, "ece": 0.01, "overconfidence": gap, **scores}
    intervals = {
        "accuracy": (accuracy - 0.02, accuracy + 0.02),
        "overconfidence": (gap - half_width, gap + half_width),
    }
    means = {"accuracy": 0.88, "nll": 0.4}
    test = {
        "num_rows": num_examples,
        "scores": scores_told(values, interval=intervals, mean=means),
    }
    calibration_p = {"overconfidence": p[0], "ece": p[1]}
    return test, {"num_impossible": 3, "ece_by_chance": 0.02, "calibration_p": calibration_p}


def make_shift(accuracy, half_width=0.004):
    """A shift that leaves such an accuracy of 0.9 at the middle severity."""
    cost = 0.9 - accuracy
    return {
        "scores": {"accuracy": [0.9, 0.9, 0.9, accuracy, 0, 0], "ece": [0, 0, 0, 0.25, 0, 0]},
        "change": {"accuracy": [(0, 0), (0, 0), (-cost - half_width, -cost + half_width)]},
    }


def make_temperature(on_test, on_folds):
    """The section of a temperature with such changes of the NLL."""
    return {
        "factor": "temperature",
        "value": 1.5,
        "scores": scores_told({"nll": 0.29, "ece": 0.02}),
        "num_rows": 52,
        "nll_change_interval": on_test,
        "on_folds": on_folds,
    }


def make_classes(wins, name="cat\x1b"):
    """The section of unequal classes, of which the most frequent is as often right."""
    excess = (-0.02, 0.04)  # As wide as no other interval.
    majority = {"name": name, "share": 0.5, "wins": wins, "excess_interval": excess}
    balance = {"interval": (0.6, 0.8), "balanced_accuracy": 0.7}
    return {"majority": majority, "are_unequal": True, **balance}


FEW_GROUPS = {
    "scores": scores_told({"accuracy": 0.8, "nll": 0.5}, interval={"accuracy": None}),
    "num_rows": 133,
    "num_groups": 4,
    "over_groups": "site",
}

QUALITY = {
    "several": (make_test(), 4),
    "one_member": (make_test(), 1),
    "all_right": (make_test(accuracy=1.0), 1),
    "none_right": (make_test(num_examples=1, accuracy=0.0), 1),
    "infinite_nll": (make_test(nll=math.inf), 1),
    "few_groups": ((FEW_GROUPS, {}), 1),
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


def make_sizes(num_members, gain, interval, nll=0.02, small=None):
    """What is scored of so many members."""
    section = {"expected_gain": {"nll": gain}, "gain_interval": interval, "small_gain": small}
    return {"sizes": [*range(num_members)], "mean": {"nll": [nll]}, **section}


def cases() -> Iterator[tuple[str, str | Finding]]:
    """Every case, and what is found in it."""
    for case, ((test, facts), num_members) in QUALITY.items():
        yield f"quality.{case}", quality.quality(test, "accuracy", num_members)
        nll = test["scores"]["nll"]["value"]
        yield f"impossible.{case}", quality.impossible(facts, nll)
    for case, accuracy in {"more": 0.9, "less": 0.85, "as_much": 0.88}.items():
        yield f"gain.{case}", quality.gain(make_test(accuracy=accuracy)[0], "accuracy", 4)
    yield "gain.one_member", quality.gain(make_test()[0], "accuracy", 1)
    yield "gain.infinite_nll", quality.gain(make_test(nll=math.inf)[0], "accuracy", 4)
    untold = {"num_rows": 9, "scores": scores_told({"accuracy": 0.8}, interval={"accuracy": None})}
    yield "quality.no_interval", quality.quality(untold, "accuracy", 2)
    for case, (test, facts) in TRUST.items():
        yield f"trust.{case}", calibration.confidence(test, facts)
        few_groups = {**test, "over_groups": "patient"}
        yield f"trust_of_groups.{case}", calibration.confidence(few_groups, facts)
    usual, _ = make_test()
    of_groups = {**usual, "over_groups": "site"}
    for case, changes in ADVICE.items():
        section = make_temperature(*changes)
        yield f"temperature.{case}", calibration.recalibration(usual, section)
    worse = {**section, "scores": scores_told({"nll": 0.31, "ece": 0.02})}
    for case, folds in {"too_few": None, "not_told": (-0.02, 0.02)}.items():
        found = calibration.recalibration(usual, {**worse, "on_folds": folds})
        yield f"temperature.higher_{case}", found
    many = {**section, "on_folds": (-0.002, 0.001)}
    yield "temperature.needless", calibration.recalibration(usual, many)
    grouped = {**section, "on_folds": None}
    yield "temperature.groups", calibration.recalibration(of_groups, grouped)
    lost = {**worse, "on_folds": None}
    yield "temperature.higher_groups", calibration.recalibration(of_groups, lost)
    for case, spec in {"none": "none", "some": "balanced"}.items():
        yield f"weights.{case}", calibration.weights({"class_weights": spec}, {})
    spec = {"class_weights": "balanced"}
    yield "weights.corrected", calibration.weights(spec, {"class_weights": [1, 2]})
    reason = {"factor": "temperature", "reason": "left at 1: no label is wrong"}
    yield "temperature.unfitted", calibration.recalibration(usual, {**reason, "value": 1.0})
    yield "temperature.no_split", calibration.recalibration(usual, reason)
    for case, coverage in {"expected": 0.9, "outside": 0.7}.items():
        sets = {"level": 0.9, "coverage": coverage, "coverage_range": [0.8, 0.95], "mean_size": 1.2}
        yield f"sets.{case}", calibration.conformal({"sets": sets}, usual)
    yield "sets.groups", calibration.conformal({"sets": sets}, of_groups)
    yield "sets.none", calibration.conformal({"sets": {"reason": "no split"}}, usual)
    for case, sections in SHIFT.items():
        yield f"shift.{case}", inputs.accuracy_under_shift(usual, sections)
    yield "shift.groups", inputs.accuracy_under_shift(of_groups, sections)
    yield "shift.none", inputs.accuracy_under_shift(usual, {})
    for case, wins in BALANCE.items():
        yield f"majority.{case}", quality.majority(usual, make_classes(wins))
    yield "majority.groups", quality.majority(of_groups, make_classes((0.4, 0.6)))
    equal = {**make_classes((0.4, 0.6)), "are_unequal": False}
    yield "majority.equal_classes", quality.majority(usual, equal)
    yield "balance.usual", quality.balance(usual, make_classes((0.4, 0.6)))
    yield "balance.groups", quality.balance(of_groups, make_classes((0.4, 0.6)))
    yield "balance.equal_classes", quality.balance(usual, equal)
    for case, (num_members, gain, interval) in NEXT.items():
        yield f"next_member.{case}", others.next_member(make_sizes(num_members, gain, interval))
    for case, interval in {"stop": (0, 0.0005), "pays": (0.002, 0.005), "open": (0, 0.005)}.items():
        density = make_sizes(8, 0.003, interval, nll=-1.0, small=0.001)
        yield f"next_member.density_{case}", others.next_member(density)
    yield "next_member.none", others.next_member({})
    runs = [{"members": [0, 2]}, {"members": []}, {"members": [1]}]
    chosen = {"by": "validation", "optimism": 0.0123, "runs": runs}
    yield "selection.members", others.selection(chosen)
    for number in (1, 4):
        of_chains = (make_test()[0], "accuracy", number, "chain")
        yield f"quality.chains_{number}", quality.quality(*of_chains)
        yield f"gain.chains_{number}", quality.gain(*of_chains)
        sizes = make_sizes(number, gain, interval)
        yield f"next_member.chains_{number}", others.next_member(sizes, "chain")
    proved = [make_abstention("max_error=0.001", reason="few"), make_abstention("coverage=0.1")]
    proved += [make_abstention("max_error=0.5"), make_abstention("max_error=0.2")]
    yield "abstention.smallest_proved", doubts.abstention(usual, proved)
    yield "abstention.none_proved", doubts.abstention(usual, proved[:2])
    yield "abstention.groups", doubts.abstention(of_groups, proved)
    everything = make_abstention("max_error=0.9", ACCEPT_ALL, accepted=100)
    yield "abstention.everything", doubts.abstention(usual, [everything])
    means = {"accuracy": (0.9 + 0.8) / 2, "nll": (0.2 + 0.4) / 2}
    section = {"scores": scores_told({"accuracy": 0.92, "nll": 0.15}, mean=means)}
    yield "classes.ensemble", of_classes("ab").sentence(section, "test", 2)
    posterior = of_classes("ab").posterior_sentence(section, {"accuracy": 0.93}, "test")
    yield "classes.posterior", posterior
