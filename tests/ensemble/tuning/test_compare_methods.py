"""Comparisons of methods within a budget of time."""

import json

import numpy as np
import pytest

import ensemble
from ensemble import InputError
from ensemble.tuning import methods as module
from ensemble.tuning.advice import recommended

CONFIG = {
    "model": "mlp",
    "mlp.widths": "16",
    "num_epochs": 2,
    "num_devices": 1,
    "batch_size": 32,
    "learning_rate": 0.01,
    "optimizer": "adam",
    "early_stopping_epochs": 0,
    "likelihood": "gaussian",
}
QUIET = {"show_progress": False}


def table(num_rows=400, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_rows, 4)).astype(np.float32)
    targets = 5 + 3 * (inputs[:, 0] + np.sin(2 * inputs[:, 1]) + 0.3 * rng.normal(size=num_rows))
    return inputs, targets.astype(np.float32)


def row(method, validation, **more):
    scores = {"value": validation, "low": validation - 0.1, "high": validation + 0.1}
    return {
        "method": method,
        "score": "nll",
        "validation": validation,
        "test": {"nll": scores, "accuracy": scores},
        "calibrated": {"nll": scores, "accuracy": scores},
        "charged_seconds": 2.0,
        "cpu_seconds": 9.0,
        "compile_seconds": 3.0,
        "predict_seconds": 0.5,
        **more,
    }


def a_round(**verdicts):
    rows = [row("plain", 0.4, predict_seconds=0.01), row("swag", 0.3), row("packed", 0.5)]
    rows.append({"method": "dropout", "failed": "it has none", "cpu_seconds": 1.0})
    beside = {"swag": {"verdict": "as good"}}
    beside |= {name: {"verdict": one} for name, one in verdicts.items()}
    return {
        "times": 1,
        "charged_seconds": 2.0,
        "is_complete": True,
        "best": "swag",
        "score": "nll",
        "num_test": 300,
        "beside": {"nll": beside, "accuracy": beside},
        "rows": rows,
    }


def test_the_advice_names_the_best_its_doubt_and_what_is_cheaper():
    found = recommended([a_round(plain="as good", packed="worse")])
    assert "use swag" in found["recommendation"]
    assert "as good: plain; worse: packed" in found["doubt"]
    assert "300 test rows" in found["doubt"]
    assert "plain predicts in 2% of swag's time" in found["doubt"]
    assert "ensemble_size" not in found["recommendation"]
    several = a_round(plain="as good", packed="worse")
    several["rows"][1]["settings"] = {"ensemble_size": 4}
    assert (
        "use swag with config.ensemble_size=4 (cells/swag_1c): "
        in recommended([several])["recommendation"]
    )
    several["rows"][1]["settings"] = {"num_chains": 2}
    assert "use swag with config.num_chains=2 (" in recommended([several])["recommendation"]
    several["rows"][0]["selected"] = {"swag": 1.0}
    assert "'s time" not in recommended([several])["doubt"], "it took all of the time"
    other = recommended([a_round(plain="undecided", packed="worse")])
    assert "undecided: plain" in other["doubt"]
    assert "'s time" not in other["doubt"], "it may be worse"


@pytest.mark.parametrize(
    ("config", "settings", "says"),
    [
        ({}, {"methods": ["gbm"]}, "methods=gbm is not a family"),
        ({}, {"methods": "swag"}, "must be a list of names"),
        ({"num_epoch": 3}, {}, "num_epoch is no key"),
        ({"init_from": "runs/x"}, {}, "start anew"),
        ({}, {"time_limit": "soon"}, "must be a positive time"),
        ({"method": "hmc"}, {}, "hmc"),
    ],
)
def test_what_cannot_be_compared_is_one_line(config, settings, says, tmp_path):
    with pytest.raises(InputError, match=says) as caught:
        ensemble.compare_methods(
            {**CONFIG, **config}, workdir=tmp_path / "out", data=table(), **settings, **QUIET
        )
    assert "\n" not in str(caught.value)


@pytest.mark.check
def test_methods_are_compared_a_failed_one_is_a_row_and_more_time_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMES", (1, 4))
    families = [one for one in module.FAMILIES if one.name in ("plain", "deep_ensemble", "laplace")]
    broken = next(one for one in module.FAMILIES if one.name == "dropout")
    broken = broken._replace(keys=lambda config, times: {"dropout": 0.0})
    greedy = next(one for one in module.FAMILIES if one.selects)
    monkeypatch.setattr(module, "FAMILIES", (*families[:2], broken, families[2], greedy))
    monkeypatch.setattr(module._Work, "_may_begin", lambda self, times: times == 1)
    work = tmp_path / "out"
    first = ensemble.compare_methods(CONFIG, "1h", work, table(), **QUIET)
    assert [one["times"] for one in first["rounds"]] == [1]
    rows = {one["method"]: one for one in first["rounds"][0]["rows"]}
    assert "noise" in rows["dropout"]["failed"]
    assert first["rounds"][0]["is_complete"]
    charged = first["length"]["seconds"]
    for name in ("plain", "deep_ensemble", "laplace"):
        assert rows[name]["charged_seconds"] == pytest.approx(charged)
        assert rows[name]["cpu_seconds"] > rows[name]["charged_seconds"]
        assert rows[name]["predict_seconds"] > 0
    assert rows["greedy"]["charged_seconds"] == pytest.approx(2 * charged)
    assert set(first["rounds"][0]["beside"]) == {"crps", "rmse"}
    report = json.loads((work / "cells" / "deep_ensemble_1c" / "results.json").read_text())
    value = report["metrics"]["test"]["crps"]["value"]
    assert rows["deep_ensemble"]["test"]["crps"]["value"] == pytest.approx(value)
    assert report["num_members"] == 2
    assert first["rounds"][0]["best"] in first["recommendation"]
    assert repr(first).count("failed") >= 2

    before = (work / "cells" / "plain_1c" / "results.json").stat().st_mtime_ns
    monkeypatch.undo()
    monkeypatch.setattr(module, "TIMES", (1, 4))
    again = ensemble.compare_methods(CONFIG, "2h", work, table(), methods=["laplace"], **QUIET)
    assert [one["times"] for one in again["rounds"]] == [1, 4]
    assert (work / "cells" / "plain_1c" / "results.json").stat().st_mtime_ns == before
    steps = {one["times"]: one["rows"][0]["charged_seconds"] for one in again["rounds"]}
    assert steps[4] == pytest.approx(4 * steps[1])
    with pytest.raises(InputError, match="another configuration: batch_size: 32 -> 64"):
        ensemble.compare_methods({**CONFIG, "batch_size": 64}, "1h", work, table(), **QUIET)
