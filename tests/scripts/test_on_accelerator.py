"""`scripts/on_accelerator.sh` on CPU, start to end; and what it installs on which machine."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

SCRIPT = ROOT / "scripts" / "on_accelerator.sh"
sys.path.insert(0, str(ROOT / "benchmarks"))
import on_device  # noqa: E402  # Programs of that folder find each other there.
import rates  # noqa: E402
import rooflines  # noqa: E402


def test_what_a_rate_is_of_a_roofline():
    found = rooflines.share(1e6, rooflines.CNN, "TPU v5 lite", 4)
    assert found["flop_per_second"] == pytest.approx(28.125e12)
    assert found["of_peak_flops"] == pytest.approx(28.125 / (4 * 197))
    assert found["of_bandwidth"] == pytest.approx(119.1e6 / 128 * 1e6 / (4 * 0.819e12))
    assert found["of_roofline"] == max(found["of_peak_flops"], found["of_bandwidth"])
    unknown = rooflines.share(1e6, rooflines.CNN, "cpu", 1)
    assert unknown["roofline"] == "the peaks of 'cpu' are not known"


def follow(code, seconds=30):
    rows = []
    return on_device.follow("one", ["-c", code], seconds, rows.append), rows


def test_a_stage_that_fails_or_hangs_keeps_its_rows():
    wrong, rows = follow("print('{\"rate\": 1}'); print('talk'); raise ValueError('broken')")
    assert (wrong, rows) == ("exit status 1: ValueError: broken", [{"case": "one", "rate": 1}])
    wrong, rows = follow('import time; print(\'{"case": "own"}\', flush=True); time.sleep(60)', 1)
    assert (wrong, rows) == ("it took more than 1 s", [{"case": "own"}])
    assert follow("print('[]')") == (None, [])


def test_measurements_are_short_where_the_environment_says_so(monkeypatch):
    monkeypatch.setenv(rates.MOST_SECONDS, "0")
    assert rates.measure(lambda: 5, 60).keys() == {"rate", "cpu_rate"}
    rows = []
    code = f"import os; print('{{\"most\": ' + os.environ['{rates.MOST_SECONDS}'] + '}}')"
    assert on_device.follow("one", ["-c", code], 30, rows.append, tiny=True) is None
    assert rows == [{"case": "one", "most": 0.1}]


@pytest.mark.parametrize(
    ("driver", "installed"), [("580.95.05", "cuda"), ("595.10", "cuda"), ("570.86.15", "cuda12")]
)
def test_the_driver_decides_which_cuda(driver, installed, tmp_path):
    """In a copy of the folder whose programs say what they were called with."""
    (tmp_path / "scripts").mkdir()
    copy = tmp_path / "scripts" / SCRIPT.name
    copy.write_text(SCRIPT.read_text())
    copy.chmod(0o755)
    bodies = {
        "bin/nvidia-smi": f"echo {driver}",
        "bin/make": "exit 0",
        ".venv/bin/python": 'echo "$@" >> calls',
    }
    for name, body in bodies.items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
    subprocess.run([copy], check=True, env=env)
    install, measure = (tmp_path / "calls").read_text().splitlines()
    assert install == f"-m pip install --quiet -r requirements-{installed}.txt"
    assert (ROOT / f"requirements-{installed}.txt").exists()
    assert measure == (
        "benchmarks/on_device.py --out=runs/on_device/on_device.json "
        "--page=runs/on_device/on_device.md"
    )
