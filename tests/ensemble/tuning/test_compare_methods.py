"""Comparisons of methods within a time."""

import json

import numpy as np
import pytest

import ensemble
from ensemble import InputError
from ensemble.config import build
from ensemble.tuning import compare_methods as module
from ensemble.tuning.compare_methods import FAMILIES, STARTS, settings_of

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


@pytest.mark.parametrize(
    ("config", "settings", "says"),
    [
        ({}, {"methods": ["gbm"]}, "methods=gbm is not a family"),
        ({"num_epoch": 3}, {}, "num_epoch is no key"),
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


def network(**keys):
    values = {"dataset": "digits", "model": "mlp", "num_epochs": 5, **keys}
    return build(values, {"method": "deep_ensemble", "ensemble_size": 1}).values


@pytest.mark.parametrize("times", [1, 4, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_networks_of_a_family_take_as_many_steps_together(family, times):
    keys = settings_of(family, network(), 1000, times)
    keys |= {"init_from": "runs/start"} if family in STARTS else {}
    values = build(network(), keys).values
    if family == "sghmc":
        draws = values["sgmcmc.num_samples"] * values["sgmcmc.steps_per_draw"]
        steps = values["num_chains"] * (values["sgmcmc.num_burn_in"] + draws)
    elif family == "laplace":
        return
    else:
        steps = values["ensemble_size"] * values["num_steps"]
    assert steps == pytest.approx(1000 * times, rel=0.01)


def of_no_dropout(family, *arguments):
    keys = settings_of(family, *arguments)
    return {**keys, "dropout": 0.0} if family == "mc_dropout" else keys


@pytest.mark.check
def test_methods_are_compared_a_failed_one_is_a_row_and_more_time_goes_on(tmp_path, monkeypatch):
    few = ("single", "deep_ensemble", "mc_dropout", "sghmc", "laplace")
    monkeypatch.setattr(module, "FAMILIES", few)
    monkeypatch.setattr(module, "settings_of", of_no_dropout)
    monkeypatch.setattr(module, "ROUNDS", (1, 2))
    work = tmp_path / "out"
    first = ensemble.compare_methods(CONFIG, "1s", work, table(), **QUIET)
    assert {one["times"] for one in first["rows"]} == {1}
    rows = {one["method"]: one for one in first["rows"]}
    assert "noise" in rows["mc_dropout"]["failure"]
    report = json.loads((work / "runs/deep_ensemble_1/results.json").read_text())
    assert rows["deep_ensemble"]["details"]["members"] == report["num_members"] == 2
    assert {rows[name]["score"] is None for name in ("sghmc", "laplace")} == {False}
    scores = {name: one["score"] for name, one in rows.items() if one["score"]}
    best = min(scores, key=scores.get)
    assert f"Use {best} " in first["recommendation"]
    assert "The time is over" in repr(first)
    assert first["rows"][0]["method"] == best

    before = (work / "runs/single_1/results.json").stat().st_mtime_ns
    again = ensemble.compare_methods(CONFIG, "2h", work, table(), methods=["laplace"], **QUIET)
    assert (work / "runs/single_1/results.json").stat().st_mtime_ns == before
    found = [(one["times"], one["method"]) for one in again["rows"]]
    assert sorted(found) == [(k, name) for k in (1, 2) for name in ("laplace", "single")]
    with pytest.raises(InputError, match="another configuration: batch_size: 32 -> 64"):
        ensemble.compare_methods({**CONFIG, "batch_size": 64}, "1h", work, table(), **QUIET)
