"""Searches within a budget of time."""

import contextlib
import json
import logging
import pickle
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT

import ensemble
from ensemble import RunFailed, UserError
from ensemble.errors import Interrupted
from ensemble.evaluation.greedy import loss
from ensemble.run.progress import Display
from ensemble.search import fit as module
from ensemble.search.budget import parse_seconds
from ensemble.search.trials import trials
from ensemble.sharding import signals
from ensemble.storage.held_out import read_held_out
from ensemble.storage.schema import checksum
from ensemble.storage.search import Search, Tried, read_search
from ensemble.storage.workdir import Workdir

QUIET = {"show_progress": False}
CONFIG = {
    "num_epochs": 4,
    "ensemble_size": 4,
    "num_devices": 1,
    "cross_fitted.folds": 4,
    "mlp.activation": "silu",
    "hold_out": True,
}
"""The families are those of one network, which compiles fast."""


def table(num_rows=300, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_rows, 4)).astype(np.float32)
    targets = 5 + 3 * (inputs[:, 0] + np.sin(2 * inputs[:, 1]) + 0.3 * rng.normal(size=num_rows))
    return inputs, targets.astype(np.float32)


def first(number):
    """What a search tries, which ends after so many trials as if its time were over then."""

    def limited(*arguments):
        tries, sent = trials(*arguments), None
        for _ in range(number):
            sent = yield tries.send(sent)

    return limited


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A search of three trials, by now in a workdir."""
    workdir = tmp_path_factory.mktemp("search") / "best"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "trials", first(3))
        return ensemble.fit(table(), "1h", workdir, CONFIG, **QUIET)


@pytest.mark.parametrize("is_kept", [False, True])
def test_interrupted_before_the_first_family_only_a_workdir_is_kept(monkeypatch, tmp_path, is_kept):
    def searched(*arguments):
        raise Interrupted("after a checkpoint")

    monkeypatch.setattr(module, "_searched", searched)
    says = "after a checkpoint" if is_kept else "without a workdir nothing is kept"
    with pytest.raises(Interrupted, match=says):
        ensemble.fit(table(), 5, tmp_path / "best" if is_kept else None, CONFIG, **QUIET)


@pytest.mark.check
def test_what_is_chosen_predicts_rows_held_out_best(found):
    report, selection = found.report, found.report["selection"]
    tried = report["search"]["trials"]
    rows = np.stack(
        [
            read_held_out(Workdir(f"{found.workdir}/trials/00{k}"), report["num_train_examples"])
            for k in range(3)
        ]
    )
    assert np.isfinite(rows).all(), "all rows are held out by some member"
    np.testing.assert_allclose([one["nll"] for one in tried], rows.mean(axis=1))
    weights = np.array([one["weight"] for one in tried])
    assert weights.sum() == pytest.approx(1)
    assert selection["nll"] == pytest.approx(loss(-rows, weights))
    assert selection["nll"] <= rows.mean(axis=1).min()
    assert selection["cross_validated_nll"] >= selection["nll"]


@pytest.mark.check
def test_a_workdir_has_the_mixture_that_was_returned(found):
    inputs = table(20, seed=1)[0]
    loaded = ensemble.load(found.workdir)
    said = found.predictor(inputs)
    np.testing.assert_allclose(loaded(inputs).mean, said.mean, rtol=1e-5)
    weights = loaded.estimator_weights
    np.testing.assert_allclose(weights @ np.asarray(said.member_means), said.mean, rtol=1e-5)
    evaluation = ensemble.evaluate(found.workdir, data=table(), show_progress=False)
    expected = found.report["test"]["scores"]["nll"]["value"]
    assert evaluation["test"]["scores"]["nll"]["value"] == pytest.approx(expected)


@pytest.mark.check
def test_what_was_tried_is_shown(found):
    text = repr(found)
    assert "the default" in text
    assert "Test split, by which nothing was chosen" in text
    for one in found.report["search"]["trials"]:
        assert f"{one['nll']:.4f}" in text


@pytest.mark.check
def test_more_time_goes_on_with_the_same_search(found, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "trials", first(1))
    half = ensemble.fit(table(), 3600, tmp_path / "half", CONFIG, **QUIET)
    monkeypatch.setattr(module, "trials", first(3))
    second = ensemble.fit(table(), 3600, tmp_path / "half", CONFIG, **QUIET)
    before, after, whole = (one.report["search"]["trials"] for one in (half, second, found))
    assert [one["seconds"] for one in after[:1]] == [before[0]["seconds"]], "it was not run again"
    for ours, theirs in zip(after, whole, strict=True):
        assert (ours["settings"], ours["nll"]) == (theirs["settings"], theirs["nll"])
    assert second.report["selection"]["nll"] == found.report["selection"]["nll"]


@pytest.mark.parametrize("losses", [(2.0, 1.0), (1.0, 2.0)])
def test_half_a_budget_is_a_prefix_of_the_same_search(tmp_path, monkeypatch, losses):
    """Trials of ten seconds each; their losses decide on the order from the sixth one on."""

    def tried(out, search, trial, *_):
        loss = losses[trial.family % 2]
        ended = Tried(trial.family, trial.settings, trial.num_epochs, loss, 10.0)
        search.tried.append(ended)
        return ended

    def searched(budget, search=None):
        search = search or Search({"seed": 3, "num_epochs": 40}, [])
        list(module._searched(Workdir(tmp_path), search, {}, None, budget, None, None))
        return search

    monkeypatch.setattr(module, "_tried", tried)
    whole, half = searched(200.0), searched(100.0)
    assert (len(half.tried), len(whole.tried)) == (10, 20)
    assert half.tried == whole.tried[:10]
    assert searched(200.0, half).tried == whole.tried
    assert [one.family for one in whole.tried[5:7]] == ([1, 3] if losses[1] == 1 else [2, 4])


@pytest.mark.check
def test_a_killed_process_forgets_no_more_than_seconds(tmp_path, monkeypatch):
    file = tmp_path / "best" / "search.json"

    def killed(*arguments, **options):
        ensemble.train(*arguments, **options)
        time.sleep(0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_SHOWN_SECONDS", 0.05)
    monkeypatch.setattr(module, "_KEPT_SECONDS", 0.1)
    monkeypatch.setattr(module, "trials", first(1))
    monkeypatch.setattr(module, "train", killed)
    with pytest.raises(KeyboardInterrupt):
        ensemble.fit(table(), 3600, tmp_path / "best", CONFIG, **QUIET)
    with pytest.raises(UserError, match="holds a search that has chosen nothing yet"):
        ensemble.load(tmp_path / "best")
    kept = json.loads(file.read_text())
    assert kept["tried"] == []
    assert kept["seconds"] >= 0.1
    kept["seconds"] = 1000.0
    kept["checksum"] = checksum({key: one for key, one in kept.items() if key != "checksum"})
    file.write_text(json.dumps(kept))
    monkeypatch.setattr(module, "train", ensemble.train)
    found = ensemble.fit(table(), 3600, tmp_path / "best", CONFIG, **QUIET)
    assert 1000 < found.report["search"]["trials"][0]["seconds"] < 1060


def test_what_suits_no_family_leaves_no_search(tmp_path, monkeypatch):
    def slowly(*arguments, **options):
        time.sleep(0.3)
        return ensemble.train(*arguments, **options)

    monkeypatch.setattr(module, "_SHOWN_SECONDS", 0.05)
    monkeypatch.setattr(module, "_KEPT_SECONDS", 0.1)
    monkeypatch.setattr(module, "train", slowly)
    with pytest.raises(UserError, match="missing"):
        ensemble.fit(None, 10, tmp_path / "best", CONFIG | {"dataset": "csv:missing.csv"}, **QUIET)
    assert not (tmp_path / "best" / "search.json").exists()


class Shown(Display):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def update(self, step, scores, left):
        self.told.append(scores)


@pytest.mark.check
@pytest.mark.parametrize("has_log", [False, True])
def test_what_is_tried_and_the_best_so_far_are_shown_meanwhile(tmp_path, monkeypatch, has_log):
    display, lines = Shown(), []
    display.has_log = has_log

    def slowly(*arguments, **options):
        result = ensemble.train(*arguments, **options)
        time.sleep(0.3)
        return result

    monkeypatch.setattr(module, "open_display", lambda _: contextlib.nullcontext(display))
    monkeypatch.setattr(module, "_SHOWN_SECONDS", 0.05)
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(module, "train", slowly)
    monkeypatch.setattr(module, "trials", _short_then_long)
    monkeypatch.setattr(module, "_LEAST_SHARE", 1e9)
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    monkeypatch.setattr(module.logger, "handlers", [handler])
    monkeypatch.setattr(module.logger, "level", logging.INFO)
    ensemble.fit(table(), 3600, tmp_path / "best", CONFIG)
    what = "nothing has ended yet; trying the default, 2 epochs, for 0:0"
    assert display.told[0].startswith(what)
    assert display.told[-1].startswith("best so far ")
    meanwhile = [line for line in lines if line.startswith(what)]
    assert bool(meanwhile) != has_log, "a display shows it, or else a line of the log"


@pytest.mark.check
def test_too_little_time_is_enough_for_the_default_and_is_said(tmp_path, caplog):
    found = ensemble.fit(table(), 0.01, tmp_path / "best", CONFIG, **QUIET)
    assert len(found.report["search"]["trials"]) == 1
    assert "The first family alone took" in caplog.text


@pytest.mark.check
def test_a_trial_is_cut_when_the_time_is_over_and_has_a_checkpoint(tmp_path, monkeypatch, caplog):
    config = {**CONFIG, "num_epochs": 2000, "cross_fitted.patience": 2000, "batch_size": 8}
    monkeypatch.setattr(module, "trials", _short_then_long)
    began = time.monotonic()
    found = ensemble.fit(table(), 20, tmp_path / "best", config, **QUIET)
    assert time.monotonic() - began < 60
    assert len(found.report["search"]["trials"]) == 1
    content = json.loads((tmp_path / "best" / "search.json").read_text())
    assert content["seconds"] > 0, "what the trial under way has taken"
    assert not found.report["search"]["is_interrupted"]
    steps = [one.name for one in (tmp_path / "best/trials/001/checkpoints").iterdir()]
    assert steps, "it resumes from here"


def _short_then_long(seed, num_epochs, fixed):
    yield module.Trial(0, {}, 2)
    while True:
        yield module.Trial(1, {"learning_rate": 1e-4}, num_epochs)


@pytest.mark.check
def test_a_family_that_fails_is_told_and_the_search_goes_on(tmp_path, monkeypatch):
    def tries(seed, num_epochs, fixed):
        yield module.Trial(0, {}, 2)
        yield module.Trial(1, {"learning_rate": 1e15}, 2)

    monkeypatch.setattr(module, "trials", tries)
    found = ensemble.fit(table(), 3600, tmp_path / "best", CONFIG, **QUIET)
    second = found.report["search"]["trials"][1]
    assert second["nll"] is None
    assert second["failure"]
    assert "failed" in repr(found)


@pytest.mark.check
def test_where_all_families_fail_it_is_an_error(tmp_path, monkeypatch):
    def tries(seed, num_epochs, fixed):
        yield module.Trial(0, {"learning_rate": 1e15}, 2)

    monkeypatch.setattr(module, "trials", tries)
    with pytest.raises(RunFailed, match="no family could be trained"):
        ensemble.fit(table(), 3600, tmp_path / "best", CONFIG, **QUIET)


@pytest.mark.check
def test_data_that_change_meanwhile_end_a_search_that_goes_on_with_the_former(
    tmp_path, monkeypatch
):
    file = tmp_path / "mine.csv"
    rows = np.column_stack(table())

    def write(rows):
        np.savetxt(file, rows, delimiter=",", header="a,b,c,d,price", comments="")

    def tries(*arguments):
        those = first(2)(*arguments)
        sent = yield next(those)
        write(2 * rows)
        yield those.send(sent)

    config = {**CONFIG, "dataset": f"csv:{file}", "target": "price"}
    monkeypatch.setattr(module, "trials", tries)
    write(rows)
    with pytest.raises(UserError, match="the data have changed since the search"):
        ensemble.fit(None, 3600, tmp_path / "best", config, **QUIET)
    write(rows)
    monkeypatch.setattr(module, "trials", first(2))
    found = ensemble.fit(None, 3600, tmp_path / "best", config, **QUIET)
    assert len(found.report["search"]["trials"]) == 2
    file.unlink()
    monkeypatch.setattr(module, "trials", first(3))
    with pytest.raises(UserError, match="csv"):
        ensemble.fit(None, 3600, tmp_path / "best", config, **QUIET)


@pytest.mark.check
def test_a_signal_after_a_trial_has_ended_ends_the_search(tmp_path, monkeypatch):
    def signalled(*arguments, **options):
        with signals.stop_signals():
            result = ensemble.train(*arguments, **options)
            signal.raise_signal(signal.SIGINT)
            return result

    monkeypatch.setattr(module, "train", signalled)
    found = ensemble.fit(table(), 3600, tmp_path / "best", CONFIG, **QUIET)
    assert len(found.report["search"]["trials"]) == 1
    assert found.report["search"]["is_interrupted"]


@pytest.mark.check
def test_a_search_ends_where_family_after_family_fails(tmp_path, monkeypatch, caplog):
    def tries(seed, num_epochs, fixed):
        yield module.Trial(0, {}, 2)
        for number in range(1, 100):
            yield module.Trial(number, {"learning_rate": 1e15}, 2)

    monkeypatch.setattr(module, "trials", tries)
    found = ensemble.fit(table(), 3600, tmp_path / "best", CONFIG, **QUIET)
    assert "5 families failed in a row" in caplog.text
    assert [one["weight"] for one in found.report["search"]["trials"]] == [1.0, *[0.0] * 5]


@pytest.mark.check
def test_families_are_compared_on_the_rows_of_the_first(found):
    out = Workdir(found.workdir)
    search = read_search(out, json.loads((out.path / "search.json").read_text())["config"])
    losses = read_held_out(Workdir(out.path / "trials/000"), found.report["num_train_examples"])
    assert module._loss(out, search, losses) == (pytest.approx(losses.mean()), "")
    less = losses.copy()
    less[3] = np.nan
    assert module._loss(out, search, less)[0] is None
    less[3] = np.inf
    assert module._loss(out, search, less) == (None, "the loss of a row is infinite")


@pytest.mark.check
def test_what_a_search_cannot_do_is_one_line(found, tmp_path):
    with pytest.raises(UserError, match="'sgd'"):
        ensemble.fit(table(), 10, config={"method": "sgd"})
    with pytest.raises(UserError, match="'quantiles'"):
        ensemble.fit(table(), 10, config={"likelihood": "quantiles"})
    with pytest.raises(UserError, match="there are no data"):
        ensemble.fit(None, 10)
    with pytest.raises(UserError, match="widths"):
        ensemble.fit(table(), 10, config={"model": "embedded_mlp", "mlp.widths": "32"})
    shutil.copy(f"{found.workdir}/search.json", tmp_path)
    with pytest.raises(UserError, match="holds a search"):
        ensemble.train({"num_epochs": 1}, table(), str(tmp_path))
    with pytest.raises(UserError, match="num_steps"):
        ensemble.fit(table(), 10, config={"num_steps": 5})
    with pytest.raises(UserError, match="seed: 0 -> 1"):
        ensemble.fit(table(), 10, found.workdir, {**CONFIG, "seed": 1})
    with pytest.raises(UserError, match="a search on other data"):
        ensemble.fit(table(seed=1), 10, found.workdir, CONFIG)
    with pytest.raises(UserError, match="has a run or a comparison already"):
        ensemble.fit(table(), 10, f"{found.workdir}/trials/000", CONFIG)
    with pytest.raises(UserError, match="selects members of other runs"):
        ensemble.train({"num_epochs": 1}, table(), found.workdir)


@pytest.mark.parametrize("text", ["", "0", "-3", "ten", "5d", "1.2.3m", "nan"])
def test_a_budget_is_a_positive_time(text):
    with pytest.raises(UserError, match="must be a positive time"):
        parse_seconds(text)


def test_budgets_are_seconds_minutes_or_hours():
    assert [*map(parse_seconds, (90, "90", "90s", "1.5m", "2h"))] == [90, 90, 90, 90, 7200]


@pytest.mark.check
@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(seconds=1.0),
        lambda content: content.pop("tried"),
        lambda content: content.update(tried=[{"family": 0}]),
    ],
)
def test_a_damaged_search_is_one_line(found, tmp_path, change):
    content = json.loads((Workdir(found.workdir).path / "search.json").read_text())
    change(content)
    (tmp_path / "search.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="damaged or not of this program"):
        ensemble.fit(table(), 10, tmp_path, CONFIG, **QUIET)


@pytest.mark.check
def test_estimators_take_a_budget(monkeypatch):
    monkeypatch.setattr(module, "trials", first(2))
    inputs, targets = table()
    config = {"cross_fitted.patience": 2}
    regressor = ensemble.EnsembleRegressor(
        ensemble_size=4, num_epochs=4, num_devices=1, hidden=(8,), budget="1h", config=config
    )
    regressor.fit(inputs, targets)
    tried = regressor.report_["search"]["trials"]
    assert len(tried) == 2
    assert all("mlp.widths" not in one["settings"] for one in tried), "these are fixed"
    copy = pickle.loads(pickle.dumps(regressor))
    np.testing.assert_allclose(copy.predict(inputs), regressor.predict(inputs), rtol=1e-6)
    assert regressor.score(inputs, targets) > 0.3
    weights = np.full(len(regressor.predictor_.estimator_weights), 0.01)
    weights[0] = 1 - weights[1:].sum()
    vars(regressor.predictor_)["estimator_weights"] = weights  # Whatever was chosen here.
    said = regressor.predict_uncertainty(inputs)
    places = [int(np.argmin(np.abs(said.levels - level))) for level in (0.05, 0.95)]
    found = regressor.predict_interval(inputs, coverage=0.9)
    np.testing.assert_allclose(found, said.quantiles[:, places], rtol=1e-5)
    labels = (targets > 5).astype(str)
    classifier = ensemble.EnsembleClassifier(
        ensemble_size=4, num_epochs=4, num_devices=1, budget="1h", class_weight="balanced"
    )
    assert classifier.fit(inputs, labels).score(inputs, labels) > 0.7


@pytest.mark.check
def test_an_interrupted_command_gives_what_it_has_and_goes_on(tmp_path):
    np.savetxt(
        tmp_path / "mine.csv",
        np.column_stack(table()),
        delimiter=",",
        header="a,b,c,d,price",
        comments="",
    )
    command = [
        *(sys.executable, "-m", "ensemble", "fit", f"--data=csv:{tmp_path}/mine.csv"),
        *("--target=price", f"--workdir={tmp_path}/best", "--config.num_epochs=40"),
        *("--config.ensemble_size=4", "--config.num_devices=1"),
    ]
    where = {"cwd": ROOT, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*command, "--budget=1h"], **where)
    while not (tmp_path / "best/trials/001/config.json").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "The search was interrupted; with a workdir the same call goes on." in out
    tried = json.loads((tmp_path / "best/report.json").read_text())["search"]["trials"]
    assert len(ensemble.load(tmp_path / "best").members) == 4
    killed = subprocess.Popen([*command, "--budget=1h"], **where)
    while not (tmp_path / "best/trials/002/config.json").exists():
        assert killed.poll() is None
        time.sleep(0.1)
    while not json.loads((tmp_path / "best/search.json").read_text())["seconds"]:
        time.sleep(0.1)
    killed.kill()
    killed.communicate()
    ended = len(json.loads((tmp_path / "best/search.json").read_text())["tried"])
    assert ended >= 2
    assert (tmp_path / f"best/trials/{ended:03d}/config.json").exists(), "one was under way"
    done = subprocess.run([*command, "--budget=1s"], **where, check=True)
    assert "was interrupted" not in done.stdout
    after = json.loads((tmp_path / "best/report.json").read_text())["search"]["trials"]
    before, first_again = ({**one[0], "weight": None} for one in (tried, after))
    assert first_again == before
    assert len(after) == ended, "the one that was under way is not among them"
