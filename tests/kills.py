"""Kills runs of `train.py` at random moments, for tests, and says what they were doing and left."""

import collections
import json
import pathlib
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath
from run_parts import draws_of

from ensemble.storage.checkpoint import Checkpointer

MOMENTS = ("starting", "stepping", "saving")
"""Of a process: before its first save, between two of its saves, within one."""

_DELAYS = {"starting": 4.0, "stepping": 0.3, "saving": 0.03}
"""Seconds, at most: from its beginning, from the end or from the beginning of its first save."""


def kill_often(
    command: Sequence[str],
    workdir: pathlib.Path,
    num_kills: int,
    seed: int,
    check: Callable[[], None],
) -> collections.Counter[str]:
    """Kills a run and resumes it, over and over, and at last lets it end.

    Where it ends between two kills, it is checked as well, and begun anew.

    Args:
        command: of the run.
        workdir: of the run.
        num_kills: of which some are at each of `MOMENTS`; if a process is too quick for that, it
            takes a few more.
        seed: of what chance chooses.
        check: whether the run that has ended is as if nothing had happened.

    Returns:
        How many kills fell at each of `MOMENTS`.
    """
    rng = random.Random(seed)
    fell = collections.Counter(dict.fromkeys(MOMENTS, 0))
    starts = 0
    while fell.total() < num_kills or not all(fell.values()):
        starts += 1
        assert starts < 10 * num_kills + 20, f"processes are never caught {fell}"
        moment = kill(command, workdir, min(MOMENTS, key=fell.__getitem__), rng)
        if moment is None:
            check()
            shutil.rmtree(workdir)
        else:
            fell[moment] += 1
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    check()
    return fell


def kill(
    command: Sequence[str], workdir: pathlib.Path, wanted: str, rng: random.Random
) -> str | None:
    """Starts a process, or resumes what others have begun, and kills it.

    Returns:
        The moment of `MOMENTS` that the files tell, `wanted` or what it was too quick or too slow
        for; None if it had ended by itself.
    """
    before = _checkpoints(workdir)
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not _is_at(wanted, _checkpoints(workdir) - before):
            time.sleep(0.001)
        time.sleep(rng.uniform(0, _DELAYS[wanted]))
        process.kill()
        _, stderr = process.communicate()
    if process.returncode != -signal.SIGKILL:
        assert process.returncode == 0, stderr
        return None
    new = _checkpoints(workdir) - before
    return next(moment for moment in reversed(MOMENTS) if _is_at(moment, new))


def _is_at(moment: str, new: set[tuple[str, int]]) -> bool:
    """Whether a process that has left these checkpoints has come to a moment."""
    names = [name for name, _ in new]
    return {
        "starting": True,
        "stepping": any(name.isdecimal() for name in names),
        "saving": not all(name.isdecimal() for name in names),
    }[moment]


def _checkpoints(workdir: pathlib.Path) -> set[tuple[str, int]]:
    """Names of checkpoints and, of unfinished ones, when they were begun or written to last."""
    found = set()
    for path in (workdir / "checkpoints").glob("*"):
        try:
            found.add((path.name, 0 if path.name.isdecimal() else path.stat().st_mtime_ns))
        except FileNotFoundError:  # It has just been finished.
            continue
    return found


def result_of(workdir):
    """All that a run leaves: its last state, draws, predictions, metrics, events, its report."""
    checkpointer = Checkpointer(epath.Path(workdir) / "checkpoints")
    arrays, meta = checkpointer.restore_latest(read_only=True)
    checkpointer.close()
    found = {"counters": meta["counters"], "state": arrays}
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    found["metrics"] = [without_rates(json.loads(line)) for line in lines]
    # Each once, but for rates: a process has none of its first chunk.
    events = [(event.tag, event.step) for event in read_events(workdir)]
    found["events"] = sorted(one for one in events if "per_second" not in one[0])
    report = json.loads((workdir / "report.json").read_text())
    found["report"] = {
        name: without_rates(report[name]) for name in ("posterior", "test") if name in report
    }
    if (workdir / "draws").exists():
        draws = draws_of(workdir)
        found |= {"scalars": draws.scalars(), "positions": draws.positions()}
    if (workdir / "predictions" / "test.npz").exists():
        with np.load(workdir / "predictions" / "test.npz") as predictions:
            found["log_probs"] = predictions["log_probs"]
    return found


def without_rates(record):
    return {name: value for name, value in record.items() if "per_second" not in name}


def assert_same(workdir, expected):
    np.testing.assert_equal(result_of(workdir), expected)  # To the bit, a NaN for a NaN.


def read_events(workdir: pathlib.Path) -> list["Event"]:
    """All that the event files hold, in whatever file."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        Event(value.tag, event.step)
        for path in sorted((workdir / "events").glob("run.out.tfevents.*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


class Event(NamedTuple):
    """A value that TensorBoard shows."""

    tag: str
    step: int
