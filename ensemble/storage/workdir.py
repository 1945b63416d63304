"""A run's directory: what lies where, one run at a time, files whole or not at all."""

import contextlib
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import ml_collections
from etils import epath

from ensemble.config import FORMAT
from ensemble.errors import Unregistered, UserError, in_one_line, shown
from ensemble.storage import identity, old, packages, schema
from ensemble.storage.files import open_lock, write_file
from ensemble.storage.memory import max_bytes
from ensemble.storage.paths import is_remote, user_path

logger = logging.getLogger("ensemble")

UNFINISHED = ".orbax-checkpoint-tmp"
"""What the name of a checkpoint ends with while Orbax writes it."""

_TOLD: set[tuple[epath.Path, str]] = set()
"""Workdirs, and what has been said of them."""

_NO_LOCK = "%s cannot be locked: start one run at a time there."


class Workdir:
    """Paths of a workdir, local or remote (`gs://`).

    Args:
        path: of the directory; `~` is expanded.

    Raises:
        UserError: there can be no such path.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = user_path(path, "--workdir")
        self.config = self.path / "config.json"
        self.report = self.path / "report.json"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events"
        self.checkpoints = self.path / "checkpoints"
        self.predictions = self.path / "predictions"
        self.plots = self.path / "plots"
        self.draws = self.path / "draws"
        self.new_members = self.path / "newcomers"
        self._identity: str | None = None  # As this process has written it.

    def of_new_members(self, first: int, last: int) -> "Workdir":
        """The workdir of members that are yet to join; their events are a run of TensorBoard."""
        inner = Workdir(self.new_members)
        inner.events = self.events / f"members_{first:02d}-{last:02d}"
        return inner

    @property
    def is_remote(self) -> bool:
        """Whether the directory is an object store's, which cannot lock or append."""
        return is_remote(self.path)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Creates the directory and holds it for one run.

        The lock is the kernel's (flock) and dies with its process, so a killed run leaves none.

        Raises:
            UserError: it cannot be written, or another run holds it, or it is the root folder.
        """
        if not self.is_remote and self.path == self.path.parent:
            raise UserError(f"--workdir={self.path} is the root folder; name one of the run's own")
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self.check_links()
                if self.is_remote:
                    logger.warning(_NO_LOCK, self.path)
                elif self._lock(stack.enter_context(open_lock(self.path / ".lock"))):
                    self._remove_unfinished()
                write_file(self.path / ".writable", "Can a file be written?")
                (self.path / ".writable").unlink()
            except OSError as error:
                raise UserError(
                    f"--workdir={self.path} cannot be written: {error.strerror or error}; "
                    "choose another directory or free space there"
                ) from None
            yield

    def _lock(self, file: IO[str]) -> bool:
        """Whether the disk can lock."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            raise UserError(
                f"--workdir={self.path} is in use by another run; wait for its end or choose "
                "another directory"
            ) from None
        except OSError:
            logger.warning(_NO_LOCK, self.path)
        return False

    def _remove_unfinished(self) -> None:
        """Removes checkpoints that a kill interrupted: Orbax only does if it saves that step."""
        for directory in (self.checkpoints, self.new_members / self.checkpoints.name):
            for left in directory.glob(f"*{UNFINISHED}*"):
                left.rmtree() if left.is_dir() else left.unlink()

    @contextlib.contextmanager
    def checkpoint_errors(self) -> Iterator[None]:
        """Turns what a checkpoint that is none of ours makes its readers raise into one line.

        Raises:
            UserError: as said.
        """
        try:
            yield
        except UserError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            if unusual := identity.unusual():
                raise UserError(
                    f"{self.checkpoints} cannot be used with {', '.join(unusual)} "
                    f"({in_one_line(error)}); set JAX as it was when the run began"
                ) from None
            raise _damaged(self.checkpoints, error) from None

    def check_is_there(self) -> None:
        """Refuses to write on in a workdir that somebody has removed, or is removing.

        Raises:
            UserError: config.json, which a run writes first, is gone.
        """
        if not self.config.exists():
            raise cannot_write(self.path, os.strerror(errno.ENOENT))

    def write_config(
        self,
        config: ml_collections.FrozenConfigDict,
        fingerprint: str | None = None,
        outer: "Workdir | None" = None,
    ) -> None:
        """Writes config.json, with the identity of the run that is there, or of a new one.

        Args:
            config: of the run.
            fingerprint: of its data; None where it has none.
            outer: the workdir of the run that this one is a part of.
        """
        owner = self if outer is None else outer
        values = config.to_dict()
        if owner.config.exists():
            found, content = owner.identity(), old.as_it_began(owner._content(), values)
        else:
            entry = identity.create(values, fingerprint)
            found = identity.read(entry, values)
            content = {"format": FORMAT, "config": values, "identity": entry}
            # Not of the identity, for another version of a package goes on with the run.
            if foreign := packages.of_config(values):
                content["packages"] = foreign
        write_file(self.config, schema.to_json(content))
        self._identity = found

    def check_links(self) -> None:
        """Refuses what would be read or written elsewhere, or never end: links out, and devices.

        Looked at is the directory itself and the folders that a run has in it, not others that its
        owner has put there.

        Raises:
            UserError: naming the first of them.
        """
        if self.is_remote or not self.path.is_dir():
            return
        folders = [self.events, self.checkpoints, self.predictions, self.plots, self.draws]
        folders.append(self.new_members)
        folders += [self.path / name for name in ("evaluation", "unreadable_checkpoints")]
        check_links(self.path)
        for path in (self.config, self.report, self.metrics):
            if path.is_dir():
                raise UserError(f"{path} is a folder, and should be a file; remove it")
        for folder in folders:
            if folder.is_file():
                raise UserError(f"{folder} is a file, and should be a folder; remove it")
            for directory, _, _ in os.walk(folder):
                check_links(epath.Path(directory), within=self.path)

    def read_config(self) -> dict[str, Any] | None:
        """Reads config.json; None where there is none.

        Raises:
            UserError: it or report.json is not one of ours, or of another format; or a link leads
                out of the workdir.
        """
        self.read_report()
        if not self.config.exists():
            return None
        said = self.packages()
        config = _read_json(self.config, lambda one: schema.checked_config(one["config"], said))
        for line in packages.changes(said):
            if (self.path, line) not in _TOLD:
                _TOLD.add((self.path, line))
                logger.warning("%s: %s.", self.path, line)
        return config

    def packages(self) -> list[packages.Tenant]:
        """The tenants of installed packages that the run began with.

        Raises:
            UserError: config.json is not one of ours.
        """

        def read(content: dict[str, Any]) -> dict[str, Any]:
            return {"": packages.checked(content.get("packages", []))}

        found: list[packages.Tenant] = []
        if self.config.exists():
            found = _read_json(self.config, read)[""]
        return found

    def check_packages(self) -> None:
        """Refuses what needs all tenants of the run where one is missing.

        Raises:
            UserError: naming the packages that had them.
        """
        if absent := packages.missing(self.packages()):
            raise Unregistered(f"{self.path}: {packages.remedy(absent)}")

    def identity(self) -> str:
        """The identity of the run that is here, which every part of it has.

        Raises:
            UserError: config.json is not one of ours, or was changed since the run began.
        """
        if self._identity is not None:  # Whatever somebody has put in its place meanwhile.
            return self._identity

        def checked(content: dict[str, Any]) -> dict[str, Any]:
            return {"": old.identity_of(content, self.path)}

        if not self.config.exists():
            raise UserError(
                f"{self.config} is missing; restore it from a copy, or choose another --workdir"
            )
        return str(_read_json(self.config, checked)[""])

    def check_belongs(self, part: epath.Path, found: Any) -> None:
        """Refuses a part of another run.

        Args:
            part: its path.
            found: the identity in it.
        """
        identity.check(part, found, self.identity())

    def check_flags(self) -> None:
        """Refuses to go on where JAX computes other numbers than when the run began.

        Raises:
            UserError: as said.
        """
        if self.config.exists():
            identity.check_flags(self.path, old.flags(self._content()))

    def _content(self) -> dict[str, Any]:
        self.identity()  # It is sound.
        return _read_json(self.config, dict)

    def read_report(self) -> dict[str, Any]:
        """Reads report.json; empty where there is none.

        Raises:
            UserError: it is not one of ours, or of another format; or a link leads out of the
                workdir.
        """
        self.check_links()
        if not self.report.exists():
            return {}
        said = self.packages()
        report = _read_json(self.report, lambda one: schema.checked_report(one, said))
        if self.config.exists():
            self.check_belongs(self.report, report["identity"])
        return report

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Writes report.json, with the run's identity."""
        content = {"identity": self.identity(), **report}
        content["checksum"] = schema.checksum(content)
        write_file(self.report, schema.to_json(content))


