"""Which methods are as good as the best."""

import numpy as np
import pytest

from ensemble import likelihoods
from ensemble.search.verdicts import AS_GOOD, INCONCLUSIVE, WORSE, compare_with_best, deciding

NUM_ROWS = 2000
DESCRIPTION = {"class_names": ["no", "yes"], "num_classes": 2}


def view(truth, sharpness, seed):
    """Two classes, whose logits have noise and point to the label."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1, NUM_ROWS, 2))
    logits[0, np.arange(NUM_ROWS), truth] += sharpness
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    arrays = {"log_probs": log_probs.astype(np.float32)}
    return likelihoods.described("categorical", DESCRIPTION).view(arrays, truth)


@pytest.fixture(scope="module")
def views():
    truth = np.random.default_rng(0).integers(2, size=NUM_ROWS)
    found = {"best": view(truth, 2.0, 1), "same": view(truth, 2.0, 1), "bad": view(truth, 1.0, 2)}
    return {**found, "alike": view(truth, 2.0, 3)}


def test_the_same_is_as_good_and_noise_beyond_the_margin_is_inconclusive(views):
    found = compare_with_best(views, "best", "nll", reference=0.2)
    assert {name: one["verdict"] for name, one in found.items()} == {
        "best": AS_GOOD,
        "same": AS_GOOD,
        "bad": WORSE,
        "alike": INCONCLUSIVE,
    }
    assert found["same"]["interval"] == [0, 0]
    assert all(one["margin"] == pytest.approx(0.004) for one in found.values())
    low, high = found["bad"]["interval"]
    assert low < found["bad"]["excess"] < high


def test_a_lower_accuracy_is_an_excess(views):
    found = compare_with_best(views, "best", "accuracy", reference=0.9)
    assert found["bad"]["excess"] > 0.05
    assert found["bad"]["verdict"] == WORSE
    assert found["bad"]["margin"] == 0.005


def test_intervals_are_wider_the_more_methods_there_are(views):
    few = {name: views[name] for name in ("best", "bad")}
    alone, beside = (
        np.diff(compare_with_best(one, "best", "nll", 0.2)["bad"]["interval"])
        for one in (few, views)
    )
    assert beside > alone


def test_what_is_better_than_the_chosen_one_is_as_good(views):
    assert compare_with_best(views, "bad", "nll", 0.2)["best"]["verdict"] == AS_GOOD


def test_classes_are_decided_by_their_nll(views):
    assert deciding(views["best"]) == "nll"
