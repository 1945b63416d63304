"""Random-walk Metropolis against its plain reference, exact distributions and known traps."""

import functools
import types

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ensemble.random_walk import densities, method, walker
from ensemble.random_walk.block_kernel import (
    draw_pairs,
    metropolis,
    normal_pair,
    scale_moves,
    threefry,
    uniform,
)
from ensemble.runtime.algorithm import Start
from ensemble.runtime.devices import Devices

MIXTURE = densities.GAUSSIAN_MIXTURE
COMPONENTS = scipy.stats.norm(densities.MIXTURE_LOCS, densities.MIXTURE_SCALES)
WEIGHTS = np.array(densities.MIXTURE_WEIGHTS)
MEAN = float(WEIGHTS @ densities.MIXTURE_LOCS)
VARIANCE = float(
    WEIGHTS @ (np.square(densities.MIXTURE_LOCS) + np.square(densities.MIXTURE_SCALES))
)
VARIANCE -= MEAN**2


def mixture_cdf(x):
    return COMPONENTS.cdf(np.asarray(x)[..., None]) @ WEIGHTS


def make_walk(density=MIXTURE, num_chains=44, num_devices=1, lanes=8192, **sampler):
    settings = {"num_warmup": 0, "step_size": 4.0, "mass_matrix": "identity", **sampler}
    config = types.SimpleNamespace(
        seed=3, num_chains=num_chains, sampler=types.SimpleNamespace(**settings)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walker, "CPU_LANES", lanes)
        devices = Devices(1, jax.devices()[:num_devices], groups=num_devices)
        return walker.Walker(config, density, devices)


@functools.cache
def small_walk(num_devices, lanes):
    """44 chains, which neither devices nor blocks divide."""
    return make_walk(num_devices=num_devices, lanes=lanes)


SMALL = {"one block": (1, 8192), "three blocks": (1, 16), "eight devices": (8, 8192)}


def walked(walk, *counts):
    """All chains after steps in chunks."""
    members = walk.start(Start())
    first = 0
    for count in counts:
        members = walk.advance(members, None, first, count)[0]
        first = first + count
    return members


def fetched(walk, members):
    return walk.to_host(members.state)


def summary_of(walk, host, num_draws):
    return method.summarise(host, num_draws, walk.num_superchains)


def started_at(position, logdensity_fn):
    return densities.Density(
        logdensity_fn, 1, start_fn=lambda key, number: jnp.full((number, 1), position)
    )


def sample_simply(logdensity_fn, keys, positions, factor, num_steps):
    """The reference, draws [T, C, D]: all random numbers, then a plain scan that keeps all."""
    chains = jnp.arange(len(positions), dtype=jnp.uint32)
    pairs = jnp.arange(num_steps // 2, dtype=jnp.uint32)
    moves, uniforms = (
        jnp.stack(halves, axis=1).reshape(num_steps, *halves[0].shape[1:])
        for halves in draw_pairs(keys, chains, pairs)
    )

    def step(carry, draw):
        position, log_density, _, _ = metropolis(logdensity_fn, *carry, *draw)
        return (position, log_density), position.T

    start = positions.T, logdensity_fn(positions)
    return jax.lax.scan(step, start, (scale_moves(factor, moves), uniforms))[1]


# Random numbers.


def test_threefry_is_that_of_jax():
    key = jnp.array([17, 2**32 - 5], jnp.uint32)
    counters = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, (2, 100)), jnp.uint32)
    expected = jax.extend.random.threefry_2x32(key, counters.ravel()).reshape(2, 100)
    np.testing.assert_array_equal(threefry(key, *counters), expected)


@pytest.mark.check
def test_pairs_are_normal_and_independent():
    bits = jax.random.bits(jax.random.key(0), (2, 100_000))
    pairs = np.stack(jax.jit(normal_pair)(*bits))
    for values in (*pairs, np.sum(pairs, axis=0) / np.sqrt(2), np.diff(pairs, axis=0)[0] / 2**0.5):
        assert scipy.stats.kstest(values, scipy.stats.norm.cdf).pvalue > 1e-3
    np.testing.assert_allclose(
        np.hypot(*pairs), np.sqrt(-2 * np.log(np.asarray(uniform(bits[0])))), rtol=1e-5, atol=1e-6
    )
    extremes = jnp.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], jnp.uint32)
    assert np.isfinite(normal_pair(extremes[:, None], extremes)).all()
    assert (uniform(extremes) > 0).all()


# The same chains, however they are moved.


@pytest.fixture(scope="module")
def reference():
    """All draws [T, C, D] of the plain way, from the start of `small_walk`."""
    walk = small_walk(1, 8192)
    state = walked(walk).state
    sample = jax.jit(sample_simply, static_argnums=(0, 4))
    positions = walk.to_host(state).chains.position
    return np.asarray(sample(MIXTURE.logdensity_fn, walk.keys, positions, state.factor, 700))


@pytest.mark.check
@pytest.mark.parametrize("layout", SMALL.values(), ids=SMALL)
def test_any_layout_and_chunks_make_the_draws_of_the_reference(layout, reference):
    walk = small_walk(*layout)
    chunks = (2, 6, 30, 62, 400, 200)
    for number in range(1, len(chunks) + 1):
        found = fetched(walk, walked(walk, *chunks[:number]))
        # Where compilers round differently, by an ulp; a step decided otherwise would show.
        last = reference[sum(chunks[:number]) - 1]
        np.testing.assert_allclose(found.chains.position, last, rtol=1e-5, atol=1e-5)
    assert walk.take_steps._cache_size() == 1  # Whatever the chunk.
    one = small_walk(1, 8192)
    expected = fetched(one, walked(one, 700))
    for host in (found, fetched(walk, walked(walk, 700))):
        jax.tree.map(np.testing.assert_array_equal, host, expected)


