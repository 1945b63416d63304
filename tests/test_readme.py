"""The README is short, its Python runs as it stands, and its table is what `make train` gives."""

import json
import os
import pathlib
import re

import numpy as np
import pytest
from markdown_pages import (
    README,
    broken_links,
    check_training_command,
    names_of_a_reader,
    python_blocks,
    training_commands,
)


def test_it_is_short():
    assert len(README.read_bytes()) <= 8_000
    assert [line for line in README.read_text().splitlines() if len(line) > 120] == []


@pytest.mark.check
def test_the_python_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks(README)
    namespace = names_of_a_reader()
    exec(block, namespace)
    assert namespace["p"].probs.shape == (7, 4)


@pytest.mark.parametrize("command", training_commands(README) or ["none"])
def test_the_training_commands_are_valid(command):
    check_training_command(command)


def test_every_link_into_the_repository_leads_somewhere():
    assert "](docs/" in README.read_text()
    assert broken_links(README) == []


def ranges(row):
    """The lowest and highest value of each cell that the README prints, and its decimals."""
    (line,) = re.findall(rf"^\| {row} \|(.*)\|", README.read_text(), re.MULTILINE)
    cells = [re.findall(r"[\d.]+", cell) for cell in line.split("|")]
    return [(float(cell[0]), float(cell[-1]), len(cell[0].partition(".")[2])) for cell in cells]


@pytest.mark.check
@pytest.mark.skipif(
    "README_WORKDIR" not in os.environ,
    reason="README_WORKDIR, where make train has left its run, is not set: the table was NOT read",
)
def test_its_table_is_that_of_make_train():
    report = json.loads((pathlib.Path(os.environ["README_WORKDIR"]) / "results.json").read_text())
    metrics = report["metrics"]["test"]
    for row, of in (("average member", "members"), ("ensemble of 8", "value")):
        for (low, high, decimals), name in zip(
            ranges(row), ("accuracy", "nll", "ece"), strict=True
        ):
            value = np.mean(metrics[name][of]) * (100 if name == "accuracy" else 1)
            assert low <= round(value, decimals) <= high, (row, name, value)
