"""The posterior of a digits regression against NumPyro's NUTS: another model, another sampler.

Ours is the program's own log density over two shards, and HMC with an adapted mass; NumPyro's is
`Normal` and `Categorical`. Compared are the means and standard deviations of all 36 parameters.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from chains import advance
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS
from run_parts import mesh_of, over_chains
from sklearn.decomposition import PCA

from ensemble import networks
from ensemble.methods.mcmc.kernels import Settings, make_sampler
from ensemble.methods.mcmc.log_density import make_log_density
from ensemble.priors import parse_prior
from ensemble.sources import dataset_from_arrays, load_dataset
from ensemble.tasks.supervised import classification

NUM_EXAMPLES, NUM_FEATURES, NUM_CLASSES = 200, 8, 4
NUM_CHAINS, NUM_WARMUP, NUM_DRAWS = 8, 250, 1200


def make_task():
    """The first training images of 0 to 3, by their principal components: quick to sample."""
    inputs, labels = load_dataset("digits").splits["train"]
    chosen = np.flatnonzero(labels < NUM_CLASSES)[:NUM_EXAMPLES]
    pixels = inputs[chosen].reshape(len(chosen), -1).astype(np.float64)
    data = {
        "train_inputs": PCA(NUM_FEATURES, random_state=0).fit_transform(pixels),
        "train_labels": labels[chosen],
        "class_names": [str(k) for k in range(NUM_CLASSES)],
    }
    dataset = dataset_from_arrays(data, hold_out=False)
    network = networks.create("logistic_regression", NUM_CLASSES)
    return classification(dataset, network, parse_prior("normal(1)"))


def sample_ours(task):
    """Draws [chains, T, 36]."""
    mesh = mesh_of(1, 2)
    density = make_log_density(task, task.dataset.splits["train"], mesh)
    settings = Settings("hmc", 0.1, num_leapfrog_steps=8, num_warmup=NUM_WARMUP, mass="diagonal")
    start = task.network.init(jax.random.key(0), jnp.zeros((1, NUM_FEATURES)))["params"]

    @jax.jit
    def run(keys, data):
        sampler = make_sampler(settings, density.bind(data))
        chains = over_chains(sampler.init, (0, None))(keys, start)
        take = functools.partial(advance, sampler, num_draws=NUM_WARMUP + NUM_DRAWS)
        take = over_chains(take, (0, None))
        return take(chains, jnp.int32(0))[1][0]

    keys = jax.vmap(jax.random.key)(jnp.arange(NUM_CHAINS))
    layer = jax.tree.map(np.asarray, run(keys, density.data))["Dense_0"]
    kernel = layer["kernel"].reshape(NUM_CHAINS, -1, NUM_FEATURES * NUM_CLASSES)
    return np.concatenate([kernel, layer["bias"]], axis=-1)[:, NUM_WARMUP:]


def sample_theirs(task):
    """Draws [chains, T, 36] in the same order."""
    inputs, labels = task.dataset.splits["train"]
    inputs = jnp.asarray((inputs - task.dataset.shift) * task.dataset.scale)

    def model():
        kernel = numpyro.sample("kernel", dist.Normal(jnp.zeros((NUM_FEATURES, NUM_CLASSES)), 1))
        bias = numpyro.sample("bias", dist.Normal(jnp.zeros(NUM_CLASSES), 1))
        numpyro.sample("labels", dist.Categorical(logits=inputs @ kernel + bias), obs=labels)

    sampler = MCMC(
        NUTS(model),
        num_warmup=NUM_WARMUP,
        num_samples=NUM_DRAWS,
        num_chains=NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    sampler.run(jax.random.key(1))
    draws = jax.tree.map(np.asarray, sampler.get_samples(group_by_chain=True))
    kernel = draws["kernel"].reshape(NUM_CHAINS, -1, NUM_FEATURES * NUM_CLASSES)
    return np.concatenate([kernel, draws["bias"]], axis=-1)


def moments(draws):
    """Means, standard deviations, and the effective sample sizes of both, [P] each."""
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    sizes = [effective_sample_size(values) for values in (draws, (draws - mean) ** 2)]
    return mean, sd, *sizes


@pytest.mark.soak
def test_means_and_standard_deviations_are_numpyros():
    task = make_task()
    mean, sd, ess, ess_of_squares = moments(sample_ours(task))
    peer_mean, peer_sd, peer_ess, peer_ess_of_squares = moments(sample_theirs(task))
    # The relative error of an sd is 1 / sqrt(2 ESS): 5% is four of the difference's, or more.
    assert min(ess.min(), peer_ess.min()) > 1500
    assert min(ess_of_squares.min(), peer_ess_of_squares.min()) > 3200
    errors = np.sqrt(sd**2 / ess + peer_sd**2 / peer_ess)
    assert (np.abs(mean - peer_mean) < 4.5 * errors).all()
    assert (np.abs(sd / peer_sd - 1) < 0.05).all()
