"""Intervals: exact cases, coverage by simulation, groups, and what has none."""

import math

import numpy as np
import pytest
from scipy import special

from ensemble.likelihoods.classes import Classes
from ensemble.likelihoods.numbers import Numbers
from ensemble.metrics import METRICS, Metric, interval, metrics_of
from ensemble.metrics.interval import has_heavy_tail


def score(p, y):
    return {name: one.estimate(p, y) for name, one in metrics_of(p).items()}


def covers(draw, truth, runs=400, **how):
    """Share of simulated intervals that hold the expected value."""
    rng = np.random.default_rng(0)
    found = [interval(draw(rng), **how) for _ in range(runs)]
    return np.mean([one.low <= truth <= one.high for one in found])


@pytest.mark.parametrize(
    ("draw", "truth", "how"),
    [
        (lambda rng: rng.normal(size=100), 0, {}),
        (lambda rng: rng.exponential(size=100), 1, {}),
        (lambda rng: rng.chisquare(1, 300), 1, {}),
        (lambda rng: (rng.random(100) < 0.9).astype(float), 0.9, {"bounds": (0, 1)}),
    ],
)
def test_intervals_hold_the_expected_value_as_often_as_they_say(draw, truth, how):
    assert 0.92 <= covers(draw, truth, **how) <= 0.985


def test_groups_of_rows_that_are_alike_widen_an_interval():
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(20), 10)
    alike = np.repeat(rng.uniform(size=20) < 0.9, 10).astype(float)
    wide = interval(alike, groups, bounds=(0, 1))
    narrow = interval(alike, bounds=(0, 1))
    assert 0 <= wide.low < narrow.low < narrow.high <= wide.high <= 1
    assert interval(alike, np.repeat(np.arange(5), 40)).low is None, "too few groups"
    single = interval(alike, np.arange(200), bounds=(0, 1))
    np.testing.assert_allclose(single, narrow)


def test_groups_hold_the_expected_value_as_often_as_they_say():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(600):
        groups = np.repeat(np.arange(30), rng.integers(2, 20, 30))
        terms = rng.normal(size=30)[groups] + rng.normal(size=len(groups))
        one = interval(terms, groups)
        found.append(one.low <= 0 <= one.high)
    assert 0.92 <= np.mean(found) <= 0.97


def test_bounded_terms_that_are_all_alike_have_an_interval():
    one = interval(np.ones(300), bounds=(0, 1))
    assert one.value == one.high == 1
    assert 0.97 < one.low < 0.995
    assert interval(np.ones(300)) == (1, 1, 1)


@pytest.mark.parametrize(("hits", "number"), [(29, 30), (24, 30), (98, 100), (299, 300)])
def test_shares_close_to_a_bound_have_intervals_like_exact_ones(hits, number):
    found = interval(np.arange(number) < hits, bounds=(0, 1))
    exact = special.betaincinv(hits + 1, number - hits, 0.975) - special.betaincinv(
        hits, number - hits + 1, 0.025
    )
    assert found.high - found.low == pytest.approx(exact, rel=0.15)


def test_differences_are_paired_and_rounding_is_none():
    rng = np.random.default_rng(0)
    terms = rng.normal(size=300)
    difference = Metric("any", None).difference
    better = difference(terms, terms - 0.1 + 0.01 * rng.normal(size=300))
    assert better.above(-0.11)
    assert better.below(-0.09)
    assert difference(terms, terms * (1 + 1e-15)) == (0, 0, 0)
    ece = METRICS["classes"]["ece"]
    assert ece.difference(np.float64(0.3), np.float64(0.1) + 0.2) == (0, None, None)
    assert ece.difference(0.3, 0.1).value == pytest.approx(-0.2)
    share = Metric("share", None, bounds=(0, 1))
    assert share.difference(np.ones(10), np.zeros(10)).low >= -1


def test_a_higher_level_widens_an_interval():
    rng = np.random.default_rng(0)
    p = Classes({"log_probs": np.log(rng.dirichlet(np.ones(3), (2, 200)))})
    y = rng.integers(3, size=200)
    for name, metric in metrics_of(p).items():
        terms = metric.terms(p, y)
        if np.ndim(terms):
            how = {"bounds": metric.bounds}
            wide = interval(terms, **how)
            narrow = interval(terms, level=0.8, **how)
            ends = (wide.low, narrow.low, wide.value, narrow.high, wide.high)
            assert list(ends) == sorted(ends), name


def test_metrics_without_enough_rows_have_no_interval():
    rng = np.random.default_rng(0)
    probs = np.full((1, 100, 2), 0.01)
    probs[..., 0] = 0.99
    y = np.zeros(100, int)
    y[:4] = 1
    found = score(Classes({"log_probs": np.log(probs)}), y)
    assert found["accuracy"].low is not None
    assert found["nll"].low is None, "four errors do not determine it"
    assert found["ece"].low is None
    loc = np.zeros((1, 1000))
    errors = rng.standard_t(1.5, 1000)
    found = score(Numbers({"loc": loc, "scale": loc + 1}), errors)
    assert found["rmse"].low is None, "the variance of squared errors is infinite"
    assert found["mae"].low is not None


def test_an_infinite_term_has_a_value_and_no_interval():
    loc = np.zeros((1, 600))
    p = Numbers({"loc": loc, "scale": loc + 1e-200})
    with np.errstate(over="ignore"):
        found = METRICS["numbers"]["nll"].estimate(p, np.ones(600))
    assert found == (math.inf, None, None)


def test_tails_are_as_heavy_as_those_they_are_drawn_from():
    rng = np.random.default_rng(0)
    for is_heavy, draws in (
        (True, rng.pareto(1 / 0.6, 20_000)),
        (False, rng.pareto(1 / 0.4, 20_000)),
    ):
        assert has_heavy_tail(draws) is is_heavy
    assert not has_heavy_tail(rng.exponential(size=20_000))
    assert not has_heavy_tail(np.ones(1000))


def test_every_metric_is_documented_by_its_function():
    for of_kind in METRICS.values():
        for name, one in of_kind.items():
            function = getattr(one.terms, "func", one.terms)
            assert function.__doc__, name
            assert one.better in (-1, 0, 1)
    assert math.isnan(interval([]).value)
