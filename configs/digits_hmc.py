"""Digits: the CNN's posterior by HMC, from the members of `digits_ensemble` trained without tricks.

python train.py --config=configs/digits_hmc.py:members --workdir=runs/digits_members
python train.py --config=configs/digits_hmc.py --workdir=runs/digits_hmc
"""

import ml_collections

from configs import digits_ensemble

PRIOR = "*bias=normal(1), *kernel=normal(1.4142/sqrt(fan_in))"


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, or that of the `members` it starts from."""
    config = digits_ensemble.get_config()
    config.prior = PRIOR
    config.ensemble_size = 8
    if variant == "members":
        return config
    if variant:
        raise ValueError(f"variant {variant!r} is unknown; known is 'members'")
    return config
