"""The networks of `ensemble.networks`, to read and to copy.

Your own joins by its path: `config.model = "mine.py:MyModule"`, or in Python as the class.
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
    on_features,
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
    "on_features",
]
