"""What a network's outputs say of a target: likelihoods by the name of `config.likelihood`.

A likelihood is a class with the members of `ensemble.likelihood.Likelihood`, in a file of its own,
and a line in `ensemble.registry`. Several targets have one such likelihood each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ensemble import registry
from ensemble.errors import UserError
from ensemble.likelihood import Likelihood


def named(name: str) -> type[Likelihood]:
    """Returns the class of a likelihood.

    Raises:
        UserError: there is none of that name.
    """
    if name not in registry.LIKELIHOODS:
        raise UserError(
            f"config.likelihood={name!r} must be one of {', '.join(registry.LIKELIHOODS)}"
        )
    return registry.load(registry.LIKELIHOODS[name])


def of_data(
    name: str, targets: np.ndarray, class_names: Sequence[str], **settings: Any
) -> Likelihood:
    """Makes the likelihood of training targets.

    Args:
        name: of the likelihood.
        targets: [N], or several [N, D].
        class_names: of the data set; empty where targets are no classes.
        **settings: as of `Likelihood.of_data`.

    Raises:
        UserError: the name is unknown, or the targets are none that the likelihood can have.
    """
    kind = named(name)
    if targets.ndim == 1:
        return kind.of_data(targets, class_names, **settings)
    return _several().of_data(kind, targets, class_names, **settings)


def described(name: str, description: Mapping[str, Any]) -> Likelihood:
    """Makes the likelihood of a workdir, from what `Likelihood.describe` has kept.

    Raises:
        UserError: the name is unknown.
        ValueError: the description is damaged or forged.
    """
    kind = named(name)
    if "targets" in description:
        return _several().described(kind, description)
    return kind.described(description)


def _several() -> Any:
    """Loaded where it is needed, as every likelihood."""
    return registry.load("ensemble.likelihoods.several_targets:SeveralTargets")
