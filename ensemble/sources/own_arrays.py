"""The user's own data: arrays and npz files, checked before they are used.

Every form, folders of images too, comes down to a mapping of arrays with these keys, which are also
those of an npz file:

* `inputs` and `labels`: one pool of examples, to be split; or
* `train_inputs` and `train_labels`, and any of `validation_*`, `calibration_*` and `test_*`: splits
  as given;
* optionally `class_names`: one name per class, in the order of the labels;
* `targets` in place of `labels` where they are real numbers, for regression;
* optionally beside every `targets`, with its prefix: `censored`, whether the target is at least the
  given number, and `target_errors`, standard deviations of measurement;
* optionally `sample_weight`: how much each example of the pool, or of `train`, counts in the loss.

Arrays may be memory maps that are larger than the memory: inputs are looked at in blocks, and are
brought to their type by `OwnData.convert` when they are read. Labels fit in memory.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble import target_rows
from ensemble.errors import UserError, in_one_line
from ensemble.notes import note
from ensemble.rounding import note_rounding
from ensemble.source import Source, Stored, block_size, blocks
from ensemble.sources.copies import digest_examples
from ensemble.sources.image_form import is_channels_first, to_channels_last
from ensemble.sources.labels import MAX_NAMED, classes
from ensemble.sources.splitting import POOL, SPLITS
from ensemble.storage.memory import memory_bytes
from ensemble.storage.npz import Pickled, read_arrays
from ensemble.storage.paths import is_remote
from ensemble.target_rows import ANNOTATIONS, CENSORED, ERROR, VALUE, annotation

WEIGHTS = "sample_weight"

EXPECTED_KEYS = (
    "inputs and labels, or train_inputs and train_labels with any of validation_*, calibration_* "
    "and test_*; class_names and sample_weight are optional; targets in place of labels are real "
    "numbers, with censored or target_errors beside each of them if wanted"
)
_TURNED = (
    "{}: {}inputs of shape {} are taken for images [N, C, H, W], and turned to [N, H, W, C]; if "
    "axis 1 is their height, swap it with the width."
)

_TO_COLUMNS = ", and texts by a column of 0 and 1 for each, as by pandas.get_dummies"


class Summary(NamedTuple):
    """What is known of the inputs of a part without reading them.

    Attributes:
        digests: uint64 [N], by `copies.digest_examples`.
        low: [N], the least value of each example.
        high: [N], the largest.
    """

    digests: NDArray[np.uint64]
    low: np.ndarray
    high: np.ndarray

    def at(self, rows: np.ndarray | None) -> Summary:
        """Takes some rows; None: all."""
        return self if rows is None else Summary(*(column[rows] for column in self))


class OwnData(NamedTuple):
    """Checked arrays.

    Attributes:
        inputs: of each given split, or of `POOL` alone where no split is given: `[N, F]` or
            `[N, H, W, C]`, of the type in which they were given.
        targets: of the same, int32 `[N]` of classes, else float32 `[N]` or `[N, D]`, or rows of
            `ensemble.target_rows`.
        input_dtype: uint8 or float32, which `convert` brings inputs to.
        class_names: one name per class; None where targets are real numbers.
        weights: float32 `[N]`, how much each example of the pool or of `train` counts in the loss;
            None: all the same.
        known: of the parts, where it is known without reading inputs.
    """

    inputs: Mapping[str, Stored]
    targets: dict[str, np.ndarray]
    input_dtype: np.dtype
    class_names: tuple[str, ...] | None
    weights: np.ndarray | None = None
    known: Mapping[str, Summary] | None = None

    def convert(self, inputs: np.ndarray) -> np.ndarray:
        """Brings inputs to the type in which they are kept."""
        return inputs.astype(self.input_dtype, copy=False)

    def train_weights(self, rows: np.ndarray | None) -> np.ndarray | None:
        """Weights of the training examples, which are these rows of `weights`, None: all."""
        return self.weights if self.weights is None or rows is None else self.weights[rows]

    def digests(self, part: str) -> NDArray[np.uint64]:
        """Digests [N] of a part's inputs: equal ones are of equal inputs."""
        if self.known is not None:
            return self.known[part].digests
        return digest_examples(self.inputs[part], self.input_dtype)


def read_npz(path: str) -> dict[str, np.ndarray]:
    """Reads every array of an npz file; the keys are checked by `check_arrays`.

    Raises:
        UserError: if the file is absent, no npz, damaged, or holds pickled objects.
    """
    file = local_path(path)
    if not file.is_file():
        raise UserError(f"npz:{path}: there is no file {file.absolute()}; check the path")
    if not zipfile.is_zipfile(file):
        raise UserError(f"npz:{path} is not an npz file; write one with numpy.savez_compressed")
    try:
        return read_arrays(file, max_data_bytes())
    except Pickled as error:
        raise UserError(
            f"npz:{path}: {error}, which are never loaded since they can run code; save it as an "
            "array of numbers (class_names: of strings)"
        ) from error
    except ValueError as error:
        raise UserError(f"npz:{path} is damaged ({in_one_line(error)}); write it again") from error


