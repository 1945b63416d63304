"""Your own table: eight MLPs on feature vectors, stopped early.

    ensemble train --config=arrays --workdir=runs/mine --config.dataset=npz:mine.npz

The file has `inputs` [N, F] and `labels` [N]; for numbers it has `targets` in place of `labels`,
and the command adds `--config.likelihood=gaussian`. `ensemble.train(config, data=...)` has the same
defaults where its config leaves keys out. `EnsembleClassifier` has them too, but learns from all
rows for all epochs. Time and result are those of your data: not measured.
"""

import ml_collections

from ensemble import default_config


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, which has no variant."""
    if variant:
        raise ValueError(f"variant {variant!r} is unknown; there is none")
    config = default_config()
    config.dataset = "npz:PATH"
    config.model = "mlp"
    config.ensemble_size = 8
    config.num_epochs = 100
    config.batch_size = 32
    config.optimizer = "adam"
    config.learning_rate = 1e-3
    config.schedule = "cosine"
    config.weight_decay = 3e-3
    config.early_stopping_epochs = 20
    config.eval_every_epochs = 10
    config.plot_every_epochs = 100
    config.checkpoint_every_epochs = 10
    return config
