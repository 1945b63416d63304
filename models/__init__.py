"""The networks of `ensemble.networks`, to read, to copy and to register your own beside.

import models
models.register("mine", MyModule)  # Then `config.model = "mine"`.
"""

from ensemble.networks import (
    CNN,
    MLP,
    LeNet5,
    LogisticRegression,
    ResNet20,
    ResNet50,
    ViT,
    create,
    from_functions,
    from_nnx,
    names,
    on_features,
    register,
)

__all__ = [
    "CNN",
    "MLP",
    "LeNet5",
    "LogisticRegression",
    "ResNet20",
    "ResNet50",
    "ViT",
    "create",
    "from_functions",
    "from_nnx",
    "names",
    "on_features",
    "register",
]
