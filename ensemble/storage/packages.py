"""Which installed packages a run has tenants of: config.json says so, beside its identity.

Without that, nobody could say which package is missing where a name is unknown. A workdir can make
code run of packages that are installed, by names of their entry points, and no other code.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ensemble import registry
from ensemble.config import flatten
from ensemble.priors import families


class Tenant(NamedTuple):
    """A tenant of an installed package.

    Attributes:
        kind: of the tenant.
        name: of the tenant.
        package: that it was of when the run began.
        version: of the package.
    """

    kind: str
    name: str
    package: str
    version: str


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{0,99}")
_MOST = 100
_FOR_READING = ("method", "task", "likelihood", "prior", "optimizer", "schedule")
"""Kinds without which a workdir cannot be read; a network and data are needed by what uses them."""


def of_config(config: Mapping[str, Any]) -> list[dict[str, str]]:
    """The tenants of installed packages that a run has, JSON-ready.

    Args:
        config: of the run, complete.
    """
    values = flatten(config)
    dataset = values.get("dataset")
    named = [
        ("method", values["method"]),
        ("task", registry.task_of(values)),
        ("network", values.get("model")),
        ("likelihood", values.get("likelihood")),
        ("optimizer", values.get("optimizer")),
        ("schedule", values.get("schedule")),
        ("augmentation", values.get("augment.name")),
        ("source", registry.key_of_source(dataset) if isinstance(dataset, str) else None),
        *(("prior", one) for one in families(values.get("prior") or "")),
    ]
    found = [one for kind, name in dict.fromkeys(named) for one in _of_packages(kind, name)]
    return [one._asdict() for one in found]


def of_scores(names: Iterable[str]) -> list[dict[str, str]]:
    """The scores of installed packages among some names, JSON-ready."""
    heads = dict.fromkeys(name.partition(":")[0] for name in names)
    return [one._asdict() for name in heads for one in _of_packages("score", name)]


def _of_packages(kind: str, name: Any) -> list[Tenant]:
    tenants = registry.tenants_of(kind)
    if not isinstance(name, str) or name not in tenants:
        return []
    package = tenants.package(name)
    return [] if package is None else [Tenant(kind, name, package.name, package.version)]


def checked(value: Any) -> list[Tenant]:
    """The tenants that a config.json says; those of no package are not there.

    Raises:
        ValueError: it says no such thing.
    """
    if not isinstance(value, list) or len(value) > _MOST:
        raise ValueError("packages must be a list of tenants")
    found = []
    for one in value:
        if not isinstance(one, dict) or one.keys() != set(Tenant._fields):
            raise ValueError(f"packages must have {', '.join(Tenant._fields)}")
        if not all(isinstance(text, str) for text in one.values()):
            raise ValueError("packages must have texts")
        tenant = Tenant(**one)
        is_known = tenant.kind in registry.KINDS and tenant.name.isprintable()
        if not (
            is_known and _NAME.fullmatch(tenant.package) and _VERSION.fullmatch(tenant.version)
        ):
            raise ValueError("packages names what no package can be called")
        found.append(tenant)
    return found


def missing(recorded: Iterable[Tenant]) -> list[Tenant]:
    """Finds those that are neither installed nor registered here."""
    return [one for one in recorded if one.name not in registry.tenants_of(one.kind)]


def needed_for_reading(recorded: Iterable[Tenant]) -> list[Tenant]:
    """Finds those without which the files of a workdir cannot be checked."""
    return [one for one in recorded if one.kind in _FOR_READING]


def remedy(absent: Iterable[Tenant]) -> str:
    """What to do where tenants are missing."""
    groups: dict[str, list[str]] = {}
    for one in absent:
        package = f"{one.package} {one.version}"
        groups.setdefault(package, []).append(f"the {one.kind} {one.name!r}")
    had = [f"{_listed(names)} of the package {package}" for package, names in groups.items()]
    which = "that package" if len(groups) == 1 else "these packages"
    return (
        f"the run had {_listed(had)}, and nothing here is called so: install {which} if you trust "
        f"{'it' if len(groups) == 1 else 'them'}"
    )


def _listed(texts: Sequence[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def changes(recorded: Iterable[Tenant]) -> list[str]:
    """A line for each package whose version here is not the one that a run began with."""
    lines = {}
    for one in recorded:
        here = registry.tenants_of(one.kind).package(one.name)
        if here is None:
            continue
        if here.name != one.package:
            lines[one.name] = (
                f"the run began with the {one.kind} {one.name!r} of the package {one.package}, and "
                f"that of {here} is installed here"
            )
        elif here.version != one.version:
            lines[one.package] = (
                f"the run began with the package {one.package} {one.version}, and {here.version} "
                "is installed here"
            )
    return [f"{line}: its numbers may differ" for line in lines.values()]
