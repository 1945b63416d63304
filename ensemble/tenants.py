"""The tenants of one kind: built in, registered by a program, or of a package that is installed.

A package joins by entry points of the group `flax_ensembles.KINDs`. Their names are read once,
without importing anything. An entry is loaded when it is asked for by its name, so a package that
is broken disturbs only those who ask for it.
"""

import functools
import importlib.metadata
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from ensemble.errors import Unregistered, UserError, in_one_line, shown

Entry = TypeVar("Entry")

GROUPS = "flax_ensembles."
"""What the groups of entry points begin with; the kind follows, in the plural."""


class Package(NamedTuple):
    """An installed package that a tenant comes from."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@functools.cache
def entry_points() -> Mapping[str, tuple[importlib.metadata.EntryPoint, ...]]:
    """The entry points of installed packages that join this one, by group: names, no modules."""
    found = importlib.metadata.entry_points()
    groups = [one for one in found.groups if one.startswith(GROUPS)]
    return {group: tuple(found.select(group=group)) for group in groups}


class Tenants(Mapping[str, Entry], Generic[Entry]):
    """Entries of one kind by name.

    Looking a name up finds installed tenants too. Iteration has what is built in, and what has been
    registered or asked for in this process.

    Args:
        kind: such as `method`.
        form: the class of the entries.
        built_in: entries that nobody can take.
    """

    def __init__(self, kind: str, form: type[Entry], built_in: Mapping[str, Entry]):
        self.kind, self.form = kind, form
        self.built_in = MappingProxyType(dict(built_in))
        self.registered: dict[str, Entry] = {}
        self._loaded: dict[str, tuple[Entry, Package]] = {}

    def __getitem__(self, name: str) -> Entry:
        for entries in (self.built_in, self.registered):
            if name in entries:
                return entries[name]
        if name not in self._loaded:
            point = self._entry_point(name)
            if point is None:
                raise KeyError(name)
            self._loaded[name] = self._load(point), _package(point)
        return self._loaded[name][0]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        yield from {**self.built_in, **self.registered, **self._loaded}

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def joined(self) -> Mapping[str, Entry]:
        """What is not built in, and has been registered or asked for in this process."""
        installed = {name: entry for name, (entry, _) in self._loaded.items()}
        return {**installed, **self.registered}

    def installed(self) -> Mapping[str, tuple[Package, ...]]:
        """The packages that have a tenant of a name, by name; nothing is imported."""
        found: dict[str, tuple[Package, ...]] = {}
        for point in self._entry_points():
            found[point.name] = (*found.get(point.name, ()), _package(point))
        return found

    def package(self, name: str) -> Package | None:
        """The package that a tenant has been loaded from; None: it is built in, or registered."""
        if name in self.built_in or name in self.registered or name not in self._loaded:
            return None
        return self._loaded[name][1]

    def names(self, installed: bool = False) -> list[str]:
        """The names of this iteration; with `installed` those of all installed tenants, too."""
        return list(dict.fromkeys([*self, *(self.installed() if installed else ())]))

    def listing(self) -> str:
        """All names, for messages."""
        return ", ".join(map(shown, self.names(installed=True)))

    def register(self, name: str, entry: Entry) -> None:
        """Adds an entry, in this process; a name that was registered before is taken over.

        Raises:
            UserError: the name is a built-in tenant's, or the entry has another form.
        """
        if not isinstance(name, str) or not name:
            raise UserError(
                f"{in_one_line(repr(name), 60)} is no name by which {self.kind}s are registered; "
                "give a text such as 'mine'"
            )
        if name in self.built_in:
            raise UserError(
                f"the {self.kind} {name!r} is built in, and its name cannot be taken; register "
                "yours by another name"
            )
        self._check_form(entry, f"the {self.kind} {name!r}")
        self.registered[name] = entry

    def _entry_points(self) -> tuple[importlib.metadata.EntryPoint, ...]:
        return entry_points().get(f"{GROUPS}{self.kind}s", ())

    def _entry_point(self, name: str) -> importlib.metadata.EntryPoint | None:
        """The one entry point of a name.

        Raises:
            UserError: several packages have the name.
        """
        points = [one for one in self._entry_points() if one.name == name]
        if len(points) > 1:
            packages = " and ".join(sorted(str(_package(one)) for one in points))
            raise Unregistered(
                f"the {self.kind} {name!r} is of {len(points)} installed packages, {packages}: "
                "remove all but one of them"
            )
        return points[0] if points else None

    def _load(self, point: importlib.metadata.EntryPoint) -> Entry:
        """Imports the module of an entry point, which holds data only.

        Raises:
            UserError: it cannot be imported, or is no entry.
        """
        what = f"the {self.kind} {point.name!r} of the package {_package(point)}"
        try:
            entry = point.load()
        except (Exception, SystemExit) as error:  # A package is a program, and may raise anything.
            raise Unregistered(
                f"{what} cannot be loaded: importing {point.value} failed "
                f"({type(error).__name__}: {in_one_line(error)}); repair, update or remove the "
                "package"
            ) from error
        self._check_form(entry, what)
        return entry

    def _check_form(self, entry: Any, what: str) -> None:
        if not isinstance(entry, self.form):
            raise Unregistered(
                f"{what} is a {type(entry).__name__}, and must be an "
                f"{self.form.__module__}.{self.form.__name__}, which names its code"
            )


def _package(point: importlib.metadata.EntryPoint) -> Package:
    dist = point.dist
    return Package("unknown", "") if dist is None else Package(dist.name, dist.version)


def members_of(contract: type) -> list[str]:
    """The names that a protocol asks for."""
    own = [one for one in contract.__mro__ if getattr(one, "_is_protocol", False)]
    names = {name for one in own for name in (*vars(one), *vars(one).get("__annotations__", ()))}
    return sorted(name for name in names if not name.startswith("_"))
