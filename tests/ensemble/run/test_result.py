"""What `train` returns shows itself: its table, its sentence, its plots."""

import copy
import html
import json
import pickle

import pytest
from conftest import small_config

import ensemble
from ensemble.run.results import TrainResult


@pytest.fixture
def result(blobs_run):
    with open(blobs_run / "results.json") as file:
        found = TrainResult(json.load(file), None)
    found.workdir = str(blobs_run)
    return found


def test_it_is_still_a_pair(result):
    report, predictor = result
    assert report is result.report
    assert predictor is result.predictor
    for same in (copy.copy(result), pickle.loads(pickle.dumps(result))):
        assert same.workdir == result.workdir


def test_as_text_it_is_what_the_program_prints(result):
    result.report["notes"] = ["few <examples>"]
    findings, where = repr(result).split("\n\n")
    *findings, note = findings.splitlines()
    assert note == "Note: few <examples>"
    assert "Note: few &lt;examples&gt;" in result._repr_html_()
    assert {one["text"] for one in result.report["findings"]} == set(findings)
    assert result.workdir in where


def test_in_a_notebook_it_is_a_table_with_plots(result, blobs_run):
    page = result._repr_html_()
    plots = list((blobs_run / "plots").glob("*.png"))
    assert html.escape(repr(result)) in page
    assert plots
    assert page.count("<img") == len(plots)
    page = TrainResult(result.report, None)._repr_html_()
    assert "<pre" in page
    assert "<img" not in page


def test_other_processes_have_nothing_to_show():
    assert "main process" in repr(TrainResult({}, None))
    assert TrainResult({}, None)._repr_html_() is None


@pytest.mark.check
def test_train_says_where_the_run_lives_and_a_script_sees_how_far_it_is(blobs, tmp_path, capsys):
    config = small_config(num_epochs=1)
    assert ensemble.train(config, blobs, str(tmp_path)).workdir == str(tmp_path)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.endswith("starting")
    assert "train loss" in last
    assert "validation accuracy" in last
    result = ensemble.train(config, blobs, show_progress=False)
    assert result.workdir is None
    assert repr(result).startswith(result.evaluation.table)
    assert capsys.readouterr().err == ""
