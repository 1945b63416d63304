"""How draws are made: their keys, chunks and warm-up, and what a draw reports."""

import functools
import itertools

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.integrators import IntegratorState, velocity_verlet
from blackjax.mcmc.metrics import default_metric
from chains import advance

from ensemble import UserError
from ensemble.methods.mcmc.kernels import Settings, check_dense, make_sampler
from ensemble.methods.mcmc.sampler_keys import SAMPLERS

COVARIANCE = np.array([[1.0, 0.9], [0.9, 2.0]])
SETTINGS = {
    "hmc": Settings("hmc", step_size=0.3, num_leapfrog_steps=8, num_warmup=0),
    "hmc-dense": Settings("hmc", 0.3, 4, num_warmup=20, mass="dense"),
    "nuts-diagonal": Settings("nuts", step_size=0.3, num_warmup=20, mass="diagonal"),
    "mclmc": Settings("mclmc", step_size=0.3, num_leapfrog_steps=6, num_warmup=0),
    "adjusted_mclmc": Settings("adjusted_mclmc", step_size=0.3, num_warmup=20, mass="diagonal"),
}


def correlated_gaussian(x):
    return -0.5 * x @ jnp.linalg.inv(jnp.asarray(COVARIANCE, jnp.float32)) @ x


def log_gamma(x):
    """The logarithm of a Gamma(2) variable, twice: skewed to the left."""
    return jnp.sum(2 * x - jnp.exp(x))


def draw(settings, logdensity_fn, num_draws, start=(0.0, 0.0), seed=0):
    """The chain before and after, positions [T, P] and diagnostics [T] from draw 0 on."""
    sampler = make_sampler(settings, logdensity_fn)
    before = sampler.init(jax.random.key(seed), jnp.asarray(start, jnp.float32))
    run = jax.jit(functools.partial(advance, sampler), static_argnames="num_draws")
    after, (positions, info) = run(before, jnp.int32(0), num_draws=num_draws)
    return before, after, np.asarray(positions), jax.tree.map(np.asarray, info)


@pytest.mark.check
@pytest.mark.parametrize("name", SETTINGS)
def test_chunks_and_a_stay_on_the_host_change_no_bit_and_trace_nothing_anew(name):
    sampler = make_sampler(SETTINGS[name], log_gamma)
    traces = []

    @functools.partial(jax.jit, static_argnames="num_draws")
    def take(chain, first, num_draws):
        traces.append(num_draws)
        return advance(sampler, chain, first, num_draws)

    chain = sampler.init(jax.random.key(3), jnp.zeros(2))
    _, (whole, _) = take(chain, jnp.int32(0), num_draws=24)
    parts = []
    for first, number in [(0, 8), (8, 8), (16, 8)]:  # Windows end within and between chunks.
        chain, (positions, _) = take(chain, jnp.int32(first), num_draws=number)
        parts.append(positions)
        raw = chain._replace(rng_key=jax.random.key_data(chain.rng_key))
        stored = flax.serialization.to_state_dict(jax.tree.map(np.asarray, raw))
        raw = jax.device_put(flax.serialization.from_state_dict(raw, stored))
        chain = raw._replace(rng_key=jax.random.wrap_key_data(raw.rng_key))
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert traces == [24, 8]


def counted_gaussian():
    """The correlated Gaussian, and a list that grows by one with every gradient of it."""
    count = []

    @jax.custom_vjp
    def counted(x):
        return correlated_gaussian(x)

    def forward(x):
        jax.debug.callback(lambda: count.append(1))
        return jax.value_and_grad(correlated_gaussian)(x)

    counted.defvjp(forward, lambda gradient, cotangent: (cotangent * gradient,))
    return counted, count


