"""Random-walk Metropolis against its plain reference, exact distributions and known traps."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from run_parts import mesh_of

from ensemble.walks import densities, moments
from ensemble.walks.block_kernel import (
    Streams,
    draw_pairs,
    metropolis,
    normal_pair,
    scale_moves,
    threefry,
    uniform,
)
from ensemble.walks.walker import Walker

MIXTURE = densities.GAUSSIAN_MIXTURE
COMPONENTS = scipy.stats.norm(densities.MIXTURE_LOCS, densities.MIXTURE_SCALES)
WEIGHTS = np.array(densities.MIXTURE_WEIGHTS)
MEAN = float(WEIGHTS @ densities.MIXTURE_LOCS)
VARIANCE = float(
    WEIGHTS @ (np.square(densities.MIXTURE_LOCS) + np.square(densities.MIXTURE_SCALES))
)
VARIANCE -= MEAN**2
MIXTURE_MOVES = 6.35  # Of which .44 are accepted.


def mixture_cdf(x):
    return COMPONENTS.cdf(np.asarray(x)[..., None]) @ WEIGHTS


def make_walk(density=MIXTURE, num_chains=44, num_devices=1, **options):
    mesh = mesh_of(num_devices)
    return Walker(density, num_chains, mesh, **options)


@functools.cache
def small_walk(num_devices, max_lanes):
    """44 chains, which neither devices nor blocks divide, in superchains of 4."""
    return make_walk(num_devices=num_devices, max_lanes=max_lanes, num_superchains=11)


SMALL = {"one block": (1, 8192), "three blocks": (1, 16), "eight devices": (8, 8192)}


def sample_simply(logdensity_fn, rng_key, positions, factor, num_steps):
    """The reference, draws [T, C, D]: all random numbers, then a plain scan that keeps all."""
    num_chains, num_dims = positions.shape
    streams, chains = Streams.create(rng_key, num_dims), jnp.arange(num_chains, dtype=jnp.uint32)
    pairs = jnp.arange(num_steps // 2, dtype=jnp.uint32)
    moves, uniforms = (
        jnp.stack(halves, axis=1).reshape(num_steps, *halves[0].shape[1:])
        for halves in draw_pairs(streams, chains, pairs)
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
    state = walk.init(jax.random.key(3), scale=4.0)
    sample = jax.jit(sample_simply, static_argnums=(0, 4))
    return np.asarray(
        sample(MIXTURE.logdensity_fn, state.rng_key, walk.positions(state), state.factor, 700)
    )


@pytest.mark.check
@pytest.mark.parametrize("layout", SMALL.values(), ids=SMALL)
def test_any_layout_and_chunks_make_the_draws_of_the_reference(layout, reference):
    walk = small_walk(*layout)
    state = walk.init(jax.random.key(3), scale=4.0)
    for count in (2, 6, 30, 62, 400, 200):
        state = walk.advance(state, count)
        # Where compilers round differently, by an ulp; a step decided otherwise would show.
        np.testing.assert_allclose(
            walk.positions(state), reference[state.step - 1], rtol=1e-5, atol=1e-5
        )
    assert walk.take_steps._cache_size() == 1  # Whatever the chunk.
    straight = walk.advance(walk.init(jax.random.key(3), scale=4.0), 700)
    one = small_walk(1, 8192)
    other = one.advance(one.init(jax.random.key(3), scale=4.0), 700)
    expected, counters = one.to_host(other)
    for arrays, found in (walk.to_host(state), walk.to_host(straight)):
        assert found == counters
        jax.tree.map(np.testing.assert_array_equal, arrays, expected)


@pytest.mark.check
def test_a_walk_resumes_on_other_devices_bit_for_bit():
    before, after = small_walk(1, 16), small_walk(8, 8192)
    arrays, counters = before.to_host(
        before.advance(before.init(jax.random.key(3), scale=4.0), 342)
    )
    state = after.advance(after.from_host(arrays, counters), 358)
    straight = after.advance(after.init(jax.random.key(3), scale=4.0), 700)
    jax.tree.map(np.testing.assert_array_equal, after.to_host(state), after.to_host(straight))


# What the sums say.


def test_summaries_are_those_of_stored_draws(reference):
    walk = small_walk(8, 8192)
    state = walk.advance(walk.init(jax.random.key(3), scale=4.0), 700)
    found, draws = walk.summaries(state), reference[:, :, 0].astype(np.float64).T
    assert (found.num_draws, found.num_samples) == (700, 44 * 700)
    means = draws.mean(axis=1)
    squares = ((draws - draws.mean()) ** 2).mean(axis=1)

    def error(values):
        return max(
            of.std(ddof=1) / len(of) ** 0.5 for of in (values, values.reshape(11, 4).mean(1))
        )

    # Seven closed segments of 64 after 448, of 128 after 512: five of them, halves of two.
    halves = np.concatenate([draws[:, :256], draws[:, 384:640]])
    groups = means.reshape(11, 4)
    nested = draws.var(axis=1, ddof=1).mean() + groups.var(axis=1, ddof=1).mean()
    expected = {
        "mean": draws.mean(),
        "variance": draws.var(),
        "mcse_mean": error(means),
        "mcse_variance": error(squares),
        "ess": draws.var() / error(means) ** 2,
        "rhat": rhat(halves),
        "nested_rhat": np.sqrt(1 + groups.mean(axis=1).var(ddof=1) / nested),
    }
    for name, value in expected.items():
        assert getattr(found, name)[0] == pytest.approx(value, rel=1e-5), name
    counted = draws[:, 15::16].ravel()
    cdf = np.searchsorted(np.sort(counted), found.edges[0]) / counted.size
    np.testing.assert_allclose(found.cdf[0], cdf, atol=2 / counted.size)  # Rounding at an edge.
    quantiles = found.quantiles([0.05, 0.5, 0.95])[0]
    np.testing.assert_allclose(quantiles, np.quantile(counted, [0.05, 0.5, 0.95]), atol=0.3)
    accepted = np.diff(draws, axis=1, prepend=walk.positions(walk.init(jax.random.key(3)))) != 0
    assert walk.acceptance(state) == pytest.approx(accepted.mean(), rel=1e-12)


def test_counts_pass_32_bits():
    walk = small_walk(8, 8192)
    state = walk.advance(walk.init(jax.random.key(3), scale=4.0), 342)
    arrays, counters = walk.to_host(state)
    assert arrays["counts"].sum() == 44 * (342 // 16)
    many = {**arrays, "counts": arrays["counts"] + 2**40 + 2**24 - 1}
    after, expected = (
        walk.to_host(walk.advance(walk.from_host(one, counters), 358))[0]["counts"]
        for one in (many, arrays)
    )
    np.testing.assert_array_equal(after - (2**40 + 2**24 - 1), expected)
    for num_chains in (1, 44, 10**6, 10**9):
        most = moments.max_span(num_chains)
        assert most >= 2
        assert most % 2 == 0
        # A span may begin amid the draws of which one is counted.
        assert num_chains * -(-(most + 14) // 16) + 2**24 <= 2**31


def rhat(values):
    """Gelman et al. 2013, equation 11.4."""
    count = values.shape[1]
    within = values.var(axis=1, ddof=1).mean()
    between = values.mean(axis=1).var(ddof=1)
    return np.sqrt((count - 1) / count + between / within)


# Right.


@pytest.fixture(scope="module")
def mixture_walk():
    return make_walk(num_chains=4096, num_devices=8)


@pytest.fixture(
    scope="module", params=["overdispersed", pytest.param("exact", marks=pytest.mark.check)]
)
def mixture(request, mixture_walk):
    """A walk on the mixture: from far out after its warm-up, and from the mixture without any."""
    if request.param == "overdispersed":
        state = mixture_walk.warm_up(mixture_walk.init(jax.random.key(1)), 480)
    else:
        rng = np.random.default_rng(0)
        component = rng.choice(4, 4096, p=WEIGHTS)
        positions = COMPONENTS.rvs((4096, 4), random_state=rng)[np.arange(4096), component, None]
        state = mixture_walk.init(jax.random.key(1), positions, MIXTURE_MOVES)
    return mixture_walk, mixture_walk.advance(state, 600)


@pytest.mark.check
def test_moments_and_quantiles_of_the_mixture(mixture):
    walk, state = mixture
    found = walk.summaries(state)
    assert abs(found.mean[0] - MEAN) < 4 * found.mcse_mean[0] < 0.05
    assert abs(found.variance[0] - VARIANCE) < 4 * found.mcse_variance[0] < 0.4
    assert found.rhat[0] < 1.02
    assert found.nested_rhat[0] < 1.005
    assert 4096 * 600 / 12 < found.ess[0] < 4096 * 600 / 3
    assert walk.acceptance(state) == pytest.approx(0.44, abs=0.01)
    error = 4 * 0.5 / np.sqrt(found.ess[0] / 4)
    assert np.abs(found.cdf[0] - mixture_cdf(found.edges[0])).max() < error < 0.01
    shares = np.array([0.05, 0.5, 0.95])
    np.testing.assert_allclose(mixture_cdf(found.quantiles(shares)[0]), shares, atol=error)
    assert walk.counts(state)[1].sum() == 0


@pytest.mark.check
def test_the_warm_up_does_not_depend_on_devices():
    density = densities.Density(densities.correlated_gaussian(3, 0.5), 3)
    dense = [make_walk(density, num_devices=number, max_lanes=48) for number in (1, 8)]
    for shape, walks in (("identity", (small_walk(1, 16), small_walk(8, 8192))), ("dense", dense)):
        states = [
            walk.warm_up(walk.init(jax.random.key(0), scale=0.3), 100, shape) for walk in walks
        ]
        found = [walk.to_host(state) for walk, state in zip(walks, states, strict=True)]
        jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.check
def test_a_discrete_target_with_gaps_and_forbidden_cells():
    weights = np.array([1.0, 4.0, 0.0, 2.0, 3.0])
    log_weights = jnp.log(jnp.asarray(weights))

    def logdensity_fn(positions):
        cell = jnp.floor(positions[:, 0]).astype(jnp.int32)
        inside = (cell >= 0) & (cell < 5)
        return jnp.where(inside, log_weights[jnp.clip(cell, 0, 4)], -jnp.inf)

    walk = make_walk(densities.Density(logdensity_fn, 1), 1024)
    state = walk.advance(walk.init(jax.random.key(0), np.full((1024, 1), 0.5), 2.0), 400)
    cells = np.floor(walk.positions(state)[:, 0]).astype(int)
    counts = np.bincount(cells, minlength=5)
    assert counts[2] == 0
    expected = 1024 * weights / weights.sum()
    keep = weights > 0
    assert scipy.stats.chisquare(counts[keep], expected[keep]).pvalue > 1e-3
    assert walk.counts(state)[1].sum() == 0  # Impossible is a number.
    assert walk.stuck(state) == 0
    starts = np.full((1024, 1), 0.5)
    starts[[3, 1023]] = -1e6
    assert walk.stuck(walk.advance(walk.init(jax.random.key(0), starts, 2.0), 2)) == 2


@pytest.mark.check
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_proposals_without_a_log_density_are_rejected_and_counted(bad):
    def logdensity_fn(positions):
        x = positions[:, 0]
        return jnp.where(jnp.abs(x) > 1.5, bad, -0.5 * x**2)

    walk = make_walk(densities.Density(logdensity_fn, 1), 1024)
    state = walk.advance(walk.init(jax.random.key(0), np.zeros((1024, 1)), 2.0), 200)
    positions = walk.positions(state)[:, 0]
    assert np.abs(positions).max() <= 1.5
    truncated = scipy.stats.truncnorm(-1.5, 1.5)
    assert scipy.stats.kstest(positions, truncated.cdf).pvalue > 1e-3
    accepted, invalid = walk.counts(state)
    assert invalid.min() > 0
    assert (accepted + invalid <= 200).all()


# Bad input.


# The published code: https://rlouf.github.io/post/jax-random-walk-metropolis/
