"""Inputs other than the test split: shifted, of other data sets, made up; and their predictions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from ensemble.data.catalogue import KNOWN_DATASETS, find_entry, load_test_inputs, sets_of_shape
from ensemble.data.image_form import parse_size
from ensemble.data.source import AnyInputs, Source
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


def plan(run: EvaluatedRun, names: Sequence[str] | None) -> dict[str, AnyInputs]:
    """Lists what to predict in addition to the test split.

    Args:
        run: Run to evaluate.
        names: Names of made inputs and data sets, or `none`; None: all that are installed and suit.

    Returns:
        Inputs [N, ...] by names such as `shift/rotation/3` or `fashion_mnist`.

    Raises:
        InputError: A name is unknown, or its data are missing.
    """
    source = run.dataset
    is_asked = names is not None
    if names is None:
        names = _defaults(run, source) if source else []
    if list(names) in ([], [NONE]):
        return {}
    if source is None:
        raise InputError(f"{run.why_no_data}; give them, or use --extra_datasets={NONE}")
    found: dict[str, AnyInputs] = {}
    for name in names:
        try:
            found |= _inputs_of(run, source, name)
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


def _inputs_of(run: EvaluatedRun, source: Source, name: str) -> dict[str, AnyInputs]:
    """The inputs that a name stands for."""
    flag = f"--extra_datasets={name}"
    if name in MADE:
        if made := shift.made_inputs(source, name):
            return made
        raise InputError(
            f"{flag} is for tables of floating-point columns, and {SHIFT} also for images; leave "
            f"it out for {source.name}, whose inputs have shape {source.input_shape}"
        )
    entry = find_entry(name)
    if entry is None:
        known = ", ".join((*MADE, *KNOWN_DATASETS))
        raise InputError(f"{flag} is unknown; choose from {known}, or {NONE} alone")
    if not entry.kind_of_target:
        size = parse_size(run.config.get("resize"))
        return {name: load_test_inputs(name, run.data_dir, size)}
    if source.table is None:
        raise InputError(
            f"{flag} is a table, and {run.work.path} has learned none: give inputs as npz:PATH"
        )
    return {name: source.table.encode(rows_of_files(name))}


def predict(
    run: EvaluatedRun,
    inputs: Mapping[str, AnyInputs],
    directory: epath.Path,
    show_progress: bool = True,
) -> tuple[dict[str, list[Predictive]], dict[str, Predictive]]:
    """Predicts inputs.

    Args:
        run: Run to evaluate.
        inputs: As `plan` returns them.
        directory: Directory of the predictions, one npz file each, from which they are mapped:
            those of many draws exceed memory.
        show_progress: As of `ensemble.train`.

    Returns:
        Predictives by kind of shift at each severity, and the others by name.

    Raises:
        InputError: Inputs are of another shape, or a member predicts NaN.
    """
    done = 0
    total = sum(map(len, inputs.values()))
    shifted = dict[str, list[Predictive]]()
    outside = dict[str, Predictive]()
    with (
        open_display(show_progress and total > 0) as display,
        Progress(0, total, display, "predicting", "example") as progress,
    ):
        for number, (name, one) in enumerate(inputs.items()):
            try:
                p = run.predict(one)
                if p.have_nan().any():
                    raise ValueError("a member predicts NaN")
            except ValueError as error:  # Of another shape, or of parameters that overflow.
                raise InputError(
                    f"{name} cannot be predicted: {in_one_line(error)}; leave it out of "
                    "--extra_datasets"
                ) from None
            file = directory / str(number)
            with write_errors(directory):
                directory.mkdir(parents=True, exist_ok=True)
                write_predictive(file, p)
            p = read_predictive(file, run.likelihood)
            done += len(one)
            progress.update(done, {"predicted": name})
            group, *kind = name.split("/")
            if group == SHIFT:
                shifted.setdefault(kind[0], []).append(p)
            else:
                outside[name] = p
    return shifted, outside


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
