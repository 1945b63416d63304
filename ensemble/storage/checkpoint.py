"""Checkpoints: everything the next step needs, written in the background, the newest few kept."""

import contextlib
import errno
import logging
import math
import os
import secrets
import shutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import numpy as np
from etils import epath

from ensemble.config import FORMAT
from ensemble.errors import UserError, first_line, in_one_line
from ensemble.sharding import processes
from ensemble.sharding.parts import Parts, whole_parts
from ensemble.storage import old
from ensemble.storage.checksum import checksum, checksum_of_shares, share_of
from ensemble.storage.memory import memory_bytes
from ensemble.storage.paths import is_remote
from ensemble.storage.workdir import UNFINISHED, cannot_write, check_format

logger = logging.getLogger("ensemble")

SPARE_BYTES = 1_000_000
"""What a checkpoint takes beside its arrays, generously."""

_WHOLE, _OF_ARRAYS = "whole_checksum", "checksum"
"""Checksums of a checkpoint as it was written: of all of it, and of its arrays."""

_TOKENS = ".seen_by_all_"

_TRIES = 20
"""How often a reader looks again, if a run replaces its checkpoints faster than they are read."""

_MAX_DESCRIPTION = 100_000_000
"""Bytes of a file of a checkpoint that holds no arrays; ours have some kilobytes."""

_REASONS = {
    os.strerror(errno.ENOSPC): errno.ENOSPC,
    os.strerror(errno.EDQUOT): errno.EDQUOT,
    os.strerror(errno.ENOENT): errno.ENOENT,
    "NOT_FOUND": errno.ENOENT,  # TensorStore's word.
    "Checkpoint directory does not exist": errno.ENOENT,  # Orbax's, as the next.
    "Path is not a directory": errno.ENOENT,
}
"""What is said, somewhere in a long error, of a disk that is full or a folder that is removed."""


def _is_of_system(error: Exception) -> bool:
    """Whether a checkpoint could not be read for a reason that is not in it."""
    words = (*map(os.strerror, _PASSING), *_OF_STORE)
    return any(one in str(error) for one in words) or isinstance(error, MemoryError)


_OF_STORE = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED")
"""TensorStore's words for a bucket that does not answer, or not to us."""

_PASSING = (
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT,
    errno.EACCES, errno.EPERM,
)  # fmt: skip
"""What passes, or can be fixed, without a change of the file."""


class TooLarge(ValueError):
    """A checkpoint that this machine cannot hold, be it sound or not."""


def _part_files() -> ModuleType:
    # Slow, and not needed before the first checkpoint.
    from ensemble.storage import part_files

    return part_files


