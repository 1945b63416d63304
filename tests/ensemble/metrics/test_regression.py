"""Scores of predicted numbers, against SciPy and against simulation."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from ensemble.metrics import regression

RNG = np.random.default_rng(0)
MEAN, SCALE = RNG.normal(size=(3, 5)), RNG.uniform(0.2, 2, size=(3, 5))
TARGETS = RNG.normal(size=5)


def mixture_cdf(values):
    """CDF [N] of the mixtures."""
    return scipy.stats.norm.cdf(values, MEAN, SCALE).mean(axis=0)


def integrated_crps(n):
    """CRPS of one of the mixtures by numerical integration."""

    def squared(x):
        return (scipy.stats.norm.cdf(x, MEAN[:, n], SCALE[:, n]).mean() - (x >= TARGETS[n])) ** 2

    ends = [-30, TARGETS[n]], [TARGETS[n], 30]
    return sum(scipy.integrate.quad(squared, *end, limit=200)[0] for end in ends)


def test_the_nll_is_of_the_mixture_s_density():
    density = scipy.stats.norm.pdf(TARGETS, MEAN, SCALE).mean(axis=0)
    found = regression.mixture_log_density(scipy.stats.norm.logpdf(TARGETS, MEAN, SCALE))
    assert -found.mean() == pytest.approx(-np.log(density).mean(), rel=1e-12)


def test_the_nll_by_moments_is_that_of_one_gaussian():
    expected = -scipy.stats.norm.logpdf(TARGETS, MEAN[0], SCALE[0]).mean()
    found = regression.gaussian_nll(MEAN[0], SCALE[0] ** 2, TARGETS)
    assert found.mean() == pytest.approx(expected)


def test_the_closed_form_of_the_crps_is_its_integral():
    found = regression.gaussian_mixture_crps(MEAN, SCALE, TARGETS)
    np.testing.assert_allclose(found, [integrated_crps(n) for n in range(5)], rtol=1e-6)


def test_the_crps_of_one_point_is_the_absolute_error():
    found = regression.gaussian_mixture_crps(MEAN[:1], np.full((1, 5), 1e-9), TARGETS)
    np.testing.assert_allclose(found, np.abs(MEAN[0] - TARGETS), rtol=1e-6)


@pytest.mark.parametrize("num_points", [200, 2000])
def test_the_crps_by_a_grid_is_near_the_closed_form(num_points):
    grid = np.linspace(-9, 9, num_points)
    cdf = np.stack([mixture_cdf(np.full(5, x)) for x in grid], axis=1)
    found = regression.grid_crps(grid, cdf, TARGETS)
    exact = regression.gaussian_mixture_crps(MEAN, SCALE, TARGETS)
    np.testing.assert_allclose(found, exact, atol=(grid[1] - grid[0]) / 4)


@pytest.mark.parametrize(("point", "target"), [(4.999, 4.001), (4.5, 4.5), (4.2, 5.7)])
def test_the_crps_by_a_grid_errs_by_at_most_two_thirds_of_its_spacing(point, target):
    grid = np.arange(11.0)
    cdf = (grid >= point).astype(float)[None]  # A point mass, the hardest case.
    found = regression.grid_crps(grid, cdf, [target])[0]
    assert abs(found - abs(point - target)) <= 2 / 3 + 1e-9


def test_the_median_of_two_far_modes_lies_between_them():
    def cdf(values):
        return scipy.stats.norm.cdf(values[None], [[0.0], [100.0]], 1.3).mean(axis=0)

    found = regression.quantiles(cdf, np.array([-1e4]), np.array([1e4]), [0.5])
    assert found[0, 0] == pytest.approx(50, abs=0.5)


def test_a_target_beyond_the_grid_costs_its_distance():
    grid, cdf = np.linspace(0, 1, 11), np.linspace(0, 1, 11)[None]
    near, far = (regression.grid_crps(grid, cdf, [y])[0] for y in (1.0, 3.0))
    assert far - near == pytest.approx(2)


@pytest.mark.parametrize("from_line", [lambda u: u, np.sinh])
def test_the_crps_by_quadrature_is_the_closed_form(from_line):
    low, high = np.full(5, -13.0), np.full(5, 13.0)
    if from_line is np.sinh:
        low, high = np.arcsinh([low, high])
    middle = TARGETS if from_line is not np.sinh else np.arcsinh(TARGETS)
    ends = np.linspace(low, high, 9)
    found = regression.smooth_crps(mixture_cdf, from_line, ends, middle, TARGETS)
    exact = regression.gaussian_mixture_crps(MEAN, SCALE, TARGETS)
    np.testing.assert_allclose(found, exact, rtol=2e-5)
    beyond = regression.smooth_crps(mixture_cdf, from_line, ends, high, TARGETS + 40)
    exact = regression.gaussian_mixture_crps(MEAN, SCALE, TARGETS + 40)
    np.testing.assert_allclose(beyond, exact, rtol=1e-5)


def test_quantiles_invert_the_cdf():
    low, high = np.full(5, -50.0), np.full(5, 50.0)
    levels = [0.01, 0.5, 0.95]
    found = regression.quantiles(mixture_cdf, low, high, levels)
    for level, values in zip(levels, found, strict=True):
        np.testing.assert_allclose(mixture_cdf(values), level, atol=1e-12)


def test_intervals_of_the_true_distribution_hold_as_often_as_they_say():
    rng = np.random.default_rng(1)
    y = rng.normal(size=20_000)
    for level in regression.LEVELS:
        low, high = scipy.stats.norm.interval(level)
        ends = np.full(len(y), low), np.full(len(y), high)
        narrow = regression.interval_score(0.5 * ends[0], 0.5 * ends[1], y, level).mean()
        assert regression.interval_score(*ends, y, level).mean() < narrow
