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


class MemberPredictions(NamedTuple):
    """What members say of N inputs.

    Attributes:
        log_probs: [M, N, C] float32; of a chain, the log of the mean over its draws.
        entropies: [M, N] float32, nats: of a chain, the mean over its draws. None where members
            are single networks, whose entropies follow from `log_probs`.
    """

    log_probs: np.ndarray
    entropies: np.ndarray | None = None

    def of_members(self, chosen: Sequence[int]) -> "MemberPredictions":
        """Those of some members."""
        entropies = None if self.entropies is None else self.entropies[list(chosen)]
        return MemberPredictions(self.log_probs[list(chosen)], entropies)


class StoredPredictions(NamedTuple):
    """What the live members say of one split.

    Attributes:
        log_probs: [M, N, C] float32.
        labels: int [N].
        members: int [M], their numbers.
        entropies: as of `MemberPredictions`.
    """

    log_probs: np.ndarray
    labels: np.ndarray
    members: np.ndarray
    entropies: np.ndarray | None = None


def write_predictions(
    path: epath.Path,
    predictions: MemberPredictions,
    labels: np.ndarray,
    members: Sequence[int],
    config: Mapping[str, Any],
) -> None:
    """Writes predictions with the configuration that they belong to."""
    content = io.BytesIO()
    arrays = {name: one for name, one in predictions._asdict().items() if one is not None}
    np.savez_compressed(
        content,
        **arrays,
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
            names = [name for name in StoredPredictions._fields if name in arrays]
            stored = StoredPredictions(**{name: arrays[name] for name in names})
            theirs = json.loads(str(arrays["config"]))
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
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
        or (stored.entropies is not None and stored.entropies.shape != shape[:2])
    ):
        raise UserError(
            f"{path} holds log_probs {shape}, labels {labels.shape} and members "
            f"{stored.members.shape}; they must be [M, N, C], [N] in 0..C-1 and [M], none empty"
        )
    return stored
