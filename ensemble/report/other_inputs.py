"""Inputs other than the test split: shifted, of other data sets, made up; and their predictions."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from ensemble.data.catalogue import (
    KNOWN_DATASETS,
    find_entry,
    load_test_inputs,
    sets_of_shape,
)
from ensemble.data.image_form import parse_size
from ensemble.data.source import (
    AnyInputs,
    MadeInputs,
    Source,
    SplitInputs,
    fingerprint,
    in_memory,
)
from ensemble.data.tables.table_files import rows_of_files
from ensemble.errors import InputError, in_one_line
from ensemble.likelihoods.predictive import Predictive
from ensemble.report import shift
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.run.progress import Progress, open_display
from ensemble.storage.predictions import read_predictive, write_predictive

logger = logging.getLogger("ensemble")

SHIFT, UNIFORM, CONSTANT, NONE = "shift", "uniform", "constant", "none"
BOX, OUTSIDE = "box", "outside"
"""Tables whose columns are each drawn from their range, or from beyond it."""


class OtherInputs(NamedTuple):
    """Inputs to predict.

    Attributes:
        name: Such as `shift/rotation/3` or `fashion_mnist`.
        content: Text that the inputs are a function of.
        number: N.
        make: Returns the inputs [N, ...].
    """

    name: str
    content: str
    number: int
    make: Callable[[], AnyInputs]


def plan(run: EvaluatedRun, names: Sequence[str] | None) -> list[OtherInputs]:
    """Lists what to predict in addition to the test split.

    Args:
        run: Run to evaluate.
        names: Names of made inputs and data sets, or `none`; None: all that are installed and suit.

    Raises:
        InputError: A name is unknown, or its data are missing.
    """
    asked = names
    if names is None:
        names = _defaults(run) if run.dataset else []
    if list(names) in ([], [NONE]):
        return []
    if run.dataset is None:
        raise InputError(
            f"--extra_datasets={','.join(names)} needs the data of {run.work.path}, which are not "
            f"available here: {run.why_no_data}; or use --extra_datasets={NONE}"
        )
    found: list[OtherInputs] = []
    for name in dict.fromkeys(names):
        try:
            found += _inputs_of(run, run.dataset, name)
        except InputError as error:
            if asked is not None or find_entry(name) is None:
                raise
            logger.warning("%s is left out of the other data: %s", name, error)
    return found


def _is_table(source: Source) -> bool:
    return len(source.input_shape) == 1 and source.input_dtype.kind == "f"


def _defaults(run: EvaluatedRun) -> list[str]:
    source: Any = run.dataset
    installed = sets_of_shape(source.input_shape, run.data_dir)
    others = [name for name in installed if name != source.name.removeprefix("tfds:")]
    if _is_table(source) and run.test.predictive.kind != "classes":
        return [SHIFT, *others, BOX, OUTSIDE]
    return [*([SHIFT] if source.has_pictures else []), *others, UNIFORM, CONSTANT]


def _inputs_of(run: EvaluatedRun, source: Source, name: str) -> list[OtherInputs]:
    """The inputs that a name stands for."""
    if name not in (SHIFT, UNIFORM, CONSTANT, BOX, OUTSIDE):
        return [_of_dataset(run, source, name)]
    shape, dtype, number = source.input_shape, source.input_dtype, source.sizes["test"]
    made = partial(OtherInputs, content=source.fingerprint)
    if name == CONSTANT:
        inputs = shift.constant_inputs(shape, source.value_range("train"), dtype)
        return [made(name, number=len(inputs), make=lambda: inputs)]
    if name == UNIFORM:
        noise = partial(shift.uniform_noise, (number, *shape), source.value_range("train"), dtype)
        return [made(name, number=number, make=partial(MadeInputs, number, noise))]
    shifted: Callable[[str, int], AnyInputs]
    if _is_table(source):
        columns, rows = shift.columns_of(source), in_memory(source, "test").inputs
        if name != SHIFT:
            box = partial(shift.box, columns, number, dtype, float(name == OUTSIDE))
            return [made(name, number=number, make=box)]
        kinds, shifted = columns.kinds, partial(shift.shifted_rows, rows, columns)
    elif name == SHIFT and source.has_pictures:
        images, bounds = SplitInputs(source, "test"), source.value_range("train")
        kinds = shift.IMAGES

        def moved(kind: str, severity: int) -> AnyInputs:
            make = partial(shift.shifted_images, images, bounds, kind, severity)
            return MadeInputs(number, make)

        shifted = moved
    else:
        raise InputError(
            f"--extra_datasets={name} is for tables of floating-point columns"
            f"{' and images [H, W, C]' if name == SHIFT else ''}; {source.name} has {dtype} inputs "
            f"of shape {shape}: leave it out"
        )
    return [
        made(f"{SHIFT}/{kind}/{severity}", number=number, make=partial(shifted, kind, severity))
        for kind in kinds
        for severity in shift.SEVERITIES
    ]


def _of_dataset(run: EvaluatedRun, source: Source, name: str) -> OtherInputs:
    """Inputs of another set: its test split, or all rows of one without splits."""
    entry = find_entry(name)
    if entry is None:
        made = ", ".join((SHIFT, UNIFORM, CONSTANT, BOX, OUTSIDE, *KNOWN_DATASETS))
        raise InputError(f"--extra_datasets={name} is unknown; choose from {made}, or {NONE} alone")
    if name.removeprefix("tfds:") == source.name.removeprefix("tfds:"):
        raise InputError(f"--extra_datasets={name} is what the ensemble has learned; leave it out")
    if entry.kind_of_target:
        if source.table is None:
            raise InputError(
                f"--extra_datasets={name} is a table with named columns, and {run.work.path} "
                "has learned none: give its inputs as npz:PATH"
            )
        rows = source.table.encode(rows_of_files(name))
        return OtherInputs(name, hashlib.blake2b(rows).hexdigest(), len(rows), lambda: rows)
    inputs = load_test_inputs(name, run.data_dir, parse_size(run.config.get("resize")))
    content = fingerprint(inputs.source, [inputs.split])
    return OtherInputs(name, content, len(inputs), lambda: inputs)


# Predictions.


def predict(
    run: EvaluatedRun,
    sets: Sequence[OtherInputs],
    directory: epath.Path,
    show_progress: bool = True,
) -> dict[str, Any]:
    """Predicts inputs, except those whose predictions are in the directory already.

    Args:
        run: Run to evaluate.
        sets: Inputs to predict.
        directory: Directory of the predictions, one npz file each.
        show_progress: As of `ensemble.train`.

    Returns:
        `shifted`, predictives by kind at each severity, and `outside`, the others by name.

    Raises:
        InputError: Inputs are of another shape, or a member predicts NaN.
    """
    known = {one: p for one in sets if (p := _read(run, one, directory))}
    done, total = 0, sum(one.number for one in sets if one not in known)
    shifted, outside = dict[str, list[Predictive]](), dict[str, Predictive]()
    with (
        open_display(show_progress and total > 0) as display,
        Progress(0, total, display, "predicting", "example") as progress,
    ):
        for one in sets:
            if (p := known.get(one)) is None:
                p = _predicted(run, one, directory)
                done += one.number
                progress.update(done, {"predicted": one.name})
            if one.name.startswith(f"{SHIFT}/"):
                shifted.setdefault(one.name.split("/")[1], []).append(p)
            else:
                outside[one.name] = p
    return {"shifted": shifted, "outside": outside}


@contextlib.contextmanager
def write_errors(directory: epath.Path) -> Iterator[None]:
    """Turns errors of a full or read-only disk into one line.

    Raises:
        InputError: The directory cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{directory} cannot be written: {error.strerror or error}; free space there, or "
            "choose another --out"
        ) from error


