"""Records, tables, manifests and checkpoints of anybody: each is read, or refused in one line.

`make check` takes the first inputs of each kind, `make soak` all 100,000 and says how they ended.
`fuzz_files.py` says what they are, and what may come of them.
"""

import collections
import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

COUNTS = {
    "records": 40_000,
    "csv": 25_000,
    "parquet": 20_000,
    "manifests": 10_000,
    "checkpoints": 5_000,
}
assert sum(COUNTS.values()) == 100_000


@pytest.mark.parametrize(
    "share", [pytest.param(0.004, marks=pytest.mark.check), pytest.param(1, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("kind", COUNTS)
def test_every_input_is_read_or_refused_in_one_line(kind, share, tmp_path, record_property):
    first, last = 0, int(COUNTS[kind] * share)
    ended, wrong = collections.Counter(), {}
    while first < last:
        lines, error = inputs(kind, tmp_path, first, last)
        for number, how, what in lines:
            ended[how] += 1
            if what:
                wrong.setdefault(what[:100], f"{kind} {number}: {what}")
        first += len(lines)
        if first < last:  # The process has ended: it was aborted, or nothing came of an input.
            ended["wrong"] += 1
            wrong[f"{kind} {first}"] = f"{kind} {first}: the process ended: {error[-2000:]}"
            assert len(wrong) < 9, "\n".join(wrong.values())
            first += 1
    record_property("counted", json.dumps({f"fuzzed {kind}": {"inputs": ended.total(), **ended}}))
    assert not wrong, "\n".join(wrong.values())
    assert ended.total() == last
    assert ended["refused"] > last / 10
    assert ended["refused"] < last


def inputs(kind, folder, first, last):
    """How inputs ended, until one ended the process that reads them; and what it said then."""
    command = [str(ROOT / "tests" / "fuzz" / "fuzz_files.py"), kind, str(folder / "files")]
    done = subprocess.run(
        [sys.executable, *command, str(first), str(last)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr
