"""A program's own data, which `recognise` brings from any form to one.

Besides the keys of `own_arrays` these are a pair `(X, y)`, an iterable of such pairs (the batches
of a data loader; each may also be a mapping such as `{"image": X, "label": y}`), a mapping from
names of splits to any of these, and mappings with the names that other libraries use, such as `X`
and `y`, `images` and `labels`, `X_train` and `y_train`, or scikit-learn's `data` and `target`. Data
frames hold a column to learn, or stand in the place of X.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.config import fields_for, task_of, trait
from ensemble.config.builtin import METHODS, EveryRun
from ensemble.data.dataset import carved
from ensemble.data.image_form import is_channels_first
from ensemble.data.labels import are_classes
from ensemble.data.own_arrays import WEIGHTS, check_arrays, local_path, max_data_bytes, reading
from ensemble.data.source import Examples, Parts, Request, Shape, Source
from ensemble.data.splitting import POOL, SPLITS, split_of
from ensemble.data.tables import is_table
from ensemble.errors import InputError
from ensemble.pytrees import ByName
from ensemble.storage.npz import map_array, read_arrays

_NAMES = {
    **dict.fromkeys(("X", "x", "images", "image", "features", "data"), "inputs"),
    **dict.fromkeys(("Y", "target", "label"), "y"),
    "target_names": "class_names",
}
_REMEDY = (
    "give (X, y), an iterable of batches (X, y), a mapping such as {'inputs': X, 'labels': y}, or "
    "one by split {'train': (X, y), 'test': (X, y)}; or name a file by config.dataset"
)
_EXPECTED = (
    "inputs and labels, or train_inputs and train_labels with any of validation_*, calibration_* "
    "and test_*; class_names and sample_weight are optional; targets in place of labels are real "
    "numbers"
)
_MLP = "mlp."
"""Keys of networks of tables."""
_SMALLEST_IMAGE = 8
"""Pixels of the smaller side from which on pictures go to a CNN."""


class Given(Parts):
    """Examples of a program or of files of arrays, with their way to a source."""

    @property
    def shape(self) -> Shape:
        """The shape of an example; empty for tables, and for what has none."""
        try:
            return () if self.is_table else np.shape(next(iter(self.parts.values())).inputs)[1:]
        except ValueError:  # Ragged, which is refused where the data are checked.
            return ()

    def source(self, request: Request) -> Source:
        """Checks the data, and splits them.

        Args:
            request: how they are asked for.

        Raises:
            InputError: they cannot be used.
        """
        if self.is_table:
            from ensemble.data.tables.table import source_of  # Few have tables.

            return source_of(self, "arrays", request)
        keys = ("target", "column_types", "split_by", "na_values")
        if said := [f"config.{key}" for key in keys if getattr(request, key)]:
            raise InputError(
                f"{' and '.join(said)} can be set for tables only (csv:PATH, parquet:PATH, data "
                "frames), and arrays have no named columns: remove what cannot be used"
            )
        return carved(check_arrays(self, "arrays"), "arrays", request)

    def defaults(self, said: ByName) -> ByName:
        """Suggests values for keys that a program leaves out.

        They are those of `configs/images.py` where inputs are pictures, of `configs/tabular.py`
        where they are data frames, else of `configs/arrays.py`, if the run has such a key: the
        method, the model, how long to train, and where neither `optimizer` nor `learning_rate` is
        set, which suit each other only, all the rest.

        Args:
            said: some of the keys, or all, flat.
        """
        usual = EveryRun.method
        chosen = bundled(self.shape, self.is_table)
        own_method = chosen.get("method", usual)
        is_learned = task_of({**said, "method": usual}) in trait("method", own_method, "tasks")
        method = said.get("method", own_method if is_learned else usual)
        if method not in METHODS.names:
            return {}  # Other methods have none; what is none is refused where all is checked.
        if method != own_method:
            chosen = bundled(self.shape, self.is_table, "deep_ensemble")
        names = {"method": method, "model": chosen.get("model", "cnn"), **said, "dataset": "arrays"}
        own = fields_for(names)
        kept = {"method", "model", "num_epochs", "scaler", "dropout"}
        if "optimizer" in own and not said.keys() & {"optimizer", "learning_rate"}:
            kept |= chosen.keys()
        # Only one of num_epochs and num_steps sets the duration; without a validation split there
        # is nothing to look at.
        kept -= {"num_epochs"} if "num_steps" in said else set()
        kept -= {"early_stopping_epochs"} if said.get("train_on_all") else set()
        return {
            key: one
            for key, one in chosen.items()
            if key in own and key not in said and (key in kept or key.startswith(_MLP))
        }


def bundled(shape: Sequence[int], is_table: bool, variant: str = "") -> ByName:
    """Returns what a bundled configuration says for examples of a shape, beside the data.

    Args:
        shape: of one example.
        is_table: whether examples are rows of a table.
        variant: of `configs/tabular.py`.
    """
    from ensemble.configs import arrays, images, tabular  # Of a program's own data alone.

    if is_table:
        chosen = tabular.get_config(variant)
    else:
        chosen = (images if len(shape) > 1 else arrays).get_config()
    sides = shape[1:] if is_channels_first(shape) else shape[:2]
    if len(shape) > 1 and min(sides) < _SMALLEST_IMAGE:
        chosen["model"] = "mlp"
    return {key: one for key, one in chosen.items() if key not in ("dataset", "likelihood")}


def recognise(data: Any, kind: str | None = None, target: str = "", name: str = "arrays") -> Given:
    """Recognises the form of what a program hands over.

    Args:
        data: Data in one of the forms above.
        kind: `labels` or `targets`, what y is; None: targets if y holds fractions, else labels, and
            of a column of a table as of `columns.kind_of_target`.
        target: Column of data frames that is y; empty: y is given beside them.
        name: Name of the data, for messages.

    Raises:
        InputError: The data are in no such form.
    """
    found = {}
    kinds = set()
    for split, key, values in _named(data, "data", target):
        if key in ("labels", "targets"):
            kinds.add(key)
            key = "y"
        if (split, key) in found:
            raise InputError(f"{name} has {key!r} twice; give it once")
        found[split, key] = values
    weights = found.pop((POOL, WEIGHTS), None)
    class_names = found.pop((POOL, "class_names"), None)
    splits = [one for one in (POOL, *SPLITS) if (one, "inputs") in found]
    wanted = {(one, key) for one in splits for key in ("inputs", "y")}
    if found.keys() != wanted or (splits != [POOL] and splits[:1] != ["train"]):
        each = sorted(key if split == POOL else f"{split}_{key}" for split, key in found)
        names = ", ".join(each) or "(none)"
        raise InputError(f"{name} has the arrays {names}; expected are {_EXPECTED}")
    examples = {one: Examples(found[one, "inputs"], found[one, "y"]) for one in splits}
    has_tables = any(is_table(x) or isinstance(x, Mapping) for x, _ in examples.values())
    if not kinds:
        kinds = {kind or _kind(y, target, has_tables) for _, y in examples.values()}
    kind = "targets" if "targets" in kinds else "labels"
    return Given(examples, has_tables, kind, class_names, weights)


def _named(data, what: str, target: str = "") -> Iterator[Any]:
    """Yields splits, or `POOL`, keys of `own_arrays`, or `y`, and their arrays."""
    if is_table(data):
        if not target:
            raise InputError(
                f"{what} is a {type(data).__name__}: set config.target to the column to learn, or "
                "give (X, y)"
            )
        from ensemble.data.tables.columns import take_target  # Most data are no tables.

        pair: Any = take_target(data, target, what)
    elif isinstance(data, Mapping):
        if {"data", "target"} <= data.keys():  # scikit-learn's, with more.
            data = {key: data[key] for key in ("data", "target", "target_names") if key in data}
        for key, values in data.items():
            split, name = _parted(str(key))
            if name:
                yield split, _NAMES.get(name, name), values
            else:
                for _, inner, one in _named(values, f"{what}[{key!r}]", target):
                    yield split, inner, one
        return
    elif _is_pair(data) and all(hasattr(one, "__array__") or isinstance(one, list) for one in data):
        pair = data
    else:
        yield from _of_batches(data, what)
        return
    yield POOL, "inputs", pair[0]
    yield POOL, "y", pair[1]


def _parted(key: str) -> tuple[str, str]:
    """A key as split and rest: `train_inputs` and `X_train` are both of `train`."""
    first, _, rest = key.partition("_")
    start, _, last = key.rpartition("_")
    if split_of(first):
        return split_of(first), rest
    return (split_of(last), start) if split_of(last) else (POOL, key)


def _kind(targets, target: str, has_tables: bool) -> str:
    """Whether y holds `labels` of classes or `targets`, numbers."""
    if target:
        from ensemble.data.tables.columns import Column, kind_of_target  # Likewise.

        if isinstance(targets, Column):
            return kind_of_target(targets, target)
    try:
        values = np.asarray(targets)
    except ValueError:  # Ragged, which is refused where the data are checked.
        return "labels"
    is_number = values.dtype.kind in ("iuf" if has_tables else "f")
    return "targets" if is_number and not are_classes(values) else "labels"


def _of_batches(data, what: str) -> Iterator[Any]:
    """Yields arrays that are joined from an iterable of pairs or mappings."""
    is_sequence = isinstance(data, Iterable) and not isinstance(data, str | bytes | np.ndarray)
    batches = [
        dict(zip(("inputs", "y"), one, strict=True)) if _is_pair(one) else one
        for one in (data if is_sequence else ())
    ]
    if not batches or not all(isinstance(one, Mapping) for one in batches):
        raise InputError(f"{what} is a {type(data).__name__}, not inputs and targets; {_REMEDY}")
    try:
        is_single = any(np.ndim(one) == 0 for one in batches[0].values())
        join: Any = np.stack if is_single else np.concatenate
        found = {key: join([np.asarray(one[key]) for one in batches]) for key in batches[0]}
    except (KeyError, ValueError) as error:
        raise InputError(
            f"the batches of {what} have different shapes or names ({error}); {_REMEDY}"
        ) from None
    yield from _named(found, what)


def _is_pair(values) -> bool:
    return isinstance(values, tuple | list) and len(values) == 2


# Arrays in files: npz files, which are read, and folders of npy files, which are mapped.


def given_files(name: str, request: Request) -> Parts:
    """Returns the examples of an npz file or a folder of npy files as they are given.

    Both hold the arrays of `own_arrays`, a folder in a file each: `train_inputs.npy`,
    `train_labels.npy` and so on. Inputs in a folder may be larger than the memory: they are looked
    through in blocks before training, and batches are read by their indices. Labels, and the
    indices of splits that are carved, are in memory.

    Raises:
        InputError: A file cannot be used.
    """
    kind, _, path = name.partition(":")
    if kind == "npz":
        return check_arrays(recognise(read_npz(path), name=name), name)
    arrays = {}
    for file in sorted(local_path(path).glob("*.npy")):
        with reading(f"{name}: {file.name}"):
            array = map_array(file)
        arrays[file.stem] = array if file.stem.endswith("inputs") else np.array(array)
    return check_arrays(recognise(arrays, name=name), name, stays_on_disk=True)


def read_npz(path: str) -> dict[str, NDArray]:
    """Reads every array of an npz file; the keys are checked by `check_arrays`.

    Raises:
        InputError: The file is absent, no npz, damaged, or holds pickled objects.
    """
    with reading(f"npz:{path}"):
        return read_arrays(local_path(path), max_data_bytes())
