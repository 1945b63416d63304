"""Sums on the devices, and what they say, by draws that are written down."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.random_walk import block_kernel, method


def walk_of(draws):
    """What a walker has summed of draws [C, T] of one dimension."""
    num_chains, num_draws = draws.shape
    length = block_kernel.segment_length(num_draws)
    number = num_draws // length
    nothing = np.zeros((num_chains, 1))
    marks = np.zeros((3, num_chains, block_kernel.NUM_SEGMENTS, 1))
    totals = []
    for one, values in zip(marks, (draws, np.square(draws)), strict=False):
        sums = values.cumsum(axis=1)
        one[:, :number, 0] = sums[:, length - 1 :: length]
        totals.append(sums[:, -1:])
    marks[2, :, :number, 0] = draws[:, length - 1 :: length]
    sums = block_kernel.Sums([nothing] * 2, totals, [nothing] * 2)
    return types.SimpleNamespace(origin=np.zeros(1), sums=sums, marks=marks)


def summary_of(draws, num_superchains):
    return method.summarise(walk_of(draws), draws.shape[1], num_superchains)


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


def test_quantiles_are_of_positions_far_apart():
    draws = np.random.default_rng(0).exponential(size=(2000, 300))
    found = summary_of(draws, 20)["quantiles"][:, 0]
    exact = -np.log1p(-np.array(method.SHARES))
    np.testing.assert_allclose(found, exact, rtol=0.1)
    assert np.isnan(summary_of(draws[:100], 20)["quantiles"]).all()


NUM_BODIES = 2**17


def test_long_sums_do_not_lose_small_distances():
    """A million draws that are .1 from the origin."""
    pair = jnp.zeros((1, 16)), jnp.zeros((1, 16))
    position = jnp.full((1, 16), 2.1)

    def body(i, sums):
        pending = sums.pending
        for _ in range(block_kernel.DRAWS_PER_BODY):
            pending = block_kernel.add_draw(pending, jnp.full(1, 2.0), position)
        return block_kernel.finish_body(sums._replace(pending=pending), True)

    start = block_kernel.Sums(pair, pair, pair)
    summed = jax.jit(lambda start: jax.lax.fori_loop(0, NUM_BODIES, body, start))(start)
    distance = float(np.float32(2.1) - np.float32(2))
    for power in (0, 1):
        total = np.asarray(summed.totals[power], np.float64)
        total = total - np.asarray(summed.excess[power])
        expected = NUM_BODIES * block_kernel.DRAWS_PER_BODY * distance ** (power + 1)
        np.testing.assert_allclose(total, expected, rtol=3e-7)