def local_path(path: str) -> Path:
    """A path as a user gives it.

    Raises:
        UserError: there can be no such path, or it is not on a disk.
    """
    if is_remote(path):
        raise UserError(
            f"{path} is not on a disk, from which such data are read: copy it there, as by gcloud "
            "storage cp --recursive, or write records to the bucket: ensemble convert"
        )
    try:
        local = Path(path).expanduser()
        local.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} is no path: {in_one_line(error)}") from None
    return local


def max_data_bytes() -> int:
    """What one data set may take: while it is checked and split there are some copies."""
    return memory_bytes() // 4


def check_inputs(values: Any, dtype: np.dtype, what: str) -> np.ndarray:
    """Checks examples to predict and brings them to the type of the training data.

    Args:
        values: `[N, F]`, `[N, H, W]` or `[N, H, W, C]`.
        dtype: uint8 or float32.
        what: they are, for messages.

    Raises:
        UserError: if they cannot be of that type, and why.
    """
    array = _numeric(values, what)
    _check_shape(array, array, what)
    if dtype != np.uint8:
        _check_finite(array, what)
        return array.astype(np.float32, copy=False)
    is_bad = ~((array >= 0) & (array <= 255) & (array == np.floor(array)))
    if is_bad.any():
        raise UserError(
            f"{what} holds {array[is_bad][0]}; the training data were whole numbers 0..255: give "
            "inputs on that scale"
        )
    return array.astype(np.uint8, copy=False)


def check_arrays(arrays: Mapping[str, Any], name: str) -> OwnData:
    """Checks arrays, and says of which type they are kept.

    Whole numbers that all fit 0..255 are kept as uint8, every other number as float32; `[N, H, W]`
    becomes `[N, H, W, 1]`, and `[N, C, H, W]` that can be nothing else `[N, H, W, C]`.

    Args:
        arrays: by the keys that the module describes.
        name: of the data, for messages.

    Raises:
        UserError: naming the first array that cannot be used, and why.
    """
    prefixes, kind, annotations = _check_keys(arrays, name)
    inputs = {p: _numeric(arrays[f"{p}inputs"], f"{name}: {p}inputs") for p in prefixes}
    given = {f"{name}: {p}{kind}": arrays[f"{p}{kind}"] for p in prefixes}
    class_names = None
    if kind == "labels":
        checked, class_names = classes(given, arrays.get("class_names"), name)
    else:
        checked = {what: _check_numbers(values, what) for what, values in given.items()}
    targets = dict(zip(prefixes, checked.values(), strict=True))
    for prefix in prefixes:
        if len(inputs[prefix]) != len(targets[prefix]):
            raise UserError(
                f"{name}: {prefix}inputs has {len(inputs[prefix])} examples but {prefix}{kind} has "
                f"{len(targets[prefix])}; each example needs one {kind[:-1]}"
            )
    for prefix in prefixes:
        said = {one: arrays[f"{prefix}{one}"] for one in annotations}
        targets[prefix] = _with_annotations(targets[prefix], said, f"{name}: {prefix}")
    tell(targets, name)
    first = next(iter(inputs.values()))
    is_uint8 = all(_fits_uint8(array) for array in inputs.values())
    for prefix, array in inputs.items():
        _check_shape(array, first, f"{name}: {prefix}inputs")
        if not is_uint8:
            _check_finite(array, f"{name}: {prefix}inputs")
            note_rounding(array, f"{name}: {prefix}inputs")
        if array.ndim == 3:
            inputs[prefix] = array[..., None]
        elif is_channels_first(array.shape[1:]):
            inputs[prefix] = to_channels_last(array)
            if array is first:
                note(_TURNED.format(name, prefix, array.shape))
    return OwnData(
        inputs={p.removesuffix("_") or POOL: inputs[p] for p in prefixes},
        targets={p.removesuffix("_") or POOL: targets[p] for p in prefixes},
        input_dtype=np.dtype(np.uint8 if is_uint8 else np.float32),
        class_names=class_names,
        weights=_check_weights(arrays.get(WEIGHTS), len(targets[prefixes[0]]), name),
    )


