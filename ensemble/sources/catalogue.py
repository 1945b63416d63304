"""Data by name, or of a program: what is loaded, which sets there are here, and the defaults."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble import likelihoods, registry
from ensemble.errors import UserError, shown
from ensemble.likelihood_keys import AUTO, LIKELIHOODS
from ensemble.registry import SOURCES, SourceEntry
from ensemble.source import NO_TABLE, Request, Source, SplitInputs, TableKeys
from ensemble.sources import image_form
from ensemble.storage.paths import is_remote

if TYPE_CHECKING:
    from ensemble.sources.data_forms import Given
    from ensemble.sources.own_arrays import OwnData

logger = logging.getLogger("ensemble")

KNOWN_DATASETS = tuple(name for name, entry in SOURCES.built_in.items() if entry.is_listed)
_TABLES = (".tsv", ".xlsx", ".json", ".pkl")
_FILES = {".npz": "npz", ".csv": "csv", ".parquet": "parquet"}


def prefix_of_path(path: str) -> str:
    """What stands before the colon of a data set that is at a path, by what is there."""
    from ensemble.sources.records.index import INDEX  # Most data are no records.

    ending = _FILES.get(os.path.splitext(path)[1].lower())
    if is_remote(path):
        return ending or "records"
    folder = Path(path).expanduser()
    if (folder / INDEX).is_file():
        return "records"
    if any(folder.glob("*inputs.npy")):
        return "npy"
    return ending or "folder"


def find_entry(name: str) -> SourceEntry | None:
    """The line of the registry that a data set's name belongs to; None if there is none."""
    key = registry.key_of_source(name)
    return None if key is None else SOURCES[key]


def _load(name: str, request: Request) -> Source:
    """Loads a data set; raises what `load_dataset` does."""
    entry, key = _entry(name, request), registry.key_of_source(name) or name
    source: Source = registry.called(SOURCES, key, entry.loader, name, request)
    registry.check_members(SOURCES, key, source, Source)
    return source


def given_examples(name: str, request: Request) -> OwnData:
    """The examples of a data set before splits are carved.

    Raises:
        UserError: as `load_dataset`, or the data set has none that can be had so.
    """
    entry = _entry(name, request)
    if not entry.given:
        able = ", ".join(name for name, one in SOURCES.items() if one.given)
        raise UserError(f"dataset={name!r} cannot be written as records; {able} can")
    given: OwnData = registry.load(entry.given)(name, request)
    return given


def models_of(name: str) -> tuple[str, ...]:
    """The models that a data set is for; none if it is for all that no data set is for."""
    entry = find_entry(name)
    return entry.models if entry else ()


def load_dataset(
    name: str,
    data_dir: str | None = None,
    seed: int = 0,
    hold_out: bool = True,
    resize: int | str | None = None,
    table: TableKeys = NO_TABLE,
) -> Source:
    """Loads a data set.

    Args:
        name: `digits`, or `clutter` and `grouped_clutter`, generated from them; a TFDS set,
            `mnist`, `fashion_mnist`, `kmnist`, `cifar10` or `tfds:NAME` (see `image_sets`), which
            is prepared first where it is not; own data, `npz:PATH` or `folder:PATH` (see
            `own_arrays`), `npy:FOLDER` (see `memory_map`) or `records:FOLDER` (see `records`), or a
            table, `csv:PATH` or `parquet:PATH` (see `tables`); or a source of an application.
        data_dir: where TFDS sets lie; by default the variable TFDS_DATA_DIR, else
            `~/tensorflow_datasets`.
        seed: of the split of own data that comes without splits.
        hold_out: whether to hold validation and calibration data out of the training data; if not,
            all of them are for training, and of own data also what would be carved for testing.
        resize: the size of pictures that are read from files: see `image_form.parse_size`.
        table: what is said of a table.

    Raises:
        UserError: if the name is unknown, or the data cannot be had or used.
    """
    size = image_form.parse_size(resize)
    return load(name, Request(data_dir, seed, hold_out, size=size, table=table))


def load(name: str, request: Request) -> Source:
    """Loads a data set by a request; raises what `load_dataset` does."""
    return _load(name, request)


def complete(said: Mapping[str, Any], data: Any) -> tuple[Given | None, Mapping[str, Any]]:
    """Completes a program's configuration for its data, and recognises these.

    Keys that are left out have the values of `Given.defaults`, where data are handed over. The
    likelihood 'auto' is settled by what is learned.

    Args:
        said: some of the keys, or all, flat.
        data: in any of the forms of `ensemble.sources.data_forms`; None: the configuration names
            the data.

    Returns:
        The data, None where they are named, and the configuration.

    Raises:
        UserError: the data are in no such form, or cannot be read.
    """
    name, target = said.get("likelihood", ""), said.get("target") or ""
    if data is None:
        if name == AUTO:
            said = {**said, "likelihood": _likelihood_of(said.get("dataset", ""), target)}
        return None, said
    task = registry.task_of_model(said.get("model"))
    if task is not None and registry.TASKS[task].given:
        given = registry.load(registry.TASKS[task].given)(data)
        return given, {**given.defaults(said), **said}
    from ensemble.sources.data_forms import recognise  # Most runs learn a set by its name.

    kind = None
    if name in registry.LIKELIHOODS:
        kind = "labels" if likelihoods.named(name).takes_logits else "targets"
    given = recognise(data, kind, target)
    if name == AUTO:
        said = {**said, "likelihood": LIKELIHOODS[given.kind]}
    return given, {**given.defaults(said), **said}


