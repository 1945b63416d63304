"""Pieces of a run by name or path. Importing this module imports no code of a piece.

The value of `config.method`, `.model`, `.likelihood` and the like is the name of a built-in piece,
`package.module:Name`, `file.py:Name`, or in Python the class, function or object itself.
"""

import difflib
import importlib
import os
import pkgutil
import re
import sys
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from ensemble.errors import InputError, in_one_line, in_own_code, is_own, shown


@dataclass(frozen=True)
class Kind:
    """The pieces of one kind.

    Attributes:
        key: Configuration key that selects one.
        noun: For messages.
        names: Code of the built-in pieces, `module:Name` by name.
        has: Attributes of the code; by default it is callable.
        keys: Classes that declare the keys of built-in pieces that have some.
    """

    key: str
    noun: str
    names: Mapping[str, str]
    has: tuple[str, ...] = ("__call__",)
    keys: Mapping[str, type] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.names or is_path(name))

    def load(self, name: str) -> Any:
        """Returns the code of a piece.

        Raises:
            InputError: The piece is unknown, or cannot be imported, or may not be, or is none.
        """
        if name in self.names:
            return resolve(self.names[name])
        if not is_path(name):
            raise InputError(self.unknown(name))
        return self.check(name, find(name, f"config.{self.key}={name!r}", self.key), self.has)

    def call(self, name: str, *arguments: Any, has: Sequence[str] = ()) -> Any:
        """Calls the code of a piece; an error in a user's code becomes one line.

        Args:
            name: Name or path of the piece.
            *arguments: Of the call.
            has: Attributes that the result must have.

        Raises:
            InputError: The piece cannot be loaded, or is a user's and fails, or returns something
                else.
        """
        code = self.load(name)
        try:
            return self.check(name, code(*arguments), has)
        except InputError:
            raise
        except Exception as error:  # A user's program may raise anything.
            if name in self.names:
                raise
            raise InputError(
                f"the {self.noun} {shown(name)} failed {in_own_code(error)}"
            ) from error

    def unknown(self, name: Any) -> str:
        """The message for a name that is unknown."""
        known = f"one of {', '.join(self.names)}, or " if self.names else ""
        return (
            f"config.{self.key}={in_one_line(repr(name), 60)} is unknown. "
            f"{near_miss(str(name), self.names)}Use {known}your own as package.module:Name or "
            "file.py:Name"
        )

    def check(self, name: str, made: Any, has: Sequence[str]) -> Any:
        """Returns the code of a piece, or its result, if it has some attributes.

        Raises:
            InputError: An attribute is missing.
        """
        if lacks := [one for one in has if not hasattr(made, one)]:
            raise InputError(
                f"the {self.noun} {shown(name)} is, or returns, a {type(made).__name__}, which "
                f"lacks {', '.join(lacks)}"
            )
        return made


def near_miss(name: str, names: Iterable[str]) -> str:
    """A hint at a known name that is like an unknown one; empty if there is none."""
    close = difflib.get_close_matches(name, [*names], n=1)
    return f"Did you mean {close[0]!r}? " if close else ""


_PATH = re.compile(r"(.*\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):[^:]+")


def is_path(value: str) -> bool:
    """Whether a value has the form `module:Name` or `file.py:Name`."""
    return _PATH.fullmatch(value) is not None


def named(names: Iterable[str], value: str) -> str:
    """The name that a value has, such as `csv:PATH` for `csv:data.csv`; empty if there is none."""
    prefix, colon, rest = value.partition(":")
    if not colon:
        return value if value in names else ""
    return next((one for one in names if rest and one.startswith(f"{prefix}:")), "")


resolve = pkgutil.resolve_name
"""Imports what `module:Name` of this package names."""

# Pieces of users.

_GIVEN: dict[str, Any] = {}
"""Pieces that this process has been given or has imported, by path."""
_trusts = False
"""Whether a path of a workdir may be imported."""
_stand_ins: Mapping[str, Any] = {}
"""Pieces, by key, that the caller gives in place of those whose paths a workdir names."""


def path_of(piece: Any) -> str:
    """Records a piece that was given as an object, and returns its path.

    Of two pieces with one path, such as two versions of a notebook's class, the last one counts.
    Objects have numbers, and lambdas digests of their code.
    """
    named = piece if hasattr(piece, "__qualname__") else type(piece)
    name = named.__qualname__ if named is piece else f"<{named.__qualname__} object>"
    module = named.__module__
    if name.endswith("<lambda>"):  # The same code is the same run.
        code = piece.__code__
        name += f" {zlib.crc32(code.co_code + repr((code.co_names, code.co_consts)).encode()):08x}"
    file = str(getattr(sys.modules.get(module), "__file__", None))
    if module == "__main__" and file.endswith(".py") and os.path.isfile(file):
        module = module_name(file)
    path = f"{module}:{name}"
    if name.endswith(">"):
        numbered = (path[:-1] + f" {k}" * (k > 1) + ">" for k in count(1))
        path = next(one for one in numbered if _GIVEN.get(one, piece) is piece)
    _GIVEN[path] = piece
    return path


