"""Sums on the devices, and what they say, by draws that are written down."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ensemble.random_walk import moments, summary


def walk_of(draws):
    """What a walker has summed of draws [C, T] of one dimension."""
    num_chains, num_draws = draws.shape
    length = moments.segment_length(num_draws)
    number = num_draws // length
    closed = []
    pending = []
    for values in (draws, np.square(draws)):
        segments = np.zeros((num_chains, moments.NUM_SEGMENTS, 1))
        whole = values[:, : number * length].reshape(num_chains, number, length)
        segments[:, :number, 0] = whole.sum(axis=2)
        closed.append(segments)
        pending.append(values[:, number * length :].sum(axis=1, keepdims=True))
    nothing = np.zeros((2, num_chains, 1))
    return types.SimpleNamespace(
        grid=moments.Grid(np.zeros(1), np.ones(1)),
        sums=moments.Sums(pending, nothing, nothing),
        closed=closed,
        counts=np.zeros((1, moments.NUM_BINS + 2), int),
    )


def summary_of(draws, num_superchains):
    return summary.summarise(walk_of(draws), draws.shape[1], num_superchains)


def test_chains_of_one_start_are_not_taken_for_independent():
    rng = np.random.default_rng(0)
    draws = np.repeat(rng.normal(size=(16, 1)), 64, axis=0) + rng.normal(size=(1024, 50))
    found = summary_of(draws, 16)
    apart = summary_of(draws, 1024)
    starts = draws.mean(axis=1)[::64]
    assert found["mcse_mean"][0] == pytest.approx(starts.std(ddof=1) / 4, rel=0.1)
    assert found["mcse_variance"][0] > 4 * apart["mcse_variance"][0]
    assert found["ess"][0] == pytest.approx(found["variance"][0] / found["mcse_mean"][0] ** 2)
    assert found["ess"][0] < 64 < apart["ess"][0]
    assert np.isnan(found["rhat"]).all()  # There are no halves of segments yet.
    alone = summary_of(draws, 1)  # One start: nothing is known of others.
    np.testing.assert_array_equal(alone["mcse_mean"], apart["mcse_mean"])


@pytest.mark.parametrize(
    "target",
    [scipy.stats.expon(), scipy.stats.lognorm(1), scipy.stats.uniform(), scipy.stats.norm()],
    ids=["exponential", "lognormal", "uniform", "normal"],
)
def test_quantiles_of_targets_with_ends(target):
    half = moments.NUM_BINS // 2
    width = target.std() / 32
    edges = target.mean() + width * (np.arange(2 * half + 1) - half)
    found = {"edges": edges[None], "cdf": target.cdf(edges)[None]}
    shares = np.array([0, 1e-4, 0.001, 0.01, 0.05, 0.5, 0.95, 0.99])
    found = summary.quantiles(found, shares)[0]
    if np.isfinite(target.support()[0]):
        assert abs(found[0] - target.support()[0]) <= width
    np.testing.assert_allclose(found[1:], target.ppf(shares[1:]), atol=width)
    np.testing.assert_allclose(found[5:7], target.ppf(shares[5:7]), atol=width / 8)


NUM_BODIES = 2**17


@pytest.fixture(scope="module")
def summed():
    """A million draws that are .1 from the origin, and one of 16 in the histogram."""
    pair = jnp.zeros((1, 16)), jnp.zeros((1, 16))
    grid = moments.Grid(jnp.full(1, 2.0), jnp.ones(1))
    position = jnp.full((1, 16), 2.1)
    is_counted = jnp.arange(16) < 11

    def body(i, carry):
        sums, counts = carry
        pending = sums.pending
        for _ in range(moments.DRAWS_PER_BODY):
            pending = moments.add_draw(pending, grid.origin, position)
        sums = moments.finish_body(sums._replace(pending=pending), True)
        return sums, moments.count_draw(counts, grid, position, is_counted)

    start = moments.Sums(pair, pair, pair), jnp.zeros((1, moments.NUM_BINS + 2), jnp.int32)
    return jax.jit(lambda start: jax.lax.fori_loop(0, NUM_BODIES, body, start))(start)


def test_long_sums_do_not_lose_small_distances(summed):
    distance = float(np.float32(2.1) - np.float32(2))
    for power in (0, 1):
        total = np.asarray(summed[0].totals[power], np.float64)
        total = total - np.asarray(summed[0].excess[power])
        expected = NUM_BODIES * moments.DRAWS_PER_BODY * distance ** (power + 1)
        np.testing.assert_allclose(total, expected, rtol=3e-7)


def test_padding_is_not_counted(summed):
    expected = np.zeros(moments.NUM_BINS + 2)
    expected[moments.NUM_BINS // 2 + 1] = 11 * NUM_BODIES
    np.testing.assert_array_equal(summed[1][0], expected)
