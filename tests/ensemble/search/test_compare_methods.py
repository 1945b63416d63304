"""Comparisons of methods within a budget of time."""

import contextlib
import json
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from conftest import ROOT

import ensemble
from ensemble import RunFailed, UserError
from ensemble.search import cells
from ensemble.search import methods as module
from ensemble.search.advice import lines_of, recommended
from ensemble.search.cells import Price
from ensemble.storage.comparison import Comparison, read_comparison
from ensemble.storage.workdir import Workdir

CONFIG = {
    "model": "mlp",
    "mlp.widths": "16",
    "num_epochs": 6,
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
    scores = {"value": validation, "interval": [validation - 0.1, validation + 0.1]}
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
    assert "plain is as good as swag, packed is worse than swag" in found["doubt"]
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
    other = recommended([a_round(plain="inconclusive", packed="worse")])
    assert "plain is inconclusive" in other["doubt"]
    assert "'s time" not in other["doubt"], "it may be worse"


def test_a_longer_round_that_is_not_complete_does_not_advise():
    part = {"times": 4, "is_complete": False, "rows": [row("plain", 0.1)], "charged_seconds": 8.0}
    assert recommended([a_round(plain="worse"), part]) == recommended([a_round(plain="worse")])
    assert recommended([part])["recommendation"] == ""


def test_a_failed_cell_is_a_line_of_the_table():
    one = a_round(plain="as good", packed="worse")
    length = {"seconds": 2.0, "epochs": 3.0, "epochs_tried": 4.0}
    lines = lines_of({"rounds": [one], "length": length, **recommended([one])})
    line = next(one for one in lines[2].splitlines() if one.startswith("dropout"))
    assert line.split()[:3] == ["dropout", "-", "failed"]
    assert "dropout failed: it has none" in lines
    assert len({len(one) for one in lines[2].splitlines()}) == 1, "columns are aligned"


def test_a_budget_that_is_too_small_is_told_the_least_and_leaves_nothing(tmp_path, monkeypatch):
    price = Price(cpu=2.0, wall=1.0, seconds=5.0, num_steps=100, steps_per_epoch=10)
    monkeypatch.setattr(module, "price_of", lambda *_: price)
    with pytest.raises(UserError, match=r"about 330 seconds.*--budget=330s"):
        ensemble.compare_methods(
            CONFIG, 20, tmp_path / "out", table(), methods=["deep_ensemble"], **QUIET
        )
    assert not (tmp_path / "out" / "methods.json").exists()


@pytest.mark.parametrize(
    ("config", "settings", "says"),
    [
        ({}, {"methods": ["gbm"]}, "methods=gbm is not a family"),
        ({}, {"methods": "swag"}, "must be a list of names"),
        ({"num_epoch": 3}, {}, "num_epoch is not a key"),
        ({"init_from": "runs/x"}, {}, "start anew"),
        ({}, {"seconds": "soon"}, "must be a positive time"),
        ({"method": "hmc"}, {}, "hmc"),
    ],
)
def test_what_cannot_be_compared_is_one_line(config, settings, says, tmp_path):
    with pytest.raises(UserError, match=says) as caught:
        ensemble.compare_methods(
            {**CONFIG, **config}, workdir=tmp_path / "out", data=table(), **settings, **QUIET
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "search.json"])
def test_the_workdir_of_something_else_is_refused(name, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="a run or a search already"):
        ensemble.compare_methods(CONFIG, workdir=tmp_path, data=table(), **QUIET)


def test_the_workdir_of_a_comparison_is_no_run_and_no_search(tmp_path):
    (tmp_path / "methods.json").write_text("{}")
    with pytest.raises(UserError, match="comparison"):
        ensemble.train(CONFIG, table(), str(tmp_path), **QUIET)
    with pytest.raises(UserError, match="comparison"):
        ensemble.fit(table(), 60, tmp_path, **QUIET)


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "methods.json").write_text('{"format": 1, "checksum": 3}')
    with pytest.raises(UserError, match="damaged"):
        read_comparison(Workdir(tmp_path), {})


def begun(monkeypatch, cells, budget):
    """A comparison of two families some of whose cells have run; and the cells that it runs."""
    known = Comparison({}, length={"seconds": 1.0, "wall": 1.0}, cells=dict(cells))
    work = module._Work(None, known, module.FAMILIES[:2], None, budget, None, None)
    ran = []

    def run_cell(self, family, times, left):
        name = f"{family.name}_{times}c"
        ran.append(name)
        self.tried.add(name)
        known.cells[name] = {**row(family.name, 0.5), "seconds": 10.0}
        return True

    monkeypatch.setattr(module._Work, "_run_cell", run_cell)
    monkeypatch.setattr(module._Work, "_write", lambda self: None)
    monkeypatch.setattr(module._Work, "_verdicts", lambda self, times, well: {})
    return work, ran