def packages(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the versions of the installed packages that pieces come from, by package.

    Args:
        values: Of a configuration, flat.
    """
    from importlib import metadata  # Only few runs need it, and it takes as long as all else here.

    result = {}
    for value in values.values():
        if isinstance(value, str) and is_path(value):
            package = re.split("[.:]", value)[0]
            with suppress(metadata.PackageNotFoundError):
                result[package] = metadata.version(package)
    return result


@contextmanager
def trusting(trust: bool, **given: Any) -> Iterator[None]:
    """Within, workdirs are opened with this trust.

    Args:
        trust: If True, the paths that workdirs name are imported.
        **given: Pieces by key, such as `model`, which are used for the paths that workdirs name.
    """
    global _trusts, _stand_ins
    before = _trusts, _stand_ins
    _trusts = trust or _trusts
    _stand_ins = {key: one for key, one in given.items() if one is not None}
    try:
        yield
    finally:
        _trusts, _stand_ins = before


def find(path: str, what: str, key: str = "", *, trust: bool = False) -> Any:
    """Returns a user's piece.

    Args:
        path: Of the piece.
        what: Its mention in messages.
        key: Of the configuration.
        trust: If False, the path is of a workdir, and is only imported within `trusting(True)`.

    Raises:
        InputError: It was neither given nor imported and may not be, or importing it fails.
    """
    if key in _stand_ins:
        return _stand_ins[key]
    if path not in _GIVEN:
        module, _, name = path.rpartition(":")
        there = _loaded(module)
        found = _attribute(there, name)
        if not (trust or _trusts or _is_of_program(there, found)):
            raise InputError(
                f"{shown(what)} names code, which is not run for a workdir unless you trust "
                "it. Use trust=True or --trust, or import it in your program first"
            )
        _GIVEN[path] = _imported(module, name, what) if found is None else found
    return _GIVEN[path]


given_or_imported = partial(find, trust=True)
"""Returns a piece that the caller names; see `find`."""


def _imported(module: str, name: str, what: str):
    load = module_of_file if module.endswith(".py") else importlib.import_module
    try:
        there = load(module)
    except (Exception, SystemExit) as error:  # A user's program may raise anything.
        raise InputError(
            f"{what} cannot be loaded: importing it failed {in_own_code(error)}"
        ) from error
    found = _attribute(there, name)
    if found is None:
        hint = near_miss(name, vars(there))
        raise InputError(f"{what}: {module} has no {name!r}. {hint}".strip())
    return found


def _loaded(module: str):
    """A module that is imported already, of a file whatever its name; None if there is none."""
    name = module_name(module)
    if name in sys.modules or name == module:
        return sys.modules.get(name)
    files = ((one, getattr(one, "__file__", None)) for one in [*sys.modules.values()])
    return next((one for one, file in files if file and os.path.realpath(file) == name), None)


def _is_of_program(module, piece) -> bool:
    """Whether a piece is a class or function that a module of the user's program defines.

    What Python and installed packages have is called for a workdir only if the workdir is trusted.
    """
    if piece is None or getattr(piece, "__module__", None) != module.__name__:
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return bool(module.__name__ == "__main__")
    return is_own(file) and is_own(os.path.realpath(file))


def _attribute(module, name: str):
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def module_name(module: str) -> str:
    """Name in `sys.modules`; a file has its full path."""
    return str(Path(module).expanduser().resolve()) if module.endswith(".py") else module


def module_of_file(file: str | os.PathLike[str]) -> Any:
    """Imports a Python file, once; its name in `sys.modules` is its full path."""
    name = module_name(os.fspath(file))
    if name not in sys.modules:
        code = compile(Path(name).read_bytes(), name, "exec", dont_inherit=True)
        module = types.ModuleType(name)
        module.__file__ = name
        sys.modules[name] = module  # As dataclasses and their annotations expect.
        folder = os.path.dirname(name)
        sys.path.insert(0, folder)  # Modules of its folder come first, as in a Python program,
        try:
            exec(code, vars(module))
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            sys.path.remove(folder)
            if folder not in sys.path:  # and later last: its functions may import, too.
                sys.path.append(folder)
    return sys.modules[name]
