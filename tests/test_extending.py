"""The plug-ins of docs/extending.md join a copy of the package and train together."""

import json
import os
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import ROOT, small_config
from markdown_pages import python_blocks
from run_parts import validated

from ensemble import networks
from ensemble.priors import parse_prior
from ensemble.sources import dataset_from_arrays
from ensemble.tasks.supervised import classification

PAGE = ROOT / "docs" / "extending.md"


@pytest.fixture
def extended(tmp_path):
    """A folder with the package, the page's files and the page's lines of the registry."""
    shutil.copytree(
        ROOT / "ensemble", tmp_path / "ensemble", ignore=shutil.ignore_patterns("__pycache__")
    )
    for block in python_blocks(PAGE):
        path, _, source = block.partition("\n")
        (tmp_path / path.removeprefix("# ")).write_text(source)
    registry = tmp_path / "ensemble" / "registry.py"
    text = registry.read_text()
    for line in re.findall(r'`("\w+": .*,)`', PAGE.read_text(), re.MULTILINE):
        kind = {"likelihoods": "_LIKELIHOODS", "sources": "_SOURCES", "methods": "_METHODS"}
        table = kind[re.search(r"ensemble\.(\w+)\.", line)[1]]
        text = re.sub(rf"^({table}: .* = \{{)$", rf"\1\n    {line}", text, flags=re.MULTILINE)
    registry.write_text(text)
    return tmp_path


@pytest.mark.check
def test_the_tenants_of_the_page_train_and_are_evaluated(extended):
    environment = {**os.environ, "PYTHONPATH": str(extended)}
    command = (sys.executable, "train_waves.py")
    done = subprocess.run(command, cwd=extended, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((extended / "runs" / "waves" / "report.json").read_text())
    config = report["config"]
    chosen = [config[key] for key in ("method", "dataset", "likelihood", "model")]
    assert chosen == ["same_start", "waves", "logistic", "sines"]
    assert report["test"]["scores"]["rmse"]["value"] < 0.4  # The noise has a deviation of 0.18.
    evaluated = extended / "runs" / "waves" / "evaluation"
    assert (evaluated / "report.html").is_file()
    test = json.loads((evaluated / "evaluation.json").read_text())["test"]
    assert test["scores"]["bias"]["value"] == pytest.approx(
        report["test"]["scores"]["bias"]["value"], abs=1e-5
    )
    low, high = test["scores"]["bias"]["interval"]
    assert low < test["scores"]["bias"]["value"] < high
    assert -0.4 < low < high < 0.4


def test_the_page_has_a_tenant_of_every_kind():
    first_lines = [block.partition("\n")[0] for block in python_blocks(PAGE)]
    packages = [re.search(r"# (?:ensemble/)?(\w+)", line)[1] for line in first_lines]
    assert packages == ["likelihoods", "sources", "methods", "scoring", "train_waves"]
    assert all(block.count("\n") <= 30 for block in python_blocks(PAGE))


def test_members_of_its_method_start_from_the_same_parameters(blobs):
    block = next(one for one in python_blocks(PAGE) if "class SameStart" in one)
    namespace = {}
    exec(block, namespace)
    config = validated(small_config(model="tiny", ensemble_size=3))
    dataset = dataset_from_arrays(blobs)
    task = classification(dataset, networks.create("tiny", 3), parse_prior(config.prior))
    params = namespace["SameStart"](config, task).init(jax.random.key(0)).members.params
    for leaf in jax.tree.leaves(params):
        np.testing.assert_array_equal(leaf[1:3], np.broadcast_to(leaf[:1], leaf[1:3].shape))
    assert any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(params))
