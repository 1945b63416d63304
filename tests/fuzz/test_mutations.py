"""Bytes of workdirs that change, and parts that are exchanged: nothing differs without a word."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT, small_config

import ensemble

SAMPLED = {
    "method": "hmc",
    "model": "tiny",
    "num_chains": 2,
    "num_devices": 2,
    "sampler.num_warmup": 2,
    "sampler.num_samples": 4,
    "sampler.thin": 2,
    "sampler.num_leapfrog_steps": 2,
}
FILES = {
    "config": "config.json",
    "report": "report.json",
    "meta": "checkpoints/*/meta/*",
    "arrays": "checkpoints/*/state/**/*",
    "checkpoint": "checkpoints/*/*",
    "predictions": "predictions/*.npz",
    "draws": "draws/*.npz",
    "metrics": "metrics.jsonl",  # Read, and not compared: they are drawn.
}
"""By kind: which files of a run."""

NUM_CHANGES = 200
"""Of each kind."""


@pytest.fixture(scope="module")
def runs(blobs, tmp_path_factory):
    """By name: two runs of each method that differ by their seeds, and one that was run twice."""
    root, found = tmp_path_factory.mktemp("runs"), {}
    for name, config in (("sgd", small_config()), ("hmc", SAMPLED)):
        for seed, part in ((0, "a"), (1, "b"), (0, "c")):
            found[name + part] = root / (name + part)
            run = {**config, "seed": seed}
            ensemble.train(run, blobs, str(found[name + part]), show_progress=False)
    return found


def counted(*arguments):
    """What `mutations.py` counts; an abort, or anything bad, fails."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "fuzz" / "mutations.py"), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *bad, last = done.stdout.splitlines()
    counts = json.loads(last)
    print(arguments[-2:], counts)
    assert not bad, "\n".join(bad)
    return counts


@pytest.mark.parametrize(
    "count",
    [pytest.param(NUM_CHANGES, marks=pytest.mark.soak)],
)
@pytest.mark.parametrize("kind", FILES)
def test_a_byte_that_changes_is_noticed_or_makes_no_difference(kind, count, runs):
    run = runs["hmca" if kind == "draws" else "sgda"]
    counts = counted("bytes", run, FILES[kind], count)
    assert sum(counts.values()) == count


@pytest.mark.soak
@pytest.mark.parametrize("method", ["sgd", "hmc"])
def test_no_part_of_another_run_is_used(method, runs):
    counts = counted("parts", ",".join(str(runs[method + part]) for part in "abc"))
    assert counts["refused"] >= 30