def check_links(directory: epath.Path, within: epath.Path | None = None) -> None:
    """Refuses links in a directory that lead out, and what is neither file nor directory.

    Args:
        directory: local; those in it are not looked into.
        within: where links to files may lead. Links to folders are refused then, because nobody
            looks at what is behind them. None: in the directory, to files and folders.

    Raises:
        UserError: naming the first of them.
    """
    root = epath.Path(os.path.realpath(within or directory))
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except FileNotFoundError:  # As below: a run that goes on here has removed it.
        return
    except OSError as error:
        raise UserError(f"{directory} cannot be read: {error.strerror}; change its mode") from None
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            _check_entry(entry, root, takes_folders=within is None)


def _check_entry(entry: os.DirEntry[str], within: epath.Path, takes_folders: bool) -> None:
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        if os.path.commonpath([target, within]) != os.fspath(within):
            raise UserError(
                f"{shown(entry.path)} is a link that leads out of {within}, to {shown(target)}; "
                "put there what it links to, or remove it"
            )
        if not os.path.exists(target):
            return
        if os.path.isdir(target) and not takes_folders:
            raise UserError(
                f"{shown(entry.path)} is a link to the folder {shown(target)}; put that folder "
                "there itself, or remove the link"
            )
    mode = entry.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{shown(entry.path)} is neither a file nor a folder; remove it")


