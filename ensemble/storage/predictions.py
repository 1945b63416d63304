"""Stored predictions: `predictions/SPLIT.npz` of a workdir, written whole, read with care."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from ensemble.config import differences
from ensemble.errors import UserError, in_one_line
from ensemble.metrics.checks import as_log_probs
from ensemble.storage.npz import max_bytes, read_arrays
from ensemble.storage.schema import checked_config, parse
from ensemble.storage.workdir import check_size, write_bytes

_BYTES_PER_PAIR = 64
"""Of members or of classes: a number in an array, in a list, and as text."""


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
        targets: int [N].
        members: int [M], their numbers.
        entropies: as of `MemberPredictions`.
    """

    log_probs: np.ndarray
    targets: np.ndarray
    members: np.ndarray
    entropies: np.ndarray | None = None


def write_predictions(
    path: epath.Path,
    predictions: MemberPredictions,
    targets: np.ndarray,
    members: Sequence[int],
    config: Mapping[str, Any],
) -> None:
    """Writes predictions with the configuration that they belong to."""
    entries = {
        "targets": targets,
        "members": np.array(members, np.int32),
        "config": json.dumps(config),
    }
    write_arrays(path, predictions, np.savez_compressed, **entries)


def write_arrays(
    path: epath.Path,
    predictions: MemberPredictions,
    save: Callable[..., None],
    **entries: Any,
) -> None:
    """Writes predictions and other entries as one npz file, whole or not at all.

    Args:
        path: of the file.
        predictions: to keep.
        save: `np.savez`, or `np.savez_compressed` of what is read from afar.
        **entries: beside the predictions.
    """
    content = io.BytesIO()
    arrays = {name: one for name, one in predictions._asdict().items() if one is not None}
    save(content, **arrays, **entries)
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
    check_size(path)
    try:
        arrays = read_arrays(io.BytesIO(path.read_bytes()), max_bytes())
        if "labels" in arrays:  # As targets were called in format 1's first files.
            arrays["targets"] = arrays.pop("labels")
        names = [name for name in StoredPredictions._fields if name in arrays]
        stored = StoredPredictions(**{name: arrays[name] for name in names})
        theirs = checked_config(parse(str(arrays["config"]).encode()))
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} is damaged or not of this program ({in_one_line(error)}); remove it and run "
            "train.py again with the same --workdir"
        ) from None
    changed = differences(theirs, config)
    if changed:
        raise UserError(
            f"{path} has the predictions of another configuration: {'; '.join(changed)}; remove "
            "it and run train.py again with the same --workdir"
        )
    shape, targets = stored.log_probs.shape, stored.targets
    if (
        len(shape) != 3
        or 0 in shape
        or targets.shape != shape[1:2]
        or stored.members.shape != shape[:1]
        or stored.members.dtype.kind not in "iu"
        or stored.log_probs.dtype.kind != "f"
        or targets.dtype.kind not in "iu"
        or not (targets.min() >= 0 and targets.max() < shape[2])
    ):
        raise UserError(
            f"{path} holds log_probs {shape}, targets {targets.shape} and members "
            f"{stored.members.shape}; they must be [M, N, C], [N] in 0..C-1 and [M], none empty"
        )
    try:
        check_predictions(MemberPredictions(stored.log_probs, stored.entropies))
    except ValueError as error:
        raise UserError(f"{path}: {in_one_line(error)}") from None
    return stored._replace(targets=targets.astype(np.int32))


def check_predictions(predictions: MemberPredictions) -> None:
    """Checks what was read from a file before it is scored.

    Raises:
        ValueError: log_probs are none, entropies do not belong to them, or there are more members
            or classes than tables of all pairs can hold.
    """
    log_probs, entropies = predictions
    if np.isnan(log_probs).any():
        raise ValueError("log_probs hold NaN")
    num_members, _, num_classes = as_log_probs(log_probs, ndim=3).shape
    if _BYTES_PER_PAIR * max(num_members, num_classes) ** 2 > max_bytes():
        raise ValueError(
            f"{num_members} members and {num_classes} classes are more than an evaluation holds"
        )
    if entropies is not None and (
        entropies.shape != log_probs.shape[:2]
        or entropies.dtype.kind != "f"
        or not np.isfinite(entropies).all()
    ):
        raise ValueError(f"entropies must be finite, {log_probs.shape[:2]}")