def _likelihood_of(name: str, target: str) -> str:
    """The likelihood of a table in files, by the column to learn.

    Raises:
        UserError: the data are no table, or cannot be read.
    """
    entry = _entry(name, Request())
    if not entry.kind_of_target:
        raise UserError(
            f"config.likelihood='auto' is for tables, and config.dataset={name!r} is none: set "
            "'categorical' for classes, 'gaussian' for numbers"
        )
    kind = registry.load(entry.kind_of_target)(name, target)
    logger.info(
        "The column %s holds %s: config.likelihood is %r; set it if you mean another.",
        shown(target),
        "classes" if kind == "labels" else "numbers",
        LIKELIHOODS[kind],
    )
    return LIKELIHOODS[kind]


def load_test_inputs(
    name: str, data_dir: str | None = None, size: tuple[int, int] | None = None
) -> SplitInputs:
    """Loads the inputs [N, ...] of a set's test split; of own data without one, all inputs.

    Args:
        name: as of `load_dataset`.
        data_dir: as of `load_dataset`.
        size: (height, width) of pictures, where they are read one by one; None: their own.

    Raises:
        UserError: as `load_dataset`.
    """
    entry = find_entry(name)
    size = size if entry and entry.can_resize else None
    request = Request(data_dir, hold_out=False, only_test=True, size=size)
    source = _load(name, request)
    return SplitInputs(source, "test" if "test" in source.sizes else "train")


def refuse_resize(what: str) -> UserError:
    """The error for data that are not resized.

    Args:
        what: they are, for the message.
    """
    able = ", ".join(name for name, entry in SOURCES.items() if entry.can_resize)
    return UserError(
        f"config.resize is for pictures from files ({able}), and {what} is none of these: leave "
        "it out, and resize the images yourself if need be"
    )


def sets_of_shape(shape: Sequence[int], data_dir: str | None = None) -> list[str]:
    """Names of the known sets that are here already, with examples of this shape.

    Sets that cannot be looked for, or that are damaged, are left out with a warning: nobody has
    asked for them.

    Args:
        shape: (H, W, C).
        data_dir: as of `load_dataset`.
    """
    found = []
    for name, entry in SOURCES.built_in.items():
        if entry.input_shape != tuple(shape):
            continue
        try:
            if not entry.finder or registry.load(entry.finder)(name, data_dir):
                found.append(name)
        except UserError as error:
            logger.warning("%s is left out of the known sets: %s", name, error)
    return found


def check_is_here(name: str, data_dir: str | None = None) -> None:
    """Refuses data that would first be fetched: not where a workdir, of anybody, names them.

    Args:
        name: as of `load_dataset`.
        data_dir: as of `load_dataset`.

    Raises:
        UserError: as said.
    """
    entry = find_entry(name)
    if entry is not None and entry.finder and not registry.load(entry.finder)(name, data_dir):
        raise UserError(
            f"{shown(name)} is not on the disk of this machine, and what a workdir names is not "
            "fetched; if you trust it, call ensemble.sources.load_dataset(NAME) once, or say by "
            "--data_dir where TFDS sets lie"
        )


def _check_is_chosen(name: str) -> None:
    """Raises a `UserError` if a configuration for anybody's data has not been told whose."""
    prefix, colon, _ = name.partition(":")
    if colon and name in SOURCES:
        raise UserError(
            f"config.dataset={name!r} names no data yet: set --config.dataset={prefix}:..., with "
            "the path of yours"
        )


def _is_listed(key: str) -> bool:
    """Whether a user can give a name; what is installed is not asked for that."""
    return key not in SOURCES.built_in or SOURCES[key].is_listed


def _entry(name: str, request: Request) -> SourceEntry:
    """The line of the registry of a data set, which can do what is asked for.

    Raises:
        UserError: there is none, or it cannot.
    """
    entry = find_entry(name)
    _check_is_chosen(name)
    if entry is None:
        end = os.path.splitext(name)[1].lower()
        if end in _TABLES:
            raise UserError(
                f"dataset={name!r} is a table in a form that is not read: write it as CSV, and set "
                "csv:PATH"
            )
        if end in _FILES or is_remote(name) or os.path.isdir(os.path.expanduser(name)):
            prefix = prefix_of_path(name)
            raise UserError(f"dataset={name!r} is a path; write {prefix}:{name}")
        known = [one for one in SOURCES.names(installed=True) if _is_listed(one)]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"dataset={name!r} is unknown; known are {', '.join(known)}{hint}")
    # What cannot be listed is a program's: its loader says so, also of data frames.
    if request.table.keys and entry.is_listed and not entry.kind_of_target:
        from ensemble.sources.data_forms import refuse_table_keys  # Where it is refused.

        raise refuse_table_keys(request.table, f"config.dataset={name!r} has no named columns")
    if request.size is not None and not entry.can_resize:
        raise refuse_resize(f"config.dataset={name!r}")
    return entry
