"""Files of predictions: `predictions/SPLIT.npz` of a workdir, and what an evaluation predicts.

An npz file has the arrays of a `Predictive` by their names, and entries such as `targets`. Members
of `kfold_bagging` also leave `predictions/held_out.npz`: losses of the rows that they hold out.
"""

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from ensemble.errors import InputError
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.likelihoods.predictive import Predictive
from ensemble.storage.files import write_file
from ensemble.storage.manifest import damaged
from ensemble.storage.memory import max_bytes
from ensemble.storage.npz import read_arrays
from ensemble.storage.paths import is_remote
from ensemble.storage.workdir import Workdir

_MEMBER_OF = "member_of"
_WEIGHTS = "member_weights"
_ENTRIES = ("targets", "members", "source", _MEMBER_OF, _WEIGHTS)
HELD_OUT = "held_out"


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
    entries = _arrays(predictive) | {"targets": targets, "members": np.array(members, np.int32)}
    _write(work, split, entries)


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


def write_held_out(work: Workdir, losses: np.ndarray) -> None:
    """Writes the loss [N] of each training row, float64 nats; NaN of rows that nobody holds out."""
    _write(work, HELD_OUT, {"losses": losses})


def read_held_out(work: Workdir, num_rows: int) -> np.ndarray:
    """Reads what `write_held_out` wrote.

    Args:
        work: Directory of the run.
        num_rows: N.

    Raises:
        InputError: The file is absent, damaged, or of another run.
    """
    path = work.predictions / f"{HELD_OUT}.npz"
    if not (arrays := work.manifest.read_npz(path)):
        raise InputError(
            f"{path} is missing: only members of config.method='kfold_bagging' hold out training "
            "rows"
        )
    if arrays["losses"].shape != (num_rows,):
        raise damaged(path)
    return arrays["losses"]


def write_predictive(path: epath.Path, predictive: Predictive, source: str) -> None:
    """Writes a predictive as an npz file that can be mapped, whole or not at all.

    Args:
        path: Path of the file.
        predictive: Predictions to store.
        source: Text of what they are predictions of.
    """
    write_file(path, lambda file: np.savez(file, **_arrays(predictive), source=source))


def read_predictive(path: epath.Path, likelihood: Likelihood) -> tuple[Predictive, str]:
    """Reads what `write_predictive` wrote; from a disk, arrays are mapped.

    Returns:
        The predictions, and their source.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is damaged, or too large.
    """
    maps = not is_remote(path)
    file = path if maps else io.BytesIO(path.read_bytes())
    predictive, entries = _parted(read_arrays(file, max_bytes(), maps=maps), likelihood)
    return predictive, str(entries["source"])


def _write(work: Workdir, name: str, arrays: dict[str, Any]) -> None:
    path = work.predictions / f"{name}.npz"
    work.predictions.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda file: np.savez_compressed(file, **arrays))
    work.manifest.add(path)


def _arrays(predictive: Predictive) -> dict[str, Any]:
    found: dict[str, Any] = dict(predictive.arrays)
    if predictive.member_of is not None:
        found[_MEMBER_OF] = np.asarray(predictive.member_of, np.int32)
    if predictive.weights is not None:
        found[_WEIGHTS] = np.asarray(predictive.weights, np.float64)
    return found


def _parted(
    arrays: dict[str, np.ndarray], likelihood: Likelihood
) -> tuple[Predictive, dict[str, np.ndarray]]:
    """The predictions of a file, and its other entries."""
    entries = {name: arrays.pop(name) for name in _ENTRIES if name in arrays}
    if len({one.shape[:2] for one in arrays.values()}) != 1:
        raise ValueError(f"arrays of shapes {[one.shape for one in arrays.values()]}")
    member_of = entries.get(_MEMBER_OF)
    member_of = None if member_of is None else member_of.astype(int)
    return likelihood.predictive(arrays, member_of, entries.get(_WEIGHTS)), entries
