"""Sums on the devices, and what they say, by draws that are written down."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.random_walk import moments, summary


def walk_of(draws):
    """What a walker has summed of draws [C, T] of one dimension."""
    sums = [values.sum(axis=1, keepdims=True) for values in (draws, np.square(draws))]
    nothing = np.zeros((2, len(draws), 1))
    return types.SimpleNamespace(origin=np.zeros(1), sums=moments.Sums(nothing, sums, nothing))


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
    alone = summary_of(draws, 1)  # One start: nothing is known of others.
    np.testing.assert_array_equal(alone["mcse_mean"], apart["mcse_mean"])


NUM_BODIES = 2**17


def test_long_sums_do_not_lose_small_distances():
    """A million draws that are .1 from the origin."""
    pair = jnp.zeros((1, 16)), jnp.zeros((1, 16))
    position = jnp.full((1, 16), 2.1)

    def body(i, sums):
        pending = sums.pending
        for _ in range(moments.DRAWS_PER_BODY):
            pending = moments.add_draw(pending, jnp.full(1, 2.0), position)
        return moments.finish_body(sums._replace(pending=pending), True)

    start = moments.Sums(pair, pair, pair)
    summed = jax.jit(lambda start: jax.lax.fori_loop(0, NUM_BODIES, body, start))(start)
    distance = float(np.float32(2.1) - np.float32(2))
    for power in (0, 1):
        total = np.asarray(summed.totals[power], np.float64)
        total = total - np.asarray(summed.excess[power])
        expected = NUM_BODIES * moments.DRAWS_PER_BODY * distance ** (power + 1)
        np.testing.assert_allclose(total, expected, rtol=3e-7)