class Checkpointer:
    """Numbered checkpoints of `(arrays, meta)` in one directory, by Orbax.

    Args:
        directory: created when the first checkpoint is saved.
        keep: how many of the newest to keep.
        is_shared: whether every process of the run writes and reads its own part there. All then
            call every method, in the same order; otherwise one process alone does.
    """

    def __init__(self, directory: epath.Path, keep: int = 1, is_shared: bool = False):
        self._directory = directory
        self._keep = keep
        self.is_shared = is_shared
        self._reads_parts = False
        self._has_saved = False
        self._manager: Any = None

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: Any) -> None:
        """Closes; but nobody waits for a part of a process that may have ended."""
        if error is None or not self.is_shared:
            self.close()

    def save(self, step: int, arrays: Any, meta: dict[str, Any]) -> None:
        """Saves in the background; waits for the save before, if that is still going on.

        Args:
            step: that the checkpoint is numbered by. It gets a larger number where it would not be
                the newest: an ensemble that has been enlarged is at the step that it was at.
            arrays: nested dict of host arrays, not to be written to afterwards, or of `Parts`.
            meta: JSON-ready; that of process 0 counts.

        Raises:
            UserError: this checkpoint or the one before cannot be written.
        """
        meta = {key: value for key, value in meta.items() if key != _WHOLE}
        meta |= {"format": FORMAT}
        parts = jax.tree.map(self._parts, arrays)
        shares = self._shares(parts)
        # The first is all that versions before 1.0 check.
        meta[_OF_ARRAYS] = checksum_of_shares(parts, shares)
        meta[_WHOLE] = checksum_of_shares(parts, shares, meta)

        def number() -> int:
            leaves = jax.tree.leaves(parts)
            self._check_disk(sum(math.prod(one.shape) * one.dtype.itemsize for one in leaves))
            newest = self._open().latest_step()
            return step if newest is None else max(step, newest + 1)

        self._has_saved = True
        try:
            _part_files().save(self._open(), self.from_main(number), parts, meta)
        except (UserError, jax.errors.JaxRuntimeError):  # The latter where a process is lost.
            raise
        except Exception as error:
            raise self._write_error(error) from None

    def _parts(self, leaf: Any) -> Parts:
        if isinstance(leaf, Parts):
            return leaf
        return whole_parts(np.asarray(leaf), not self.is_shared or processes.is_main())

    def _shares(self, parts: Any) -> list[int]:
        """What all processes together contribute to the checksum, for each array."""
        own = np.array([share_of(one) for one in jax.tree.leaves(parts)], np.uint32)
        rows = processes.join_rows(own[None]) if self.is_shared else own[None]
        return [int(one) for one in np.bitwise_xor.reduce(rows, axis=0)]

    def from_main(self, value: Callable[[], Any]) -> Any:
        """Calls a function in process 0 and tells all what it returns, if all are here.

        An error is process 0's alone: it ends, and the others notice.
        """
        found = value() if not self.is_shared or processes.is_main() else None
        return processes.from_main(lambda: found) if self.is_shared else found

    def wait(self) -> None:
        """Waits until what was saved is on disk.

        Raises:
            UserError: it could not be written.
        """
        if self._manager is not None:
            try:
                self._manager.wait_until_finished()
            except jax.errors.JaxRuntimeError:  # As in `save`.
                raise
            except Exception as error:
                raise self._write_error(error) from None

    def close(self) -> None:
        """Waits, and frees the background threads.

        Raises:
            UserError: what was saved could not be written.
        """
        try:
            self.wait()
        finally:
            manager, self._manager = self._manager, None
            if manager is not None:
                try:
                    manager.close()
                except Exception as error:  # Mostly what `wait` has raised, once more.
                    raise self._write_error(error) from None
                finally:
                    self._remove_if_moved()

    def _remove_if_moved(self) -> None:
        """Removes what Orbax has made anew where the workdir was, if somebody has taken it away.

        It was writing meanwhile, and TensorStore makes all folders that a file needs.
        """
        workdir = self._directory.parent
        if not self._has_saved or is_remote(workdir) or (workdir / "config.json").exists():
            return
        for left in self._directory.glob(f"*{UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        with contextlib.suppress(OSError):  # There is something else, or nothing.
            os.rmdir(self._directory)
            os.rmdir(workdir)

    def restore_latest(
        self, read_only: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Reads the newest checkpoint that is whole.

        An unreadable one is moved to the directory `unreadable_checkpoints`, with a warning, and
        the one before it is read.

        Args:
            read_only: leave unreadable ones where they are. A run may be writing meanwhile: where
                it has replaced those that were there, the new ones are read.

        Returns:
            `(arrays, meta)`, or None if there has never been a checkpoint. Where every process
            reads its own part, the arrays are `Distant`: read when they are used.

        Raises:
            UserError: there are checkpoints, and none can be read; or of another format.
        """
        if not self.is_shared:
            found = self._restore_any(read_only)
            return None if found is None else found[1:]
        chosen = processes.from_main(self._choose)
        if chosen is None:
            return None
        number, meta = chosen
        return _part_files().distant(self._directory / str(number)), meta

    def _choose(self) -> tuple[int, dict[str, Any]] | None:
        """What all processes read, once process 0 has seen that it is whole."""
        alone = Checkpointer(self._directory)
        alone._reads_parts = True
        with contextlib.closing(alone):
            found = alone._restore_any(read_only=False)
        return None if found is None else (found[0], found[2])

    def _restore_any(self, read_only: bool) -> tuple[int, Any, dict[str, Any]] | None:
        if not self._directory.exists():
            return None
        for _ in range(_TRIES if read_only else 0):
            there = self._names()
            try:
                return self._restore_newest(read_only)
            except UserError:
                if self._names() == there:
                    raise
                self.close()  # Orbax remembers what was there.
        return self._restore_newest(read_only)

    def _names(self) -> set[str]:
        """The names of the checkpoints that are there now."""
        return {path.name for path in self._directory.glob("*") if path.name.isdecimal()}

    def _restore_newest(self, read_only: bool) -> tuple[int, Any, dict[str, Any]] | None:
        reason = ""
        _check_listing(self._directory)
        try:
            numbers = sorted(self._open().all_steps(), reverse=True)
        except (OSError, ValueError, TypeError, RecursionError) as error:  # None of Orbax's files.
            raise UserError(
                f"{self._directory} cannot be read: {in_one_line(error)}; remove what is damaged, "
                "or choose another --workdir"
            ) from None
        for number in numbers:
            try:
                arrays, meta = self._restore(number)
            except UserError:
                raise
            except Exception as error:
                if not (self._directory / str(number)).exists():
                    continue  # The run that writes keeps the newest few.
                if _is_of_system(error):  # Not the checkpoint's fault.
                    raise UserError(
                        f"{self._directory / str(number)} cannot be read: {in_one_line(error)}; "
                        "fix that and run the same command"
                    ) from None
                reason = in_one_line(error)
                logger.warning(
                    "Checkpoint %d of %s cannot be read (%s); the one before is used.",
                    number,
                    self._directory,
                    first_line(error),
                )
                if not read_only and not isinstance(error, TooLarge):
                    self._move_aside(number)
            else:
                return number, arrays, meta
        if numbers:
            raise UserError(
                f"{self._directory}: none of the {len(numbers)} checkpoints can be read "
                f"({reason}); choose another --workdir, or the same command again to start afresh"
            )
        return None

    def _restore(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        _check_sizes(self._directory / str(number))
        manager = self._open()
        meta = _part_files().read_meta(manager, number)
        check_format(self._directory / str(number), meta["format"])
        _check_arrays(self._directory / str(number), whole=not self._reads_parts)
        if self._reads_parts:
            arrays = _part_files().distant(self._directory / str(number))
        else:
            arrays = _part_files().read_arrays(manager, number)
        said = {key: value for key, value in meta.items() if key != _WHOLE}
        is_whole = old.is_sealed(meta, _WHOLE)
        told = meta[_WHOLE] if is_whole else meta[_OF_ARRAYS]
        if told != checksum(arrays, said if is_whole else None):
            raise ValueError("its checksum does not agree with its content")
        return arrays, meta

    def _move_aside(self, number: int) -> None:
        aside = self._directory.parent / "unreadable_checkpoints"
        self._manager.close()
        self._manager = None
        aside.mkdir(parents=True, exist_ok=True)
        if (aside / str(number)).exists():
            (aside / str(number)).rmtree()
        (self._directory / str(number)).rename(aside / str(number))

    def _check_disk(self, num_bytes: int) -> None:
        """Refuses to begin a checkpoint that the disk cannot hold, or whose folder is gone.

        Orbax would die in threads, or make a folder of that name and go on.
        """
        if is_remote(self._directory):
            return
        if self._manager is not None and not self._directory.exists():
            raise cannot_write(self._directory.parent, os.strerror(errno.ENOENT))
        needed, free = num_bytes + SPARE_BYTES, shutil.disk_usage(self._directory.parent).free
        if free < needed:
            raise cannot_write(
                self._directory.parent,
                f"No space left on device: a checkpoint takes {needed / 1e6:.1f} MB, "
                f"{free / 1e6:.1f} MB are free",
            )

    def _open(self) -> Any:
        if self._manager is None:
            # Not its parents: a workdir that was moved would be made again.
            makes_parents = is_remote(self._directory)
            self.from_main(lambda: self._directory.mkdir(parents=makes_parents, exist_ok=True))
            self._manager = _part_files().open_manager(self._directory, self._keep, self.is_shared)
        return self._manager

    def _write_error(self, error: Exception) -> UserError:
        numbers = (number for words, number in _REASONS.items() if words in str(error))
        number = next(numbers, None)
        reason = first_line(error) if number is None else os.strerror(number)
        return cannot_write(self._directory.parent, reason)


# TensorStore and Orbax would end the process where files or arrays are too large.


def _check_listing(directory: epath.Path) -> None:
    """Refuses what Orbax reads of all checkpoints at once, where that is huge.

    Args:
        directory: of all checkpoints.

    Raises:
        UserError: it is.
    """
    if is_remote(directory):
        return
    for path in (*directory.glob("_*"), *directory.glob("*/_*")):
        if path.is_file() and path.stat().length > _MAX_DESCRIPTION:
            raise UserError(
                f"{path} has {path.stat().length:,} bytes, more than {_MAX_DESCRIPTION:,}; "
                "remove it, or choose another --workdir"
            )


def _check_sizes(checkpoint: epath.Path) -> None:
    """Raises ValueError where files are larger than ours are.

    Args:
        checkpoint: the folder of one.
    """
    if is_remote(checkpoint):
        return
    limit = memory_bytes() // 2
    for folder, folders, names in os.walk(checkpoint):
        for name in (*names, *folders):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                raise ValueError(f"{name} is a link")
        for name in names:
            path = os.path.join(folder, name)
            size = os.stat(path).st_size
            most = limit if os.path.basename(folder) == "d" else _MAX_DESCRIPTION
            if size > most:
                raise TooLarge(f"{name} has {size:,} bytes, more than {most:,}")


def _check_arrays(checkpoint: epath.Path, whole: bool) -> None:
    """Raises ValueError where memory cannot hold the arrays.

    Args:
        checkpoint: the folder of one.
        whole: whether all will be read, and not a piece at a time.
    """
    described = _part_files().described(checkpoint)
    leaves = jax.tree.leaves(described, is_leaf=lambda leaf: hasattr(leaf, "shape"))
    sizes = [
        max(math.prod(leaf.shape) if whole else 1, math.prod(leaf.storage.chunk_shape))
        * np.dtype(leaf.dtype).itemsize
        for leaf in leaves
        if hasattr(leaf, "shape")
    ]
    claimed = sum(sizes) if whole else max(sizes, default=0)
    if claimed > memory_bytes() // 2:
        raise TooLarge(f"its arrays claim {claimed:,} bytes, more than this machine has for it")


def is_shared(folder: epath.Path) -> bool:
    """Whether what each process writes in a folder is what all others read there.

    All processes call it. Each writes a token that only this run knows, and looks for everyone's.

    Args:
        folder: a path, which may be of another disk in every process.
    """
    if processes.count() == 1:
        return False
    token = processes.from_main(lambda: _choose_token(folder))
    ours = folder / f"{_TOKENS}{token}"
    own = ours / str(jax.process_index())
    with contextlib.suppress(OSError):
        # A folder that only process 0 has is not made here, nor anything in it.
        if is_remote(folder) or ours.exists():
            own.write_text(token)
    processes.wait_for_all("tokens written")
    sees = all(_holds(ours / str(k), token) for k in range(processes.count()))
    found = processes.join_rows(np.array([sees]))
    processes.from_main(lambda: _remove(ours))
    return bool(found.all())


def _choose_token(folder: epath.Path) -> str:
    for left in folder.glob(f"{_TOKENS}*"):  # By a run that was killed here.
        _remove(left)
    token = secrets.token_hex(16)
    with contextlib.suppress(OSError):
        (folder / f"{_TOKENS}{token}").mkdir()
    return token


def _holds(path: epath.Path, token: str) -> bool:
    try:
        return path.read_text() == token
    except OSError:
        return False


def _remove(folder: epath.Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmtree()


def check_shapes(arrays: Any, template: Any, of_members: bool = False) -> None:
    """Refuses restored arrays that are not as a state has them, such as those of a forged file.

    Args:
        arrays: a tree.
        template: of the same structure, with shapes and types; keys are not looked at.
        of_members: whether the leading axes count members, which may be others.

    Raises:
        ValueError: they are not.
    """
    for leaf, one in zip(jax.tree.leaves(arrays), jax.tree.leaves(template), strict=True):
        is_key = jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key)
        if not is_key and np.shape(leaf)[of_members:] != one.shape[of_members:]:
            raise ValueError(f"an array has the shape {np.shape(leaf)}, not {one.shape}")
        if not is_key and _dtype(leaf) != one.dtype:
            raise ValueError(f"an array is of {_dtype(leaf)}, not {one.dtype}")


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
