"""Stored predictions: `predictions/SPLIT.npz` of a workdir, written whole, read with care."""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from ensemble.config import differences
from ensemble.errors import UserError
from ensemble.workdir import write_bytes


class StoredPredictions(NamedTuple):
    """What the live members say of one split.

    Attributes:
        log_probs: [M, N, C] float32.
        labels: int [N].
        members: int [M], their numbers.
    """

    log_probs: np.ndarray
    labels: np.ndarray
    members: np.ndarray


def write_predictions(
    path: epath.Path,
    log_probs: np.ndarray,
    labels: np.ndarray,
    members: Sequence[int],
    config: Mapping[str, Any],
) -> None:
    """Writes predictions [M, N, C] with the configuration that they belong to."""
    content = io.BytesIO()
    np.savez_compressed(
        content,
        log_probs=log_probs,
        labels=labels,
        members=np.array(members, np.int32),
        config=json.dumps(config),
    )
    write_bytes(path, content.getvalue())


def read_predictions(path: epath.Path, config: Mapping[str, Any]) -> StoredPredictions:
    """Reads what `write_predictions` wrote.

    Args:
        path: of the npz file.
        config: of the workdir.

    Raises:
        UserError: the file is absent, damaged, empty, or of another configuration.
    """
    if not path.exists():
        raise UserError(f"{path} is missing; run train.py again with the same --workdir")
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            stored = StoredPredictions(*(arrays[name] for name in StoredPredictions._fields))
            theirs = json.loads(str(arrays["config"]))
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path} is damaged or not of this program ({type(error).__name__}); remove it and run "
            "train.py again with the same --workdir"
        ) from None
    changed = differences(theirs, config) if isinstance(theirs, dict) else ["config"]
    if changed:
        raise UserError(
            f"{path} has the predictions of another configuration: {'; '.join(changed)}; remove "
            "it and run train.py again with the same --workdir"
        )
    shape, labels = stored.log_probs.shape, stored.labels
    if (
        len(shape) != 3
        or 0 in shape
        or labels.shape != shape[1:2]
        or stored.members.shape != shape[:1]
        or stored.log_probs.dtype.kind != "f"
        or labels.dtype.kind not in "iu"
        or not (labels.min() >= 0 and labels.max() < shape[2])
    ):
        raise UserError(
            f"{path} holds log_probs {shape}, labels {labels.shape} and members "
            f"{stored.members.shape}; they must be [M, N, C], [N] in 0..C-1 and [M], none empty"
        )
    return stored
