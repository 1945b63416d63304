"""A program's own data, which `recognise` brings from any form to one.

Besides the keys of `own_arrays` these are a pair `(X, y)`, an iterable of such pairs (the batches
of a data loader; each may also be a mapping such as `{"image": X, "label": y}`), a mapping from
names of splits to any of these, and mappings with the names that other libraries use, such as `X`
and `y`, `images` and `labels`, `X_train` and `y_train`, or scikit-learn's `data` and `target`. Data
frames hold a column to learn, or stand in the place of X.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ensemble import registry
from ensemble.config import (
    RUN,
    all_keys,
    built_in_keys,
    flatten,
    method_block,
    model_block,
    task_block,
)
from ensemble.errors import UserError
from ensemble.likelihood_keys import LIKELIHOODS
from ensemble.source import Request, Source, TableKeys
from ensemble.sources.dataset import own_dataset
from ensemble.sources.image_form import is_channels_first
from ensemble.sources.labels import are_classes
from ensemble.sources.splitting import split_of
from ensemble.sources.tables import is_table
from ensemble.target_rows import ANNOTATIONS, VALUE

_INPUTS = ("inputs", "X", "x", "images", "image", "features", "data")
_TARGETS = ("y", "Y", "target", "label")
_BY_SPLIT = "by split {'train': (X, y), 'test': (X, y)}"
_SMALLEST_IMAGE = 8
"""Pixels of the smaller side from which on pictures go to a CNN."""


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
    """Data that a program has handed over.

    Attributes:
        arrays: by the keys of `own_arrays`; inputs may be data frames, or mappings of columns.
        is_table: whether inputs are these.
    """

    arrays: Mapping[str, Any]
    is_table: bool

    @property
    def kind(self) -> str:
        """Whether they have `labels` of classes or `targets`, numbers."""
        return "targets" if any(key.endswith("targets") for key in self.arrays) else "labels"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example; empty for tables, and for what has none."""
        if self.is_table:
            return ()
        inputs = next((one for key, one in self.arrays.items() if key.endswith("inputs")), ())
        try:
            return np.shape(inputs)[1:]
        except ValueError:  # Ragged, which is refused where the data are checked.
            return ()

    def source(self, request: Request) -> Source:
        """Checks the data, and splits them.

        Args:
            request: how they are asked for.

        Raises:
            UserError: they cannot be used.
        """
        if self.is_table:
            from ensemble.sources.tables.table_source import dataset_from_frames  # Few have tables.

            return dataset_from_frames(self.arrays, "arrays", request)
        if request.table.keys:
            raise refuse_table_keys(request.table, "arrays have no named columns")
        return own_dataset(self.arrays, "arrays", request)

    def defaults(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Suggests values for keys that a program leaves out.

        They are those of `configs/images.py` where inputs are pictures, of `configs/tabular.py`
        where they are data frames, else of `configs/arrays.py`, if the run has such a key: the
        method, the model, how long to train, and where neither `optimizer` nor `learning_rate` is
        set, which suit each other only, all the rest. The likelihood is `gaussian` where the data
        have `targets`.

        Args:
            said: some of the keys, or all, flat.
        """
        usual = RUN.keys["method"].default
        method, is_whole = said.get("method", usual), said.keys() >= built_in_keys().keys()
        if is_whole or not isinstance(method, str) or method not in registry.METHODS:
            return {}  # Such a method is refused where all keys are checked.
        chosen = bundled(self.shape, self.is_table)
        own_method = chosen.get("method", usual)
        meant = registry.task_of({**said, "method": usual})
        if "method" not in said and meant in registry.tasks_of(own_method):
            method = own_method
        if method != own_method:
            chosen = bundled(self.shape, self.is_table, "sgd")
        learned = task_block(registry.task_of({**said, "method": method}))
        of_model = model_block(said.get("model", chosen.get("model"))).keys
        own = {**RUN.keys, **learned.keys, **method_block(method).keys, **of_model}
        found = {key: value for key, value in chosen.items() if key in own}
        if "optimizer" not in own or said.keys() & {"optimizer", "learning_rate"}:
            kept = {"method", "model", "num_epochs", "scaling", *of_model}
            found = {key: value for key, value in found.items() if key in kept}
        if self.kind == "targets":
            found["likelihood"] = LIKELIHOODS["targets"]
        if "num_steps" in said:  # Only one of the two says how long.
            found.pop("num_epochs", None)
        if said.get("hold_out") is False:  # There is no validation split to look at.
            found.pop("early_stopping_epochs", None)
        return {key: value for key, value in found.items() if key not in said}


def bundled(shape: Sequence[int], is_table: bool, variant: str = "") -> dict[str, Any]:
    """Returns what a bundled configuration says for examples of a shape, beside the data.

    Args:
        shape: of one example.
        is_table: whether examples are rows of a table.
        variant: of `configs/tabular.py`.
    """
    from ensemble.configs import arrays, images, tabular  # Of a program's own data alone.

    vectors = tabular.get_config(variant) if is_table else arrays.get_config()
    chosen = flatten(images.get_config() if len(shape) > 1 else vectors)
    sides = shape[1:] if is_channels_first(shape) else shape[:2]
    if len(shape) > 1 and min(sides) < _SMALLEST_IMAGE:
        chosen["model"] = "mlp"
    keys = all_keys()
    return {
        key: value
        for key, value in chosen.items()
        if value != keys[key].default and key not in ("dataset", "likelihood")
    }


def refuse_table_keys(table: TableKeys, why: str) -> UserError:
    """Makes the error for keys of tables where there is none.

    Args:
        table: the keys.
        why: there is none.
    """
    kinds = [name for name, entry in registry.SOURCES.items() if entry.kind_of_target]
    verb = "is" if len(table.keys) == 1 else "are"
    return UserError(
        f"{' and '.join(table.keys)} {verb} for tables ({', '.join(kinds)}, data frames), and "
        f"{why}: leave {'it' if verb == 'is' else 'them'} out"
    )


def recognise(data: Any, kind: str | None = None, target: str = "") -> Given:
    """Recognises the form of what a program hands over.

    Args:
        data: in one of the forms above.
        kind: `labels` or `targets`, what y is; None: targets if y holds fractions, else labels, and
            of a column of a table as of `raw_columns.kind_of_target`.
        target: the column of data frames that is y; empty: y is beside them.

    Raises:
        UserError: it is in no such form.
    """
    arrays = _by_key(data, kind, target)
    inputs = [one for key, one in arrays.items() if key.endswith("inputs")]
    return Given(arrays, any(is_table(one) or isinstance(one, Mapping) for one in inputs))


def _by_key(data: Any, kind: str | None, target: str) -> dict[str, Any]:
    """The data by the keys of `own_arrays`."""
    if is_table(data):
        return _of_frames({"": data}, kind, target)
    if not isinstance(data, Mapping):
        inputs, targets = _pair(data, "data")
        return {"inputs": inputs, _kind(targets, kind, inputs): targets}
    if data and all(split_of(str(key)) for key in data):
        if all(map(is_table, data.values())):
            return _of_frames(data, kind, target)
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


def _of_frames(data: Mapping[Any, Any], kind: str | None, target: str) -> dict[str, Any]:
    """Columns and targets of data frames that hold both, by split; the key '' is of no split."""
    if not target:
        name = type(next(iter(data.values()))).__name__
        raise UserError(
            f"data is a {name}: set config.target to the column to learn, or give (X, y)"
        )
    # Most data are no tables, and need nothing of these.
    from ensemble.sources.tables.frames import take_target
    from ensemble.sources.tables.raw_columns import kind_of_target, target_values

    found: dict[str, Any] = {}
    for key, frame in data.items():
        prefix = f"{split_of(str(key))}_" if key else ""
        columns, column = take_target(frame, target, f"data[{key!r}]" if key else "data")
        kind = kind or kind_of_target(column, target)
        values = target_values(column, target, kind)
        found |= {f"{prefix}inputs": columns, f"{prefix}{kind}": values}
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
        # As in `_of_frames`.
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
    if isinstance(data, str):
        raise UserError(
            f"{what} is a text; name data by the configuration, as {{'dataset': 'csv:FILE', "
            f"'target': 'COLUMN'}}, or {remedy}"
        )
    if isinstance(data, bytes | np.ndarray) or not isinstance(data, Iterable):
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
