"""From a workdir to report.json and report.html."""

import dataclasses
import json
import shutil
import types

import numpy as np
import pytest
from conftest import small_config

import ensemble
from ensemble.errors import InputError, plural
from ensemble.report.evaluate import evaluate
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.evaluation import Evaluation


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(300, 4)).astype(np.float32)
    return inputs, (inputs @ [1.0, 2, 0, 1] + rng.normal(size=300)).astype(np.float32)


@pytest.fixture(scope="module")
def table_run(rows, tmp_path_factory):
    workdir = str(tmp_path_factory.mktemp("table") / "run")
    ensemble.train({"ensemble_size": 3, "num_epochs": 4}, rows, workdir, show_progress=False)
    return workdir


def quiet(workdir, out, **how):
    return evaluate(workdir, out, show_progress=False, **how)


def test_metrics_are_those_of_training_and_json_is_flat(blobs_run, blobs, tmp_path):
    e = quiet(blobs_run, tmp_path / "out", data=blobs)
    assert isinstance(e, Evaluation)
    results = json.loads((blobs_run / "results.json").read_text())
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["metrics"] == results["metrics"]["test"]
    assert set(found["metrics"]["nll"]) == {"value", "low", "high", "members"}
    assert {"calibration", "findings", "config", "gain"} <= found.keys()
    for one in found["findings"]:
        assert set(one) == {"code", "level", "text", "numbers"}
        assert one["level"] in ("good", "warning", "info")
    assert "<html" in (tmp_path / "out" / "report.html").read_text()
    assert e.table in repr(e)


def test_tables_are_shifted_and_drawn(table_run, rows, tmp_path):
    first = quiet(table_run, tmp_path, data=rows).json()
    assert len([*(tmp_path / "predictions").iterdir()]) == 2 * 5 + 2
    assert quiet(table_run, tmp_path, data=rows).json() == first
    assert set(first["shift"]) == {"noisy columns", "missing values"}
    assert set(first["out_of_distribution"]) == {"box", "outside"}
    assert list(first["baselines"]) == ["the training mean", "linear regression"]


@pytest.mark.parametrize(("chains", "draws"), [(1, 2), (3, 8)])
def test_chains_of_few_draws_are_evaluated_beside_their_average_draw(chains, draws, rows, tmp_path):
    config = {"method": "hmc", "model": "mlp", "mlp.widths": "4", "likelihood": "gaussian"}
    config |= {"prior": "normal(1)", "num_chains": chains, "sampler.num_samples": draws}
    config |= {"sampler.num_warmup": 2, "sampler.num_leapfrog_steps": 2, "sampler.thinning": 1}
    result = ensemble.train(config, rows, str(tmp_path / "run"), show_progress=False)
    e = quiet(tmp_path / "run", tmp_path / "out", data=rows, datasets=[])
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    nll = results["single_draw"]["test"]["nll"]
    assert e.json()["single_draw"] == {"nll": pytest.approx(nll)}
    assert e.table == result.evaluation.table
    assert "average draw" in e.table
    assert plural(chains, "chain") in (tmp_path / "out" / "report.html").read_text()


def test_without_data_stored_predictions_are_scored(table_run, tmp_path, caplog):
    found = quiet(table_run, tmp_path).json()
    assert "not available" in caplog.text
    assert "baselines" not in found
    assert found["metrics"]["crps"]["value"] > 0
    with pytest.raises(InputError, match=r"are not available: .*; give them"):
        quiet(table_run, tmp_path, datasets=["shift"])


def test_a_run_is_compared_with_others(table_run, rows, blobs_run, tmp_path):
    other = tmp_path / "other"
    config = {"ensemble_size": 1, "num_epochs": 1}
    ensemble.train(config, rows, str(other), show_progress=False)
    e = quiet(table_run, tmp_path / "out", compare=[other], datasets=[])
    (name, found), *_ = e.json()["comparison"].items()
    assert name == "other"
    difference = found["crps"]["difference"]
    assert difference["value"] == pytest.approx(
        found["crps"]["value"] - e.whole["crps"].value, rel=1e-6
    )
    assert difference["low"] < difference["value"] < difference["high"]
    with pytest.raises(InputError, match="compare classes with classes"):
        quiet(table_run, tmp_path / "out", compare=[blobs_run], datasets=[])


def test_a_run_in_training_is_evaluated_from_its_checkpoint(table_run, rows, tmp_path):
    shutil.copytree(table_run, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    run = EvaluatedRun(str(tmp_path / "run"), data=rows)
    assert not run.is_finished
    assert run.step > 0
    ours = quiet(tmp_path / "run", tmp_path / "out", data=rows, datasets=[]).whole["nll"].value
    theirs = quiet(table_run, tmp_path / "out", datasets=[]).whole["nll"].value
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_of_a_run_in_training_members_that_predict_nan_are_left_out(table_run, rows, tmp_path):
    shutil.copytree(table_run, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    run = EvaluatedRun(str(tmp_path / "run"), data=rows)
    members = run.predictor.members
    p = run.predictor.predict_members(run.dataset.splits["test"].inputs)
    arrays = {name: np.array(one) for name, one in p.arrays.items()}
    arrays["loc"][0, 3] = np.nan
    p = dataclasses.replace(p, arrays=arrays)
    run.predictor = types.SimpleNamespace(members=members, predict_members=lambda inputs: p)
    assert tuple(run.test.members.tolist()) == members[1:]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"datasets": ["nothing"]}, "--extra_datasets=nothing is unknown"),
        ({"datasets": ["none", "box"]}, "or none alone"),
        ({"abstain": ["max_error=2"]}, "must be max_error=E or coverage=C"),
        ({"metrics": ["nothing"]}, "no metric nothing"),
        ({"compare": ["/nowhere"]}, "/nowhere"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(table_run, rows, tmp_path, how, message):
    with pytest.raises(InputError, match=message) as error:
        quiet(table_run, tmp_path, data=rows, **how)
    assert "\n" not in str(error.value)


def test_a_run_without_a_test_split_has_nothing_to_evaluate(blobs, tmp_path):
    ensemble.train(small_config(train_on_all=True), blobs, str(tmp_path), show_progress=False)
    with pytest.raises(InputError, match="no test split"):
        quiet(tmp_path, tmp_path / "out")