DONE = {f"{name}_1c": {**row(name, 0.4), "seconds": 10.0} for name in ("plain", "deep_ensemble")}


def test_a_round_that_was_begun_goes_on_and_others_need_their_time(monkeypatch):
    work, ran = begun(monkeypatch, DONE, budget=25)
    assert [one["times"] for one in work.run()["rounds"]] == [1]
    assert ran == []
    part = {**DONE, "plain_4c": {**row("plain", 0.3), "seconds": 10.0}}
    work, ran = begun(monkeypatch, part, budget=35)
    assert [one["is_complete"] for one in work.run()["rounds"]] == [True, True]
    assert ran == ["deep_ensemble_4c"]
    work, ran = begun(monkeypatch, part, budget=30)
    found = work.run()["rounds"]
    assert [one["is_complete"] for one in found] == [True, False]
    assert len(found[1]["rows"]) == 1, "what was paid for is shown"
    assert ran == []


def test_what_has_failed_is_tried_once_more_by_the_next_call(monkeypatch):
    failed = {"method": "deep_ensemble", "failed": "the disk is full", "seconds": 1.0}
    work, ran = begun(monkeypatch, {**DONE, "deep_ensemble_1c": failed}, budget=15)
    work.run()
    assert ran == ["deep_ensemble_1c"]
    work, ran = begun(monkeypatch, {**DONE, "deep_ensemble_4c": failed, "plain_4c": failed}, 15)
    assert [one["is_complete"] for one in work.run()["rounds"]] == [True, True]
    assert ran == [], "no time is left for it"


def test_a_selection_of_other_cells_is_made_anew(monkeypatch):
    greedy = {**row("greedy", 0.4), "selected": {"plain": 1.0}, "seconds": 1.0}
    work, _ = begun(monkeypatch, {**DONE, "greedy_1c": greedy}, budget=15)
    (selecting,) = [one for one in module.FAMILIES if one.selects]
    assert not work._has_ended(selecting, 1)
    greedy["selected"]["deep_ensemble"] = 0.0
    assert work._has_ended(selecting, 1)


def test_a_process_that_is_killed_has_spent_what_it_took_up_to_its_last_evaluation(tmp_path):
    out = Workdir(tmp_path)
    work = module._Work(out, Comparison({}), module.FAMILIES, None, 60, None, None)
    assert work._lost("swag_1c", {"began": time.time()}) == 0
    (tmp_path / "cells" / "swag_1c").mkdir(parents=True)
    (tmp_path / "cells" / "swag_1c" / "metrics.jsonl").write_text("{}")
    assert work._lost("swag_1c", {"began": time.time() - 100}) == pytest.approx(100, abs=5)
    assert work._lost("swag_1c", {}) == 0, "its seconds are in its row"


def alone(monkeypatch, out, cells, **replaced):
    """A comparison of which some parts are replaced."""
    known = Comparison({}, length={"seconds": 1.0, "wall": 1.0}, cells=dict(cells))
    work = module._Work(out, known, module.FAMILIES[:2], None, 1000, None, None)
    parts = {"_write": lambda self: None, "_show": lambda self, what: None, **replaced}
    for name, one in parts.items():
        monkeypatch.setattr(module._Work, name, one)
    return work


def test_one_network_that_cannot_be_trained_for_longer_is_a_row(monkeypatch):
    def fail(self, family, times):
        raise RunFailed("all members became non-finite")

    parts = {"_lost": lambda *_: 0.0, "_check_data": lambda self: None, "_trained": fail}
    work = alone(monkeypatch, None, DONE, **parts)
    monkeypatch.setattr(module, "time_limit", lambda *_: contextlib.nullcontext())
    assert work._run_cell(module.FAMILIES[0], 4, 100.0)
    assert work.known.cells["plain_4c"]["failed"] == "all members became non-finite"
    work.known.cells["deep_ensemble_4c"] = row("deep_ensemble", 0.3)
    monkeypatch.setattr(module._Work, "_verdicts", lambda self, times, well: {"of": list(well)})
    assert work._round(4)["of"] == ["deep_ensemble"], "the others are compared"
    with pytest.raises(RunFailed):
        work._run_cell(module.FAMILIES[0], 1, 100.0)