def _check_keys(arrays: Mapping[str, Any], name: str) -> tuple[list[str], str, list[str]]:
    """The prefixes of the parts that are given, `['']` or `['train_', ...]`; labels or targets; and
    which annotations these have."""
    kind = "targets" if {"targets", "train_targets"} & set(arrays) else "labels"
    found = set(arrays) - ({"class_names", WEIGHTS} if kind == "labels" else {WEIGHTS})
    given = [split for split in SPLITS if {f"{split}_inputs", f"{split}_{kind}"} & found]
    prefixes = [f"{split}_" for split in given] if "train" in given else [""]
    annotations = [one for one in ANNOTATIONS if any(key.endswith(one) for key in found)]
    columns = ("inputs", kind, *(annotations if kind == VALUE else ()))
    expected = {f"{prefix}{what}" for prefix in prefixes for what in columns}
    if found != expected:
        raise UserError(
            f"{name} has the arrays {', '.join(sorted(map(str, arrays))) or '(none)'}; "
            f"expected are {EXPECTED_KEYS}"
        )
    return prefixes, kind, annotations


def _numeric(values: Any, what: str) -> np.ndarray:
    """Values as a real-valued array that is not empty."""
    if hasattr(values, "toarray"):  # NumPy would take it for one object.
        raise UserError(
            f"{what} is sparse, a {type(values).__name__}; give an array, as its toarray() does"
        )
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UserError(f"{what} is ragged; every example must have the same shape") from error
    if array.dtype.kind not in "buif":
        raise UserError(
            f"{what} has dtype {array.dtype}; it must hold integers or floating-point numbers: "
            f"convert numbers by astype(float){_TO_COLUMNS if what.endswith('inputs') else ''}"
        )
    if array.ndim == 0:
        raise UserError(f"{what} is a single number; give an array of examples")
    if array.size == 0:
        raise UserError(
            f"{what} has shape {array.shape}, which is empty; give at least one example"
        )
    return array


def _check_shape(array: np.ndarray, first: np.ndarray, what: str) -> None:
    if array.ndim not in (2, 3, 4):
        raise UserError(
            f"{what} has shape {array.shape}; inputs are feature vectors [N, F] or images "
            f"[N, H, W] or [N, H, W, C]"
        )
    if array.shape[1:] != first.shape[1:]:
        raise UserError(
            f"{what} has examples of shape {array.shape[1:]}, the first split has "
            f"{first.shape[1:]}; they must be the same"
        )


def _fits_uint8(array: np.ndarray) -> bool:
    if array.dtype == np.uint8:
        return True  # Without looking at every value.
    return array.dtype.kind in "bui" and array.min() >= 0 and array.max() <= 255


def _check_finite(array: np.ndarray, what: str) -> None:
    size = block_size(array.shape[1:])
    for start in range(0, len(array), size):
        block = array[start : start + size]
        with np.errstate(over="ignore"):
            is_bad = ~np.isfinite(block.astype(np.float32, copy=False))
        if is_bad.any():
            where = np.unravel_index(np.argmax(is_bad), block.shape)
            raise UserError(
                f"{what} holds {block[where]} in example {start + where[0]}; every value must be "
                "finite in float32: remove or replace it"
            )


_LARGE_POSITIVE, _LARGE = 2, 20
"""Images of positive numbers to above the one, or of any numbers beyond the other, are not
normalised, and are divided by the largest."""


