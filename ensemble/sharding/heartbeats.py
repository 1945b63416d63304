"""Processes of a run that hear of each other, also while one hangs: the others end with a line.

JAX notices a process that hangs as well, but ends the others in C++, with a trace. So threads of
ours look first. Each process counts aloud, through JAX's coordinator. Process 0 looks whether all
do, and says who does not; the others look whether process 0 answers. All count turns of their own
instead of seconds: a machine that was suspended has not waited.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

import jax

from ensemble.errors import PeerLost
from ensemble.sharding import processes

_TURN_SECONDS = 1.0
MAX_SILENT = 20
"""Turns without a word, after which a process is given up: sooner than JAX's own heartbeat ends."""
_BEATS, _LOST, _DONE = "ensemble/beats/", "ensemble/lost", "done"
_LAST_SECONDS = 3.0  # What the others have to read what process 0 says, before it ends.

_given_up = threading.Event()


class _Heart:
    """What the threads of a process know.

    Args:
        program: for its last line.
    """

    def __init__(self, program: str):
        self._program = program
        self._over = threading.Event()
        self._turns_alone = 0
        self._heard: dict[str, tuple[str, int]] = {}  # By process: its last word, turns since.

    def beat(self) -> None:
        """Counts aloud and listens; where process 0 hangs, it hangs too."""
        number = 0
        while not self._over.wait(_TURN_SECONDS):
            number += 1
            try:
                self._say(str(number))
                lost = self._lost()
            except jax.errors.JaxRuntimeError:  # The coordinator has ended, or is about to.
                continue
            self._turns_alone = 0
            if lost is not None and not self._over.is_set():
                self._give_up(lost)

    def guard(self) -> None:
        """Ends the process where `beat` hears nothing any more."""
        while not self._over.wait(_TURN_SECONDS):
            self._turns_alone += 1
            if self._turns_alone > MAX_SILENT:
                self._give_up("process 0")

    def close(self, is_missed: bool) -> None:
        """Ends the threads; the others give this process up if they still wait, or forget it."""
        self._over.set()
        if not is_missed:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._say(_DONE)

    def _say(self, word: str) -> None:
        processes.client().key_value_set(
            f"{_BEATS}{jax.process_index()}", word, allow_overwrite=True
        )

    def _lost(self) -> str | None:
        """Who is given up, if anybody is."""
        if not processes.is_main():
            return "another one" if processes.is_posted(_LOST) else None
        for key, word in processes.client().key_value_dir_get(_BEATS):
            before, turns = self._heard.get(key, ("", 0))
            self._heard[key] = word, turns + 1 if word == before else 0
        silent = [
            key.rpartition("/")[2]
            for key, (word, turns) in self._heard.items()
            if turns > MAX_SILENT and word != _DONE
        ]
        if not silent:
            return None
        processes.post(_LOST)
        return f"process {', '.join(sorted(silent, key=int))}"

    def _give_up(self, who: str) -> None:
        _given_up.set()
        line = (
            f"process {jax.process_index()} of {jax.process_count()} has not heard of {who} for "
            f"{MAX_SILENT} s; end what is left of it: the same command, for all, goes on from the "
            "last checkpoint"
        )
        print(f"{self._program}: {line}", file=sys.stderr, flush=True)
        if processes.is_main():
            time.sleep(_LAST_SECONDS)
        processes.end(PeerLost.exit_status)
        os._exit(PeerLost.exit_status)


@contextlib.contextmanager
def heard(program: str) -> Iterator[None]:
    """Ends this process of several with a line where another one hangs.

    Args:
        program: for the line.
    """
    heart = _Heart(program)
    for work in (heart.beat, heart.guard):
        threading.Thread(target=work, name="heartbeats", daemon=True).start()
    has_failed = False
    try:
        yield
    except Exception:
        if _given_up.is_set():  # What the end of another one does to this one: a line is said.
            time.sleep(60)
        has_failed = True  # The others may wait where JAX does not notice, as for a checkpoint.
        raise
    finally:
        heart.close(is_missed=has_failed)
