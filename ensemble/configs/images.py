"""Your own pictures: eight small CNNs, stopped early, without augmentation.

    python train.py --config=configs/images.py --workdir=runs/mine --config.dataset=folder:pictures

The folder has one folder of pictures per class. If your pictures may be shifted by some pixels or
mirrored and still show the same, add `--config.augment.shift=2` or `--config.augment.flip=True`:
that helps more than anything else. `ensemble.train(config, data=...)` has the same defaults for
arrays of pictures where its config leaves keys out. Time and result are those of your data:
not measured.
"""

import ml_collections

from ensemble.configs import arrays


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, which has no variant."""
    config = arrays.get_config(variant)
    config.dataset = "folder:PATH"
    config.model = "cnn"
    config.num_epochs = 40
    config.batch_size = 64
    config.weight_decay = 0.0
    config.early_stopping_epochs = 8
    config.eval_every_epochs = 2
    config.plot_every_epochs = 10
    config.checkpoint_every_epochs = 2
    return config
