"""Inputs made or taken for an evaluation, and what the members predict of them."""

import contextlib
import functools
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from ensemble.errors import UserError, in_one_line
from ensemble.evaluation import out_of_distribution as ood
from ensemble.evaluation.class_predictions import ClassPredictions
from ensemble.evaluation.shift import SHIFTS, shift_images
from ensemble.evaluation.subject import Subject
from ensemble.likelihood import Likelihood
from ensemble.run.display import open_display
from ensemble.run.progress import Progress
from ensemble.source import SplitInputs, block_size, check_in_memory, in_memory, value_range
from ensemble.sources.catalogue import (
    KNOWN_DATASETS,
    find_entry,
    load_test_inputs,
    sets_of_shape,
)
from ensemble.sources.image_form import parse_size
from ensemble.sources.tfds_records import set_name
from ensemble.storage.npz import max_bytes, read_arrays
from ensemble.storage.predictions import check_predictions, write_arrays

SHIFT, NONE = "shift", "none"
SEVERITIES = range(1, 6)


class DerivedSet(NamedTuple):
    """Inputs that the members are to predict.

    Attributes:
        name: such as `shift/rotation/3` or `fashion_mnist`.
        content: whatever the inputs are a function of.
        num_examples: N.
        make: returns the inputs [N, ...], which are read in slices.
    """

    name: str
    content: str
    num_examples: int
    make: Callable[[], np.ndarray | SplitInputs]


def plan(subject: Subject, datasets: Sequence[str] | None) -> list[DerivedSet]:
    """Says what to predict beside the test split.

    Args:
        subject: of the evaluation.
        datasets: `shift`, `uniform`, `constant` and names of data sets; or `none`. None: all that
            there are here, without preparing any.

    Raises:
        UserError: a name is unknown, or its data have another shape or cannot be had.
    """
    if datasets is not None and (not datasets or list(datasets) == [NONE]):
        return []
    if subject.dataset is None:
        if datasets is None:
            return []
        raise UserError(
            f"--datasets={','.join(datasets)} needs the data of {subject.work.path}, which cannot "
            f"be had here: {subject.why_no_data}; or use --datasets={NONE}"
        )
    if datasets is None:
        datasets = _default_names(subject)
    if NONE in datasets:
        raise UserError(f"--datasets={','.join(datasets)}: {NONE} stands alone")
    return [one for name in dict.fromkeys(datasets) for one in _sets(subject, name)]


def _sets(subject: Subject, name: str) -> list[DerivedSet]:
    """What one name stands for."""
    dataset = subject.dataset
    assert dataset is not None
    shape, dtype, num_examples = dataset.input_shape, dataset.input_dtype, dataset.sizes["test"]
    if name == SHIFT:
        if not dataset.has_pictures:
            raise UserError(
                f"--datasets={SHIFT} is for images [H, W, C]; {dataset.name} has inputs of shape "
                f"{shape}: leave it out"
            )
        low_high = value_range(dataset, "train")

        def shifted(kind: str, severity: int) -> np.ndarray:
            images = in_memory(dataset, "test").inputs
            return shift_images(images, kind, severity, value_range=low_high)

        return [
            DerivedSet(
                f"{SHIFT}/{kind}/{severity}",
                f"{dataset.fingerprint} {low_high} {shift.amounts}",
                num_examples,
                functools.partial(shifted, kind, severity),
            )
            for kind, shift in SHIFTS.items()
            for severity in SEVERITIES
        ]
    if name == ood.UNIFORM:
        low_high = value_range(dataset, "train")
        check_in_memory(dataset, "test")
        make = functools.partial(ood.uniform_noise, (num_examples, *shape), low_high, dtype)
        return [DerivedSet(name, f"{dataset.fingerprint} {low_high}", num_examples, make)]
    if name == ood.CONSTANT:
        low_high = value_range(dataset, "train")
        inputs: np.ndarray | SplitInputs = ood.constant_inputs(shape, low_high, dtype)
    else:
        inputs = _other_dataset(subject, name)
    return [DerivedSet(name, _digest_of(inputs), len(inputs), lambda: inputs)]


def _digest_of(inputs: np.ndarray | SplitInputs) -> str:
    digest = hashlib.blake2b()
    size = block_size(inputs[:1].shape[1:])
    for start in range(0, len(inputs), size):
        digest.update(np.ascontiguousarray(inputs[start : start + size]).data)
    return digest.hexdigest()


def _default_names(subject: Subject) -> list[str]:
    assert subject.dataset is not None
    shape, own_name = subject.dataset.input_shape, subject.dataset.name
    found = sets_of_shape(shape, subject.data_dir(own_name))
    others = [name for name in found if name != set_name(own_name)]
    return [*([SHIFT] if subject.dataset.has_pictures else []), *others, ood.UNIFORM, ood.CONSTANT]


