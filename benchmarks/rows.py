"""Rows of results that are on disk after every run."""

import fcntl
import json
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import side_by_side

Row = dict[str, Any]


class Results:
    """The rows of a JSON file, which several processes and threads may write.

    Args:
        path: of the file.
        summarise: what follows from all rows, by its names in the file.
        **head: what else the file says of itself.
    """

    def __init__(
        self,
        path: pathlib.Path,
        summarise: Callable[[Sequence[Row]], Mapping[str, Any]] = lambda _: {},
        **head: Any,
    ):
        self._path = path
        self._summarise = summarise
        self._head = head
        path.parent.mkdir(parents=True, exist_ok=True)
        self._read: tuple[Any, list[Row]] = (None, [])
        # Before the results are written, which are tracked.
        self._commit = side_by_side.provenance()["commit"]

    def rows(self) -> list[Row]:
        """All of them, those of other processes too; nobody may change them."""
        if not self._path.exists():
            return []
        about = self._path.stat()
        version = about.st_ino, about.st_mtime_ns, about.st_size
        if version != self._read[0]:
            self._read = version, json.loads(self._path.read_text())["rows"]
        return self._read[1]

    def find(self, key: Mapping[str, Any]) -> Row | None:
        """The row that has these values."""
        return next((row for row in self.rows() if _has(row, key)), None)

    def add(self, key: Mapping[str, Any], found: Mapping[str, Any]) -> Row:
        """Adds a row with its commit and date, in place of an earlier one of this key."""
        return self.add_all([(key, found)])[0]

    def add_all(self, found: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Row]:
        """Adds rows by their keys, as `add` does, and writes the file once."""
        about = {"commit": self._commit, "date": side_by_side.now()}
        pairs = [(key, {**key, **one, **about}) for key, one in found]
        added = [row for _, row in pairs]
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            rows = [one for one in self.rows() if not any(_has(one, key) for key, _ in pairs)]
            rows += added
            machine = {"machine": side_by_side.describe_machine()}
            content = {**machine, **self._head, "rows": rows, **self._summarise(rows)}
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(content, indent=1) + "\n")
            part.replace(self._path)
        finally:
            os.close(folder)
        return added

    def fill(
        self,
        keys: Iterable[Mapping[str, Any]],
        run: Callable[..., Mapping[str, Any]],
        anew: bool = False,
    ) -> list[Row]:
        """Runs what is missing, and shows each row on stderr.

        Args:
            keys: of all rows, in the order in which they are run.
            run: makes a row of a key. Where it fails, such as for lack of memory, others go on.
            anew: whether those that are there are run again.
        """
        failed = 0
        for key in keys:
            known = self.find(key)
            if known is None or anew:
                try:
                    found = run(**key)
                except RuntimeError:
                    traceback.print_exc()
                    failed += 1
                    continue
                print(self.add(key, found), file=sys.stderr, flush=True)
        if failed:
            sys.exit(f"{failed} runs have failed; the same command tries them again")
        return self.rows()


def _has(row: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    return key == {name: row.get(name) for name in key}
