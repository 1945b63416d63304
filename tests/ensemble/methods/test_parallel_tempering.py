"""Tempering: modes that lie apart get their weights, and the evidence its error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import ensemble
from ensemble.methods import parallel_tempering as tempering
from ensemble.methods.kernels import Settings, make_sampler


def two_modes(x):
    """At -10 and 10, 20 standard deviations apart, with weights of .3 and .7."""
    low, high = (jnp.sum(norm.logpdf(x, centre)) for centre in (-10.0, 10.0))
    return jnp.logaddexp(jnp.log(0.3) + low, jnp.log(0.7) + high)


def share_of_high(method, num_chains=4, num_samples=400):
    found = ensemble.sample(
        two_modes,
        start=np.zeros(2),
        method=method,
        config={
            "num_chains": num_chains,
            "sampler.num_leapfrog_steps": 8,
            "sampler.num_warmup": 300,
            "sampler.num_samples": num_samples,
        },
        show_progress=False,
    )
    return found, np.mean(found.draws["x"][..., 0] > 0, axis=1)


def run(target, start):
    """A chain of three replicas after 4,000 draws, and the first coordinates of the replicas."""
    settings = Settings("parallel_tempering", 0.5, 4, num_warmup=0, num_replicas=3)
    sampler = make_sampler(settings, target, None, lambda x: jnp.sum(norm.logpdf(x)))

    def advance(chain, t):
        chain, _ = sampler.step(jax.random.key(0), chain, t)
        return chain, chain.adaptation.at.position[:, 0]

    chain = sampler.init(jax.random.key(0), jnp.full(2, start))
    return jax.jit(lambda one: jax.lax.scan(advance, one, jnp.arange(4000)))(chain)


def ladder_of(replicas, num_draws):
    of_chains = jax.tree.map(lambda leaf: leaf[None], replicas)
    return tempering.section(of_chains, 0, num_draws)["ladder"]


@pytest.mark.check
def test_swaps_keep_the_density_of_each_temperature():
    """Of normal densities, whose products are known."""
    chain, positions = run(lambda x: jnp.sum(norm.logpdf(x, 1.0, 0.5)), 0.0)
    betas = np.asarray(chain.adaptation.betas)
    precision = betas * 4 + 1 - betas
    np.testing.assert_allclose(positions.mean(0), betas * 4 / precision, atol=0.08)
    np.testing.assert_allclose(positions.std(0), precision**-0.5, rtol=0.08)
    found = ladder_of(chain.adaptation, 4000)
    assert found["log_evidence"] == pytest.approx(0, abs=0.1)
    assert found["log_evidence_error"] is None
    assert 0.1 < np.min(found["swap_rates"]) < np.max(found["swap_rates"]) < 1


@pytest.mark.check
def test_the_reference_goes_where_the_target_has_nothing():
    """Half of a normal density: what the other half of the reference holds must count."""
    chain, positions = run(
        lambda x: jnp.where(x[0] > 0, jnp.sum(norm.logpdf(x, 0.0, 0.5)), -np.inf), 0.5
    )
    assert np.mean(positions[:, 0] < 0) == pytest.approx(0.5, abs=0.05)
    assert positions[:, 1:].min() > 0
    found = ladder_of(chain.adaptation, 4000)
    assert found["log_evidence"] == pytest.approx(np.log(0.5), abs=0.1)


def test_a_sum_of_ratios_of_thousands_of_nats_loses_no_draw():
    log_ratios = (-8192 + np.random.default_rng(0).normal(size=20_000)).astype(np.float32)
    nothing = jnp.zeros(1)
    top = jnp.full(1, -tempering._HUGE)
    replicas = tempering.Replicas(None, jnp.array([0.0, 1.0]), None, nothing, top, nothing)

    def add(replicas, ratio):
        at = tempering.Place(None, (jnp.full(2, ratio), None), (jnp.zeros(2), None))
        return tempering.adapted(replicas._replace(at=at), 0, 0)._replace(at=None), None

    replicas, _ = jax.jit(lambda one: jax.lax.scan(add, one, log_ratios))(replicas)
    found = ladder_of(replicas, 20_000)
    expected = np.log(np.mean(np.exp(log_ratios.astype(np.float64) + 8192))) - 8192
    assert found["log_evidence"] == pytest.approx(expected, abs=1e-3)


def test_temperatures_are_spread_so_that_all_pairs_swap_equally_often():
    pairs = jnp.array([0.0, 8.0, 4.0])
    betas = jnp.array([0.0, 0.2, 0.6, 1.0])
    replicas = tempering.Replicas(None, betas, None, pairs, pairs, pairs)
    found = tempering.spread_anew(replicas, 15)  # Refused: 1, 0 and 1/2 of them.
    barrier = np.interp(found.betas, replicas.betas, [0, 1, 1.001, 1.501])
    np.testing.assert_allclose(np.diff(barrier), 0.5, atol=0.01)
    assert (found.betas[0], found.betas[-1]) == (0, 1)
    assert not found.swaps.any()


@pytest.mark.check
def test_modes_that_hmc_misses_get_their_weights_within_the_stated_error():
    found, shares = share_of_high("parallel_tempering", num_chains=8, num_samples=2000)
    row = found.summary["x[0]"]
    assert abs(row["mean"] - 4) < 3 * row["mcse"]
    assert abs(shares.mean() - 0.7) < 3 * row["mcse"] / 20
    evidence = found.report["ladder"]
    assert abs(evidence["log_evidence"]) < 3 * evidence["log_evidence_error"]
    missed, shares = share_of_high("hmc")
    assert set(shares) <= {0.0, 1.0}
    assert "They stay in 2 modes" in missed.report["notes"][0]


@pytest.mark.check
def test_the_reference_goes_where_the_target_has_no_number():
    """Nor a gradient: of a power, a root or a Cholesky factor beyond what it is defined for."""
    _, positions = run(lambda x: -jnp.sum(jnp.sqrt(x)), 0.5)
    assert np.mean(positions[:, 0] < 0) == pytest.approx(0.5, abs=0.1)
    assert (positions[:, 1:] > 0).all()
