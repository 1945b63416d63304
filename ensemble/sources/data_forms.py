"""The forms in which a program may hand over its data, as the one that is checked.

Besides the keys of `own_arrays`: a pair `(X, y)`, an iterable of such pairs (the batches of a data
loader; each may also be a mapping such as `{"image": X, "label": y}`), a mapping from names of
splits to any of these, and mappings with the names that other libraries use, such as `X` and `y`,
`images` and `labels`, `X_train` and `y_train`, or scikit-learn's `data` and `target`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ensemble.errors import UserError
from ensemble.sources.labels import are_classes
from ensemble.sources.splitting import split_of
from ensemble.target_rows import ANNOTATIONS, VALUE

_INPUTS = ("inputs", "X", "x", "images", "image", "features", "data")
_TARGETS = ("y", "Y", "target", "label")
_BY_SPLIT = "by split {'train': (X, y), 'test': (X, y)}"


def is_table(data: Any) -> bool:
    """Whether data are a frame of pandas, polars or pyarrow: whatever has named columns."""
    return hasattr(data, "columns") and (hasattr(data, "dtypes") or hasattr(data, "column_names"))


def has_tables(arrays: Mapping[str, Any]) -> bool:
    """Whether inputs are tables, of arrays with the keys of `own_arrays`."""
    return any(
        is_table(one) or isinstance(one, Mapping)
        for key, one in arrays.items()
        if key.endswith("inputs")
    )


def as_arrays(data: Any, kind: str | None = None, target: str = "") -> dict[str, Any]:
    """Brings data to a mapping with the keys of `own_arrays`.

    Args:
        data: in one of the forms above.
        kind: `labels` or `targets`, what y is; None: targets if y holds fractions, else labels, and
            of a column of a table as of `raw_columns.kind_of_target`.
        target: the column of data frames that is y; empty: y is beside them.

    Raises:
        UserError: it is in no such form.
    """
    if is_table(data):
        _check_has_target(data, target)
        columns, name, targets = _without_target(data, target, kind, "data")
        return {"inputs": columns, name: targets}
    if not isinstance(data, Mapping):
        inputs, targets = _pair(data, "data")
        return {"inputs": inputs, _kind(targets, kind, inputs): targets}
    if data and all(split_of(str(key)) for key in data):
        if all(map(is_table, data.values())):
            _check_has_target(next(iter(data.values())), target)
            return _tables_by_split(data, target, kind)
        pairs = {split_of(str(key)): _pair(one, f"data[{key!r}]") for key, one in data.items()}
        kinds = {_kind(targets, kind, inputs) for inputs, targets in pairs.values()}
        name = "targets" if "targets" in kinds else "labels"
        found: dict[str, Any] = {}
        for split, (inputs, targets) in pairs.items():
            found |= {f"{split}_inputs": inputs, f"{split}_{name}": targets}
        return found
    if {"data", "target"} <= data.keys():  # scikit-learn's: whatever else it holds describes it.
        inputs, targets = data["data"], data["target"]
        chosen = {"inputs": inputs, _kind(targets, kind, inputs): targets}
        names = data.get("target_names")
        is_class = "labels" in chosen and names is not None and not isinstance(names, str)
        return chosen | ({"class_names": names} if is_class else {})
    return _renamed(data, kind)


def _check_has_target(data: Any, target: str) -> None:
    if not target:
        raise UserError(
            f"data is a {type(data).__name__}: set config.target to the column to learn, or give "
            "(X, y)"
        )


def _without_target(
    data: Any, target: str, kind: str | None, what: str
) -> tuple[dict[str, Any], str, np.ndarray]:
    """Columns of a data frame, whether its target are labels or targets, and these."""
    # Most data are no tables, and need nothing of these.
    from ensemble.sources.tables.frames import take_target
    from ensemble.sources.tables.raw_columns import kind_of_target, target_values

    columns, column = take_target(data, target, what)
    kind = kind or kind_of_target(column, target)
    return columns, kind, target_values(column, target, kind)


def _tables_by_split(data: Mapping[Any, Any], target: str, kind: str | None) -> dict[str, Any]:
    """Data frames with their targets, by split."""
    found: dict[str, Any] = {}
    for key, table in data.items():
        split = split_of(str(key))
        columns, kind, targets = _without_target(table, target, kind, f"data[{key!r}]")
        found |= {f"{split}_inputs": columns, f"{split}_{kind}": targets}
    return found


def _renamed(data: Mapping[Any, Any], kind: str | None) -> dict[str, Any]:
    """A mapping under the names of `own_arrays`; what has another name keeps it."""
    if any(_parted(str(key))[1] in ANNOTATIONS for key in data):
        kind = VALUE  # Labels have no annotations.
    found: dict[str, Any] = {}
    for key, values in data.items():
        split, rest = _parted(str(key))
        name = rest
        if rest in _INPUTS:
            name = "inputs"
        elif rest in _TARGETS:
            name = _kind(values, kind, next(filter(is_table, data.values()), None))
        whole = f"{split}_{name}" if split else name
        if whole in found:
            raise UserError(f"data has {whole!r} twice, once as {key!r}; give it once")
        found[whole] = values
    return found


def _parted(key: str) -> tuple[str, str]:
    """A key as split and rest: `train_inputs` and `X_train` are both of `train`."""
    first, _, rest = key.partition("_")
    if rest and split_of(first):
        return split_of(first), rest
    rest, _, last = key.rpartition("_")
    if rest in (*_INPUTS, *_TARGETS, *ANNOTATIONS) and split_of(last):
        return split_of(last), rest
    return "", key


def _kind(targets: Any, kind: str | None, inputs: Any = None) -> str:
    if kind is not None:
        return kind
    try:
        values = np.asarray(targets)
    except ValueError:
        return "labels"
    if is_table(inputs) and values.ndim and values.size == len(values):  # One for each row.
        # As in `_without_target`.
        from ensemble.sources.tables.frames import of_frame
        from ensemble.sources.tables.raw_columns import kind_of_target

        column = targets if values.ndim == 1 else values.ravel()
        return kind_of_target(of_frame({"y": column})["y"], "y")
    return "targets" if values.dtype.kind == "f" and not are_classes(values) else "labels"


def _pair(data: Any, what: str) -> tuple[Any, Any]:
    """Inputs and targets: of a pair of arrays, or joined from an iterable of pairs."""
    remedy = (
        "give (X, y), an iterable of batches (X, y), or a mapping such as "
        "{'inputs': X, 'labels': y}"
    )
    if isinstance(data, Mapping):
        return _of_names(data, what, remedy)
    if isinstance(data, tuple | list) and len(data) == 2 and all(_is_array(one) for one in data):
        first, second = data
        return first, second
    if isinstance(data, str | bytes | np.ndarray) or not isinstance(data, Iterable):
        raise UserError(f"{what} is a {type(data).__name__}, without targets; {remedy}")
    if isinstance(data, tuple) and all(hasattr(one, "__array__") for one in data) and data:
        raise UserError(f"{what} is a tuple of {len(data)} arrays; {remedy}, or {_BY_SPLIT}")
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for k, batch in enumerate(data):
        if isinstance(batch, Mapping):
            batch = _of_names(batch, f"batch {k} of {what}", remedy)
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise UserError(f"{what} has a {type(batch).__name__} as batch {k}; {remedy}")
        parts.append((np.asarray(batch[0]), np.atleast_1d(np.asarray(batch[1]))))
    if not parts:
        raise UserError(f"{what} is empty; {remedy}")
    if len(parts[0][0]) != len(parts[0][1]):  # Pairs of single examples, not of batches.
        parts = [(inputs[None], targets) for inputs, targets in parts]
    try:
        return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))  # type: ignore
    except ValueError as error:
        raise UserError(
            f"the batches of {what} have different shapes ({error}); {remedy}"
        ) from None


def _of_names(data: Mapping[Any, Any], what: str, remedy: str) -> tuple[Any, Any]:
    """Inputs and targets of a mapping that holds one of each, under any of their names."""
    inputs = [key for key in data if key in _INPUTS]
    targets = [key for key in data if key in (*_TARGETS, "labels", "targets")]
    if len(inputs) != 1 or len(targets) != 1 or len(data) != 2:
        raise UserError(f"{what} has the keys {', '.join(map(str, data)) or '(none)'}; {remedy}")
    return data[inputs[0]], data[targets[0]]


def _is_array(values: Any) -> bool:
    """Whether it is an array or a list, and not a pair of one example and its target."""
    return hasattr(values, "__array__") or isinstance(values, list)
