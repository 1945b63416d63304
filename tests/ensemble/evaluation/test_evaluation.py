"""An evaluation shows itself: its findings, its scores with intervals, some pictures."""

import json

import pytest
from conftest import built_once

import ensemble
from ensemble.evaluation.evaluation import Evaluation
from ensemble.evaluation.summary import lines_of


@pytest.fixture(scope="module")
def evaluated(blobs_run, tmp_path_factory):
    """The folder of an evaluation of the finished run; only to be read."""
    with built_once(
        tmp_path_factory, "evaluated", lambda path: ensemble.evaluate(blobs_run, path, [])
    ) as path:
        yield path


@pytest.fixture
def evaluation(evaluated):
    return Evaluation(json.loads((evaluated / "evaluation.json").read_text()))


def test_evaluate_returns_one(blobs_run, tmp_path):
    found = ensemble.evaluate(blobs_run, tmp_path / "out", [], show_progress=False)
    assert isinstance(found, Evaluation)
    stored = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert json.loads(json.dumps(found["findings"])) == stored["findings"]


def test_as_text_it_is_its_findings_and_its_scores(evaluation):
    text = repr(evaluation)
    assert text.startswith("\n".join(lines_of(evaluation)))
    low, high = evaluation["test"]["scores"]["brier"]["interval"]
    (line,) = (line for line in text.splitlines() if line.startswith("Brier score "))
    assert f"{evaluation['test']['scores']['brier']['value']:.4f}" in line
    assert f"[{low:.4f}, {high:.4f}]" in line
    assert "95% over examples" in text


def test_in_a_notebook_it_has_pictures_and_escapes_names(evaluation):
    evaluation["findings"][0]["text"] = "<script>"
    evaluation["classes"]["names"] = ["<b>"] * len(evaluation["classes"]["names"])
    page = evaluation._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "<b>" not in page
    assert page.count("<img") == 2  # More members, and the confusion of three classes.
    low, high = evaluation["test"]["scores"]["accuracy"]["interval"]
    assert f"<td>[{100 * low:.2f}%, {100 * high:.2f}%]</td>" in page


def test_one_member_of_many_classes_has_no_picture(evaluation):
    evaluation["members"] = [0]
    evaluation["classes"]["names"] = ["a"] * 300
    assert "<img" not in evaluation._repr_html_()
