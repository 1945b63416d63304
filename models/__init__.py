"""The networks of `ensemble.networks`, to read, to copy and to register your own beside.

import models
models.register("mine", MyModule)  # Then `config.model = "mine"`.
"""

from ensemble.networks import (
    CNN,
    MLP,
    LeNet5,
    LogisticRegression,
    MatrixFactorisation,
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
from ensemble.tasks import densities

__all__ = [
    "CNN",
    "MLP",
    "LeNet5",
    "LogisticRegression",
    "MatrixFactorisation",
    "ResNet20",
    "ResNet50",
    "ViT",
    "create",
    "densities",
    "from_functions",
    "from_nnx",
    "names",
    "on_features",
    "register",
]
