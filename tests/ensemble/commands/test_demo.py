"""`python -m ensemble demo`: what a user sees of it."""

import json

import numpy as np
import pytest
from PIL import Image
from programs import run_here

from ensemble.demos import coverage, known_truth

COMMAND = ("ensemble.__main__", "demo")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "coverage is missing; try demo coverage"),
        (("covrage",), "'covrage' is no demo; use coverage"),
        (("coverage", "--data_sets=3"), "--data_sets=3: 3 is not an integer in the range [20, "),
        (("coverage", "--seed=-1"), "--seed=-1: -1 is not an integer in the range [0, "),
        (("coverage", "--out=/dev/null/x"), "/dev/null"),
    ],
)
def test_a_mistake_is_one_line(arguments, line):
    done = run_here(*COMMAND, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("ensemble demo: ")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_prints_a_table_and_writes_picture_and_numbers(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)

    def found(seed, num_data_sets, note):
        names = [(method, one) for method in coverage.METHODS for one in coverage.VARIANTS]
        held = {name: rng.uniform(size=(num_data_sets, len(coverage.POINTS))) for name in names}
        ends = (coverage.POINTS - 1, coverage.POINTS + 1)
        example = {name: rng.normal(size=61) for name in ("inputs", "targets", "truth")}
        chains = {"num_posteriors": 1, "rhat_max": 1.0, "limit": 1.1, "num_above": 0}
        chains |= {"num_divergent": 0, "num_draws": 1}
        note(coverage.num_jobs(num_data_sets))
        one = coverage.Found(
            held, held, {**example, "intervals": dict.fromkeys(names, ends)}, chains, 0
        )
        return dict.fromkeys(known_truth.TRUTHS, one)

    monkeypatch.setattr(coverage, "run", found)
    done = run_here(*COMMAND, "coverage", f"--out={tmp_path}/out", "--seed=5", "--data_sets=30")
    assert done.returncode == 0, done.stderr
    assert "truth of waves" in done.stdout
    assert done.stdout.endswith(
        f"Picture: {tmp_path}/out/coverage.png, and every number in {tmp_path}/out/coverage.json\n"
    )
    content = json.loads((tmp_path / "out" / "coverage.json").read_text())
    assert (content["seed"], content["num_data_sets"]) == (5, 30)
    with Image.open(tmp_path / "out" / "coverage.png") as picture:
        assert picture.format == "PNG"
