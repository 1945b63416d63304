"""Abstention in an evaluation: fitted on calibration, scored on the test split, said in a line."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from run_parts import evaluated
from test_sections import labelled, make_predictions

import ensemble
from ensemble import UserError, metrics
from ensemble.evaluation.questions.doubts import abstention
from ensemble.evaluation.sections import score_abstention
from ensemble.scoring.score import digits

parse = metrics.Rule.parse


def score(test, calibration, *rules):
    return score_abstention(replace(evaluated(test, calibration), rules=tuple(map(parse, rules))))


def test_thresholds_are_of_the_calibration_split_and_errors_of_the_test_split():
    test, calibration = make_predictions(0), make_predictions(1, num_examples=1000)
    error, coverage = score(test, calibration, "max_error=0.2", "coverage=0.6")
    mean = test.log_probs
    doubts, wrong = 1 - np.exp(mean.max(axis=1)), mean.argmax(axis=1) != test.targets
    for section in (error, coverage):
        accepted = doubts < section["threshold"]
        assert section["test"]["num_rows"] == 300
        assert section["test"]["num_accepted"] == accepted.sum()
        assert section["test"]["coverage"] == accepted.mean()
        assert section["test"]["num_errors"] == wrong[accepted].sum()
        low, high = section["test"]["interval"]
        assert low < section["test"]["error"] == wrong[accepted].mean() < high
        assert section["calibration"]["num_rows"] == 1000
    assert error["calibration"]["interval"][0] == 0
    assert error["calibration"]["error"] < error["calibration"]["interval"][1] <= 0.2
    assert 0 < coverage["calibration"]["interval"][0] < coverage["calibration"]["error"]
    assert 601 <= coverage["calibration"]["num_accepted"] <= 603  # ceil(0.6 * 1001), and ties.
    json.dumps([error, coverage], allow_nan=False)


def test_what_cannot_be_known_has_a_reason():
    (section,) = score(make_predictions(0), None, "coverage=0.5")
    assert section.keys() == {"rule", "reason"}
    few = make_predictions(1, num_examples=150)
    refused, given = score(make_predictions(0), few, "max_error=0.01", "coverage=0.5")
    assert {"150", "1.98%"} <= {*re.split("[ ,;]", refused["reason"])}
    assert "reason" not in given


def test_where_nothing_of_the_test_split_is_accepted_there_is_no_error():
    calibration = make_predictions(1)
    unsure = labelled(
        np.full_like(calibration.arrays["log_probs"], np.log(1 / 5)), calibration.labels
    )
    (section,) = score(unsure, calibration, "coverage=0.5")
    assert section["test"]["error"] is None
    assert section["test"]["interval"] == (0, 1)


def test_the_finding_is_of_the_smallest_error_that_is_proved():
    test, calibration = make_predictions(0), make_predictions(1, num_examples=1000)
    wanted = ["max_error=0.001", "coverage=0.1", "max_error=0.5", "max_error=0.2"]
    sections = score(test, calibration, *wanted)
    found = sections[3]["test"]
    said = abstention({}, sections)
    assert said.code == "abstention.confidence"
    expected = {"max_error": 0.2, "abstained": 1 - found["coverage"], "error": found["error"]}
    assert expected.items() <= said.numbers.items()
    assert abstention({}, sections[:2]).code == "abstention.none_proved"
    (easy,) = score(test, calibration, "max_error=0.9")
    assert easy["threshold"] == metrics.ACCEPT_ALL


@pytest.mark.check
def test_a_report_has_the_thresholds_that_were_asked_for(blobs_run, tmp_path):
    asked = ["max_error=0.01", "coverage=0.5"]
    evaluation = ensemble.evaluate(blobs_run, tmp_path, datasets=[], abstain=asked)
    assert [one["rule"] for one in evaluation["abstention"]] == asked
    page = (tmp_path / "report.html").read_text()
    assert "max_error=0.01: not available: " in page
    assert digits(1 - evaluation["abstention"][1]["threshold"]) in page
    usual = ensemble.evaluate(blobs_run, tmp_path, datasets=[])["abstention"]
    assert [one["rule"][:9] for one in usual] == ["max_error"] * 3 + ["coverage="]
    with pytest.raises(UserError, match="must be max_error=E or coverage=C"):
        ensemble.evaluate(blobs_run, tmp_path, abstain="0.02")