@pytest.mark.check
@pytest.mark.parametrize("mass", [pytest.param("identity", marks=pytest.mark.soak), "diagonal"])
def test_mclmc_is_tuned_once_the_same_each_time_and_within_its_budget(mass):
    counted, count = counted_gaussian()
    sampler = make_sampler(Settings("mclmc", 0.1, num_warmup=100, mass=mass), counted)
    start = sampler.init(jax.random.key(0), jnp.ones(2))
    jax.effects_barrier()
    count.clear()
    tune = jax.jit(sampler.tune)
    tuned = tune(start)
    jax.effects_barrier()
    assert 180 < len(count) <= 200  # Two gradients a step.
    for once, again in zip(
        jax.tree.leaves(tuned._replace(rng_key=0)),
        jax.tree.leaves(tune(start)._replace(rng_key=0)),
        strict=True,
    ):
        np.testing.assert_array_equal(once, again)
    assert float(tuned.adaptation.step_size) > 0.3
    after, _ = jax.jit(sampler.step)(tuned, jnp.int32(0))  # As any draw, warm-up or not.
    assert jax.tree.map(float, after.adaptation[:2]) == jax.tree.map(float, tuned.adaptation[:2])
    assert make_sampler(Settings("nuts"), counted).tune is None
    assert make_sampler(Settings("mclmc", num_warmup=0), counted).tune is None


@pytest.mark.soak
def test_mclmc_finds_small_scales_far_from_zero():
    """Where E[x^2] - E[x]^2 is rounding."""
    scales = np.array([0.1, 1.0, 0.3, 1.0, 1.0, 1.0])
    settings = Settings("mclmc", 0.1, num_warmup=3000, mass="diagonal")
    sampler = make_sampler(settings, lambda x: -0.5 * jnp.sum(((x - 1000) / scales) ** 2))
    tuned = jax.jit(sampler.tune)(sampler.init(jax.random.key(0), jnp.full(6, 1000.0)))
    found = np.sqrt(tuned.adaptation.inverse_mass_matrix)
    np.testing.assert_allclose(found / scales, 1, atol=0.4)


@pytest.mark.soak
def test_mclmc_is_tuned_again_where_the_start_is_far_from_a_narrow_density():
    """There energy errors overflow, and the step size that is found first is 0."""

    def logdensity_fn(x):
        return -0.5 * jnp.sum(jnp.square((x - 1) / 0.001))

    sampler = make_sampler(Settings("mclmc", 0.01, 20, num_warmup=600), logdensity_fn)
    chain = jax.jit(sampler.tune)(sampler.init(jax.random.key(0), jnp.array([30.0, -20, 10, 5])))
    assert 1e-4 < chain.adaptation.step_size < 1e-2
    assert logdensity_fn(chain.state.position) > -30
    lost = chain._replace(adaptation=chain.adaptation._replace(step_size=jnp.float32(0)))
    assert sampler.step(lost, 0)[1].acceptance_rate == 0


@pytest.mark.check
def test_adjusted_mclmc_finds_a_narrow_density_from_far_and_turns_a_quarter_about_it():
    """There float32 rounds the log density by more than any step may err."""
    scale = 0.001 * np.array([1.0, 2.0, 5.0, 10.0])

    def logdensity_fn(x):
        return -0.5 * jnp.sum(jnp.square((x - 1) / scale))

    settings = Settings("adjusted_mclmc", 0.1, num_warmup=300, mass="diagonal", jitter=0)
    _, _, positions, info = draw(settings, logdensity_fn, 600, start=(30.0, -20, 10, 5))
    np.testing.assert_allclose(positions[300:].std(axis=0) / scale, 1, atol=0.25)
    assert 0.7 < info.acceptance_rate[300:].mean() < 0.98
    length = info.step_size[-1] * info.num_gradients[-1] / 2
    assert length == pytest.approx(np.pi, rel=0.2)  # pi / 2 * sqrt(4).


@pytest.mark.check
@pytest.mark.parametrize("method", SAMPLERS)
def test_gradients_are_counted_as_they_are_taken(method):
    counted, count = counted_gaussian()
    settings = Settings(method, step_size=0.1, num_leapfrog_steps=5, num_warmup=0)
    _, _, _, info = draw(settings, counted, 20)
    jax.effects_barrier()
    assert len(count) == 1 + info.num_gradients.sum()  # One to start.


