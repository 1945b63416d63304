"""Stored predictions: `predictions/SPLIT.npz` of a workdir, written whole, read with care."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from ensemble import target_rows
from ensemble.config import differences
from ensemble.errors import UserError, in_one_line
from ensemble.likelihood import Arrays, Likelihood
from ensemble.scoring.view import View
from ensemble.storage import old
from ensemble.storage.files import write_by
from ensemble.storage.identity import check
from ensemble.storage.memory import max_bytes
from ensemble.storage.npz import map_arrays, read_arrays
from ensemble.storage.paths import is_remote
from ensemble.storage.schema import checked_config, parse
from ensemble.storage.workdir import check_size

_BYTES_PER_PAIR = 64
"""The bytes of a pair of members or of classes: a number in an array, in a list, and as text."""
_COLUMNS = (target_rows.VALUE, *target_rows.ANNOTATIONS)
_BINDING = ("identity", "split", "fingerprint")
MEMBER_OF, WEIGHTS = "member_of", "member_weights"
"""The entries of a file that has them."""


class MemberPredictions(NamedTuple):
    """What members say of N inputs.

    Attributes:
        arrays: [E, N, ...] by name: what the likelihood predicts with each of E estimators.
        member_of: [E], ascending from 0: the member that each belongs to; None: each is a member.
        weights: [M] of the members, positive; None: all the same.
    """

    arrays: Arrays
    member_of: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def members_of(self) -> np.ndarray:
        """`member_of`, also where it is None."""
        number = len(next(iter(self.arrays.values())))
        return np.arange(number) if self.member_of is None else self.member_of

    @property
    def num_members(self) -> int:
        """M."""
        return int(self.members_of[-1]) + 1

    def view(self, likelihood: Likelihood, targets: Any) -> View:
        """What is scored, beside targets [N], or None."""
        return likelihood.view(self.arrays, targets, self.member_of, self.weights)

    def of_members(self, chosen: Sequence[int]) -> "MemberPredictions":
        """The predictions of some members, in ascending order."""
        if list(chosen) == list(range(self.num_members)):
            return self  # Without a copy.
        where = [np.flatnonzero(self.members_of == k) for k in chosen]
        index = np.concatenate(where)
        arrays = {name: array[index] for name, array in self.arrays.items()}
        weights = None if self.weights is None else self.weights[list(chosen)]
        if self.member_of is None:
            return MemberPredictions(arrays, None, weights)
        member_of = np.repeat(np.arange(len(where)), [*map(len, where)])
        return MemberPredictions(arrays, member_of, weights)

    def have_nan(self) -> np.ndarray:
        """[M] bool: whether a member predicts NaN anywhere."""
        arrays = self.arrays.values()
        found = np.any([[np.isnan(one).any() for one in array] for array in arrays], axis=0)
        return np.bincount(self.members_of, found) > 0


class StoredPredictions(NamedTuple):
    """What the live members say of one split.

    Attributes:
        arrays: as of `MemberPredictions`.
        targets: [N] or [N, D], or as of `ensemble.target_rows`.
        members: int [M], their numbers.
        member_of: as of `MemberPredictions`.
        weights: as of `MemberPredictions`.
    """

    arrays: Arrays
    targets: np.ndarray
    members: np.ndarray
    member_of: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def said(self) -> MemberPredictions:
        """The predictions alone."""
        return MemberPredictions(self.arrays, self.member_of, self.weights)

    def view(self, likelihood: Likelihood) -> View:
        """What is scored."""
        return self.said.view(likelihood, self.targets)


def write_predictions(
    path: epath.Path,
    predictions: MemberPredictions,
    targets: np.ndarray,
    members: Sequence[int],
    config: Mapping[str, Any],
    *,
    identity: str | None = None,
    fingerprint: str = "",
) -> None:
    """Writes predictions with what they belong to.

    Args:
        path: of the file, which has the name of the split.
        predictions: to keep.
        targets: [N] of the split.
        members: [M], their numbers.
        config: of the run.
        identity: of the run; None: nobody's, and the file does not say what it belongs to.
        fingerprint: of the data.
    """
    binding = _binding(path, identity, fingerprint)
    entries = {
        **binding,
        **target_rows.columns(targets),
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
    if predictions.member_of is not None:
        entries[MEMBER_OF] = predictions.member_of.astype(np.int32)
    if predictions.weights is not None:
        entries[WEIGHTS] = predictions.weights.astype(np.float64)
    write_by(path, lambda file: save(file, **predictions.arrays, **entries))


def map_predictions(path: epath.Path) -> tuple[MemberPredictions, dict[str, np.ndarray]]:
    """Reads what `write_arrays` wrote by `np.savez`; from a disk arrays are mapped, not loaded.

    Returns:
        The predictions, and the other entries that are no numbers.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or too large.
    """
    if is_remote(path):
        arrays = read_arrays(io.BytesIO(path.read_bytes()), max_bytes())
    else:
        arrays = map_arrays(path, max_bytes())
    entries = {name: arrays.pop(name) for name in [*arrays] if not arrays[name].ndim}
    return _of_estimators(arrays), entries


def _of_estimators(arrays: dict[str, np.ndarray]) -> MemberPredictions:
    """Predictions of arrays that were read from a file, with the entries that it may have."""
    member_of, weights = arrays.pop(MEMBER_OF, None), arrays.pop(WEIGHTS, None)
    if member_of is not None and (
        member_of.ndim != 1
        or member_of.dtype.kind not in "iu"
        or not len(member_of)
        or member_of[0] != 0
        or not np.isin(np.diff(member_of), (0, 1)).all()
    ):
        raise ValueError(f"{MEMBER_OF} must have the member of each estimator, ascending from 0")
    found = MemberPredictions(arrays, None if member_of is None else member_of.astype(int), weights)
    if weights is not None and (
        weights.shape != (found.num_members,)
        or weights.dtype.kind != "f"
        or not (np.isfinite(weights) & (weights > 0)).all()
    ):
        raise ValueError(f"{WEIGHTS} must have a positive number for each member")
    return found


def read_predictions(
    path: epath.Path,
    config: Mapping[str, Any],
    likelihood: Likelihood,
    *,
    identity: str | None = None,
    fingerprint: str = "",
) -> StoredPredictions | None:
    """Reads what `write_predictions` wrote.

    Args:
        path: of the npz file.
        config: of the workdir.
        likelihood: of the run.
        identity: of the run; None: nobody's, and nothing is compared.
        fingerprint: of the data.

    Returns:
        The predictions; None where these are of before kept draws predicted, and not enough to
        score by today.

    Raises:
        UserError: the file is absent, damaged, empty, or of another run, split or configuration.
    """
    if not path.exists():
        raise UserError(f"{path} is missing; train again with the same --workdir")
    check_size(path)
    expected = _binding(path, identity, fingerprint)
    try:
        arrays = read_arrays(io.BytesIO(path.read_bytes()), max_bytes())
        arrays = old.predictions(arrays, expected)
        binding = {name: str(arrays.pop(name)) for name in _BINDING if name in arrays}
        members, text = arrays.pop("members"), arrays.pop("config")
        columns = {name: arrays.pop(name) for name in _COLUMNS if name in arrays}
        targets = _checked_targets(columns)
        theirs = checked_config(parse(str(text).encode()))
        found = _of_estimators(arrays)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} is damaged or not of this program ({in_one_line(error)}); remove it and train "
            "again with the same --workdir"
        ) from None
    if identity is not None:
        check(path, binding["identity"], identity)
    for name, value in expected.items():
        if binding.get(name) != value:
            raise UserError(
                f"{path} has the {name} {in_one_line(binding.get(name), 40)}, and must have "
                f"{in_one_line(value, 40)}; remove it and train again with the same "
                "--workdir"
            )
    changed = differences(theirs, config)
    if changed:
        raise UserError(
            f"{path} has the predictions of another configuration: {'; '.join(changed)}; remove "
            "it and train again with the same --workdir"
        )
    if old.are_of_sums(found.arrays):
        return None
    try:
        of_each = (likelihood.num_targets,) if likelihood.num_targets > 1 else ()
        are_lists = targets.ndim and targets.shape[1:] == of_each and members.ndim == 1
        if not are_lists or members.dtype.kind not in "iu":
            raise ValueError(f"targets {targets.shape} and members {members.shape} must be lists")
        check_predictions(found, targets, likelihood, len(members))
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{path}: {in_one_line(error)}; remove it and train again with the same --workdir"
        ) from None
    if targets.dtype.kind in "iu":
        targets = targets.astype(np.int32)
    return StoredPredictions(found.arrays, targets, members, found.member_of, found.weights)


def _checked_targets(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Targets of columns that were read from a file."""
    num_examples = len(columns[target_rows.VALUE])
    for name in target_rows.ANNOTATIONS:
        if name in columns and columns[name].shape != (num_examples,):
            raise ValueError(f"{name} {columns[name].shape} must be one for each target")
    if columns.get(target_rows.CENSORED, np.zeros(0, bool)).dtype != bool:
        raise ValueError(f"{target_rows.CENSORED} must be true or false")
    errors = columns.get(target_rows.ERROR, np.zeros(0))
    if errors.dtype.kind != "f" or not ((errors >= 0) & np.isfinite(errors)).all():
        raise ValueError(f"{target_rows.ERROR} must be finite and not negative")
    return target_rows.joined(columns)


