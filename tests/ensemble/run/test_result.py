"""What `train` returns shows itself: its table, its sentence, its pictures."""

import copy
import json
import pickle

import pytest
from conftest import small_config

import ensemble
from ensemble.report.text import format_table, summary_sentence
from ensemble.run.result import Result
from ensemble.scoring.sections import values_in


@pytest.fixture
def result(blobs_run):
    with open(blobs_run / "report.json") as file:
        found = Result(json.load(file), None)
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
    table, sentence, note, where = repr(result).split("\n\n")
    assert note == "Note: few <examples>"
    assert "Note: few &lt;examples&gt;" in result._repr_html_()
    assert table == format_table(result.report)
    assert sentence == summary_sentence(result.report)
    assert result.workdir in where


def test_in_a_notebook_it_is_a_table_with_pictures(result, blobs_run):
    page = result._repr_html_()
    scores = values_in(result.report["test"])
    assert f"<td>{scores['accuracy']:.2%}</td><td>{scores['nll']:.4f}</td>" in page
    assert page.count("<tr>") == 1 + len(result.report["live_members"]) + 3
    plots = list((blobs_run / "plots").glob("*.png"))
    assert plots
    assert page.count("<img") == len(plots)


def test_without_a_workdir_there_are_no_pictures(result):
    page = Result(result.report, None)._repr_html_()
    assert "<table" in page
    assert "<img" not in page


def test_failed_members_and_missing_scores(result):
    report = {**result.report, "failed_members": {"2": "non-finite"}}
    assert "member 2: non-finite" in Result(report, None)._repr_html_()
    del report["test"], report["validation"]
    assert "There are no scores" in Result(report, None)._repr_html_()


def test_other_processes_have_nothing_to_show():
    assert "main process" in repr(Result({}, None))
    assert Result({}, None)._repr_html_() is None


@pytest.mark.check
def test_train_says_where_the_run_lives_and_a_script_sees_how_far_it_is(blobs, tmp_path, capsys):
    config = small_config(num_epochs=1)
    assert ensemble.train(config, blobs, str(tmp_path)).workdir == str(tmp_path)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.endswith("starting")
    assert "train loss" in last
    assert "validation accuracy" in last
    assert ensemble.train(config, blobs, show_progress=False).workdir is None
    assert capsys.readouterr().err == ""