@pytest.mark.check
def test_a_walk_resumes_on_other_devices_bit_for_bit():
    before = small_walk(1, 16)
    after = small_walk(8, 8192)
    restored = after.restored(before.saved(walked(before, 342)))
    members, _ = after.advance(restored, None, 342, 358)
    straight = fetched(after, walked(after, 700))
    jax.tree.map(np.testing.assert_array_equal, fetched(after, members), straight)


# What the sums say.


def test_summaries_are_those_of_stored_draws(reference):
    walk = small_walk(8, 8192)
    host = fetched(walk, walked(walk, 700))
    draws = reference[:, :, 0].astype(np.float64).T
    found = summary_of(walk, host, 700)
    means = draws.mean(axis=1)
    squares = ((draws - draws.mean()) ** 2).mean(axis=1)
    # Seven closed segments of 64 after 448, of 128 after 512: five of them, halves of two.
    halves = np.concatenate([draws[:, :256], draws[:, 384:640]])
    expected = {
        "mean": draws.mean(),
        "variance": draws.var(),
        "mcse_mean": scipy.stats.sem(means),
        "mcse_variance": scipy.stats.sem(squares),
        "ess": draws.var() / scipy.stats.sem(means) ** 2,
        "rhat": rhat(halves),
        "nested_rhat": np.sqrt(1 + means.var(ddof=1) / draws.var(axis=1, ddof=1).mean()),
    }
    for name, value in expected.items():
        assert found[name][0] == pytest.approx(value, rel=1e-5), name
    np.testing.assert_allclose(host.marks[2][:, :5, 0], draws[:, 127:640:128], atol=1e-5)
    start = fetched(walk, walked(walk)).chains.position
    moved = np.diff(draws, axis=1, prepend=start) != 0
    np.testing.assert_array_equal(host.chains.accepted, moved.sum(axis=1))


def rhat(values):
    """Gelman et al. 2013, equation 11.4."""
    count = values.shape[1]
    within = values.var(axis=1, ddof=1).mean()
    between = values.mean(axis=1).var(ddof=1)
    return np.sqrt((count - 1) / count + between / within)


# Right.


@pytest.mark.check
def test_moments_and_quantiles_of_the_mixture():
    walk = make_walk(num_chains=4096, num_devices=8, step_size=1.0, num_warmup=480)
    host = fetched(walk, walked(walk, 600))
    found = summary_of(walk, host, 600)
    assert abs(found["mean"][0] - MEAN) < 4 * found["mcse_mean"][0] < 0.05
    assert abs(found["variance"][0] - VARIANCE) < 4 * found["mcse_variance"][0] < 0.4
    assert found["rhat"][0] < 1.02
    assert found["nested_rhat"][0] < 1.005
    assert 4096 * 600 / 12 < found["ess"][0] < 4096 * 600 / 3
    assert host.chains.accepted.mean() / 600 == pytest.approx(0.44, abs=0.01)
    levels = mixture_cdf(found["quantiles"][:, 0])
    np.testing.assert_allclose(levels, method.SHARES, atol=4 * 0.5 / np.sqrt(4096 * 4))
    assert host.chains.invalid.sum() == 0


@pytest.mark.check
def test_the_warm_up_does_not_depend_on_devices():
    normal = densities.Density(densities.CORRELATED_GAUSSIAN.logdensity_fn, 3)
    settings = {"num_warmup": 100, "step_size": 0.3, "lanes": 48}
    for density, form in ((MIXTURE, "identity"), (normal, "dense")):
        walks = [
            make_walk(density, num_devices=number, mass_matrix=form, **settings)
            for number in (1, 8)
        ]
        found = [fetched(walk, walked(walk)) for walk in walks]
        jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.check
def test_a_discrete_target_with_gaps_and_forbidden_cells():
    weights = np.array([1.0, 4.0, 0.0, 2.0, 3.0])
    log_weights = jnp.log(jnp.asarray(weights))

    def logdensity_fn(positions):
        cell = jnp.floor(positions[:, 0]).astype(jnp.int32)
        inside = (cell >= 0) & (cell < 5)
        return jnp.where(inside, log_weights[jnp.clip(cell, 0, 4)], -jnp.inf)

    walk = make_walk(started_at(0.5, logdensity_fn), 1024, step_size=2.0)
    chains = fetched(walk, walked(walk, 400)).chains
    counts = np.bincount(np.floor(chains.position[:, 0]).astype(int), minlength=5)
    assert counts[2] == 0
    expected = 1024 * weights / weights.sum()
    keep = weights > 0
    assert scipy.stats.chisquare(counts[keep], expected[keep]).pvalue > 1e-3
    assert chains.invalid.sum() == 0  # Impossible is a number.
    assert np.isfinite(chains.log_density).all()
    far = make_walk(started_at(-1e6, logdensity_fn), 64, step_size=2.0)
    assert np.isneginf(fetched(far, walked(far, 2)).chains.log_density).all()


@pytest.mark.check
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_proposals_without_a_log_density_are_rejected_and_counted(bad):
    def logdensity_fn(positions):
        x = positions[:, 0]
        return jnp.where(jnp.abs(x) > 1.5, bad, -0.5 * x**2)

    walk = make_walk(started_at(0.0, logdensity_fn), 1024, step_size=2.0)
    chains = fetched(walk, walked(walk, 200)).chains
    positions = chains.position[:, 0]
    assert np.abs(positions).max() <= 1.5
    truncated = scipy.stats.truncnorm(-1.5, 1.5)
    assert scipy.stats.kstest(positions, truncated.cdf).pvalue > 1e-3
    assert chains.invalid.min() > 0
    assert (chains.accepted + chains.invalid <= 200).all()
