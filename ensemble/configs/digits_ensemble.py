"""Digits: eight small CNNs on scikit-learn's 8x8 images.

    python train.py --config=configs/digits_ensemble.py --workdir=runs/digits

Two CPU cores (AMD EPYC, AVX-512): 39 s, 35,008 member-images/s.
Test, mean ± sd over seeds 0 to 4: ensemble 98.60 ± 0.15%, NLL 0.0288 ± 0.0020,
ECE 0.0102 ± 0.0028; mean member 98.48 ± 0.15%, NLL 0.0451 ± 0.0041.
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
    config.ensemble_size = 8
    config.num_epochs = 80
    config.batch_size = 64
    config.batching = "independent"
    config.learning_rate = 0.2
    config.schedule = "warmup_cosine"
    config.augment.shift = 1
    return config
