"""Files of predictions: `predictions/SPLIT.npz` of a workdir, and what an evaluation predicts.

An npz file has the arrays of a `Predictive` by their names, and entries such as `targets`.
"""

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from ensemble.errors import InputError
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.likelihoods.predictive import Predictive
from ensemble.storage.files import write_by
from ensemble.storage.memory import max_bytes
from ensemble.storage.npz import map_arrays, read_arrays
from ensemble.storage.paths import is_remote
from ensemble.storage.workdir import Workdir

_MEMBER_OF, _WEIGHTS = "member_of", "member_weights"


class StoredPredictions(NamedTuple):
    """Predictions of one split by the members of a run.

    Attributes:
        predictive: Predictions of N examples.
        targets: Targets, [N] or [N, D].
        members: Numbers of the members, int [M].
    """

    predictive: Predictive
    targets: np.ndarray
    members: np.ndarray


def write_predictions(
    work: Workdir,
    split: str,
    predictive: Predictive,
    targets: np.ndarray,
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
    work.predictions.mkdir(parents=True, exist_ok=True)
    write_predictive(
        work.predictions / f"{split}.npz",
        predictive,
        compress=True,
        targets=targets,
        members=np.array(members, np.int32),
    )
    work.manifest.add(work.predictions / f"{split}.npz")


def read_predictions(work: Workdir, split: str, likelihood: Likelihood) -> StoredPredictions:
    """Reads what `write_predictions` wrote.

    Args:
        work: Directory of the run.
        split: Name of the split.
        likelihood: Likelihood of the run, which makes the predictive.

    Raises:
        InputError: The file is missing or damaged, or belongs to another run or split.
    """
    path = work.predictions / f"{split}.npz"
    if not (arrays := work.manifest.read_npz(path)):
        raise InputError(f"{path} is missing; train again with the same --workdir")
    predictive, found = _parted(arrays, likelihood)
    targets = found["targets"]
    if targets.dtype.kind in "iu":
        targets = targets.astype(np.int32)
    return StoredPredictions(predictive, targets, found["members"])


def write_predictive(
    path: epath.Path, predictive: Predictive, compress: bool = False, **entries: Any
) -> None:
    """Writes a predictive and other entries as one npz file, whole or not at all.

    Args:
        path: Path of the file.
        predictive: Predictions to store.
        compress: If True, the file is smaller and cannot be mapped.
        **entries: Further arrays or texts.
    """
    if predictive.member_of is not None:
        entries[_MEMBER_OF] = np.asarray(predictive.member_of, np.int32)
    if predictive.weights is not None:
        entries[_WEIGHTS] = np.asarray(predictive.weights, np.float64)
    save = np.savez_compressed if compress else np.savez
    write_by(path, lambda file: save(file, **predictive.arrays, **entries))


_ENTRIES = ("targets", "members", "source", _MEMBER_OF, _WEIGHTS)


def read_predictive(
    path: epath.Path, likelihood: Likelihood
) -> tuple[Predictive, dict[str, np.ndarray]]:
    """Reads what `write_predictive` wrote; arrays that are not compressed are mapped from a disk.

    Returns:
        The predictions, and the other entries.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is damaged, or too large.
    """
    if is_remote(path):
        arrays = read_arrays(io.BytesIO(path.read_bytes()), max_bytes())
    else:
        arrays = map_arrays(path, max_bytes())
    return _parted(arrays, likelihood)


def _parted(
    arrays: dict[str, np.ndarray], likelihood: Likelihood
) -> tuple[Predictive, dict[str, np.ndarray]]:
    """The predictions of a file, and its other entries."""
    entries = {name: arrays.pop(name) for name in _ENTRIES if name in arrays}
    member_of = entries.get(_MEMBER_OF)
    if len({one.shape[:2] for one in arrays.values()}) != 1:
        raise ValueError(f"arrays of shapes {[one.shape for one in arrays.values()]}")
    if member_of is not None:
        member_of = member_of.astype(int)
    return likelihood.predictive(arrays, member_of, entries.get(_WEIGHTS)), entries
