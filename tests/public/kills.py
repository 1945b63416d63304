"""Kills rows of the table of runs at random moments, goes on, and compares every bit.

    python -m tests.public.kills 200 benchmarks/results/kills.jsonl

Each kill is a line of the file; those that are there are not made again.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import names
import numpy as np
from runs import RUNS

ROWS = [name for name, row in RUNS.items() if "init_from" not in row.keys]


def train(name, workdir):
    """Trains a row in this process."""
    row = RUNS[name]
    names.train(row.config(), row.data and row.data(), workdir, show_progress=False)


def started(name, workdir):
    """Starts to train a row in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, name, str(workdir)], stderr=subprocess.PIPE)


def finish(name, workdir):
    """Trains a row to its end, and returns the seconds that it took."""
    began = time.monotonic()
    process = started(name, workdir)
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr.decode()[-2000:]
    return time.monotonic() - began


def outcome(workdir):
    """Returns what a run leaves but rates: metrics, draws, predictions, what is reported."""
    report = names.report(workdir)
    found = {"metrics": [without_rates(line) for line in names.metrics(workdir)]}
    found["report"] = {
        name: without_rates(report[name]) for name in ("posterior", "metrics") if name in report
    }
    for path in sorted(names.file(workdir, "predictions").glob("*.npz")):
        with np.load(path) as arrays:
            found[path.name] = {
                name: arrays[name] for name in arrays if arrays[name].dtype.kind == "f"
            }
    return found


def without_rates(record):
    """Returns numbers but for speeds."""
    return {name: value for name, value in record.items() if "per_second" not in name}


def kill(number, folder):
    """Kills one run and compares it with the whole one.

    Args:
        number: Number of the kill: of its row, and of its moment. Every other moment is after the
            first checkpoint has begun, the others are since the start.
        folder: Where runs that were not killed are kept.
    """
    name = ROWS[number % len(ROWS)]
    whole = folder / f"whole {name}"
    if not names.file(whole, "results.json").exists():
        (folder / f"{name}.seconds").write_text(str(finish(name, whole)))
    seconds = float((folder / f"{name}.seconds").read_text())
    workdir = folder / f"killed {number}"
    share = random.Random(number).uniform(0, 1)
    with started(name, workdir) as process:
        if number // len(ROWS) % 2:
            share *= 0.3
            while process.poll() is None and not (workdir / "checkpoints").exists():
                time.sleep(0.002)
        time.sleep(share * seconds)
        has_ended = process.poll() is not None
        process.kill()
    checkpoints = len([*(workdir / "checkpoints").glob("[0-9]*")])
    finish(name, workdir)
    np.testing.assert_equal(outcome(workdir), outcome(whole))  # NaN equals NaN.
    return {"kill": number, "row": name, "ended_before": has_ended, "checkpoints": checkpoints}


def main(number, path):
    """Makes the kills that a file does not have yet."""
    path = pathlib.Path(path)
    lines = path.read_text().splitlines() if path.exists() else []
    made = {json.loads(line)["kill"] for line in lines}
    with tempfile.TemporaryDirectory() as folder, open(path, "a") as file:
        for k in sorted(set(range(int(number))) - made):
            print(json.dumps(kill(k, pathlib.Path(folder))), file=file, flush=True)


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        main(*sys.argv[1:])
    else:
        train(*sys.argv[1:])