@pytest.mark.parametrize("mass", ["diagonal", "dense"])
def test_the_mass_is_the_covariance_of_the_last_window(mass):
    """Stan's schedule for 150 draws: 75 for the step size, one window of 25, 50 again."""
    scale = np.array([1.0, 30.0], np.float32)
    settings = Settings("hmc", 0.5, num_leapfrog_steps=8, num_warmup=150, mass=mass)
    _, chain, positions, info = draw(settings, lambda x: correlated_gaussian(x / scale), 200)
    expected = 25 / 30 * np.cov(positions[75:100].T) + 5 / 30 * 1e-3 * np.eye(2)
    found = chain.adaptation.mass.inverse_mass_matrix
    expected = np.diag(expected) if mass == "diagonal" else expected
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # The step size was sought anew after the window, and was settled after the warm-up.
    assert info.step_size[100] == pytest.approx(info.step_size[50:100].mean(), rel=0.9)
    assert len(np.unique(info.step_size[100:150])) > 40
    assert len(np.unique(info.step_size[150:])) == 1


@pytest.mark.soak
def test_an_adapted_mass_pays_off():
    scale = np.array([1.0, 30.0], np.float32)

    def spread(mass):
        settings = Settings("hmc", 0.5, num_leapfrog_steps=5, num_warmup=300, mass=mass)
        positions = draw(settings, lambda x: correlated_gaussian(x / scale), 900)[2]
        return positions[300:, 1].std() / (30 * np.sqrt(2))

    assert spread("diagonal") == pytest.approx(1, rel=0.2)
    assert spread("dense") == pytest.approx(1, rel=0.2)
    assert spread("identity") < 0.75  # Too slow along the wide direction.


@pytest.mark.check
def test_chains_have_keys_masses_and_step_sizes_of_their_own():
    settings = Settings("nuts", step_size=0.3, num_warmup=40, mass="diagonal")
    sampler = make_sampler(settings, log_gamma)

    def run(rng_key):
        return advance(sampler, sampler.init(rng_key, jnp.zeros(2)), jnp.int32(0), 45)

    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    chains, (positions, _) = jax.jit(jax.vmap(run))(keys)
    assert len(np.unique(chains.adaptation.step_size.log_step_size)) == 3
    assert len(np.unique(chains.adaptation.mass.inverse_mass_matrix[:, 0])) == 3
    for k in range(3):
        alone = draw(settings, log_gamma, 45, seed=k)[2]
        np.testing.assert_allclose(positions[k, :5], alone[:5], rtol=1e-4, atol=1e-5)


@pytest.mark.check
def test_all_chains_of_a_draw_go_equally_far_and_nuts_farther_on_small_steps():
    settings = Settings("hmc", step_size=0.25, num_leapfrog_steps=10, num_warmup=0, jitter=0.5)
    lengths = [draw(settings, log_gamma, 200, seed=k)[3].num_gradients for k in range(2)]
    np.testing.assert_array_equal(*lengths)
    assert (lengths[0].min(), lengths[0].max()) == (5, 15)
    assert lengths[0].mean() == pytest.approx(10, abs=1)
    settings = Settings("nuts", step_size=0.02, num_warmup=0)
    assert draw(settings, correlated_gaussian, 5)[3].num_gradients.max() > 60


@pytest.mark.parametrize("method", SAMPLERS)
def test_without_warmup_the_step_size_is_as_given(method):
    _, _, _, info = draw(Settings(method, step_size=0.25, num_warmup=0), log_gamma, 5)
    assert set(info.step_size.tolist()) == {0.25}


@pytest.mark.check
def test_the_energy_error_is_what_the_proposal_is_judged_by():
    for method in ("hmc", "adjusted_mclmc"):
        _, _, _, info = draw(Settings(method, 0.9, 4, num_warmup=0), log_gamma, 100)
        expected = np.minimum(1, np.exp(-info.energy_error))
        np.testing.assert_allclose(info.acceptance_rate, expected, atol=1e-4)
        assert np.abs(info.energy_error).max() > 0.1
    positions, info = draw(Settings("nuts", 0.3, num_warmup=0), log_gamma, 100)[2:]
    assert 0 < np.abs(info.energy_error).max() < 5
    np.testing.assert_allclose(info.log_density, jax.vmap(log_gamma)(positions), atol=1e-4)


