"""CIFAR-10: eight ResNet-20s with group normalisation, for accelerators.

    python train.py --config=configs/cifar10_ensemble.py --workdir=runs/cifar10

A full run takes an accelerator and was not measured. `:small`, two members and one epoch, is to try
the set-up on CPU cores; it was not measured either, for want of the data set.

    python train.py --config=configs/cifar10_ensemble.py:small --workdir=runs/cifar10_small
"""

import ml_collections

from ensemble import default_config


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, whole or `small`."""
    config = default_config()
    config.dataset = "cifar10"
    config.model = "resnet20"
    config.ensemble_size = 8
    config.num_epochs = 200
    config.batch_size = 128
    config.learning_rate = 0.1
    config.weight_decay = 2e-4
    config.schedule = "warmup_cosine"
    config.warmup_fraction = 0.025
    config.augment.shift = 4
    config.augment.flip = True
    config.batching = "independent"
    config.eval_every_epochs = 5
    config.checkpoint_every_epochs = 5
    config.plot_every_epochs = 50
    if variant == "small":
        config.ensemble_size = 2
        config.num_epochs = 1
        config.warmup_fraction = 0.0
    elif variant:
        raise ValueError(f"variant {variant!r} is unknown; known is 'small'")
    return config
