"""Inputs made or taken for an evaluation, and what the members predict of them."""

import contextlib
import functools
import hashlib
import logging
import math
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from ensemble.batched_prediction import Keep
from ensemble.errors import UserError, in_one_line
from ensemble.evaluation import out_of_distribution as ood
from ensemble.evaluation.profile import MARGIN, NUM_POINTS, can_profile, profile_inputs
from ensemble.evaluation.shift import SHIFTS, shifted_pieces
from ensemble.evaluation.subject import Subject
from ensemble.evaluation.table_shift import (
    box,
    columns_of,
    is_table,
    shift_table,
    shifts_of,
)
from ensemble.likelihood import Likelihood
from ensemble.run.progress import Progress, open_display
from ensemble.source import (
    AnyInputs,
    MadeInputs,
    Source,
    SplitInputs,
    block_size,
    check_in_memory,
    in_memory,
)
from ensemble.sources.catalogue import (
    KNOWN_DATASETS,
    find_entry,
    load_test_inputs,
    sets_of_shape,
)
from ensemble.sources.image_form import parse_size
from ensemble.sources.tables.table_files import rows_of_files
from ensemble.sources.tfds_records import set_name
from ensemble.storage.memory import max_bytes
from ensemble.storage.paths import is_remote
from ensemble.storage.predictions import (
    MemberPredictions,
    StoredPredictions,
    check_predictions,
    map_predictions,
    write_arrays,
)

logger = logging.getLogger("ensemble")

SHIFT, NONE = "shift", "none"
BOX, OUTSIDE = "box", "outside"
"""Rows of a table: each column by itself, drawn evenly from its training range, or beyond it."""
PROFILE = "profile"
"""Rows of a table in which one column moves: `numbers.profile`."""
_MARGIN = 1.0  # Training ranges to either side that `OUTSIDE` draws from.
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
    make: Callable[[], AnyInputs]


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
    names = _default_names(subject) if datasets is None else datasets
    if NONE in names:
        raise UserError(f"--datasets={','.join(names)}: {NONE} stands alone")
    found: list[DerivedSet] = []
    for name in dict.fromkeys(names):
        try:
            found += _sets(subject, name)
        except UserError as error:
            if datasets is not None or find_entry(name) is None:
                raise
            logger.warning("%s is left out of the other data: %s", name, error)
    return found


def _sets(subject: Subject, name: str) -> list[DerivedSet]:
    """What one name stands for."""
    dataset = subject.dataset
    assert dataset is not None
    shape, dtype, num_examples = dataset.input_shape, dataset.input_dtype, dataset.sizes["test"]
    if name in (SHIFT, BOX, OUTSIDE, PROFILE) and is_table(dataset):
        return _table_sets(dataset, name)
    if name in (BOX, OUTSIDE, PROFILE) or (name == SHIFT and not dataset.has_pictures):
        also = "images [H, W, C] and " if name == SHIFT else ""
        raise UserError(
            f"--datasets={name} is for {also}tables of floating-point columns; {dataset.name} has "
            f"{dtype} inputs of shape {shape}: leave it out"
        )
    if name == SHIFT:
        low_high = dataset.value_range("train")

        images = SplitInputs(dataset, "test")

        def shifted(kind: str, severity: int) -> MadeInputs:
            make = functools.partial(shifted_pieces, images, kind, severity, value_range=low_high)
            return MadeInputs(num_examples, make)

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
        low_high = dataset.value_range("train")
        noise = functools.partial(ood.uniform_noise, (num_examples, *shape), low_high, dtype)
        make = functools.partial(MadeInputs, num_examples, noise)
        return [DerivedSet(name, f"{dataset.fingerprint} {low_high}", num_examples, make)]
    if name == ood.CONSTANT:
        low_high = dataset.value_range("train")
        inputs: np.ndarray | SplitInputs = ood.constant_inputs(shape, low_high, dtype)
    else:
        inputs = _other_dataset(subject, name)
    return [DerivedSet(name, _digest_of(inputs), len(inputs), lambda: inputs)]


def _table_sets(dataset: Source, name: str) -> list[DerivedSet]:
    """The shifts of a table, or made rows."""
    columns, num_examples = columns_of(dataset), dataset.sizes["test"]
    check_in_memory(dataset, "test")
    content = f"{dataset.fingerprint} {_digest(*map(np.ndarray.tobytes, columns))}"
    if name == PROFILE:
        num_rows = dataset.input_shape[0] * NUM_POINTS
        make_rows = functools.partial(profile_inputs, dataset)
        return [DerivedSet(name, f"{content} {MARGIN}", num_rows, make_rows)]
    if name != SHIFT:
        margin = _MARGIN if name == OUTSIDE else 0.0
        make = functools.partial(box, columns, num_examples, margin, dataset.input_dtype)
        return [DerivedSet(name, f"{content} {margin}", num_examples, make)]

    def shifted(kind: str, severity: int) -> np.ndarray:
        return shift_table(in_memory(dataset, "test").inputs, kind, severity, columns)

    return [
        DerivedSet(
            f"{SHIFT}/{kind}/{severity}",
            f"{content} {shift.amounts}",
            num_examples,
            functools.partial(shifted, kind, severity),
        )
        for kind, shift in shifts_of(columns).items()
        for severity in SEVERITIES
    ]


def _digest_of(inputs: np.ndarray | SplitInputs) -> str:
    digest = hashlib.blake2b()
    size = block_size(inputs[:1].shape[1:])
    for start in range(0, len(inputs), size):
        digest.update(np.ascontiguousarray(inputs[start : start + size]).data)
    return digest.hexdigest()


