"""Which methods are as good as the best."""

import numpy as np
import pytest

from ensemble.likelihoods.classes import Classes
from ensemble.tuning.verdicts import AS_GOOD, UNDECIDED, WORSE, compare_with_best

NUM_ROWS = 2000
TRUTH = np.random.default_rng(0).integers(2, size=NUM_ROWS)


def noisy(sharpness, seed):
    """Predictions whose logits have noise and point to the label."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1, NUM_ROWS, 2))
    logits[0, np.arange(NUM_ROWS), TRUTH] += sharpness
    return Classes({"log_probs": logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)})


ALL = {"best": noisy(2, 1), "same": noisy(2, 1), "bad": noisy(1, 2), "alike": noisy(2, 3)}


def test_equal_predictions_are_as_good_and_noise_beyond_the_margin_is_undecided():
    found = compare_with_best(ALL, TRUTH, "best", "nll", reference=0.2)
    assert {name: one["verdict"] for name, one in found.items()} == {
        "best": AS_GOOD,
        "same": AS_GOOD,
        "bad": WORSE,
        "alike": UNDECIDED,
    }
    assert found["same"]["low"] == found["same"]["high"] == 0
    assert all(one["margin"] == pytest.approx(0.004) for one in found.values())
    assert found["bad"]["low"] < found["bad"]["value"] < found["bad"]["high"]


def test_a_lower_accuracy_is_behind():
    found = compare_with_best(ALL, TRUTH, "best", "accuracy", reference=0.9)
    assert found["bad"]["value"] > 0.05
    assert found["bad"]["verdict"] == WORSE
    assert found["bad"]["margin"] == 0.005


def test_intervals_are_wider_the_more_methods_there_are():
    few = {name: ALL[name] for name in ("best", "bad")}
    alone, beside = (compare_with_best(one, TRUTH, "best", "nll", 0.2)["bad"] for one in (few, ALL))
    assert beside["high"] - beside["low"] > alone["high"] - alone["low"]


def test_methods_better_than_the_chosen_one_are_as_good():
    assert compare_with_best(ALL, TRUTH, "bad", "nll", 0.2)["best"]["verdict"] == AS_GOOD
