"""MNIST: the posterior of the how-to's CNN on 50,000 images, by SGHMC with cyclical steps.

    python train.py --config=configs/mnist_sghmc.py --workdir=runs/mnist_sghmc
    python evaluate.py --workdir=runs/mnist --compare=runs/mnist_sghmc

Four chains of four cycles. Each cycle descends for eight epochs and then draws eight times in two
epochs. The whole run, some 40 minutes on two CPU cores by its number of images, is not measured.

`:small` has two chains of one cycle of two epochs, from the members of `runs/mnist_small`:

    python train.py --config=configs/mnist_sghmc.py:small --workdir=runs/mnist_sghmc_small

docs/posteriors.md has what a subset of 2,800 images gives.
"""

import ml_collections

from ensemble import default_config


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, whole or `small`."""
    config = default_config()
    config.dataset = "mnist"
    config.model = "cnn"
    config.method = "sghmc"
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