def _binding(path: epath.Path, identity: str | None, fingerprint: str) -> dict[str, str]:
    """What a file of predictions belongs to."""
    if identity is None:
        return {}
    return {"identity": identity, "split": path.stem, "fingerprint": fingerprint}


def check_predictions(
    predictions: MemberPredictions,
    targets: np.ndarray | None,
    likelihood: Likelihood,
    num_members: int | None = None,
) -> None:
    """Checks what was read from a file before it is scored.

    Args:
        predictions: from the file.
        targets: [N], where they are in the file.
        likelihood: of the run.
        num_members: M, where the file says it.

    Raises:
        ValueError: they are no predictions of one M and one N, or more than an evaluation holds.
    """
    arrays, member_of = predictions.arrays, predictions.member_of
    for name, array in arrays.items():
        shape = array.shape
        wrong = len(shape) < 2 or 0 in shape
        wrong |= targets is not None and shape[1:2] != (len(targets),)
        wrong |= member_of is not None and shape[:1] != (len(member_of),)
        if wrong or (num_members is not None and predictions.num_members != num_members):
            raise ValueError(f"{name} {shape} must be [M, N, ...], as targets and members are")
        most = max(shape[0] if member_of is None else predictions.num_members, *shape[2:], 1)
        if _BYTES_PER_PAIR * most**2 > max_bytes():
            raise ValueError(f"{name} {shape} are more than an evaluation holds")
    likelihood.check_predictions(arrays, targets)
