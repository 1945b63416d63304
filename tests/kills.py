"""What a run leaves, for tests that compare an interrupted one with a whole one."""

import json
import pathlib
from typing import NamedTuple

import numpy as np
from etils import epath
from run_parts import draws_of

from ensemble.storage.checkpoint import Checkpointer


def result_of(workdir):
    """All that a run leaves: its last state, draws, predictions, metrics, events, its report."""
    checkpointer = Checkpointer(epath.Path(workdir) / "checkpoints")
    arrays, meta = checkpointer.read_latest()
    checkpointer.close()
    found = {"counters": meta["counters"], "state": arrays}
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    found["metrics"] = [without_rates(json.loads(line)) for line in lines]
    # But for rates: a process has none of its first chunk.
    events = {(event.tag, event.step) for event in read_events(workdir)}
    found["events"] = sorted(one for one in events if "per_second" not in one[0])
    report = json.loads((workdir / "results.json").read_text())
    found["report"] = {
        name: without_rates(report[name]) for name in ("posterior", "metrics") if name in report
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
