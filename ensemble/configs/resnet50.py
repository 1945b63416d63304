"""Your own pictures: four ResNet-50s, fine-tuned from your weights.

    python train.py --config=configs/resnet50.py --workdir=runs/resnet50 \\
        --config.dataset=folder:pictures --config.init_from=resnet50.npz

The folder has one folder of pictures per class; each picture is brought to 224 x 224 pixels.
`docs/your_network.md` says how to make `resnet50.npz` of PyTorch's weights. All weights are
trained, in bfloat16, and each member has a new head. This is for accelerators, and was not
measured.

`:small` is to try the network on CPU cores: two members from scratch on the handwritten digits of
scikit-learn. On two CPU cores (AMD EPYC, AVX-512), shared with much other work, it took 3.2 minutes
of CPU time. Test: ensemble 79.67%, NLL .675; mean member 71.67%. Five epochs are few.

    python train.py --config=configs/resnet50.py:small --workdir=runs/resnet50_small
"""

import ml_collections

from ensemble.configs import vit


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, whole or `small`."""
    if variant not in ("", "small"):
        raise ValueError(f"variant {variant!r} is unknown; known is 'small'")
    config = vit.get_config(variant)
    config.model = "resnet50"
    config.vit.patch = 16  # Its default: the network has no patches.
    if variant:
        config.num_epochs = 5  # After two it is at chance.
        config.learning_rate = 1e-3
    else:
        config.init_from = "resnet50.npz"
    return config
