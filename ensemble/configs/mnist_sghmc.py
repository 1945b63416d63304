"""MNIST: the posterior of the how-to's CNN on 50,000 images, by SGHMC with cyclical steps.

    ensemble train --config=mnist_ensemble --workdir=runs/mnist
    ensemble train --config=mnist_sghmc --workdir=runs/mnist_sghmc
    ensemble evaluate --workdir=runs/mnist --compare=runs/mnist_sghmc

Four chains of four cycles, from members of `runs/mnist`. Each cycle descends for eight epochs and
then draws eight times in two epochs. The whole run, some 40 minutes on two CPU cores by its number
of images, is not measured.

The prior was chosen on 1,600 images by 400 others, in single runs of two chains of one cycle of 20
epochs, the last four with eight draws. Members trained for 15 epochs have an NLL of .363. Chains
from these have 1.116 with kernels of standard deviation √2 / √fan-in (He's), .264 with 4, .251 with
8 and .372 with 16. Chains that start from a prior of 4 or 8 end at chance at this learning rate, so
these start from members. No test images were looked at.

`:small` has two chains of one cycle of two epochs, from the members of `runs/mnist_small`:

    ensemble train --config=mnist_sghmc:small --workdir=runs/mnist_sghmc_small
"""

import ml_collections

from ensemble import default_config


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, whole or `small`."""
    config = default_config()
    config.dataset = "mnist"
    config.model = "cnn"
    config.method = "sghmc"
    config.prior = "*kernel=normal(8/sqrt(fan_in)), *=normal(1)"
    config.init_from = "runs/mnist"
    config.num_chains = 4
    config.batch_size = 128
    config.batching = "independent"
    config.learning_rate = 0.05
    config.momentum = 0.9
    config.sgmcmc.schedule = "cyclical"
    config.sgmcmc.num_cycles = 4
    config.sgmcmc.num_burn_in = 8 * 391
    config.sgmcmc.num_samples = 8
    config.sgmcmc.steps_per_draw = 98
    if variant == "small":
        config.init_from = "runs/mnist_small"
        config.num_chains = 2
        config.sgmcmc.num_cycles = 1
        config.sgmcmc.num_burn_in = 391
        config.sgmcmc.num_samples = 4
    elif variant:
        raise ValueError(f"variant {variant!r} is unknown; known is 'small'")
    return config
