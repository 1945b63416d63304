"""Inputs other than the test split: shifted, of other data sets, made up; and their predictions."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from etils import epath

from ensemble.data.catalogue import KNOWN_DATASETS, find_entry, load_test_inputs, sets_of_shape
from ensemble.data.image_form import parse_size
from ensemble.data.source import AnyInputs, Source, fingerprint
from ensemble.data.tables.table_files import rows_of_files
from ensemble.errors import InputError, in_one_line
from ensemble.likelihoods.predictive import Predictive
from ensemble.report import shift
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.shift import BOX, CONSTANT, MADE, OUTSIDE, SHIFT, UNIFORM
from ensemble.run.progress import Progress, open_display
from ensemble.storage.predictions import read_predictive, write_predictive

logger = logging.getLogger("ensemble")

NONE = "none"


class OtherInputs(NamedTuple):
    """Inputs to predict.

    Attributes:
        name: Such as `shift/rotation/3` or `fashion_mnist`.
        content: Text that the inputs are a function of.
        inputs: [N, ...].
    """

    name: str
    content: str
    inputs: AnyInputs


def plan(run: EvaluatedRun, names: Sequence[str] | None) -> list[OtherInputs]:
    """Lists what to predict in addition to the test split.

    Args:
        run: Run to evaluate.
        names: Names of made inputs and data sets, or `none`; None: all that are installed and suit.

    Raises:
        InputError: A name is unknown, or its data are missing.
    """
    source = run.dataset
    is_asked = names is not None
    if names is None:
        names = _defaults(run, source) if source else []
    if list(names) in ([], [NONE]):
        return []
    if source is None:
        raise InputError(
            f"--extra_datasets={','.join(names)} needs the data of {run.work.path}, which are not "
            f"available here: {run.why_no_data}; or use --extra_datasets={NONE}"
        )
    found: list[OtherInputs] = []
    for name in dict.fromkeys(names):
        try:
            found += _inputs_of(run, source, name)
        except InputError as error:
            if is_asked:
                raise
            logger.warning("%s is left out of the other data: %s", name, error)
    return found


def _defaults(run: EvaluatedRun, source: Any) -> list[str]:
    installed = sets_of_shape(source.input_shape, run.data_dir)
    others = [name for name in installed if name != source.name.removeprefix("tfds:")]
    if shift.is_table(source) and run.test.predictive.kind != "classes":
        return [SHIFT, *others, BOX, OUTSIDE]
    return [*([SHIFT] if source.has_pictures else []), *others, UNIFORM, CONSTANT]


def _inputs_of(run: EvaluatedRun, source: Source, name: str) -> list[OtherInputs]:
    """The inputs that a name stands for."""
    flag = f"--extra_datasets={name}"
    if name in MADE:
        made = shift.made_inputs(source, name)
        if not made:
            raise InputError(
                f"{flag} is for tables of floating-point columns, and {SHIFT} also for images "
                f"[H, W, C]; {source.name} has {source.input_dtype} inputs of shape "
                f"{source.input_shape}: leave it out"
            )
        return [OtherInputs(one, source.fingerprint, inputs) for one, inputs in made.items()]
    entry = find_entry(name)
    if entry is None:
        known = ", ".join((*MADE, *KNOWN_DATASETS))
        raise InputError(f"{flag} is unknown; choose from {known}, or {NONE} alone")
    if entry.kind_of_target:
        if source.table is None:
            raise InputError(
                f"{flag} is a table with named columns, and {run.work.path} has learned none: "
                "give its inputs as npz:PATH"
            )
        rows = source.table.encode(rows_of_files(name))
        return [OtherInputs(name, hashlib.blake2b(rows).hexdigest(), rows)]
    inputs = load_test_inputs(name, run.data_dir, parse_size(run.config.get("resize")))
    return [OtherInputs(name, fingerprint(inputs.source, [inputs.split]), inputs)]


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
    found = [_read(run, one, directory) for one in sets]
    sizes = [0 if p else len(one.inputs) for one, p in zip(sets, found, strict=True)]
    done = 0
    total = sum(sizes)
    shifted = dict[str, list[Predictive]]()
    outside = dict[str, Predictive]()
    with (
        open_display(show_progress and total > 0) as display,
        Progress(0, total, display, "predicting", "example") as progress,
    ):
        for one, p, size in zip(sets, found, sizes, strict=True):
            if p is None:
                p = _predicted(run, one, directory)
                done += size
                progress.update(done, {"predicted": one.name})
            group, _, kind = one.name.partition("/")
            if group == SHIFT:
                shifted.setdefault(kind.split("/")[0], []).append(p)
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
        p = run.predict(one.inputs)
        if p.have_nan().any():
            raise ValueError("a member predicts NaN")
    except ValueError as error:  # Of another shape, or of parameters that overflow.
        raise InputError(
            f"{one.name} cannot be predicted: {in_one_line(error)}; leave it out of "
            "--extra_datasets"
        ) from None
    with write_errors(directory):  # Compressing them gains little.
        directory.mkdir(parents=True, exist_ok=True)
        write_predictive(_path(directory, one), p, _digest(run, one))
    return _read(run, one, directory) or p


def _read(run: EvaluatedRun, one: OtherInputs, directory: epath.Path) -> Predictive | None:
    """Predictions kept earlier of the same inputs by the same members; None if there are none."""
    try:
        found, source = read_predictive(_path(directory, one), run.likelihood)
        return found if source == _digest(run, one) else None
    except (OSError, ValueError, KeyError):
        return None


def _digest(run: EvaluatedRun, one: OtherInputs) -> str:
    """A hash of what the predictions of inputs are a function of."""
    seen = one.name, one.content, run.work.identity(), run.step, run.results.get("metrics")
    return hashlib.blake2b(str(seen).encode()).hexdigest()


def _path(directory: epath.Path, one: OtherInputs) -> epath.Path:
    digest = hashlib.blake2b(one.name.encode(), digest_size=4).hexdigest()
    return directory / f"{re.sub(r'[^A-Za-z0-9_-]+', '_', one.name)[-60:]}_{digest}.npz"
