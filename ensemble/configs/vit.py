"""Your own pictures: four vision transformers of size S, fine-tuned from published weights.

    python train.py --config=configs/vit.py --workdir=runs/vit \\
        --config.dataset=folder:pictures --config.init_from=S_16.npz

The folder has one folder of pictures per class; each picture is brought to 224 x 224 pixels. The
weights are a file of https://github.com/google-research/vision_transformer for patches of 16 and
images of 224, such as `gs://vit_models/augreg/S_16-*.npz`; `docs/your_network.md` says what else
may be given. All weights are trained, in bfloat16, and each member has a new head. This is for
accelerators, and was not measured. `:b` is size B:

    python train.py --config=configs/vit.py:b --workdir=runs/vit_b \\
        --config.dataset=folder:pictures --config.init_from=B_16.npz

`:small` is to try the network on CPU cores: two members of size S from scratch on the handwritten
digits of scikit-learn, with patches of 4 pixels. On two CPU cores (AMD EPYC, AVX-512), shared with
much other work, it took 3.1 minutes of CPU time. Test: ensemble 86.00%, NLL .490; mean member
81.00%. Two epochs are few.

    python train.py --config=configs/vit.py:small --workdir=runs/vit_small
"""

import ml_collections

from ensemble import default_config


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment with size S, or `b` or `small`."""
    config = default_config()
    config.dataset = "folder:PATH"
    config.resize = 224
    config.model = "vit"
    config.init_from = "S_16.npz"
    config.dtype = "bfloat16"
    config.ensemble_size = 4
    config.num_epochs = 10
    config.batch_size = 128
    config.learning_rate = 0.01
    config.schedule = "warmup_cosine"
    config.augment.flip = True
    config.batching = "independent"
    if variant == "b":
        config.vit.size = "B"
        config.init_from = "B_16.npz"
    elif variant == "small":
        config.dataset = "digits"
        config.resize = None
        config.vit.patch = 4
        config.init_from = ""
        config.ensemble_size = 2
        config.num_epochs = 2
        config.batch_size = 64
        config.optimizer = "adam"
        config.learning_rate = 3e-4
        config.augment.flip = False
    elif variant:
        raise ValueError(f"variant {variant!r} is unknown; known are 'b' and 'small'")
    return config