@pytest.mark.check
@pytest.mark.parametrize(
    "method", ["hmc", pytest.param("mclmc", marks=pytest.mark.soak), "adjusted_mclmc"]
)
def test_the_energy_error_is_of_second_order(method):
    def error(k):
        settings = Settings(method, 0.4 / 2**k, 3 * 2**k, jitter=0, num_warmup=0)
        sampler = make_sampler(settings, correlated_gaussian)
        chain = sampler.init(jax.random.key(4), jnp.array([0.3, -1.2]))
        if method == "mclmc":  # Nothing but the dynamics: the momentum is never refreshed.
            chain = chain._replace(adaptation=chain.adaptation._replace(L=jnp.float32(jnp.inf)))
        return abs(float(jax.jit(sampler.step)(chain, jnp.int32(0))[1].energy_error))

    # Of a trajectory; of mclmc each of its steps, so it is of third order.
    ratio = 8 if method == "mclmc" else 4
    for coarse, fine in itertools.pairwise([error(k) for k in range(1, 4)]):
        assert coarse / fine == pytest.approx(ratio, rel=0.35)


def leapfrog(position, momentum, step_size, num_steps):
    metric = default_metric(jnp.ones(2))
    one_step = velocity_verlet(correlated_gaussian, metric.kinetic_energy)
    state = IntegratorState(position, momentum, *jax.value_and_grad(correlated_gaussian)(position))
    for _ in range(num_steps):
        state = one_step(state, step_size)
    return state


def test_leapfrog_is_reversible():
    position, momentum = jnp.array([0.3, -1.2]), jnp.array([1.0, 0.4])
    there = leapfrog(position, momentum, 0.1, 10)
    back = leapfrog(there.position, -there.momentum, 0.1, 10)
    np.testing.assert_allclose(back.position, position, atol=1e-5)
    np.testing.assert_allclose(-back.momentum, momentum, atol=1e-5)


def half_line(x):
    return jnp.where(x[0] > 0, -jnp.sum(x**2), jnp.nan)


@pytest.mark.parametrize("method", SAMPLERS)
def test_a_nan_energy_is_a_rejection(method):
    settings = Settings(method, step_size=0.5, num_leapfrog_steps=4, num_warmup=0)
    _, _, positions, info = draw(settings, half_line, 300, start=(0.5, 0.5))
    refused = info.is_divergent
    assert 0 < refused.sum() < 300
    assert (positions[:, 0] > 0).all()
    assert np.isfinite(info.log_density).all()
    assert not np.isnan(info.energy_error).any()
    if method in ("hmc", "adjusted_mclmc"):
        assert (info.acceptance_rate[refused] == 0).all()
        assert np.isinf(info.energy_error[refused]).all()
        repeated = (np.diff(positions, axis=0) == 0).all(axis=1)
        assert repeated[refused[1:]].all()
    if method == "mclmc":
        assert np.isin(info.acceptance_rate, [0, 0.25, 0.5, 0.75, 1]).all()
        np.testing.assert_array_equal(info.acceptance_rate < 1, refused)


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (
            {"method": "gibbs"},
            "method='gibbs'.*adjusted_mclmc",
        ),
        ({"step_size": 0.0}, "step_size=0.0 must be positive"),
        ({"num_leapfrog_steps": 0}, "num_leapfrog_steps=0 must be positive"),
        ({"jitter": 1.0}, "jitter=1.0.*0.*1"),
        ({"num_warmup": -1}, "num_warmup=-1 must not be negative"),
        ({"target_acceptance": 1.0}, "target_acceptance=1.0.*0.*1"),
        ({"mass": "full"}, "mass='full'.*low_rank"),
        ({"method": "mclmc", "mass": "dense"}, "mass='dense' must"),
        ({"num_warmup": 9, "mass": "dense"}, "num_warmup=9.*20.*mass='de"),
    ],
)
def test_bad_settings_are_one_line(bad, line):
    with pytest.raises(UserError, match=line):
        Settings(**bad)


def test_what_cannot_be_sampled_is_refused():
    with pytest.raises(UserError, match=r"mass='dense'.*20000 parameters"):
        check_dense(Settings(mass="dense"), jnp.zeros(20_000))
    check_dense(Settings(mass="diagonal"), jnp.zeros(20_000))
    with pytest.raises(UserError, match=r"method='mclmc'.*2 parameters"):
        make_sampler(Settings("mclmc"), jnp.sum).init(jax.random.key(0), jnp.zeros(1))
