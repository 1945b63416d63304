"""Temperatures, factors of a scale, conformal sets and intervals, calibration by chance."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from ensemble.likelihoods.classes import Classes
from ensemble.likelihoods.numbers import Numbers
from ensemble.metrics import functions
from ensemble.metrics.calibration import (
    conformal,
    fit_scale,
    pit_uniformity,
    scale_gain,
)


def classes(num_rows=600, sharpness=1.0, seed=0):
    """Labels drawn from probabilities, and predictions as sharp as a factor of their logits."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(num_rows, 3))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = (rng.random(num_rows)[:, None] > probs.cumsum(axis=1)).sum(axis=1)
    scaled = sharpness * logits
    log_probs = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
    return Classes({"log_probs": log_probs[None]}), y


def numbers(num_rows=600, scale=1.0, seed=0):
    """Standard normal targets, and predictions of another scale."""
    y = np.random.default_rng(seed).normal(size=num_rows)
    return Numbers({"loc": np.zeros((1, num_rows)), "scale": np.full((1, num_rows), scale)}), y


def test_the_temperature_has_the_lowest_nll():
    p, y = classes(sharpness=2)
    found = fit_scale(p, y)
    best = scipy.optimize.minimize_scalar(
        lambda t: -p.scaled(t).log_prob(y).mean(), bounds=(0.5, 5), method="bounded"
    )
    assert found == pytest.approx(best.x, rel=1e-4)
    assert 1.6 < found < 2.4


def test_the_factor_of_a_scale_is_that_of_the_errors():
    p, y = numbers(scale=0.5)
    assert fit_scale(p, y) == pytest.approx(2 * np.sqrt(np.mean(y**2)), rel=1e-4)


def test_rows_that_determine_no_factor_give_none():
    p, _ = classes(300)
    right = p.labels
    assert fit_scale(p, right) is None, "all are right"
    assert scale_gain(p, right) is None
    assert scale_gain(*numbers(20)) is None
    impossible = Classes({"log_probs": np.array([[[0.0, -np.inf]] * 40])})
    with np.errstate(invalid="ignore"):
        assert fit_scale(impossible, np.arange(40) % 2) is None


def test_a_factor_gains_where_predictions_are_overconfident_and_only_there():
    assert scale_gain(*classes(sharpness=3)).below(0)
    assert not scale_gain(*classes(sharpness=1)).below(-0.005)
    assert scale_gain(*numbers(scale=0.3)).below(0)


@pytest.mark.parametrize("make", [classes, numbers])
def test_conformal_predictions_cover_as_they_say(make):
    held = make(500)
    test = make(2000, seed=1)
    found = conformal(held, test)
    low, high = found.expected
    assert low <= found.coverage <= high
    if make is classes:
        assert high == 1
        empty = conformal(held, test, allow_empty=True)
        assert (empty.coverage, empty.size) <= (found.coverage, found.size)
        assert empty.expected[1] < 1
        inside = -test[0].log_prob(test[1]) <= empty.threshold
        assert empty.coverage == inside.mean()
    else:
        low, high = test[0].central(0.9)
        np.testing.assert_allclose(found.size, (high - low).mean() + 2 * found.threshold)


def test_too_few_rows_have_no_conformal_threshold():
    assert conformal(classes(8), classes(50)) is None
    assert conformal(classes(9), classes(50)) is not None


def test_the_range_of_coverage_is_the_beta_binomial_law():
    found = conformal(numbers(99), numbers(50, seed=1))
    law = scipy.stats.betabinom(50, 90, 10)
    assert found.expected == tuple(law.ppf([0.025, 0.975]) / 50)


def test_chance_bounds_the_ece_of_calibrated_predictions():
    p, y = classes(2000)
    quantile = functions.ece_by_chance(p)
    assert 0.01 < quantile < 0.05
    assert functions.ece(p, y) < quantile
    p, y = classes(2000, sharpness=2)
    assert functions.ece(p, y) > functions.ece_by_chance(p)


def test_the_pit_is_uniform_if_the_distribution_is_right():
    p, y = numbers()
    assert pit_uniformity(p.pit(y)) == pytest.approx(scipy.stats.kstest(y, "norm")[:2])
    assert pit_uniformity(numbers(scale=2)[0].pit(y))[1] < 1e-6