def _default_names(subject: Subject) -> list[str]:
    source = subject.dataset
    assert source is not None
    shape, own_name = source.input_shape, source.name
    found = sets_of_shape(shape, subject.data_dir(own_name))
    others = [name for name in found if name != set_name(own_name)]
    made = subject.view.made_rows
    if made and is_table(source):
        return [SHIFT, *others, *(one for one in made if one != PROFILE or can_profile(source))]
    return [*([SHIFT] if source.has_pictures else []), *others, ood.UNIFORM, ood.CONSTANT]


def _other_dataset(subject: Subject, name: str) -> SplitInputs | np.ndarray:
    """Inputs [N, ...] of another set: its test split, or all of own data that has none."""
    assert subject.dataset is not None
    entry = find_entry(name)
    if entry is None:
        raise UserError(
            f"--datasets={name} is unknown; choose from {SHIFT}, {ood.UNIFORM}, {ood.CONSTANT}, "
            f"{BOX}, {OUTSIDE}, {PROFILE}, {', '.join(KNOWN_DATASETS)}, or {NONE}"
        )
    if set_name(name) == set_name(subject.dataset.name):
        raise UserError(f"--datasets={name} is what the ensemble has learned; leave it out")
    if entry.kind_of_target:
        if subject.dataset.table is None:
            raise UserError(
                f"--datasets={name} is a table with named columns, and {subject.work.path} has "
                "learned none: give its inputs as npz:PATH"
            )
        return subject.dataset.table.encode(rows_of_files(name))
    shape = subject.dataset.input_shape
    if entry.input_shape is not None:
        ood.check_same_shape(name, entry.input_shape, shape)  # Before it is prepared.
    size = parse_size(subject.config.get("resize"))
    inputs = load_test_inputs(name, subject.data_dir(name), size)
    ood.check_same_shape(name, inputs.source.input_shape, shape)
    return inputs


def predict(
    subject: Subject, sets: Sequence[DerivedSet], directory: epath.Path, show_progress: bool = True
) -> Mapping[str, MemberPredictions]:
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
    found = {
        one.name: _read(
            _path(directory, one.name),
            sources[one.name],
            one.num_examples,
            subject.test,
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
            found[one.name] = _predicted(subject, one, directory, sources[one.name])
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


def _predicted(
    subject: Subject, one: DerivedSet, directory: epath.Path, source: str
) -> MemberPredictions:
    """Predicts a set into files, which are kept in the directory and mapped from there."""
    path = _path(directory, one.name)
    with write_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    beside = None if is_remote(directory) else os.fspath(directory)
    num_bytes = 0

    def keep(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        nonlocal num_bytes
        num_bytes += (size := math.prod(shape) * dtype.itemsize)
        if num_bytes > max_bytes():
            raise UserError(
                f"the predictions of {one.name} take {num_bytes:,} bytes or more, and "
                f"{max_bytes():,} are allowed here; leave it out of --datasets"
            )
        # A file without a name: nothing of it is left, even if this process is killed.
        with write_errors(directory), tempfile.TemporaryFile(dir=beside) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, size))  # A full disk is said here.
            return np.memmap(file, dtype, "r+", shape=shape)

    predictions = _predictions(subject, one, keep)
    with write_errors(directory):  # Compressing them gains little.
        write_arrays(path, predictions, np.savez, source=source)
    found = _read(path, source, one.num_examples, subject.test, subject.likelihood)
    if found is None:
        raise UserError(f"{path} cannot be read back; look after the disk, or choose another --out")
    return found


def _predictions(subject: Subject, one: DerivedSet, keep: Keep) -> MemberPredictions:
    try:
        predictions = subject.predict(one.make(), keep)
    except UserError:
        raise
    except ValueError as error:  # Of parameters that overflow.
        raise UserError(f"{one.name} cannot be predicted: {in_one_line(error)}") from None
    bad = predictions.have_nan()
    if bad.any():
        member = subject.test.members[int(np.argmax(bad))]
        raise UserError(f"member {member} predicts NaN on {one.name}; leave it out of --datasets")
    return predictions


def _path(directory: epath.Path, name: str) -> epath.Path:
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
    if readable.replace("_", "/") != name.replace("_", "/"):
        readable = f"{readable[-60:]}_{zlib.crc32(name.encode()):08x}"
    return directory / f"{readable}.npz"


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _read(
    path: epath.Path,
    source: str,
    num_examples: int,
    test: StoredPredictions,
    likelihood: Likelihood,
) -> MemberPredictions | None:
    """What was kept from the same source; None if there is nothing, or it cannot be used.

    Args:
        path: of the file.
        source: of what is wanted.
        num_examples: N of it.
        test: predictions of the test split: both are of the same M, and where both have an array,
            of the same numbers for an example.
        likelihood: of the run.
    """
    try:
        if not path.exists() or path.stat().length > max_bytes():
            return None
        found, entries = map_predictions(path)
        if str(entries["source"]) != source:
            return None
        check_predictions(found, None, likelihood, len(test.members))
        if any(one.shape[1] != num_examples for one in found.arrays.values()):
            return None
        if found.arrays.keys() == test.arrays.keys() and any(
            one.shape[2:] != test.arrays[name].shape[2:] for name, one in found.arrays.items()
        ):
            return None
    except (OSError, ValueError, KeyError):
        return None
    return found
