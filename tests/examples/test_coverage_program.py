"""`python -m examples.coverage`: what a user sees of it."""

import json

import numpy as np
import pytest
from PIL import Image
from programs import run_here

from examples.coverage import intervals, known_truth

COMMAND = "examples.coverage.__main__"


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("covrage", "unrecognized arguments: covrage"),
        ("--data_sets=3", "--data_sets=3: use 20 to 10000"),
        ("--seed=-1", "--seed=-1: use 0 to 2147483647"),
        ("--seed=x", "argument --seed: invalid int value: 'x'"),
        ("--out=/dev/null/x", "/dev/null"),
    ],
)
def test_a_mistake_is_one_line(argument, line):
    done = run_here(COMMAND, argument)
    assert done.returncode == 2
    assert done.stderr.startswith("coverage: ")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_prints_a_table_and_writes_picture_and_numbers(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)

    def found(seed, num_data_sets, note):
        names = [(method, one) for method in intervals.METHODS for one in intervals.VARIANTS]
        held = {name: rng.uniform(size=(num_data_sets, len(intervals.POINTS))) for name in names}
        ends = (intervals.POINTS - 1, intervals.POINTS + 1)
        example = {name: rng.normal(size=61) for name in ("inputs", "targets", "truth")}
        chains = {"num_posteriors": 1, "rhat_max": 1.0, "limit": 1.1, "num_above": 0}
        chains |= {"num_divergent": 0, "num_draws": 1}
        note(intervals.num_jobs(num_data_sets))
        one = intervals.Found(
            held, held, {**example, "intervals": dict.fromkeys(names, ends)}, chains, 0
        )
        return dict.fromkeys(known_truth.TRUTHS, one)

    monkeypatch.setattr(intervals, "run", found)
    done = run_here(COMMAND, f"--out={tmp_path}/out", "--seed=5", "--data_sets=30")
    assert done.returncode == 0, done.stderr
    assert "truth of waves" in done.stdout
    assert done.stdout.endswith(
        f"Picture: {tmp_path}/out/coverage.png, and every number in {tmp_path}/out/coverage.json\n"
    )
    content = json.loads((tmp_path / "out" / "coverage.json").read_text())
    assert (content["seed"], content["num_data_sets"]) == (5, 30)
    with Image.open(tmp_path / "out" / "coverage.png") as picture:
        assert picture.format == "PNG"