def _other_dataset(subject: Subject, name: str) -> SplitInputs:
    """Inputs [N, ...] of another set: its test split, or all of own data that has none."""
    assert subject.dataset is not None
    entry = find_entry(name)
    if entry is None:
        raise UserError(
            f"--datasets={name} is unknown; choose from {SHIFT}, {ood.UNIFORM}, {ood.CONSTANT}, "
            f"{', '.join(KNOWN_DATASETS)}, or {NONE}"
        )
    if set_name(name) == set_name(subject.dataset.name):
        raise UserError(f"--datasets={name} is what the ensemble has learned; leave it out")
    shape = subject.dataset.input_shape
    if entry.input_shape is not None:
        ood.check_same_shape(name, entry.input_shape, shape)  # Before it is prepared.
    size = parse_size(subject.config.get("resize"))
    inputs = load_test_inputs(name, subject.data_dir(name), size)
    ood.check_same_shape(name, inputs.source.input_shape, shape)
    return inputs


def predict(
    subject: Subject, sets: Sequence[DerivedSet], directory: epath.Path, show_progress: bool = True
) -> Mapping[str, ClassPredictions]:
    """Predicts sets, except those whose predictions are in the directory already.

    Args:
        subject: of the evaluation.
        sets: to predict.
        directory: where predictions are kept, one npz file each.
        show_progress: as `ensemble.train` has it.

    Returns:
        Of the members that `subject.test` has, by name.

    Raises:
        UserError: a member predicts NaN.
    """
    sources = {one.name: _digest(subject.fingerprint, one.name, one.content) for one in sets}
    num_members, _, num_classes = subject.test.log_probs.shape
    found = {
        one.name: _read(
            _path(directory, one.name),
            sources[one.name],
            (num_members, one.num_examples, num_classes),
            subject.likelihood,
        )
        for one in sets
    }
    missing = [one for one in sets if found[one.name] is None]
    done, total = 0, sum(one.num_examples for one in missing)
    with (
        open_display(show_progress and bool(missing)) as display,
        Progress(0, total, "predicting", "example", display) as progress,
    ):
        for i, one in enumerate(missing):
            predictions = _predictions(subject, one)
            with write_errors(directory):
                _write(_path(directory, one.name), predictions, sources[one.name])
            found[one.name] = predictions
            done += one.num_examples
            progress.line(done, f"predicted {one.name}, {i + 1} of {len(missing)}")
    return {name: each for name, each in found.items() if each is not None}


@contextlib.contextmanager
def write_errors(directory: epath.Path) -> Iterator[None]:
    """Turns what a full or closed disk raises into one line.

    Raises:
        UserError: as said.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise UserError(
            f"{directory} cannot be written: {error.strerror or error}; free space there, or "
            "choose another --out"
        ) from error


def _predictions(subject: Subject, one: DerivedSet) -> ClassPredictions:
    members = subject.test.members.tolist()
    rows = [subject.predictor.members.index(k) for k in members]
    try:
        members_say = subject.predictor.predict_members(one.make()).of_members(rows)
        predictions = ClassPredictions.of(members_say.arrays)
    except UserError:
        raise
    except ValueError as error:  # Of parameters that overflow.
        raise UserError(f"{one.name} cannot be predicted: {in_one_line(error)}") from None
    bad = np.isnan(predictions.log_probs).any(axis=(1, 2))
    if bad.any():
        raise UserError(
            f"member {members[int(np.argmax(bad))]} predicts NaN on {one.name}; leave it out of "
            "--datasets"
        )
    return predictions


def _path(directory: epath.Path, name: str) -> epath.Path:
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
    if readable.replace("_", "/") != name.replace("_", "/"):
        readable = f"{readable[-60:]}_{zlib.crc32(name.encode()):08x}"
    return directory / f"{readable}.npz"


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _read(
    path: epath.Path, source: str, shape: tuple[int, ...], likelihood: Likelihood
) -> ClassPredictions | None:
    """What was kept from the same source; None if there is nothing, or it cannot be used.

    Args:
        path: of the file.
        source: of what is wanted.
        shape: [M, N, C] of it.
        likelihood: of the run.
    """
    try:
        if not path.exists() or path.stat().length > max_bytes():
            return None
        arrays = read_arrays(io.BytesIO(path.read_bytes()), max_bytes())
        if str(arrays["source"]) != source or arrays["log_probs"].shape != shape:
            return None
        predictions = ClassPredictions.of(arrays)
        check_predictions(predictions.arrays.arrays, None, likelihood)
    except (OSError, ValueError, KeyError):
        return None
    return predictions


def _write(path: epath.Path, predictions: ClassPredictions, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arrays(
        path, predictions.arrays, np.savez, source=source
    )  # Compressing them gains little.
