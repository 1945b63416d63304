"""What one place of an evaluation says, no other place denies."""

import re

import numpy as np
import pytest
from conftest import small_config
from small_runs import make_blobs

import ensemble
from ensemble.evaluation.questions import calibration
from ensemble.evaluation.words import say

QUIET = {"show_progress": False}


def findings_of(evaluation):
    """The findings by question."""
    return {one["code"].partition(".")[0]: one for one in evaluation["findings"]}


def text_of(workdir):
    """A page without tags and line breaks."""
    page = (workdir / "evaluation" / "report.html").read_text()
    return re.sub(r"\s+", " ", re.sub("<[^>]*>", "", page))


@pytest.fixture(scope="module")
def of_groups(tmp_path_factory):
    """An evaluation of rows that come in groups, and its page."""
    workdir = tmp_path_factory.mktemp("groups")
    rng = np.random.default_rng(0)
    groups, a = np.repeat(np.arange(90), 8), rng.normal(size=720)
    target = np.where(a + rng.normal(size=90)[groups] > 0, "yes", "no")
    rows = "".join(f"p{k},{one},{y}\n" for k, one, y in zip(groups, a, target, strict=True))
    (workdir / "t.csv").write_text(f"patient,a,y\n{rows}")
    config = small_config(
        dataset=f"csv:{workdir / 't.csv'}",
        target="y",
        split="group:patient",
        likelihood="categorical",
        model="logistic_regression",
        ensemble_size=2,
    )
    ensemble.train(config, workdir=str(workdir / "run"), **QUIET)
    return ensemble.evaluate(workdir / "run", **QUIET), text_of(workdir / "run")


@pytest.mark.check
def test_no_error_rate_is_guaranteed_of_groups_anywhere(of_groups):
    evaluation, text = of_groups
    assert findings_of(evaluation)["abstention"]["code"] == "abstention.groups"
    assert "so no error rate is guaranteed" in text
    assert "is met with 95% confidence" not in text


@pytest.mark.check
def test_a_coverage_outside_its_expected_range_is_never_passed_over(of_groups):
    expected = [0.87, 0.93]
    for coverage in np.linspace(0.8, 1, 21):
        one = {"level": 0.9, "coverage": coverage, "coverage_range": expected, "mean_size": 1.2}
        alone = calibration.conformal({"sets": one}, {"num_rows": 300})
        is_inside = expected[0] <= coverage <= expected[1]
        assert alone.code == f"conformal.sets_{'as_expected' if is_inside else 'outside'}"
    evaluation, _ = of_groups
    assert "assumes independent examples" in findings_of(evaluation)["conformal"]["text"]


@pytest.mark.parametrize("after", [0.29, 0.31])
@pytest.mark.parametrize("on_folds", [(-0.02, 0.02), (-0.002, 0.001), None])
def test_a_factor_that_moves_the_nll_is_not_said_to_change_nothing(after, on_folds):
    test = {"num_rows": 300, "scores": {"nll": {"value": 0.3}, "ece": {"value": 0.1}}}
    section = {
        "factor": "temperature",
        "value": 0.7,
        "num_rows": 150,
        "on_folds": on_folds,
        "nll_change_interval": (-0.03, 0.03),
        "scores": {"nll": {"value": after}, "ece": {"value": 0.02}},
    }
    text = say(calibration.recalibration(test, section))
    assert f"{after:.4f}" in text
    assert "0.3000" in text
    other = "raises" if after < 0.3 else "lowers"
    assert other not in text


@pytest.mark.check
def test_one_more_member_has_no_number(blobs, tmp_path):
    ensemble.train(small_config(ensemble_size=4), blobs, str(tmp_path), **QUIET)
    evaluation = ensemble.evaluate(tmp_path, datasets=[], **QUIET)
    assert evaluation["members"] == [0, 1, 2, 3]
    for sentence in [one["text"] for one in evaluation["findings"]] + [text_of(tmp_path)]:
        assert not re.search(r"\b[Mm]ember [4-9]", sentence)


@pytest.mark.check
@pytest.mark.parametrize("num_epochs", [1, 30])
def test_a_factor_is_applied_without_a_word_only_where_it_is_advised(num_epochs, tmp_path, caplog):
    """After 30 epochs on labels that are often wrong members are too sure, and not after one."""
    data, rng = make_blobs(num_examples=701), np.random.default_rng(1)
    is_wrong = rng.random(701) < 0.4
    data["labels"] = np.where(is_wrong, rng.integers(0, 3, 701), data["labels"])
    config = small_config(
        model="mlp",
        ensemble_size=2,
        num_devices=1,
        num_epochs=num_epochs,
        eval_every_epochs=num_epochs,
        batch_size=100,
        optimizer="adam",
        learning_rate=0.01,
    )
    ensemble.train(config, data, str(tmp_path), **QUIET)
    evaluation = ensemble.evaluate(tmp_path, data=data, datasets=[], **QUIET)
    is_advised = findings_of(evaluation)["recalibration"]["code"].endswith("_helps")
    assert is_advised == (num_epochs == 30)
    caplog.clear()
    ensemble.load(tmp_path, calibrated=True)
    assert any("is applied, though" in line for line in caplog.messages) == (not is_advised)


@pytest.mark.check
def test_a_temperature_is_not_advised_without_a_word_of_class_weights(blobs, tmp_path):
    for is_corrected, said in ((False, "cannot undo"), (True, "probabilities are corrected")):
        config = small_config(class_weights="balanced", correct_class_weights=is_corrected)
        ensemble.train(config, blobs, str(tmp_path / said), **QUIET)
        evaluation = ensemble.evaluate(tmp_path / said, datasets=[], **QUIET)
        assert said in findings_of(evaluation)["weights"]["text"]
        assert said in text_of(tmp_path / said)
