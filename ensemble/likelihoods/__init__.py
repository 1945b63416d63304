"""Likelihoods by the name of `config.likelihood`, and the predictions of ensembles by them.

A likelihood is a `likelihood.Likelihood` with a line in `ensemble.config.builtin`. A file has the
likelihoods of one kind of target, and their predictions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ensemble.config.builtin import LIKELIHOODS

named = LIKELIHOODS.load
"""Returns the class of a likelihood, by its name or path; raises `InputError` if it is unknown."""


def from_data(name: str, targets: np.ndarray, class_names: Sequence[str], **settings: Any) -> Any:
    """Makes the likelihood of training targets.

    Args:
        name: of the likelihood.
        targets: [N], or several [N, D].
        class_names: of the data set; empty if targets are no classes.
        **settings: as of `Likelihood.from_data`.

    Raises:
        InputError: the name is unknown, or the targets do not suit the likelihood.
    """
    found = [
        named(name).from_data(one, class_names, **settings) for one in np.atleast_2d(targets.T)
    ]
    return found[0] if targets.ndim == 1 else _several(found)


def from_dict(name: str, description: Mapping[str, Any]) -> Any:
    """Makes the likelihood of a workdir, from what `Likelihood.to_dict` has returned.

    Raises:
        InputError: the name is unknown.
    """
    if "targets" in description:
        return _several([named(name).from_dict(one) for one in description["targets"]])
    return named(name).from_dict(description)


def _several(each: Sequence[Any]):
    from ensemble.likelihoods.several import SeveralLikelihood  # Most data have one target.

    return SeveralLikelihood(each)
