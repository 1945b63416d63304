"""Models in files: the Python file that the command line names, and the file of its arguments.

Nothing here reads a workdir: code runs only where this command says so.
"""

import importlib.util
import inspect
import json
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ensemble.config.pieces import importable
from ensemble.errors import InputError, in_one_line, in_own_code
from ensemble.numpyro_models.numpyro_program import NumPyroProgram
from ensemble.storage import npz
from ensemble.storage.memory import max_bytes

_PREFIX = "numpyro:"
_FORM = "it must be numpyro:FILE.py:NAME, a function in a file"


def load(model: str, data: str) -> NumPyroProgram:
    """Loads a model and its arguments.

    Args:
        model: `numpyro:FILE.py:NAME`.
        data: a `.json` or `.npz` file with the arguments by name; empty: there are none.

    Raises:
        InputError: one of them cannot be used.
    """
    path, _, name = model.removeprefix(_PREFIX).rpartition(":")
    if not model.startswith(_PREFIX) or not path.endswith(".py"):
        raise InputError(f"config.model={model!r} names no file; {_FORM}")
    function = _function(pathlib.Path(path), name, f"config.model={model!r}")
    arguments = read_arguments(data) if data else {}
    check_arguments(function, (), arguments, name, f"config.data={data!r}")
    return NumPyroProgram(function, (), arguments, f"model {name!r}")


def _function(path: pathlib.Path, name: str, what: str) -> Callable[..., Any]:
    if not path.is_file():
        raise InputError(f"{what}: there is no file {path.absolute()}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    try:
        if spec is None or spec.loader is None:
            raise ValueError("it is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)  # As dataclasses expect.
        with importable(path):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # It is a program, and may raise anything.
        raise InputError(f"{what} cannot be loaded, it failed {in_own_code(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, one in vars(module).items() if inspect.isfunction(one)]
        raise InputError(
            f"{what}: {path} has no function {name!r}; its functions are "
            f"{', '.join(known) or 'none'}"
        )
    found: Callable[..., Any] = function
    return found


def read_arguments(file: str) -> dict[str, Any]:
    """Reads arguments by name; lists of numbers become arrays, whole numbers stay numbers.

    Raises:
        InputError: the file cannot be read, or has another form.
    """
    path = pathlib.Path(file)
    if not path.is_file():
        raise InputError(f"config.data={file!r}: there is no file {path.absolute()}")
    try:
        if path.suffix == ".npz":
            arrays = npz.read_arrays(path, max_bytes())
            return {name: _plain(array) for name, array in arrays.items()}
        if path.suffix != ".json":
            raise ValueError("its name must end in .json or .npz")
        found = json.loads(path.read_text())
        if not isinstance(found, Mapping):
            raise ValueError("it must hold an object of arguments by name")
        return {name: _from_json(name, value) for name, value in found.items()}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"config.data={file!r} cannot be used as arguments: {in_one_line(error)}"
        ) from None


def _plain(array: np.ndarray) -> Any:
    """A number of an array without axes, so that it may be the size of a plate."""
    return array.item() if array.ndim == 0 else array


def _from_json(name: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name!r} is ragged: its rows have different lengths") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name!r} has values that are no numbers")
    return array


def check_arguments(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    name: str,
    where: str,
) -> None:
    """Refuses arguments that a model does not take, and those that it lacks.

    Args:
        function: the model.
        args: of it.
        kwargs: of it.
        name: of it, in the message.
        where: the arguments come from.

    Raises:
        InputError: with the arguments that the model takes.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Of some callables Python knows none.
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"{where} does not suit the model {name}{signature}: {in_one_line(error)}; a model may "
            "take **others to leave some unused"
        ) from None
