"""MovieLens: the posterior of a matrix factorisation, by HMC with the users' factors sharded.

    python train.py --config=configs/movielens_hmc.py --workdir=runs/movielens
    python recommend.py --workdir=runs/movielens --user=u7

By default watches are generated, of 1,000 users and 600 movies, in the form of MovieLens. Two CPU
cores: 1 min; R-hat up to 1.006, bulk ESS from 502. Held out: -0.1544 nats a pair, AUC
0.892, recall@20 44.0%; the MAP has -0.1586, 0.885 and 42.7%.

`:seed` is the protocol of TensorFlow Probability's notebook "Distributed Inference with JAX" on the
6,040 users and 3,706 movies of `movielens/1m-ratings`: 20 factors, two chains from the prior,
trajectories of 100 steps, 500 draws after 1,000 that do not count. Unlike there a tenth of the
matrix is held out, each chain has a step size of its own, and every tenth draw is kept.

    python train.py --config=configs/movielens_hmc.py:seed --workdir=runs/movielens_seed

Two CPU cores: 2,000 leapfrog steps of each of the two chains, on generated watches of that size
(--config.dataset=watches:6040x3706), went at 26.3 gradients per second with their predictions, so
the 150,000 of each take 3.2 hours: extrapolated, it was not run to its end.
"""

import ml_collections

from ensemble import default_config


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, on generated data or as the `seed` had it."""
    config = default_config()
    config.dataset = "watches:1000x600"
    config.model = "matrix_factorisation"
    config.num_factors = 8
    config.method = "hmc"
    config.prior = "normal(1)"
    config.init_from = "prior"
    config.num_chains = 2
    config.sampler.step_size = 0.01
    config.sampler.num_leapfrog_steps = 32
    config.sampler.num_warmup = 300
    config.sampler.num_samples = 1000
    config.sampler.thin = 2
    config.num_predictive_draws = 500
    config.log_every_steps = 50
    if variant == "seed":
        config.dataset = "movielens/1m-ratings"
        config.num_factors = 20
        config.log_every_steps = 10
        config.sampler.num_leapfrog_steps = 100
        config.sampler.jitter = 0.0
        config.sampler.num_warmup = 800
        config.sampler.num_burn_in = 200
        config.sampler.num_samples = 500
        config.sampler.thin = 10
        config.sampler.target_acceptance = 0.75
    elif variant:
        raise ValueError(f"variant {variant!r} is unknown; known is 'seed'")
    return config
