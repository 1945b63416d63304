"""Networks by name: each an `nn.Module` from images `[N, H, W, C]` to logits `[N, num_classes]`.

A network of your own joins in two lines, after which `model=mine` in a config finds it:

    import ensemble
    ensemble.networks.register("mine", MyModule)

where `MyModule` is a Linen module with a field `num_classes`, or any function of `num_classes`
that returns a module. Modules are applied as `module.apply(variables, images)`; one that behaves
differently in training (dropout, batch statistics) declares a keyword `train: bool` in its
`__call__`. Logits are float32.
"""

import functools
from collections.abc import Callable
from typing import TypeVar, overload

from flax import linen as nn

from ensemble.errors import UserError
from ensemble.networks.cnn import CNN
from ensemble.networks.lenet5 import LeNet5
from ensemble.networks.logistic_regression import LogisticRegression
from ensemble.networks.matrix_factorisation import MatrixFactorisation
from ensemble.networks.mlp import MLP
from ensemble.networks.resnet import ResNet20

Factory = Callable[[int], nn.Module]
F = TypeVar("F", bound=Callable[..., nn.Module])

_factories: dict[str, Factory] = {}


@overload
def register(name: str, factory: F) -> F: ...
@overload
def register(name: str, factory: None = None) -> Callable[[F], F]: ...
def register(name, factory=None):
    """Makes a network available to `create` under `name`; a name taken is taken over.

    Args:
        name: what a config's `model` says.
        factory: called as `factory(num_classes)`, returns the module. Left out, `register(name)`
            is a decorator for the factory.

    Returns:
        The factory, unchanged.
    """
    if factory is None:
        return functools.partial(register, name)
    _factories[name] = factory
    return factory


def names() -> list[str]:
    """The names that `create` knows, sorted."""
    return sorted(_factories)


def create(name: str, num_classes: int) -> nn.Module:
    """Builds the network registered as `name`.

    Args:
        name: one of `names()`.
        num_classes: how many logits the network puts out.

    Returns:
        The module, without parameters.

    Raises:
        UserError: when no network of that name is registered.
    """
    if name not in _factories:
        raise UserError(
            f"model={name!r} is not a known model; use one of {', '.join(names())}, "
            "or register your own with ensemble.networks.register(name, factory); programs "
            "other than train.py run the file that does so where it is given as --config=FILE"
        )
    return _factories[name](num_classes)


register("cnn", CNN)
register("lenet5", LeNet5)
register("logistic_regression", LogisticRegression)
register("matrix_factorisation", MatrixFactorisation)
register("mlp", MLP)
register("resnet20", ResNet20)
