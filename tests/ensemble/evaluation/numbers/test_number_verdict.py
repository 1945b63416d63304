"""Sentences about numbers conclude only what their intervals support."""

import numpy as np
import pytest

from ensemble.evaluation.numbers import number_scores
from ensemble.evaluation.numbers import number_verdict as verdict
from ensemble.likelihoods.poisson import Poisson
from ensemble.storage.predictions import StoredPredictions

GROUPS = {"over_groups": "patient"}
COUNTS = {"is_of_counts": True}
FEW_GROUPS = {**GROUPS, "num_groups": 4}


def make_test(coverage=0.9, half_width=0.02, p_value=0.5, num_examples=1000, rmse=2.0):
    return {
        "num_examples": num_examples,
        "ensemble": {"rmse": rmse, "nll": 1.0, "coverage_90": coverage, "width_90": 3.0},
        "mean": {"rmse": 2.5, "nll": 1.25},
        "interval": {
            "rmse": (rmse - 0.2, rmse + 0.2),
            "coverage_90": (coverage - half_width, coverage + half_width),
        },
        "pit": {"distance": 0.02, "p_value": p_value},
    }


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (make_test(), "Nothing speaks against its distributions: its 90% intervals hold 90.0%"),
        (make_test(p_value=0.03), "Nothing speaks against its distributions"),  # One of two tests.
        (make_test(), "with so many examples, one of 87% would be noticed in 80% of cases"),
        (make_test(coverage=0.8), "It is too sure: its 90% intervals hold 80.0% [78.0%, 82.0%]"),
        (make_test(coverage=0.96, p_value=0.001), "It is too cautious: its 90% intervals hold"),
        (make_test(coverage=0.96), "It is too cautious: its 90% intervals hold 96.0%"),
        (
            make_test(coverage=0.96) | COUNTS,
            "It is not too sure: its 90% intervals hold 96.0%",
        ),
        (make_test(p_value=0.001), "but its distributions are not right: the PIT is 0.020 from"),
        (make_test(half_width=0.07), "The test split is too small to tell"),
        # Rows of a group may be alike: no p-value of single rows, and no power.
        (make_test(p_value=1e-9) | GROUPS, "Over groups nothing speaks against its intervals"),
        (make_test(coverage=0.8) | GROUPS, "It is too sure: its 90% intervals hold 80.0% [78.0%"),
        (make_test(coverage=0.96) | GROUPS, "It is too cautious: its 90% intervals hold 96.0%"),
        (make_test(coverage=0.96) | GROUPS | COUNTS, "Over groups nothing speaks against"),
        (make_test(coverage=0.8, half_width=0.2) | GROUPS, "Over groups nothing speaks against"),
        (make_test(num_examples=20), "With 20 test examples nothing can be said"),
    ],
)
def test_trust_is_what_coverage_and_pit_say_together(test, words):
    assert words in verdict.trust(test)


def simple(rmse, is_told=True):
    interval = (rmse - 2.3, rmse - 1.7) if is_told else None
    return {"ensemble": {"rmse": rmse}, "excess_interval": {"rmse": interval}}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            simple(4.0),
            "Least squares has 4, the training targets' mean has 9: the ensemble is better, by "
            "[1.7, 2.3] at least",
        ),
        (simple(2.1), "is best: least squares may have [-0.2, 0.4] more"),
        (simple(1.0), "the ensemble is worse than least squares by [0.7, 1.3]"),
        (simple(4.0, is_told=False), "does not tell which is best"),
        ({"reason": "not available"}, "The training targets' mean has 9: the ensemble is better"),
    ],
)
def test_simpler_predictors_are_beaten_where_intervals_say_so(line, words):
    found = verdict.beside(make_test(), {"least_squares": line, "constant": simple(9.0)})
    assert words in found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((-0.2, -0.1), "makes it better, use it: on folds of the calibration split it changes"),
        ((-0.1, 0.1), "is not seen to help, leave it out"),
        ((0.1, 0.2), "is not seen to help, leave it out"),
        (None, "helps cannot be told (NLL from 1 to 0.8"),
    ],
)
def test_a_factor_is_advised_where_it_helps_on_folds(change, words):
    section = {"value": 1.4, "on_folds": change, "ensemble": {"nll": 0.8, "coverage_90": 0.9}}
    assert words in verdict.advice(make_test(), section)


def shifted(rmse, ratio):
    scores = {"rmse": [rmse] * 6, "coverage_90": [0.8] * 6}
    return {"ensemble": scores, "rmse_ratio_interval": [ratio] * 5}


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        ((1.1, 1.4), "largest RMSE on this test split: 3, and 90% intervals that hold 80%. The "),
        ((1.1, 1.4), "The shift changes the RMSE by [+10.0, +40.0]%."),
        ((0.98, 1.2), "Whether it harms is not told: it changes the RMSE by [-2.0, +20.0]%."),
        ((0.98, 1.04), "none of 2 shifts raises the RMSE by more than 5%"),
        (None, "a few large errors decide the RMSE"),
    ],
)
def test_a_shift_harms_where_its_interval_says_so(ratio, words):
    assert words in verdict.shift({"noise": shifted(3.0, ratio), "none": shifted(2.0, (0.9, 1.0))})


def test_an_rmse_that_few_errors_decide_has_no_interval():
    test = make_test()
    test["interval"]["rmse"] = None
    assert "no interval can be told" in verdict.quality(test, 1)


def test_coverage_that_does_not_fit_its_range_is_told():
    one = {"coverage": 0.7, "coverage_range": [0.8, 0.95], "mean_width": 4.0}
    sections = {"distance": {"reason": "no width"}, "quantiles": one}
    assert "calibration and test examples may differ" in verdict.conformal(sections, make_test())
    fits = {**sections, "quantiles": {**one, "coverage": 0.9}}
    assert verdict.conformal(fits, make_test()).endswith("and hold 90.0% here.")


def test_few_groups_decide_nothing():
    few, why = make_test(coverage=0.5) | FEW_GROUPS, "4 groups of patient are too few to tell"
    few["interval"] = {"rmse": None, "coverage_90": None}
    assert f"has an RMSE of 2 ({why} of others) on" in verdict.quality(few, 1)
    assert verdict.trust(few).endswith("of others, so whether it is calibrated cannot be told.")
    simple = {"constant": {"ensemble": {"rmse": 9.0}, "excess_interval": {"rmse": None}}}
    simple["least_squares"] = simple["constant"]
    assert f"{why} of others, so it cannot be told which is best" in verdict.beside(few, simple)


def test_counts_that_are_predicted_rightly_are_not_called_too_cautious():
    """Intervals of counts hold their ends, so they hold more than 90%."""
    rng = np.random.default_rng(0)
    rates = np.full((1, 2000), 2.0)
    stored = StoredPredictions({"rate": rates}, rng.poisson(2.0, 2000).astype(float), np.arange(1))
    test = number_scores.score_predictions(Poisson.of_data(np.arange(9.0), ()), stored)
    assert test["ensemble"]["coverage_90"] > 0.92
    assert "too cautious" not in verdict.trust(test)
