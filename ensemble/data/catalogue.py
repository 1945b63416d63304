"""Data by name, or of a program: what is loaded, which sets there are here, and the defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ensemble import likelihoods
from ensemble.config import task_of, trait
from ensemble.config.build import is_source
from ensemble.config.builtin import (
    AUTO,
    DATASETS,
    LIKELIHOOD_OF,
    LIKELIHOODS,
    DataForm,
)
from ensemble.config.pieces import given_or_imported, named, resolve
from ensemble.data import image_form
from ensemble.data.dataset import carved
from ensemble.data.source import AnyStored, Parts, Request, Source
from ensemble.errors import InputError
from ensemble.pytrees import ByName

if TYPE_CHECKING:
    from ensemble.data.data_forms import Given

KNOWN_DATASETS = tuple(name for name in DATASETS if name != "arrays")


def find_entry(name: str) -> DataForm | None:
    """The form of data that a name belongs to; None if it is unknown."""
    if key := named(DATASETS, name):
        return DATASETS[key]
    return DataForm(name) if is_source(name) else None


def given_examples(name: str, request: Request) -> Parts:
    """Returns the examples of a data set before splits are carved.

    Raises:
        InputError: As `load_dataset`, or the data set has none that can be had so.
    """
    entry = _entry(name, request)
    if not entry.given:
        raise InputError(
            f"dataset={name!r} cannot be written as records; npz:, npy:, folder:, records: and "
            "tfds: can"
        )
    return resolve(entry.given)(name, request)


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
) -> Source:
    """Loads a data set.

    Args:
        name: `digits`, or `clutter` and `grouped_clutter`, generated from them; a TFDS set,
            `mnist`, `fashion_mnist`, `kmnist`, `cifar10` or `tfds:NAME` (see
            `tfds_sets`), which is prepared there; own data, `npz:PATH` or `npy:FOLDER` (see
            `data_forms`), `folder:PATH` or `records:FOLDER` (see `records`), or a table,
            `csv:PATH` or `parquet:PATH` (see `tables`); or a source of an application.
        data_dir: where TFDS sets lie; by default the variable TFDS_DATA_DIR, else
            `~/tensorflow_datasets`.
        seed: of the split of own data that comes without splits.
        hold_out: whether to hold validation and calibration data out of the training data; if not,
            all of them are for training, and of own data also what would be carved for testing.
        resize: the size of pictures that are read from files: see `image_form.parse_size`.

    Raises:
        InputError: if the name is unknown, or the data cannot be had or used.
    """
    size = image_form.parse_size(resize)
    return load(name, Request(data_dir, seed, hold_out, size=size))


def load(name: str, request: Request) -> Source:
    """Loads a data set by a request; raises what `load_dataset` does."""
    entry = _entry(name, request)
    if not entry.loader:
        return carved(resolve(entry.given)(name, request), name, request)
    is_own = entry.loader == name  # A program's.
    what = f"config.dataset={name!r}"
    loader = given_or_imported(name, what) if is_own else resolve(entry.loader)
    return loader(name, request)


def complete(config: ByName, overrides: ByName, data: Any) -> tuple[Given | None, ByName]:
    """Completes a program's configuration for its data, and recognises these.

    Keys that are left out have the values of `Given.defaults`, where data are handed over. The
    likelihood 'auto' is settled by what is learned.

    Args:
        config: some of the keys, flat.
        overrides: further keys, which count.
        data: in any of the forms of `ensemble.data.data_forms`; None: the configuration names
            the data.

    Returns:
        The data, None where they are named, and the configuration.

    Raises:
        InputError: the data are in no such form, or cannot be read.
    """
    said = {**config, **overrides}
    name = said.get("likelihood", "")
    target = said.get("target") or ""
    if data is None:
        if name == AUTO:
            path = said.get("dataset", "")
            entry = _entry(path, Request())
            if not entry.kind_of_target:
                raise InputError(
                    f"config.likelihood='auto' is for tables, and config.dataset={path!r} is none: "
                    "set 'categorical' for classes, 'gaussian' for numbers"
                )
            kind_of = resolve(entry.kind_of_target)
            config = {**config, "likelihood": LIKELIHOOD_OF[kind_of(path, target)]}
        return None, config
    if place := trait("task", task_of(said), "given"):
        return resolve(place)(data), {"dataset": "ratings:arrays", **config}
    from ensemble.data.data_forms import recognise  # Most runs learn a set by its name.

    kind = None
    if name in LIKELIHOODS:
        kind = "labels" if likelihoods.named(name).takes_logits else "targets"
    given = recognise(data, kind, target)
    is_open = name == AUTO or (not name and given.kind == "targets")
    found = {"likelihood": LIKELIHOOD_OF[given.kind]} if is_open else {}
    return given, {**given.defaults(said), **config, **found, "dataset": "arrays"}


def load_test_inputs(
    name: str, data_dir: str | None = None, size: image_form.Size | None = None
) -> AnyStored:
    """Loads the inputs [N, ...] of a set's test split; of own data without one, all inputs.

    Args:
        name: as of `load_dataset`.
        data_dir: as of `load_dataset`.
        size: (height, width) of pictures, where they are read one by one; None: their own.

    Raises:
        InputError: as `load_dataset`.
    """
    entry = find_entry(name)
    size = size if entry and entry.can_resize else None
    source = load(name, Request(data_dir, hold_out=False, only_test=True, size=size))
    return source.splits["test" if "test" in source.sizes else "train"].inputs


def _entry(name: str, request: Request) -> DataForm:
    """The form of a data set, which can do what is asked for.

    Raises:
        InputError: there is none, or it cannot.
    """
    entry = find_entry(name)
    if entry is None:
        raise InputError(
            f"dataset={name!r} is unknown; known are {', '.join(KNOWN_DATASETS)}; what is at a "
            "path is named by its prefix, such as csv:PATH"
        )
    if request.size is not None and not entry.can_resize:
        raise InputError(
            f"config.resize is for pictures from files (folder:PATH, tfds:NAME), and "
            f"config.dataset={name!r} is none of these: leave it out"
        )
    return entry