def _predicted(run: EvaluatedRun, one: OtherInputs, directory: epath.Path) -> Predictive:
    """Predicts inputs, and keeps the predictions in a file, from which they are mapped."""
    try:
        p = run.predict(one.make())
    except ValueError as error:  # Of another shape, or of parameters that overflow.
        raise InputError(
            f"{one.name} cannot be predicted: {in_one_line(error)}; leave it out of "
            "--extra_datasets"
        ) from None
    if (bad := p.have_nan()).any():
        member = run.test.members[int(np.argmax(bad))]
        raise InputError(
            f"member {member} predicts NaN on {one.name}; leave it out of --extra_datasets"
        )
    with write_errors(directory):  # Compressing them gains little.
        directory.mkdir(parents=True, exist_ok=True)
        write_predictive(_path(directory, one.name), p, _digest(run, one))
    return _read(run, one, directory) or p


def _read(run: EvaluatedRun, one: OtherInputs, directory: epath.Path) -> Predictive | None:
    """Predictions kept earlier of the same inputs by the same members; None if there are none."""
    try:
        found, source = read_predictive(_path(directory, one.name), run.likelihood)
        return found if source == _digest(run, one) else None
    except (OSError, ValueError, KeyError):
        return None


def _digest(run: EvaluatedRun, one: OtherInputs) -> str:
    """A hash of what the predictions of inputs are a function of."""
    seen = one[:3], run.work.identity(), run.step, run.results.get("metrics")
    return hashlib.blake2b(str(seen).encode()).hexdigest()


def _path(directory: epath.Path, name: str) -> epath.Path:
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[-60:]
    return directory / f"{readable}_{zlib.crc32(name.encode()):08x}.npz"
