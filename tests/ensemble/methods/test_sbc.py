"""Simulation-based calibration (Talts et al. 2018, arXiv:1804.06788) of a regression over shards.

Parameters are drawn from the prior and labels from the likelihood; then the rank of the truth among
posterior draws is uniform if density and sampler are right. A prior counted twice bends it, or a
gradient twice too long; what a missing rejection does at these small energy errors it cannot see.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from chains import advance
from run_parts import mesh_of, over_chains

from ensemble import networks
from ensemble.data import dataset_from_arrays
from ensemble.methods.kernels import Settings, make_sampler
from ensemble.methods.log_density import make_log_density
from ensemble.priors import parse_prior
from ensemble.tasks.supervised import Supervised, make_likelihood

NUM_SETS = 320
NUM_EXAMPLES = 30
NUM_FEATURES = 2
NUM_CLASSES = 3
NUM_RANKED, THIN, NUM_BINS = 63, 3, 8  # 64 ranks, 8 to a bin.
SETTINGS = {
    "hmc": Settings("hmc", 0.2, num_leapfrog_steps=5, num_warmup=100),
    "mclmc": Settings("mclmc", 0.2, num_leapfrog_steps=5, num_warmup=450),
}


class Regression(Supervised):
    """The log density takes it for any task, so that data sets can be vmapped."""

    def own_log_likelihood(self, split, mesh):
        return None


def make_task():
    rng = np.random.default_rng(0)
    data = {
        "train_inputs": rng.normal(size=(NUM_EXAMPLES, NUM_FEATURES)),
        "train_labels": np.arange(NUM_EXAMPLES) % NUM_CLASSES,
        "class_names": list("abc"),
    }
    dataset = dataset_from_arrays(data, hold_out=False)
    network = networks.create("logistic_regression", NUM_CLASSES)
    return Regression(
        dataset,
        network,
        make_likelihood(dataset, {"likelihood": "categorical"}),
        parse_prior("normal(1)"),
    )


@functools.cache
def ranks_of(name):
    """Ranks [S, P] of the truth's parameters among their draws, one chain for each data set."""
    settings = SETTINGS[name]
    task = make_task()
    split = task.dataset.splits["train"]
    density = make_log_density(task, split, mesh_of(2, 2))
    inputs, _, mask = density.data
    like = jax.eval_shape(task.network.init, jax.random.key(0), inputs)["params"]

    def rank(rng_key, inputs, mask):
        key_truth, key_labels, key_start, key_chain = jax.random.split(rng_key, 4)
        flat, unravel = jax.flatten_util.ravel_pytree(jax.tree.map(jnp.zeros_like, like))
        truth = jax.random.normal(key_truth, flat.shape)
        logits, _ = task.network.apply({"params": unravel(truth)}, inputs)
        labels = jax.random.categorical(key_labels, logits)
        sampler = make_sampler(settings, density.bind((inputs, labels, mask)))
        chain = sampler.init(key_chain, unravel(jax.random.normal(key_start, flat.shape)))
        if sampler.tune:
            chain = sampler.tune(key_chain, chain)
        else:
            chain, _ = advance(sampler, key_chain, chain, jnp.int32(0), settings.num_warmup)
        first = jnp.int32(settings.num_warmup)
        _, (draws, _) = advance(sampler, key_chain, chain, first, NUM_RANKED * THIN)
        draws = jax.vmap(lambda tree: jax.flatten_util.ravel_pytree(tree)[0])(draws)[::THIN]
        return jnp.sum(draws < truth, axis=0)

    keys = jax.random.split(jax.random.key(7), NUM_SETS)
    run = over_chains(rank, (0, None, None))
    return np.asarray(jax.jit(run)(keys, inputs, mask))


@pytest.mark.parametrize(
    "name",
    [pytest.param("hmc", marks=pytest.mark.check)],
)
def test_ranks_are_uniform(name):
    """Chi-square of each parameter's ranks, at a level of 1 in 1000 over all parameters."""
    ranks = ranks_of(name)
    assert ranks.shape == (NUM_SETS, (NUM_FEATURES + 1) * NUM_CLASSES)
    counts = [
        np.bincount(column * NUM_BINS // (NUM_RANKED + 1), minlength=NUM_BINS) for column in ranks.T
    ]
    p_values = scipy.stats.chisquare(counts, axis=1).pvalue
    assert p_values.min() > 0.001 / len(p_values), np.array(counts)
