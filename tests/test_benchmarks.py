"""Programs of benchmarks/, scripts/ and simulations/ can be imported and asked for help."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

ASK = """
import pathlib, runpy, sys

peers = {"torch", "tf", "torchvision", "laplace", "posteriors", "bde", "torch_uncertainty", "tabm"}
peers |= {"onnxruntime", "uvicorn"}
sys.path[:0] = ["benchmarks", "."]
for path in map(pathlib.Path, sys.argv[1:]):
    has_arguments = "ArgumentParser" in path.read_text()
    sys.argv = [str(path), "--help"]
    try:
        runpy.run_path(str(path), run_name="__main__" if has_arguments else path.stem)
    except SystemExit as ended:
        assert not ended.code, path
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in peers:
            raise
        print(path, "NOT IMPORTED: there is no", error.name)
"""


def programs(folder):
    paths = sorted((ROOT / folder).glob("*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if not path.stem.startswith("__init")]


@pytest.mark.check
def test_programs_can_be_imported_and_say_what_they_take():
    asked = [*programs("benchmarks"), *programs("scripts"), *programs("simulations")]
    command = [sys.executable, "-c", ASK, *asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    assert done.stdout.count("usage:") > 15


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "results").rglob("*.json")), ids=lambda path: path.stem
)
def test_results_say_when_and_of_which_commit_they_were_measured(path):
    text = path.read_text()
    assert json.loads(text)
    assert '"date"' in text
    assert '"commit"' in text
