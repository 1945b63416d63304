"""Simulation-based calibration of nuts: ranks of the truth among draws are uniform.

Talts et al. 2018, "Validating Bayesian Inference Algorithms with Simulation-Based Calibration"
(https://arxiv.org/abs/1804.06788). Latents are drawn from the prior, data from the latents, and the
posterior is sampled by the kernel, the warm-up and the transforms of every run. All simulations are
one program.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.infer import Predictive

from ensemble.methods.mcmc.kernels import Settings, make_sampler
from ensemble.numpyro_models.numpyro_program import NumPyroProgram

NUM_SIMULATIONS, NUM_BROKEN = 500, 200
NUM_WARMUP, NUM_RANKED, THIN, NUM_BINS = 200, 99, 3, 20
SETTINGS = Settings(method="nuts", step_size=0.1, num_warmup=NUM_WARMUP, mass="diagonal")


def schools(y, scale=1.0):
    """Four groups, whose spread is positive and whose means are written without centring."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.Gamma(2, 2 / scale))
    weight = numpyro.sample("weight", dist.Beta(2, 3))
    with numpyro.plate("school", 4):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(weight * mu + tau * effect, 0.5), obs=y)


def larger_spread(y):
    schools(y, scale=3.0)


def without_jacobian(program):
    """The program's log density, but for the Jacobian of tau = exp(params)."""
    return lambda params, arrays: program.log_density(params, arrays) - params["tau"]


def ranks(model, num_simulations, log_density=lambda program: program.log_density):
    """Ranks [S] of what `schools` drew among the draws of a posterior, by scalar.

    Args:
        model: whose posterior is sampled.
        num_simulations: S.
        log_density: of its program: what is sampled in truth.
    """
    prior = Predictive(schools, num_samples=num_simulations)(jax.random.key(1), None)
    program = NumPyroProgram(model, (np.zeros(4, np.float32),))
    of_params = log_density(program)

    def values(params, arrays):
        found = program.values(params, arrays)
        return jnp.append(jnp.stack([found["mu"], found["tau"], found["weight"]]), found["effect"])

    @jax.jit
    @jax.vmap
    def simulate(rng_key, y):
        arrays = {"0": y}
        sampler = make_sampler(SETTINGS, lambda params: of_params(params, arrays))
        key_start, key_chain = jax.random.split(rng_key)
        chain = sampler.init(key_chain, program.start(key_start, False, arrays))
        chain = jax.lax.fori_loop(0, NUM_WARMUP, lambda t, one: sampler.step(one, t)[0], chain)

        def draw(chain, i):
            first = NUM_WARMUP + THIN * i
            chain = jax.lax.fori_loop(
                first, first + THIN, lambda t, one: sampler.step(one, t)[0], chain
            )
            return chain, values(chain.state.position, arrays)

        return jax.lax.scan(draw, chain, jnp.arange(NUM_RANKED))[1]

    draws = simulate(jax.random.split(jax.random.key(2), num_simulations), prior["y"])
    truth = np.column_stack([prior["mu"], prior["tau"], prior["weight"], prior["effect"]])
    names = ["mu", "tau", "weight", *(f"effect[{j}]" for j in range(4))]
    below = np.sum(np.asarray(draws) < truth[:, None], axis=1)
    return dict(zip(names, below.T, strict=True))


def p_values(found):
    """Of a chi-squared test that ranks are uniform, by scalar."""
    per_bin = (NUM_RANKED + 1) // NUM_BINS
    return {
        name: scipy.stats.chisquare(np.bincount(one // per_bin, minlength=NUM_BINS)).pvalue
        for name, one in found.items()
    }


@pytest.mark.soak
def test_ranks_of_the_truth_are_uniform():
    found = p_values(ranks(schools, NUM_SIMULATIONS))
    assert min(found.values()) > 0.01 / len(found), found


@pytest.mark.soak
@pytest.mark.parametrize(
    "sampled",
    [{"model": larger_spread}, {"model": schools, "log_density": without_jacobian}],
    ids=["wrong prior", "wrong Jacobian"],
)
def test_a_posterior_that_is_another_is_seen(sampled):
    assert p_values(ranks(**sampled, num_simulations=NUM_BROKEN))["tau"] < 1e-6
