"""Digits: the posterior of the small CNN, by MCLMC from the members of a trained ensemble.

    python train.py --config=configs/digits_ensemble.py --workdir=runs/digits  # Starts the chains.
    python train.py --config=configs/digits_mclmc.py --workdir=runs/digits_mclmc

Two CPU cores, shared with other work: 28 minutes for at most 20,000 gradients of the 1,197 images.
R-hat 1.12, bulk ESS from 33. Test: average draw 88.61%, average over all draws 90.00%, NLL .4200,
ECE .1787. MCLMC does not reject: its draws are somewhat biased.
"""

import ml_collections

from ensemble.configs import digits_hmc


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, which has no variant."""
    config = digits_hmc.get_config(variant)
    config.method = "mclmc"
    config.sampler.num_leapfrog_steps = 25  # Two gradients each.
    config.sampler.num_warmup = 1000
    return config