def shift_and_scale(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """What normalises own data, from its training inputs, which are read in blocks.

    Returns:
        float32: for feature vectors their mean and inverse standard deviation `[F]` (1 where a
        feature is constant); for uint8 images, and float images far beyond 0..1, 0 and what makes
        the largest training value 1; other float images stay as they are, 0 and 1.
    """
    shift: Any = 0
    scale: Any = 1
    if len(source.input_shape) == 1:
        num_examples, first = source.sizes["train"], source.read("train", slice(1)).inputs
        total, is_constant = np.zeros(first.shape[1:]), np.ones(first.shape[1:], bool)
        for block in blocks(source, "train"):
            total += block.inputs.sum(axis=0, dtype=np.float64)
            is_constant &= (block.inputs == first).all(axis=0)
        shift, total = total / num_examples, np.zeros_like(total)
        for block in blocks(source, "train"):
            centred = block.inputs - shift
            total += np.multiply(centred, centred, out=centred).sum(axis=0)
        scale = 1 / np.where(is_constant, 1, np.sqrt(total / num_examples))
    elif source.input_dtype == np.uint8:
        scale = 1 / max(1, source.value_range("train")[1])
    else:
        low, high = source.value_range("train")
        if (low >= 0 and high > _LARGE_POSITIVE) or max(-low, high) > _LARGE:
            scale = 1 / max(-low, high)
            note(
                f"{source.name}: images are floating-point numbers from {low:g} to {high:g}, so "
                f"they are divided by {max(-low, high):g}; scale them yourself if you want another "
                "range."
            )
    return np.asarray(shift, np.float32), np.asarray(scale, np.float32)


def _check_weights(values: Any, num_examples: int, name: str) -> np.ndarray | None:
    """Weights of training examples, float32 `[N]`; None where there are none."""
    if values is None:
        return None
    what = f"{name}: {WEIGHTS}"
    weights = _numeric(values, what)
    if weights.shape != (num_examples,):
        raise UserError(
            f"{what} has shape {weights.shape}; it is [N], a weight for each of the {num_examples} "
            "examples to learn"
        )
    _check_finite(weights, what)
    if not (weights > 0).all():
        raise UserError(
            f"{what} holds {weights.min()}; weights must be positive: leave out examples that are "
            "not to count"
        )
    return (weights / weights.mean()).astype(np.float32)


def warn_of_absent_classes(source: Source) -> None:
    """Notes it if targets are classes, and no training example is of one of them."""
    names = source.class_names
    if names is None:
        return
    counts = np.bincount(source.targets("train"), minlength=len(names))
    absent = [names[int(label)] for label in np.flatnonzero(counts == 0)]
    if absent:
        shown = ", ".join(absent[:MAX_NAMED]) + (", ..." if len(absent) > MAX_NAMED else "")
        note(f"{source.name}: no training example of {len(absent)} of its classes: {shown}.")


def _check_numbers(values: Any, what: str) -> np.ndarray:
    """Real-valued targets, float32 `[N]`, or several `[N, D]`."""
    targets = _numeric(values, what)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim > 2:
        raise UserError(
            f"{what} has shape {targets.shape}; targets are [N], one number per example, or [N, D]"
        )
    _check_finite(targets, what)
    note_rounding(targets, what)
    return targets.astype(np.float32)


# What is said of single targets: that they are censored, how well measured.


def _with_annotations(values: np.ndarray, given: Mapping[str, Any], what: str) -> np.ndarray:
    """Puts annotations beside targets.

    Args:
        values: float32 [N].
        given: some of `target_rows.ANNOTATIONS` by name, [N] each.
        what: the data are, and the prefix of their keys, for messages.

    Returns:
        Rows as of `target_rows.joined`.

    Raises:
        UserError: naming the annotations that cannot be used, and why.
    """
    if given and values.ndim > 1:
        raise UserError(
            f"{what}targets has shape {values.shape}; {' and '.join(given)} are for a single "
            "target [N]: train on one column at a time"
        )
    found = {target_rows.VALUE: values}
    for name, one in given.items():
        try:
            array = np.asarray(one)
        except ValueError:
            raise UserError(f"{what}{name} is ragged; it is [N], one for each target") from None
        if array.dtype.kind not in "buif" or array.shape != values.shape:
            raise UserError(
                f"{what}{name} has shape {array.shape} and dtype {array.dtype}; it is [N], one "
                f"{'bool' if name == CENSORED else 'number'} for each of the "
                f"{len(values)} targets"
            )
        check = _flags if name == CENSORED else _deviations
        found[name] = check(array, f"{what}{name}")
    return target_rows.joined(found)


def tell(targets: Mapping[str, np.ndarray], name: str) -> None:
    """Notes what annotations on the targets of some parts do to scores and predictions."""
    flags = [annotation(one, CENSORED) for one in targets.values()]
    found = [one for one in flags if one is not None]
    if found:
        note(
            f"{name}: {sum(int(one.sum()) for one in found)} of {sum(map(len, found))} targets are "
            "censored. The NLL scores them by the probability of their value or more; RMSE, CRPS, "
            "coverage and pictures are of the others."
        )
    if any(annotation(one, ERROR) is not None for one in targets.values()):
        note(
            f"{name}: targets have errors of measurement. Scores are of the targets as measured; "
            "predictions, and their aleatoric variance, are of the targets without these errors."
        )


def _flags(array: np.ndarray, what: str) -> np.ndarray:
    """Bool [N]."""
    is_bad = (array != 0) & (array != 1)
    if is_bad.any():
        raise UserError(
            f"{what} holds {array[is_bad][0]} in example {is_bad.argmax()}; give True where the "
            "target is at least the given value, False where it is that value"
        )
    return array.astype(bool)


def _deviations(array: np.ndarray, what: str) -> np.ndarray:
    """Standard deviations [N], float32."""
    with np.errstate(over="ignore"):
        errors = array.astype(np.float32)
    is_bad = ~(np.isfinite(errors) & (errors >= 0))
    if is_bad.any():
        raise UserError(
            f"{what} holds {array[is_bad][0]} in example {is_bad.argmax()}; give the standard "
            "deviation of each measurement, finite and not negative"
        )
    return errors
