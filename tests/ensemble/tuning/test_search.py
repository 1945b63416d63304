"""Searches within a budget of time."""

import json
import time

import numpy as np
import pytest
from etils import epath

import ensemble
from ensemble import InputError
from ensemble.selection import loss
from ensemble.storage.manifest import Manifest
from ensemble.storage.predictions import read_held_out
from ensemble.storage.search import Search, Tried
from ensemble.storage.workdir import Workdir
from ensemble.tuning import search as module
from ensemble.tuning.budget import parse_seconds
from ensemble.tuning.trials import trials

QUIET = {"show_progress": False}
CONFIG = {
    "num_epochs": 4,
    "ensemble_size": 4,
    "num_devices": 1,
    "kfold_bagging.folds": 4,
    "mlp.activation": "silu",
    "train_on_all": False,
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
        return ensemble.search(table(), "1h", workdir, CONFIG, **QUIET)


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


@pytest.mark.parametrize("losses", [(2.0, 1.0), (1.0, 2.0)])
def test_half_a_budget_is_a_prefix_of_the_same_search(tmp_path, monkeypatch, losses):
    """Trials of ten seconds each; their losses decide on the order from the sixth one on."""

    def tried(out, search, trial, *_):
        loss = losses[trial.family % 2]
        ended = Tried(trial.family, trial.settings, trial.num_epochs, loss, 10.0)
        search.tried.append(ended)
        return ended

    def searched(budget, search=None):
        search = search or Search({"seed": 3, "num_epochs": 40})
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
        ensemble.search(table(), 3600, tmp_path / "best", CONFIG, **QUIET)
    with pytest.raises(InputError, match="holds a search that has chosen nothing yet"):
        ensemble.load(tmp_path / "best")
    kept = json.loads(file.read_text())
    assert kept["tried"] == []
    assert kept["seconds"] >= 0.1
    kept["seconds"] = 1000.0
    Manifest(epath.Path(file.parent)).write(epath.Path(file), json.dumps(kept))
    monkeypatch.setattr(module, "train", ensemble.train)
    found = ensemble.search(table(), 3600, tmp_path / "best", CONFIG, **QUIET)
    assert 1000 < found.report["search"]["trials"][0]["seconds"] < 1060


@pytest.mark.parametrize("text", ["", "0", "-3", "ten", "5d", "1.2.3m", "nan"])
def test_a_budget_is_a_positive_time(text):
    with pytest.raises(InputError, match="must be a positive time"):
        parse_seconds(text)


def test_budgets_are_seconds_minutes_or_hours():
    assert [*map(parse_seconds, (90, "90", "90s", "1.5m", "2h"))] == [90, 90, 90, 90, 7200]
