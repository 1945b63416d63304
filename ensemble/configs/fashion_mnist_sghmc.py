"""Fashion-MNIST: the posterior of the how-to's CNN on 50,000 images, by SGHMC, as for MNIST.

    python train.py --config=configs/fashion_mnist_ensemble.py --workdir=runs/fashion_mnist
    python train.py --config=configs/fashion_mnist_sghmc.py --workdir=runs/fashion_mnist_sghmc
    python evaluate.py --workdir=runs/fashion_mnist --compare=runs/fashion_mnist_sghmc

The time, some 40 minutes on two CPU cores by its number of images, and scores are not measured. The
prior was chosen on 2,000 images of MNIST, and nothing was tried on those of Fashion-MNIST.

`:small` starts from the members of `runs/fashion_small`:

    python train.py --config=configs/fashion_mnist_sghmc.py:small --workdir=runs/fashion_sghmc_small
"""

import ml_collections

from ensemble.configs import mnist_sghmc


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, whole or `small`."""
    config = mnist_sghmc.get_config(variant)
    config.dataset = "fashion_mnist"
    config.init_from = "runs/fashion_mnist"
    if variant == "small":
        config.init_from = "runs/fashion_small"
    return config
