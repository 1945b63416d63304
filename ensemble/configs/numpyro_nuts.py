r"""A NumPyro model of your own: four chains by NUTS, with a diagonal mass.

    python train.py --config=configs/numpyro_nuts.py --workdir=runs/mine \
        --config.model=numpyro:FILE.py:NAME --config.data=FILE.json

The file is Python and has the model as a function NAME; the data file has its arguments by name.
`ensemble.sample(model, data)` has the same defaults. Time and result are those of your model. The
eight schools of docs/numpyro.md, as schools.py and schools.json, take 16 s on two cores: mu 4.5 (sd
3.3), tau 3.6 (sd 3.2), R-hat up to 1.003, bulk ESS from 1,332 of 4,000 draws, 88% of proposals
accepted, no divergence. Stan's reference draws of posteriordb have mu 4.4 (sd 3.3) and tau 3.6 (sd
3.2).
"""

import ml_collections

from ensemble import default_config


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, which has no variant."""
    if variant:
        raise ValueError(f"variant {variant!r} is unknown; there is none")
    config = default_config()
    config.model = "numpyro:FILE.py:NAME"
    config.method = "nuts"
    config.init_from = "uniform"
    config.num_chains = 4
    config.sampler.step_size = 0.1
    config.sampler.mass = "diagonal"
    config.sampler.num_warmup = 1000
    config.sampler.num_samples = 1000
    config.sampler.thin = 1
    config.log_every_steps = 100
    config.eval_every_epochs = 2
    config.checkpoint_every_epochs = 2
    return config