@pytest.mark.parametrize("was_begun", [False, True])
def test_a_network_that_was_begun_is_kept_where_the_data_are_refused(
    tmp_path, monkeypatch, was_begun
):
    out = Workdir(tmp_path)
    kept = tmp_path / "cells" / "length" / "config.json"

    def begin():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("{}")
        (tmp_path / "methods.json").write_text("{}")

    def refuse(self, values, name):
        begin()
        raise UserError("it holds a run on other data")

    price = Price(cpu=0.1, wall=0.1, seconds=0.1, num_steps=100, steps_per_epoch=10)
    parts = {"_price": lambda *_: price, "_values": lambda self, keys: {}, "_train": refuse}
    work = alone(monkeypatch, out, {}, **parts)
    if was_begun:
        begin()
    with pytest.raises(UserError, match="other data"):
        work._find_length()
    assert kept.exists() == was_begun
    assert (tmp_path / "methods.json").exists() == was_begun


def test_what_it_takes_to_find_the_length_is_spent(tmp_path, monkeypatch):
    price = Price(cpu=0.1, wall=0.1, seconds=0.1, num_steps=100, steps_per_epoch=10)

    def measure(*_):
        time.sleep(0.2)
        return price

    parts = {"_price": measure, "_values": lambda self, keys: {}, "_train": lambda *_: 0.0}
    work = alone(monkeypatch, Workdir(tmp_path), {}, **parts)
    monkeypatch.setattr(module, "scored", lambda folder: types.SimpleNamespace(score="nll"))
    monkeypatch.setattr(module, "best_step", lambda folder, score: 40)
    work._find_length()
    assert work.known.length["epochs"] == 4
    assert work.known.spent >= 0.2


def test_margins_are_shares_of_the_length_that_validates_best(monkeypatch):
    cells = {
        "plain_1c": row("plain", 0.4),
        "plain_4c": row("plain", 0.7),
        "deep_ensemble_4c": row("deep_ensemble", 0.3),
    }
    work = alone(monkeypatch, Workdir("runs"), cells)
    monkeypatch.setattr(
        module, "scored", lambda folder: types.SimpleNamespace(
            score="nll", calibrated=types.SimpleNamespace(num_rows=9)
        )
    )  # fmt: skip
    monkeypatch.setattr(module, "compare_with_best", lambda views, best, score, plain: plain)
    well = {"plain": cells["plain_4c"], "deep_ensemble": cells["deep_ensemble_4c"]}
    assert work._verdicts(4, well)["beside"]["nll"] == 0.4
    assert work._verdicts(4, well)["best"] == "deep_ensemble"


def test_chains_start_from_as_many_networks(monkeypatch):
    price = Price(cpu=0.01, wall=0.1, seconds=0.1, num_steps=100, steps_per_epoch=10)
    started = []
    parts = {
        "_price": lambda *_: price,
        "_values": lambda self, keys: keys,
        "_train": lambda self, values, name: started.append((name, values)) or 0.0,
        "_scored": lambda self, name: {},
    }
    work = alone(monkeypatch, Workdir("runs"), {}, **parts)
    work.known.config = {"prior": "none", "optimizer": "sgd"}
    sghmc = next(one for one in module.FAMILIES if one.name == "sghmc")
    work._trained(sghmc, 4)
    (start, networks), (_, chains) = started
    assert start == "sghmc_4c_start"
    assert networks["ensemble_size"] == chains["num_chains"] == 2
    assert networks["num_steps"] == 200, "half of the seconds"


@pytest.mark.parametrize(("num_trials", "epochs"), [(1, 10), (2, 8), (3, 7)])
def test_trials_of_cross_fitted_networks_are_of_their_seconds(monkeypatch, num_trials, epochs):
    price = Price(0.01, 0.1, 0.1, num_steps=64, steps_per_epoch=10, num_trials=num_trials)
    trained = []
    parts = {
        "_price": lambda *_: price,
        "_values": lambda self, keys: keys,
        "_train": lambda self, values, name: trained.append(values) or 0.0,
        "_scored": lambda self, name: {},
    }
    work = alone(monkeypatch, Workdir("runs"), {}, **parts)
    crossing = next(one for one in module.FAMILIES if one.name == "cross_fitted")
    assert work._trained(crossing, 1)["charged_seconds"] == 1.0
    assert trained[0]["num_steps"] == 10 * epochs


def test_predicting_is_timed_three_times(monkeypatch):
    rows = np.zeros((500, 2))
    predictor = types.SimpleNamespace(predict_members=lambda inputs: None)
    subject = types.SimpleNamespace(dataset=object(), predictor=predictor)
    monkeypatch.setattr(cells, "Subject", lambda *_, **__: subject)
    monkeypatch.setattr(cells, "SplitInputs", lambda *_: rows)
    clock = iter([0.0, 1.0, 1.0, 10.0, 10.0, 12.0])
    monkeypatch.setattr(cells, "_clock", lambda: lambda: next(clock))
    assert cells.predict_seconds(Workdir("runs"), None) == 2 * 1000 / 500


