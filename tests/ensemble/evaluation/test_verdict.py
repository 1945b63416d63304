"""Sentences conclude only what their numbers support."""

import math

import pytest

from ensemble.evaluation import verdict


def make_test(num_examples=1000, accuracy=0.9, gap=0.0, half_width=0.01, p=(0.5, 0.5), **scores):
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


@pytest.mark.parametrize(
    ("test", "num_members", "sentence"),
    [
        (
            make_test(),
            4,
            "The ensemble of 4 is right on 90.00% [88.00%, 92.00%] of 1,000 test examples, +2.00 "
            "points from its mean member, at an NLL of 0.3000 nats, 25% below its mean member's.",
        ),
        (
            make_test(),
            1,
            "One member is right on 90.00% [88.00%, 92.00%] of 1,000 test examples, at an NLL of "
            "0.3000 nats.",
        ),
        (
            make_test(accuracy=1.0),
            1,
            "One member is right on all [98.00%, 102.00%] of 1,000 test examples, at an NLL of "
            "0.3000 nats.",
        ),
        (
            make_test(num_examples=1, accuracy=0.0),
            1,
            "One member is right on none [-2.00%, 2.00%] of 1 test example, at an NLL of 0.3000 "
            "nats.",
        ),
        (
            make_test(nll=math.inf),
            1,
            "One member is right on 90.00% [88.00%, 92.00%] of 1,000 test examples; its NLL is "
            "infinite: labels of probability 0: 3.",
        ),
    ],
)
def test_quality(test, num_members, sentence):
    assert verdict.quality(test, num_members) == sentence


@pytest.mark.parametrize(
    ("test", "start"),
    [
        (
            make_test(),
            "On average its probabilities are right to within 1 point: confidence and accuracy "
            "differ by no more than chance (+0.00 points [-1.00, +1.00], ECE 0.0100). Level by "
            "level nothing speaks against them; an ECE of up to 0.",
        ),
        (
            make_test(gap=0.05, p=(0.02, 0.5)),
            "It is overconfident: its mean confidence lies above its accuracy (+5",
        ),
        (
            make_test(gap=-0.05, p=(0.02, 0.5)),
            "It is underconfident: its mean confidence lies below its accuracy (",
        ),
        (make_test(p=(0.03, 0.02)), "Its confidence is right on average, but not level by level"),
        (
            make_test(half_width=0.05),
            "The test split is too small to tell whether it is calibrated (+0.00 points "
            "[-5.00, +5.00], ECE 0.0100): some "
            "12,771 examples would show a difference of 2 points.",
        ),
        (
            make_test(gap=-0.06, half_width=0.05, p=(0.04, 0.5)),
            "The test split is too small to tell whether it is calibrated (-6.00 points "
            "[-11.00, -1.00], ECE 0.0100; it leaves out 0, but of two tests one fails by chance in "
            "more than 5%)",
        ),
        (
            make_test(gap=-0.0142, p=(0.03, 0.03)),
            "On average its probabilities are right to within 2.5 points: ",
        ),
        (make_test(num_examples=29, gap=0.3), "With 29 test examples nothing can be said"),
    ],
)
def test_trust(test, start):
    few_groups = {**test, "over_groups": "patient", "interval": {"overconfidence": None}}
    of_groups = verdict.trust(few_groups, temperature_helps=False)
    few = test["num_examples"] < 30
    assert of_groups.startswith("With " if few else "Rows of one group may be alike, so whether")
    assert verdict.trust(test, temperature_helps=False).startswith(start)


def test_what_a_temperature_mends_is_not_said_to_be_right():
    assert "are right to within" not in verdict.trust(make_test(), temperature_helps=True)


