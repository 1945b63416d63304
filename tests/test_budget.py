"""The limit on what a test may cost: it bites, and only where it should."""

import json
import pathlib
import re
import subprocess
import sys

import budget
import pytest

TESTS = """
import subprocess, sys, time
import pytest

SPIN = "import time\\nwhile time.process_time() < 0.15: pass"
runs = []

def spin():
    end = time.process_time() + 0.15
    while time.process_time() < end:
        pass

@pytest.fixture(scope="module")
def shared():
    spin()

@pytest.fixture
def own():
    spin()

def test_slow(): spin()
def test_slow_fixture(own): pass
def test_slow_process(): subprocess.run([sys.executable, "-c", SPIN], check=True)
def test_quick(): pass
def test_shared(shared): pass
def test_slow_the_first_time():
    runs.append(0)
    if len(runs) == 1:
        spin()
def test_wrong_the_second_time():
    runs.append(0)
    spin()
    assert len(runs) < 4
@pytest.mark.costs(5)
def test_dear(): spin()
@pytest.mark.check
def test_checked(): spin()
"""
CONFTEST = """
import budget
from budget import *
budget.TEST_SECONDS = 0.1
"""


@pytest.mark.soak
@pytest.mark.costs(6)  # It runs tests of its own.
def test_what_is_over_the_limit_twice_fails(tmp_path):
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    tests = pathlib.Path(budget.__file__).parent
    marks = "markers = check\n costs\n soak"
    paths = f"pythonpath = {tests} {tests.parent}"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{marks}\n{paths}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    lines = done.stdout.splitlines()
    ended = {kind: set() for kind in ("PASSED", "FAILED")}
    for line in lines:
        kind, _, rest = line.partition(" test_them.py::")
        if kind in ended:
            ended[kind].add(rest.split(" ")[0])
    wrong = {"test_slow", "test_slow_fixture", "test_slow_process", "test_wrong_the_second_time"}
    right = {"test_quick", "test_shared", "test_slow_the_first_time", "test_dear", "test_checked"}
    assert (ended["FAILED"], ended["PASSED"]) == (wrong, right), done.stdout
    assert "s of CPU, a test of `make test` may take 0.1: make it smaller" in done.stdout
    assert any("in all of the 480" in line for line in lines)


def test_compiling_does_not_count():
    meter = budget.Meter.__new__(budget.Meter)
    meter.exempt, meter._nested, meter._asked = 0.0, 0, None
    for found, exempt in ((True, False), (False, True)):
        before = meter.exempt
        meter._note(budget._ASKED)
        if found:  # On disk: what reading it takes counts.
            meter._note(budget._FOUND)
        sum(range(300_000))
        meter._note(budget._COMPILED, 100.0)
        assert (meter.exempt > before) == exempt
        assert meter.exempt < 10  # Seconds of CPU, not of a busy machine's clock.


@pytest.mark.parametrize(
    ("seconds", "limit", "is_wrong"),
    [(3.9, 4.0, False), (4.1, 4.0, True), (99, None, False), (11, 12, False)],
)
def test_the_verdict_names_the_seconds_and_the_rule(seconds, limit, is_wrong):
    line = budget.verdict(seconds, limit)
    assert (line is not None) == is_wrong
    assert not is_wrong or line.startswith("took 4.1 s of CPU, a test of `make test` may take 4: ")


def test_what_tests_have_counted_is_noted(tmp_path):
    (tmp_path / "test_them.py").write_text(
        "def test_one(record_property):\n"
        "    record_property('counted', {'kills of sgd': {'saving': 3}})\n"
        "def test_two(record_property):\n"
        "    record_property('counted', {'kills of hmc': {'saving': 4}})\n"
        "def test_bad(record_property):\n"
        "    record_property('counted', {'kills of nuts': {'saving': 5}})\n"
        "    assert False\n"
    )
    (tmp_path / "conftest.py").write_text("import budget\nfrom budget import *\n")
    tests = pathlib.Path(budget.__file__).parent
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {tests} {tests.parent}\n")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            f"--soak_results={tmp_path / 'soak.json'}",
            tmp_path,
        ],
        capture_output=True,
        cwd=tmp_path,
    )
    (found,) = json.loads((tmp_path / "soak.json").read_text())["rows"]
    assert found["counted"] == {"kills of sgd": {"saving": 3}, "kills of hmc": {"saving": 4}}
    assert (found["passed"], found["failed"]) == (2, 1)
    assert re.fullmatch("[0-9a-f]{7,40}(-dirty)?", found["commit"])
    assert found["tests"] == [str(tmp_path)]


def test_a_run_of_the_soak_is_added_with_its_date(tmp_path):
    path = tmp_path / "results" / "soak.json"
    for count in (1, 2):
        budget.note_soak(path, ["tests"], {"passed": count, "failed": 0}, 60.4, 100.2)
        content = json.loads(path.read_text())
        assert content.keys() == {"machine", "command", "rows"}
        *_, last = found = content["rows"]
        assert len(found) == count
        assert last.keys() >= {"date", "commit", "tests"}
        assert (last["passed"], last["seconds"], last["cpu_seconds"]) == (count, 60, 100)
