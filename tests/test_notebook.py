"""The notebook runs as it stands, and still shows what it is stored with."""

import copy
import os
import re

import nbclient
import nbformat
import pytest
from conftest import ROOT

NOTEBOOK = ROOT / "docs" / "first_ensemble.ipynb"
MAX_BYTES = 200_000


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def forms(cell):
    """The kinds of a cell's outputs; what is printed may come in several pieces."""
    found = []
    for one in cell.outputs:
        kind = sorted(one.get("data", {one.get("name"): ""}))
        if one.output_type != "stream" or found[-1:] != [kind]:
            found.append(kind)
    return found


def accuracy(notebook):
    """Percent, of the ensemble on the test split."""
    text = "\n".join(
        one["data"]["text/plain"]
        for cell in code_cells(notebook)
        for one in cell.outputs
        if one.output_type == "execute_result"
    )
    return float(re.search(r"^ensemble of \d+ +([\d.]+)%", text, re.MULTILINE)[1])


@pytest.fixture(scope="module")
def stored():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_small_and_each_cell_was_run_once(stored):
    assert NOTEBOOK.stat().st_size < MAX_BYTES
    counts = [cell.execution_count for cell in code_cells(stored)]
    assert counts == list(range(1, len(counts) + 1))


def test_links_lead_somewhere(stored):
    text = "\n".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    assert links
    assert [link for link in links if not (NOTEBOOK.parent / link).exists()] == []


@pytest.mark.check
def test_it_runs_and_shows_what_it_is_stored_with(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    fresh = copy.deepcopy(stored)
    for cell in code_cells(fresh):
        cell.outputs = []
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(fresh, timeout=120, resources=resources).execute()
    for cell, before in zip(code_cells(fresh), code_cells(stored), strict=True):
        assert forms(cell) == forms(before), cell.source  # No warnings, and all the pictures.
    assert accuracy(fresh) == pytest.approx(accuracy(stored), abs=2)
    assert os.listdir(tmp_path) == ["runs"]
