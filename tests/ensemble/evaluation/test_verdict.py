"""Sentences conclude only what their numbers support."""

import math

import pytest

from ensemble.evaluation import sentences, verdict


def make_test(num_examples=1000, accuracy=0.9, gap=0.0, half_width=0.01, **scores):
    ensemble = {"accuracy": accuracy, "nll": 0.3, "ece": 0.01, "overconfidence": gap, **scores}
    return {
        "num_examples": num_examples,
        "num_impossible": 3,
        "ece_by_chance": 0.02,
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
            "One member is right on all of 1,000 test examples, at an NLL of 0.3000 nats.",
        ),
        (
            make_test(num_examples=1, accuracy=0.0),
            1,
            "One member is right on none of 1 test example, at an NLL of 0.3000 nats.",
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
        (make_test(), "Its probabilities can be taken as they are: confidence and accuracy differ"),
        (
            make_test(gap=0.05),
            "It is overconfident: its mean confidence lies above its accuracy (+5",
        ),
        (
            make_test(gap=-0.05),
            "It is underconfident: its mean confidence lies below its accuracy (",
        ),
        (make_test(ece=0.36), "Its confidence is right on average, but not level by level"),
        (
            make_test(half_width=0.05),
            "The test split is too small to tell whether it is calibrated",
        ),
        (make_test(num_examples=29, gap=0.3), "With 29 test examples nothing can be said"),
    ],
)
def test_trust(test, start):
    assert verdict.trust(test, temperature_helps=False).startswith(start)


def test_what_a_temperature_mends_is_not_to_be_taken_as_it_is():
    assert "taken as they are" not in verdict.trust(make_test(), temperature_helps=True)


@pytest.mark.parametrize(
    ("interval", "effect", "words"),
    [
        ((-0.02, -0.01), -1, "A temperature of 1.50 makes them better (NLL from 0.3000 to 0.2900"),
        ((0.01, 0.02), 1, "The temperature 1.50 makes them worse"),
        ((-0.01, 0.02), 0, "A temperature (1.50) changes nothing that can be told"),
        ((math.nan, math.nan), 0, "changes nothing"),
    ],
)
def test_advice_follows_the_paired_interval(interval, effect, words):
    scores = {"nll": 0.29, "ece": 0.02}
    section = {"value": 1.5, "ensemble": scores, "nll_change_interval": interval}
    assert sentences.effect(section) == effect
    assert words in verdict.advice(make_test(), section)
    assert verdict.advice(make_test(), section).endswith("use it.") == (effect < 0)
    assert sentences.effect({"reason": "not available"}) == 0


def make_shift(accuracy):
    return {"ensemble": {"accuracy": [0.9, 0.9, accuracy, 0, 0], "ece": [0, 0, 0.25, 0, 0]}}


def test_shift():
    sections = {"blur": make_shift(0.8), "noise": make_shift(0.6)}
    assert verdict.shift(make_test(), sections) == (
        "Of 2 shifts at the middle severity noise hurts most: 60.0% right, with an ECE of 0.250."
    )
    harmless = {"blur": make_shift(0.9), "noise": make_shift(0.897)}
    assert verdict.shift(make_test(), harmless) == (
        "At the middle severity none of 2 shifts costs more than half a point of accuracy."
    )


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.5, "right on 50.00%; the balanced accuracy"),
        (0.89, "right on 89.00%, and the difference may be chance; the balanced accuracy"),
        (0.95, "right on 95.00%, which is better; the balanced accuracy"),
    ],
)
def test_unequal_classes_stand_beside_the_majority(share, words):
    classes = {"majority": {"name": "cat\x1b", "share": share}, "interval": (0.6, 0.8)}
    sentence = verdict.balance(make_test(), {**classes, "balanced_accuracy": 0.7})
    assert sentence.startswith("Classes are unequal: always answering 'cat\\x1b', the most")
    assert words in sentence
    assert sentence.endswith("the mean recall of the classes, is 70.00% [60.00%, 80.00%].")