@pytest.mark.parametrize(
    ("on_test", "on_folds", "words"),
    [
        ((-0.02, 0.01), (-0.02, -0.01), "A temperature of 1.50 makes them better (NLL from 0.3000"),
        ((0.01, 0.02), (-0.02, -0.01), "The temperature 1.50 makes them worse"),
        ((-0.02, -0.01), (-0.02, 0.02), "A temperature (1.50) changes nothing that can be told"),
        ((-0.02, -0.01), (-0.02, 0.02), "): some 425 calibration examples would show a change"),
        ((-0.02, -0.01), None, "be told (NLL from 0.3000 to 0.2900, ECE from 0.0100 to 0.0200):"),
        ((math.nan, math.nan), (-0.01, 0.02), "changes nothing"),
    ],
)
def test_advice_follows_calibration_unless_the_test_split_is_worse(on_test, on_folds, words):
    section = {
        "value": 1.5,
        "ensemble": {"nll": 0.29, "ece": 0.02},
        "num_examples": 52,
        "nll_change_interval": on_test,
        "on_folds": on_folds,
    }
    assert words in verdict.advice(make_test(), section)
    assert verdict.advice(make_test(), section).endswith("use it.") == ("better" in words)


def make_shift(accuracy, half_width=0.004):
    cost = 0.9 - accuracy
    return {
        "ensemble": {"accuracy": [0.9, 0.9, accuracy, 0, 0], "ece": [0, 0, 0.25, 0, 0]},
        "accuracy_cost_interval": [(0, 0), (0, 0), (cost - half_width, cost + half_width)],
    }


@pytest.mark.parametrize(
    ("noise", "sentence"),
    [
        (
            make_shift(0.6),
            "Of 2 shifts at the middle severity noise hurts most: 60.0% right, 29.6 to 30.4 points "
            "less than without, with an ECE of 0.250.",
        ),
        (
            make_shift(0.6, 0.25),
            "Of 2 shifts at the middle severity the lowest accuracy found is that of noise: 60.0% "
            "right, 5.0 to 55.0 points less than without, with an ECE of 0.250; others may hurt as "
            "much.",
        ),
        (
            make_shift(0.7, 0.25),
            "Of 2 shifts at the middle severity noise has the lowest accuracy found, which may be "
            "chance: 70.0% right, -5.0 to 45.0 points less than without, with an ECE of 0.250. "
            "Known to cost accuracy: blur.",
        ),
    ],
)
def test_shift(noise, sentence):
    assert verdict.shift({"blur": make_shift(0.8), "noise": noise}) == sentence


def test_that_none_is_known_to_cost_is_said_of_all():
    unsure = {"blur": make_shift(0.88, 0.03), "noise": make_shift(0.7, 0.25)}
    assert verdict.shift(unsure) == (
        "At the middle severity none of 2 shifts is known to cost accuracy; the lowest found is "
        "that of noise: 70.0% right, -5.0 to 45.0 points less than without, with an ECE of 0.250."
    )


def test_shifts_are_harmless_only_if_all_are_known_to_be():
    blur, words = make_shift(0.9), "none of 2 shifts costs more than half a point of accuracy."
    assert words in verdict.shift({"blur": blur, "noise": make_shift(0.8995)})
    assert words not in verdict.shift({"blur": blur, "noise": make_shift(0.897)})


@pytest.mark.parametrize(
    ("wins", "words"),
    [
        ((0.6, 0.9), "right on 50.00%; the balanced accuracy"),
        (
            (0.4, 0.6),
            "right on 50.00%, and the difference may be chance (some 18,389 examples would show "
            "one of 1 point); the balanced accuracy",
        ),
        ((0.1, 0.4), "right on 50.00%, which is better; the balanced accuracy"),
    ],
)
def test_unequal_classes_stand_beside_the_majority(wins, words):
    excess = (-0.02, 0.04)  # As wide as no other interval.
    majority = {"name": "cat\x1b", "share": 0.5, "wins": wins, "excess_interval": excess}
    classes = {"majority": majority, "interval": (0.6, 0.8)}
    sentence = verdict.balance(make_test(), {**classes, "balanced_accuracy": 0.7})
    assert sentence.startswith("Classes are unequal: always answering 'cat\\x1b', the most")
    assert words in sentence
    assert sentence.endswith("the mean recall of the classes, is 70.00% [60.00%, 80.00%].")


def test_few_groups_have_no_interval():
    test = {
        "interval": {"accuracy": None},
        "num_examples": 133,
        "num_groups": 4,
        "mean": {"nll": 1},
    }
    scores = {"ensemble": {"accuracy": 0.8, "nll": 0.5}, "over_groups": "site"}
    sentence = verdict.quality({**test, **scores}, 1)
    assert sentence.startswith(
        "One member is right on 80.00% of 133 test examples (4 groups of site are too few to tell"
    )
