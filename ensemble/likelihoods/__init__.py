"""What a network's outputs say of a target: likelihoods by the name of `config.likelihood`.

A likelihood is a class with the members of `ensemble.likelihood.Likelihood`, in a file of its own,
and a line in `ensemble.registry`. Several targets have one such likelihood each.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ensemble import registry
from ensemble.errors import UserError
from ensemble.likelihood import Likelihood
from ensemble.target_rows import ANNOTATIONS, CENSORED, ERROR, annotation, columns
from ensemble.tenants import members_of


def named(name: str) -> type[Likelihood]:
    """Returns the class of a likelihood.

    Raises:
        UserError: there is none of that name, or it lacks what its class must have.
    """
    if name not in registry.LIKELIHOODS:
        raise UserError(
            f"config.likelihood={name!r} must be one of {registry.LIKELIHOODS.listing()}"
        )
    place = registry.LIKELIHOODS[name].likelihood
    kind: type[Likelihood] = registry.load_code(registry.LIKELIHOODS, name, place)
    of_objects = [one for one in members_of(Likelihood) if one not in _OF_CLASSES]
    registry.check_members(registry.LIKELIHOODS, name, kind, Likelihood, of_objects)
    return kind


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
    check_annotations(kind, name, targets)
    if targets.ndim == 1:
        made = _checked(name, kind.of_data(targets, class_names, **settings))
        return _with_annotations(made, columns(targets))
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
    annotations = description.get("target_remarks", [])
    if not isinstance(annotations, list) or not all(one in ANNOTATIONS for one in annotations):
        raise ValueError(f"dataset.target_remarks must be some of {', '.join(ANNOTATIONS)}")
    return _with_annotations(_checked(name, kind.described(description)), annotations)


_OF_CLASSES = ("takes_logits", "is_of_numbers", "has_density", "of_data", "described")
"""Members that are asked of the class, before it has seen data."""
_OF_NUMBERS = ("normal",)
"""Members that only likelihoods of numbers have."""


def _checked(name: str, made: Likelihood) -> Likelihood:
    """The likelihood, which has all that its contract asks for.

    Raises:
        UserError: it lacks a member.
    """
    without = () if getattr(made, "is_of_numbers", True) else _OF_NUMBERS
    registry.check_members(registry.LIKELIHOODS, name, made, Likelihood, without)
    return made


def _with_annotations(likelihood: Any, names: Iterable[str]) -> Likelihood:
    """The same likelihood, which knows of which annotations it has learned."""
    annotations = tuple(name for name in ANNOTATIONS if name in names)
    if annotations:
        likelihood.annotations = annotations
    return likelihood


def check_annotations(kind: type[Likelihood], name: str, targets: np.ndarray) -> None:
    """Refuses annotations on training targets [N] that a likelihood cannot take.

    Raises:
        UserError: they have such annotations, or all are censored.
    """
    censored, error = annotation(targets, CENSORED), annotation(targets, ERROR)
    if censored is not None and not getattr(kind, "can_be_censored", False):
        raise UserError(
            f"config.likelihood={name!r} cannot learn censored targets: leave out 'censored', or "
            "set config.likelihood to 'gaussian', 'student_t' or 'log_normal'"
        )
    if error is not None and not getattr(kind, "can_have_errors", False):
        raise UserError(
            f"config.likelihood={name!r} cannot learn targets with errors of measurement: leave "
            "out 'target_errors', or set config.likelihood='gaussian'"
        )
    if censored is not None and censored.all():
        raise UserError(
            f"all {len(targets)} training targets are censored; nothing says where they lie: give "
            "some that are known"
        )


def _several() -> Any:
    """Loaded where it is needed, as every likelihood."""
    return registry.load("ensemble.likelihoods.several_targets:SeveralTargets")