def test_data_without_a_validation_split_are_refused_before_anything_is_trained(tmp_path):
    config = {**CONFIG, "hold_out": False}
    with pytest.raises(UserError, match="no validation split, by which methods are compared"):
        ensemble.compare_methods(config, "1h", tmp_path / "out", table(), **QUIET)
    assert not (tmp_path / "out" / "methods.json").exists()
    assert not (tmp_path / "out" / "cells").exists()


@pytest.mark.check
def test_methods_are_compared_a_failed_one_is_a_row_and_more_time_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMES", (1, 4))
    families = [one for one in module.FAMILIES if one.name in ("plain", "deep_ensemble", "laplace")]
    broken = next(one for one in module.FAMILIES if one.name == "dropout")
    broken = broken._replace(keys=lambda config, times: {"mlp.dropout": 0.0})
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
    report = json.loads((work / "cells" / "deep_ensemble_1c" / "report.json").read_text())
    value = report["test"]["scores"]["crps"]["value"]
    assert rows["deep_ensemble"]["test"]["crps"]["value"] == pytest.approx(value)
    assert report["num_members"] == 2
    assert first["rounds"][0]["best"] in first["recommendation"]
    assert repr(first).count("failed") >= 2

    before = (work / "cells" / "plain_1c" / "report.json").stat().st_mtime_ns
    monkeypatch.undo()
    monkeypatch.setattr(module, "TIMES", (1, 4))
    again = ensemble.compare_methods(CONFIG, "2h", work, table(), methods=["laplace"], **QUIET)
    assert [one["times"] for one in again["rounds"]] == [1, 4]
    assert (work / "cells" / "plain_1c" / "report.json").stat().st_mtime_ns == before
    steps = {one["times"]: one["rows"][0]["charged_seconds"] for one in again["rounds"]}
    assert steps[4] == pytest.approx(4 * steps[1])
    with pytest.raises(UserError, match="another configuration: batch_size: 32 -> 64"):
        ensemble.compare_methods({**CONFIG, "batch_size": 64}, "1h", work, table(), **QUIET)


@pytest.mark.check
def test_a_comparison_is_killed_and_goes_on(tmp_path):
    work = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "ensemble", "methods", "--config=digits_ensemble"),
        *("--config.model=mlp", "--config.mlp.widths=16", "--config.num_epochs=4"),
        *("--config.num_devices=1", "--config.augment.shift=0", "--budget=10m"),
        *("--methods=deep_ensemble,sghmc,laplace", f"--workdir={work}"),
    ]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (work / "cells" / "deep_ensemble_1c" / "config.json").exists():
        assert process.poll() is None, "it ended"
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = json.loads((work / "methods.json").read_text())
    assert "plain_1c" in before["cells"]
    under_way = before["cells"].pop("deep_ensemble_1c")
    assert under_way["is_cut"]

    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while "is_cut" in json.loads((work / "methods.json").read_text())["cells"]["deep_ensemble_1c"]:
        assert process.poll() is None, "it ended"
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "resume with:" in said.splitlines()[-1]

    work = work.rename(tmp_path / "moved")
    # The first round is finished in any case.
    command[-3:] = ["--budget=1s", command[-2], f"--workdir={work}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    after = json.loads((work / "methods.json").read_text())
    assert after["cells"]["plain_1c"] == before["cells"]["plain_1c"], "it was not run again"
    assert after["length"] == before["length"]
    assert before["prices"].items() <= after["prices"].items()
    assert len(before["prices"]) == 2, "kept before the run whose length follows from it"
    assert not [one for one in after["cells"].values() if "failed" in one]
    (one,) = after["result"]["rounds"]
    assert {row["method"] for row in one["rows"]} == {"plain", "deep_ensemble", "sghmc", "laplace"}
    assert one["is_complete"]
    assert after["result"]["recommendation"] in done.stdout


@pytest.mark.soak
def test_ten_minutes_on_digits_pay_for_all_methods_though_it_is_killed(tmp_path):
    command = [sys.executable, "-m", "ensemble", "methods", "--config=digits_ensemble"]
    command += ["--budget=10m", f"--workdir={tmp_path / 'out'}"]
    began = time.monotonic()
    for seconds in (60, 120):
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        process.wait()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 1.25 * 600, "kills cost a little, and so do starts"
    found = json.loads((tmp_path / "out" / "methods.json").read_text())["result"]
    first = found["rounds"][0]
    assert first["is_complete"]
    assert {row["method"] for row in first["rows"]} == {one.name for one in module.FAMILIES}
    assert found["recommendation"] in done.stdout