def check_size(path: epath.Path, limit: int | None = None) -> None:
    """Refuses a file that is too large to be read whole.

    Args:
        path: of a file.
        limit: in bytes; None: as the memory of this machine allows.

    Raises:
        UserError: as said.
    """
    limit = max_bytes() if limit is None else limit
    if path.stat().length > limit:
        raise UserError(
            f"{path} has {path.stat().length:,} bytes, more than the {limit:,} that it may have "
            "here; choose another --workdir, or remove it if the rest is sound"
        )


def _read_json(
    path: epath.Path, checked: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Reads a file, and returns what `checked` makes of it."""
    try:
        check_size(path, schema.MAX_BYTES)
        content = schema.parse(path.read_bytes())
        number, _ = content["format"], content["config"]
    except UserError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(path, error) from None
    check_format(path, number)
    try:
        return checked(content)
    except Unregistered as error:
        raise Unregistered(f"{path}: {error}") from None
    except (ValueError, KeyError, OverflowError) as error:
        raise _damaged(path, error) from None


def _damaged(path: epath.Path, error: Exception) -> UserError:
    what = f"it has no {error}" if isinstance(error, KeyError) else error
    if path.name == "config.json":
        return UserError(
            f"{path} is not a file of this program, or damaged ({in_one_line(what)}); restore it "
            "from a copy, or choose another --workdir"
        )
    return UserError(
        f"{path} is not a file of this program, or damaged ({in_one_line(what)}); choose another "
        "--workdir, or remove it if the rest is sound"
    )


def write_error(workdir: epath.Path, error: OSError) -> UserError:
    """The line for what the system says while a run reads data and writes to its workdir."""
    reason = error.strerror or str(error)
    where = os.fspath(error.filename) if isinstance(error.filename, str | os.PathLike) else ""
    if where and os.path.isabs(where) and not where.startswith(os.fspath(workdir)):
        return UserError(f"{shown(where)} cannot be used: {in_one_line(reason)}; fix that")
    return cannot_write(workdir, reason)


def cannot_write(workdir: epath.Path, reason: str) -> UserError:
    """The line for a workdir that a run cannot write to any more."""
    is_full = any(os.strerror(number) in reason for number in (errno.ENOSPC, errno.EDQUOT))
    is_there = (workdir / "config.json").exists() and os.strerror(errno.ENOENT) not in reason
    if not workdir.exists() or not (is_full or is_there):
        return UserError(
            f"{workdir}, or what is in it, was removed while the run wrote to it; restore it and "
            "run the same command, or start the run again"
        )
    return UserError(
        f"{workdir} cannot be written: {reason}; {'free space' if is_full else 'fix that'} there "
        "and run the same command: it resumes from the last whole checkpoint"
    )


def check_format(path: Any, number: Any) -> None:
    """Refuses a file of another format.

    Raises:
        UserError: its format number is not `FORMAT`.
    """
    if number != FORMAT:
        raise UserError(
            f"{path} has format {in_one_line(repr(number))}, this version reads format {FORMAT}; "
            "use the version that wrote it, or a new --workdir"
        )
