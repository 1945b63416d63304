"""Likelihoods by the name of `config.likelihood`, and the predictions of ensembles by them.

A likelihood is a `likelihood.Likelihood` with a line in `ensemble.config.pieces`. A file has the
likelihoods of one kind of target, and their predictions.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble.config.pieces import LIKELIHOODS

if TYPE_CHECKING:
    from ensemble.likelihoods.likelihood import Likelihood


def named(name: str) -> "type[Likelihood]":
    """Returns the class of a likelihood, by its name or path.

    Raises:
        InputError: It is unknown, or cannot be loaded.
    """
    kind: type[Likelihood] = LIKELIHOODS.load(name)
    return kind


def from_data(
    name: str, targets: np.ndarray, class_names: Sequence[str], **settings: Any
) -> "Likelihood":
    """Makes the likelihood of training targets.

    Args:
        name: of the likelihood.
        targets: [N], or several [N, D].
        class_names: of the data set; empty if targets are no classes.
        **settings: as of `Likelihood.from_data`.

    Raises:
        InputError: the name is unknown, or the targets do not suit the likelihood.
    """
    return named(name).from_data(targets, class_names, **settings)


def from_dict(name: str, description: Mapping[str, Any]) -> "Likelihood":
    """Makes the likelihood of a workdir, from what `Likelihood.to_dict` has returned.

    Raises:
        InputError: the name is unknown.
    """
    return named(name).from_dict(description)
