"""Models in files: the Python file that the command line names, and the file of its arguments.

Nothing here reads a workdir: code runs only where this command names it.
"""

import json
import pathlib
from typing import Any

import numpy as np

from ensemble.config.pieces import given_or_imported
from ensemble.errors import InputError, in_one_line
from ensemble.numpyro_models.model import Model
from ensemble.storage import npz
from ensemble.storage.memory import max_bytes

_PREFIX = "numpyro:"


def load(model: str, data: str) -> Model:
    """Loads a model and its arguments.

    Args:
        model: `numpyro:FILE.py:NAME`.
        data: A `.json` or `.npz` file with the arguments by name; empty: there are none.

    Raises:
        InputError: One of them cannot be used.
    """
    path, _, name = model.removeprefix(_PREFIX).rpartition(":")
    where = f"config.model={model!r}"
    if not model.startswith(_PREFIX) or not path.endswith(".py"):
        raise InputError(f"{where} names no function in a file; use numpyro:FILE.py:NAME")
    function = given_or_imported(f"{pathlib.Path(path).absolute()}:{name}", where)
    arguments = {}
    if data:
        try:
            arguments = _read_arguments(pathlib.Path(data))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                f"config.data={data!r} cannot be used as arguments: {in_one_line(error)}"
            ) from None
    return Model(function, (), arguments, f"model {name!r}")


def _read_arguments(path: pathlib.Path) -> dict[str, Any]:
    """Reads arguments by name; lists of numbers become arrays, whole numbers stay numbers."""
    if path.suffix == ".npz":
        arrays = npz.read_arrays(path, max_bytes())
        # A number of an array without axes may be the size of a plate.
        return {name: one if one.ndim else one.item() for name, one in arrays.items()}
    if path.suffix != ".json":
        raise ValueError("its name must end in .json or .npz")
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise ValueError("it must hold an object of arguments by name")
    return {name: np.asarray(one) if isinstance(one, list) else one for name, one in found.items()}
