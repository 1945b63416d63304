"""Predictions as a table, for terminals and notebooks."""

import numpy as np
import scipy.special

from ensemble import likelihoods
from ensemble.likelihoods.classes import Classes
from ensemble.likelihoods.predictive import as_text, short


def classes(number, names):
    logits = np.random.default_rng(0).normal(size=(2, number, len(names)))
    return Classes({"log_probs": scipy.special.log_softmax(logits, -1)}, class_names=names)


def test_of_many_classes_the_largest_probability_is_shown():
    p = classes(3, [str(k) for k in range(9)])
    shown = short(p)
    assert [*shown] == ["class", "prob", *(f"{k}_uncertainty" for k in p.uncertainty)]
    np.testing.assert_array_equal(shown["prob"], p.confidence)
    assert "prob_b" in short(classes(3, ["a", "b"]))


def test_of_a_distribution_the_90_interval_is_shown():
    y = np.array([1.0, 2.0, 4.0])
    likelihood = likelihoods.from_data("gaussian", y, ())
    p = likelihood.predictive({"loc": np.ones((2, 3)), "scale": np.ones((2, 3))})
    assert [*short(p)][-2:] == ["quantile_0.05", "quantile_0.95"]
    assert "accepted" in short(p.abstaining(0.5))


def test_the_first_rows_are_shown_and_texts_steer_nothing():
    p = classes(12, ["\x1b[2J<b>", "$x$"])
    text = repr(p)
    assert text.splitlines()[0] == "12 predictions of 2 members"
    assert text.splitlines()[-1] == "and 2 more"
    assert "\x1b" not in text
    assert len(text.splitlines()) == 14


def test_columns_are_aligned():
    columns = {"name": ["a", "long one"], "value": [1.0, 12345.678], "accepted": [True, False]}
    assert as_text(columns).splitlines() == [
        "    name     value  accepted",
        "----------------------------",
        "       a         1      True",
        "long one 1.235e+04     False",
    ]
