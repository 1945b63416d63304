"""Files of predictions: `predictions/SPLIT.npz` of a workdir, and what an evaluation predicts.

An npz file has the arrays of a `Predictive` by their names, and entries such as `targets`. Members
of `kfold_bagging` also leave `predictions/held_out.npz`: losses of the rows that they hold out.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from ensemble.errors import InputError
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.likelihoods.predictive import Predictive
from ensemble.storage.files import is_remote, make_folder, write_file
from ensemble.storage.npz import Arrays
from ensemble.storage.workdir import Workdir

HELD_OUT = "held_out"


class StoredPredictions(NamedTuple):
    """Predictions of one split by the members of a run.

    Attributes:
        predictive: Predictions of N examples.
        targets: Targets, [N] or [N, D].
        members: Numbers of the members, int [M].
    """

    predictive: Predictive
    targets: NDArray
    members: NDArray


def write_predictions(
    work: Workdir,
    split: str,
    predictive: Predictive,
    targets: NDArray,
    members: Sequence[int],
) -> None:
    """Writes the predictions of a split.

    Args:
        work: Directory of the run.
        split: Name of the split.
        predictive: Predictions of N examples by M members.
        targets: Targets, [N] or [N, D].
        members: Numbers of the members, [M].
    """
    entries = {"targets": targets, "members": np.array(members, np.int32)}
    _write(work, split, {**_arrays(predictive), **entries})


def read_predictions(work: Workdir, split: str, likelihood: Likelihood) -> StoredPredictions:
    """Reads what `write_predictions` wrote.

    Args:
        work: Directory of the run.
        split: Name of the split.
        likelihood: Likelihood of the run, which makes the predictive.

    Raises:
        InputError: The file is missing or damaged, or belongs to another run or split.
    """
    arrays = _read(work, split, "train again with the same --workdir")
    targets, members = arrays.pop("targets"), arrays.pop("members")
    if targets.dtype.kind in "iu":
        targets = targets.astype(np.int32)
    return StoredPredictions(_predictive(arrays, likelihood), targets, members)


def write_held_out(work: Workdir, losses: NDArray) -> None:
    """Writes the loss [N] of each training row, float64 nats; NaN of rows that nobody holds out."""
    _write(work, HELD_OUT, {"losses": losses})


def read_held_out(work: Workdir) -> NDArray:
    """Reads what `write_held_out` wrote.

    Raises:
        InputError: The file is absent, damaged, or of another run.
    """
    remedy = "only members of config.method='kfold_bagging' hold out training rows"
    return _read(work, HELD_OUT, remedy)["losses"]


def write_predictive(path: epath.Path, predictive: Predictive) -> None:
    """Writes a predictive as a folder of npy files, which can be mapped; it replaces another."""
    if path.exists():
        path.rmtree()
    path.mkdir(parents=True)
    for name, one in _arrays(predictive).items():
        write_file(path / f"{name}.npy", partial(np.save, arr=one))


def read_predictive(path: epath.Path, likelihood: Likelihood) -> Predictive:
    """Reads what `write_predictive` wrote; from a disk, arrays are mapped.

    Raises:
        OSError: A file cannot be read.
        ValueError: One is damaged.
    """
    arrays = {}
    for file in path.glob("*.npy"):
        with file.open("rb") as content:
            arrays[file.stem] = np.load(content) if is_remote(path) else np.load(file, "r")
    return _predictive(arrays, likelihood)


def _write(work: Workdir, name: str, arrays) -> None:
    make_folder(work.predictions)
    path = work.predictions / f"{name}.npz"
    work.manifest.write(path, lambda file: np.savez_compressed(file, **arrays))


def _read(work: Workdir, name: str, remedy: str) -> Arrays:
    path = work.predictions / f"{name}.npz"
    if arrays := work.manifest.read_npz(path):
        return arrays
    raise InputError(f"{path} is missing; {remedy}")


def _arrays(predictive: Predictive) -> Arrays:
    entries = {"member_of": predictive.member_of, "member_weights": predictive.weights}
    return {**predictive.arrays, **{name: one for name, one in entries.items() if one is not None}}


def _predictive(arrays: Arrays, likelihood: Likelihood) -> Predictive:
    """The predictions of what `_arrays` has returned."""
    of_members = [arrays.pop(name, None) for name in ("member_of", "member_weights")]
    return likelihood.predictive(arrays, *of_members)
