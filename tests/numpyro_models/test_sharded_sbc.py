"""Simulation-based calibration (Talts et al. 2018, arXiv:1804.06788) of a model over shards.

Variables and observations are drawn from the model by NumPyro, with a plain plate; then the rank of
the truth among posterior draws is uniform if density, gradient, padding and sampler are right.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from chains import advance
from numpyro import handlers
from run_parts import mesh_of, over_chains

from ensemble.methods.kernels import Settings, make_sampler
from ensemble.numpyro_models.sharded_distributions import sharded_plate
from ensemble.numpyro_models.sharded_model import make_model

NUM_SETS, NUM_ROWS = 320, 7  # Which two shards do not divide.
NUM_RANKED, THIN, NUM_BINS = 63, 2, 8  # 64 ranks, 8 to a bin.
SETTINGS = {
    "hmc": Settings("hmc", 0.3, num_leapfrog_steps=6, num_warmup=150, mass="diagonal"),
}


def hospitals(y=None, plate=sharded_plate):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    spread = numpyro.sample("spread", dist.LogNormal(0, 0.5))
    with plate("hospital", NUM_ROWS):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
        with numpyro.plate("visit", 2):
            y = None if y is None else y.T
            numpyro.sample("y", dist.Normal(mean + spread * effect, 0.7), obs=y)


def ranks_of(name):
    """Ranks [S, P] of the truth among its draws, one chain for each set of observations."""
    settings = SETTINGS[name]
    model = make_model(hospitals, mesh_of(2, 2), np.zeros((NUM_ROWS, 2), "f4"))
    [data_name] = model.data
    padding = len(model.data[data_name]) - NUM_ROWS

    def flat(values):
        return jnp.concatenate([values["mean"][None], values["spread"][None], values["effect"]])

    def rank(rng_key):
        key_truth, key_start, key_chain = jax.random.split(rng_key, 3)
        whole = handlers.seed(functools.partial(hospitals, plate=numpyro.plate), key_truth)
        sites = handlers.trace(whole).get_trace()
        truth = {name: sites[name]["value"] for name in ("mean", "spread", "effect")}
        y = jnp.pad(sites["y"]["value"].T, ((0, padding), (0, 0)), mode="edge")
        density = model.bind({data_name: y})
        start = jax.random.normal(key_start, (NUM_ROWS + 2,))
        start = {"mean": start[0], "spread": start[1], "effect": start[2:]}
        sampler = make_sampler(settings, density)
        chain = sampler.init(key_chain, start)
        chain, _ = advance(sampler, chain, jnp.int32(0), settings.num_warmup)
        first = jnp.int32(settings.num_warmup)
        _, (draws, _) = advance(sampler, chain, first, NUM_RANKED * THIN)
        draws = {**draws, "spread": jnp.exp(draws["spread"])}
        return jnp.sum(jax.vmap(flat)(draws)[::THIN] < flat(truth), axis=0)

    keys = jax.random.split(jax.random.key(7), NUM_SETS)
    return np.asarray(jax.jit(over_chains(rank))(keys))


@pytest.mark.check
@pytest.mark.parametrize("name", SETTINGS)
def test_ranks_are_uniform(name):
    """Chi-square of each variable's ranks, at a level of 1 in 1000 over all of them."""
    ranks = ranks_of(name)
    assert ranks.shape == (NUM_SETS, NUM_ROWS + 2)
    counts = [
        np.bincount(column * NUM_BINS // (NUM_RANKED + 1), minlength=NUM_BINS) for column in ranks.T
    ]
    p_values = scipy.stats.chisquare(counts, axis=1).pvalue
    assert p_values.min() > 0.001 / len(p_values), np.array(counts)
