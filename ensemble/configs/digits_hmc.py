"""Digits: the posterior of the small CNN, by HMC from the members of a trained ensemble.

    ensemble train --config=digits_ensemble --workdir=runs/digits  # Starts the chains.
    ensemble train --config=digits_hmc --workdir=runs/digits_hmc
    ensemble evaluate --workdir=runs/digits --compare=runs/digits_hmc,runs/digits_mclmc

Two CPU cores, shared with other work: 40 minutes for 19,728 gradients of the 1,197 images, 83%
accepted. Weights of a network are not identified and its modes are many: convergence is reported,
not expected. R-hat 1.15, bulk ESS from 22. Test: average draw 89.59%, average over all draws
92.00%, NLL .4258, ECE .2065, where the ensemble that the chains start from has 98.33%, .0303 and
.0141: with this prior, 87,178 weights and few data, most of the posterior is prior.
"""

import ml_collections

from ensemble import default_config


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, which has no variant."""
    if variant:
        raise ValueError(f"variant {variant!r} is unknown; there is none")
    config = default_config()
    config.dataset = "digits"
    config.model = "cnn"
    config.method = "hmc"
    config.prior = "*bias=normal(1), *kernel=normal(1.4142/sqrt(fan_in))"
    config.init_from = "runs/digits"
    config.num_chains = 4
    config.sampler.step_size = 0.01
    config.sampler.num_leapfrog_steps = 50
    config.sampler.num_warmup = 40
    config.sampler.num_samples = 60
    config.sampler.thin = 1
    config.log_every_steps = 10
    return config
