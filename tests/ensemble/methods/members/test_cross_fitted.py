"""Members that hold each other's rows out."""

import json

import jax
import numpy as np
import pandas as pd
import pytest
from conftest import small_config
from run_parts import task_of, validated

import ensemble
from ensemble import RunFailed, UserError
from ensemble.likelihoods.categorical import Categorical
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.methods.members import cross_fitted
from ensemble.methods.members.cross_fitted import CrossFitted
from ensemble.methods.members.folds import Folds, make_folds
from ensemble.methods.members.held_predictions import HeldPredictions, fitted_factor
from ensemble.scoring.sections import terms_of
from ensemble.storage.held_out import read_held_out
from ensemble.storage.workdir import Workdir

QUIET = {"show_progress": False}
CONFIG = small_config(
    method="cross_fitted", model="mlp", hold_out=False, scaling="robust", optimizer="adam"
) | {"mlp.widths": "16", "learning_rate": 0.02, "num_epochs": 8, "cross_fitted.patience": 4}
NUMBERS = {**CONFIG, "likelihood": "gaussian"}


def numbers(num_rows=200, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_rows, 4)).astype(np.float32)
    targets = 5 + 3 * (inputs[:, 0] + np.sin(2 * inputs[:, 1]) + noise * rng.normal(size=num_rows))
    return {"train_inputs": inputs, "train_targets": targets.astype(np.float32)}


def method_of(config, data):
    return CrossFitted(validated(config), task_of(config, data))


def at_the_end(method):
    state = method.init(jax.random.key(0))
    while not method.finished(state):
        state, _ = method.advance(state)
    return state


@pytest.mark.check
def test_a_member_never_learns_the_rows_of_its_fold(monkeypatch):
    """Their targets change nothing of what it becomes, and all of what the others do."""
    folds = Folds(2, np.arange(200) % 2, np.zeros(200, bool))
    monkeypatch.setattr(cross_fitted, "make_folds", lambda *_: folds)
    # One setting is tried, without a linear model, whose penalty is chosen by all rows.
    config = {**NUMBERS, "likelihood": "gaussian_shared", "num_epochs": 3}
    data, held = numbers(), folds.held_out(0)
    targets = data["train_targets"].copy()
    targets[held] = targets[held][::-1]  # Their mean and deviation stay.
    found = []
    for one in (data, {**data, "train_targets": targets}):
        method = method_of(config, one)
        found.append(method.to_host(at_the_end(method))[0]["params"])
    gaps = [
        np.abs(a - b).reshape(4, -1).max(axis=1)
        for a, b in zip(*map(jax.tree.leaves, found), strict=True)
    ]
    assert (np.max(gaps, axis=0)[[0, 2]] == 0).all()
    assert (np.max(gaps, axis=0)[[1, 3]] > 1e-4).all()


@pytest.mark.check
def test_where_nothing_is_better_members_are_the_linear_model():
    """A step so large that all later epochs are worse: what predicts is the start."""
    data = numbers()
    config = {**NUMBERS, "learning_rate": 1e4, "num_epochs": 2}
    result = ensemble.train(config, data, **QUIET)
    found = result.report["cross_fitted"]
    assert found["best_epochs"] == [0, 0, 0, 0]
    assert found["below_linear"] == pytest.approx([0, 0], abs=5e-3)  # Two of them, on some rows.
    line = result.report["cross_fitted"]["summary"]
    assert "not distinguishable from the linear model" in line
    said = result.predictor(data["train_inputs"]).mean
    slopes = np.linalg.lstsq(
        np.c_[data["train_inputs"], np.ones(200)], data["train_targets"], rcond=None
    )[0]
    assert np.corrcoef(said, np.c_[data["train_inputs"], np.ones(200)] @ slopes)[0, 1] > 0.97


@pytest.mark.check
def test_noise_is_hardly_worse_than_a_constant():
    """Of which a linear model now and then finds something by chance."""
    config = {**CONFIG, "num_epochs": 60, "cross_fitted.patience": 40, "learning_rate": 0.005}
    plain = {key: one for key, one in config.items() if not key.startswith("cross_fitted")}
    losses = {"cross_fitted": [], "sgd": []}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        inputs, labels = rng.normal(size=(500, 20)), rng.integers(0, 2, 500)
        data = {"train_inputs": inputs[:150], "train_labels": labels[:150]}
        data |= {"test_inputs": inputs[150:], "test_labels": labels[150:]}
        for method, keys in (("cross_fitted", config), ("sgd", plain)):
            report = ensemble.train({**keys, "method": method}, data, **QUIET).report
            losses[method].append(report["test"]["scores"]["nll"]["value"])
    assert np.mean(losses["cross_fitted"]) < np.log(2) + 0.04
    assert np.mean(losses["sgd"]) > np.log(2) + 0.1


@pytest.mark.check
def test_the_report_says_what_was_tried(tmp_path, caplog):
    data, config = numbers(400), {**NUMBERS, "num_epochs": 40, "cross_fitted.patience": 20}
    result = ensemble.train(config, data, str(tmp_path), **QUIET)
    found = json.loads((tmp_path / "report.json").read_text())["cross_fitted"]
    assert found["folds"] == 8
    assert found["held_out_rows"] == 200 + 12  # Four of eight folds, and a part of a fifth.
    assert [one["linear_start"] for one in found["trials"][:2]] == [True, False]
    rates = [one["learning_rate"] for one in found["trials"]]
    np.testing.assert_allclose(rates, [0.02, 0.02, 0.004])
    losses = [one["nll"] for one in found["trials"]]
    assert found["chosen"] == np.argmin(losses)
    gain, error = found["below_linear"]
    assert gain > 5 * error > 0  # The sine is not linear.
    line = result.report["cross_fitted"]["summary"]
    assert line.startswith("4 networks hold out folds of 8, 212 rows in all.")
    assert f"{gain:.2f} nats below the linear model's" in line
    assert line in repr(result)
    caplog.clear()
    loaded = ensemble.load(tmp_path)
    # It is not said again.
    assert not [one.getMessage() for one in caplog.records if one.name == "ensemble"]
    np.testing.assert_array_equal(
        loaded(data["train_inputs"]).mean, result.predictor(data["train_inputs"]).mean
    )
    widths = loaded.fitted.sets["width"]["factor"]
    np.testing.assert_allclose(widths, found["width"], rtol=1e-6)


@pytest.mark.check
def test_losses_of_rows_held_out_are_kept_as_the_ensemble_predicts_them(tmp_path):
    found = ensemble.train({**NUMBERS, "ensemble_size": 8}, numbers(), str(tmp_path), **QUIET)
    predictor = found.predictor
    kept = read_held_out(Workdir(tmp_path), 200)
    assert np.isfinite(kept).all()
    source = task_of(NUMBERS, numbers()).dataset
    folds = make_folds(source, 0, 0)
    arrays = predictor.member_arrays(numbers()["train_inputs"])
    targets = source.targets("train")
    for row in (0, 1, 2, 199):
        own = [k for k in range(8) if row in folds.held_out(k)]
        said = {name: one[own][:, row : row + 1] for name, one in arrays.items()}
        view = predictor.likelihood.view(said, targets[row : row + 1])
        np.testing.assert_allclose(kept[row], terms_of(view, "nll")[0], rtol=1e-4)
    damaged = tmp_path / "predictions/held_out.npz"
    with pytest.raises(UserError, match="201 rows"):
        read_held_out(Workdir(tmp_path), 201)
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(UserError, match="damaged"):
        read_held_out(Workdir(tmp_path), 200)


@pytest.mark.check
@pytest.mark.parametrize("adapters", ["rank_one", "tabm", "tabm_mini"])
def test_members_may_consist_of_estimators(adapters, tmp_path):
    own = {"cross_fitted.num_estimators": 3, "cross_fitted.adapters": adapters}
    config = {**NUMBERS, **own, "ensemble_size": 8, "num_epochs": 12, "hold_out": True}
    found = ensemble.train(config, numbers(400), str(tmp_path), **QUIET)
    loaded = ensemble.load(tmp_path)
    assert loaded.fitted.num_estimators == 24
    inputs = numbers(20, seed=1)["train_inputs"]
    np.testing.assert_allclose(loaded(inputs).mean, found.predictor(inputs).mean, rtol=1e-4)
    scores = found.report["test"]["scores"]["rmse"]
    assert len(scores["members"]) == 8
    assert scores["value"] < 2.5, "the targets' deviation is 4"
    kept = read_held_out(Workdir(tmp_path), found.report["num_train_examples"])
    source = task_of({**NUMBERS, "hold_out": True}, numbers(400)).dataset
    folds, row = make_folds(source, 0, 0), 5
    own = [k for k in range(8) if row in folds.held_out(k)]
    rows = source.read("train", np.array([row]))
    arrays = loaded.member_arrays(np.asarray(source.raw.read("train", np.array([row])).inputs))
    chosen = np.isin(np.repeat(np.arange(8), 3), own)
    said = {name: one[chosen] for name, one in arrays.items()}
    expected = terms_of(loaded.likelihood.view(said, rows.targets), "nll")[0]
    np.testing.assert_allclose(kept[row], expected, rtol=1e-4)


@pytest.mark.check
@pytest.mark.parametrize("adapters", ["rank_one", "tabm", "tabm_mini"])
def test_estimators_begin_as_the_linear_model(adapters):
    own = {"cross_fitted.num_estimators": 3, "cross_fitted.adapters": adapters}
    method = method_of({**NUMBERS, **own}, numbers())
    state = method.init(jax.random.key(0))
    plain = method_of(NUMBERS, numbers())
    other = plain.init(jax.random.key(0))
    losses = method.engine.held_out.losses(state.members.members.variables)
    expected = plain.engine.held_out.losses(other.members.members.variables)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.check
def test_members_that_join_go_on_with_what_was_chosen(tmp_path):
    data, config = numbers(), {**NUMBERS, "num_epochs": 12}
    first = ensemble.train(config, data, str(tmp_path), **QUIET)
    grown = ensemble.train({**config, "ensemble_size": 6}, data, str(tmp_path), **QUIET)
    before, after = (one.report["cross_fitted"] for one in (first, grown))
    assert after["best_epochs"][:4] == before["best_epochs"]
    assert (after["chosen"], after["trials"]) == (before["chosen"], before["trials"])
    kept, now = (one.predictor.fitted.sets for one in (first, grown))
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b[:4]), kept["params"], now["params"]
    )
    assert len(set(now["width"]["factor"].tolist())) == 1
    loaded = ensemble.load(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, loaded.fitted.sets, now)


@pytest.mark.check
def test_members_that_still_try_get_no_others(tmp_path):
    config = validated({**NUMBERS, "num_epochs": 12})
    method = CrossFitted(config, task_of(config, numbers()))
    state, _ = method.advance(method.init(jax.random.key(0)))
    counters = method.to_host(state)[1]
    larger = CrossFitted(
        validated({**NUMBERS, "num_epochs": 12, "ensemble_size": 6}), task_of(config, numbers())
    )
    with pytest.raises(UserError, match="4 members still try their settings"):
        larger.new_members(counters)


def test_what_cannot_be_folded_is_refused_in_a_line():
    with pytest.raises(UserError, match="3 training rows are too few for 5 folds"):
        method_of({**NUMBERS, "cross_fitted.folds": 5}, numbers(3))
    with pytest.raises(UserError, match=r"early_stopping_epochs=3.*cross_fitted\.patience"):
        validated({**NUMBERS, "early_stopping_epochs": 3})


# How wide the mixture is.


def held(arrays, targets, folds):
    """Predictions of members [M, N] by name, of the rows of their folds alone."""
    rows = [
        np.flatnonzero(np.arange(len(targets)) % folds == k % folds) for k in range(len(arrays))
    ]
    parts = [
        {name: one[None, r] for name, one in each.items()}
        for each, r in zip(arrays, rows, strict=True)
    ]
    return HeldPredictions(rows, parts, targets, None)


@pytest.mark.parametrize("claimed", [0.7, 0.9, 1.1])
def test_the_mixture_covers_as_it_says(claimed):
    """Members err independently, by half the noise: their mixture's width is not theirs."""
    rng = np.random.default_rng(0)
    likelihood, num_rows, num_members = Gaussian(0.0, 1.0, -9.0, 9.0), 6000, 8
    truth = rng.normal(size=num_rows)
    targets = (truth + rng.normal(size=num_rows)).astype(np.float32)
    members = [
        {
            "loc": (truth + 0.5 * rng.normal(size=num_rows)).astype(np.float32),
            "scale": np.full(num_rows, claimed, np.float32),
        }
        for _ in range(num_members)
    ]
    factor = fitted_factor(likelihood, held(members, targets, 4), num_members)
    whole = {name: np.stack([one[name] for one in members]) for name in ("loc", "scale")}
    wide = likelihood.tempered(whole, factor)
    low, high = likelihood.distribution(wide).quantiles(np.array([0.05, 0.95]))
    assert np.mean((low < targets) & (targets < high)) == pytest.approx(0.9, abs=0.02)


def test_classes_get_a_temperature_and_few_rows_hardly_one():
    rng = np.random.default_rng(1)
    logits = 2 * rng.normal(size=(4000, 3))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (rng.random((4000, 1)) > probs.cumsum(axis=1)).sum(axis=1)
    said = 1.4 * logits - np.log(np.exp(1.4 * logits).sum(axis=1, keepdims=True))
    likelihood = Categorical(["a", "b", "c"])
    arrays = [{"log_probs": said.astype(np.float32)}] * 4
    assert fitted_factor(likelihood, held(arrays, labels, 2), 4) == pytest.approx(1.4, abs=0.06)
    few = [{"log_probs": said[:10].astype(np.float32)}] * 4
    assert abs(fitted_factor(likelihood, held(few, labels[:10], 2), 4) - 1) < 0.1
    assert fitted_factor(likelihood, held(arrays[:2], labels, 2), 2) is None  # One holds a row out.


@pytest.mark.check
def test_who_begins_with_networks_is_told_of_the_linear_part(tmp_path):
    data, config = numbers(), {**NUMBERS, "num_epochs": 4}
    ensemble.train(config, data, str(tmp_path), **QUIET)
    plain = {key: one for key, one in config.items() if not key.startswith("cross_fitted")}
    with pytest.raises(UserError, match="add a linear model"):
        ensemble.train({**plain, "method": "sgd", "init_from": str(tmp_path)}, data, **QUIET)
    with pytest.raises(UserError, match="given weights may have learned"):
        validated({**config, "init_from": str(tmp_path)})


@pytest.mark.check
def test_a_patience_shorter_than_a_trial_ends_no_run():
    config = {**NUMBERS, "num_epochs": 24, "cross_fitted.patience": 1, "learning_rate": 1.0}
    found = ensemble.train(config, numbers(), **QUIET).report["cross_fitted"]
    assert all(one["nll"] is not None for one in found["trials"])


@pytest.mark.check
def test_all_failed_is_said_with_a_remedy(blobs):
    config = {**CONFIG, "model": "explosive", "optimizer": "sgd", "learning_rate": 1e14}
    del config["mlp.widths"]
    with pytest.raises(RunFailed, match="learning_rate"):
        ensemble.train({**config, "num_epochs": 2}, blobs, **QUIET)


@pytest.mark.check
@pytest.mark.parametrize(
    ("size", "own", "has_width"),
    [
        (1, {}, True),
        (10, {}, True),
        (2, {"likelihood": "quantiles"}, False),
        (2, {"targets": 2}, True),
        (2, {"targets": 2, "likelihood": "quantiles"}, False),
    ],
)
def test_any_members_and_targets(size, own, has_width):
    data, own = numbers(), dict(own)
    if own.pop("targets", 1) == 2:
        data["train_targets"] = np.stack([data["train_targets"], -data["train_targets"]], axis=1)
    config = {**NUMBERS, "ensemble_size": size, "num_epochs": 8, **own}
    result = ensemble.train(config, data, **QUIET)
    found = result.report["cross_fitted"]
    assert (found["width"] is not None) == has_width
    line = result.report["cross_fitted"]["summary"]
    assert ("width" in line) == has_width
    assert bool(found["why_not_linear"]) == (own.get("likelihood") == "quantiles")
    factors = result.predictor.fitted.sets["width"]["factor"]
    np.testing.assert_allclose(factors, found["width"] or 1, rtol=1e-6)


def test_weights_count_in_what_is_held_out():
    """Rows of hardly any weight are as good as none: those of a second population."""
    data = numbers(300)
    noise = np.random.default_rng(9).normal(size=(300, 4)).astype(np.float32)
    joined = {
        "train_inputs": np.concatenate([data["train_inputs"], noise]),
        "train_targets": np.concatenate([data["train_targets"], 50 + 0 * noise[:, 0]]),
        "sample_weight": np.repeat([1.0, 1e-6], 300).astype(np.float32),
    }
    method = method_of({**NUMBERS, "num_epochs": 2}, joined)
    members = method.init(jax.random.key(0)).members.members
    losses = method.engine.held_out.losses(members.variables)
    assert (losses < 4).all()  # Of a normal distribution about all rows it is 4.7.


@pytest.mark.check
@pytest.mark.parametrize("ensemble_size", [3, 9])
def test_the_latest_period_decides(ensemble_size):
    """In which all that was true before is wrong: the best is to have learned nothing."""
    rng = np.random.default_rng(0)
    inputs, day = rng.normal(size=(480, 2)), rng.permutation(480)
    signs = np.where(day >= 290, -1, 1)  # Of 336 days that are learned.
    targets = signs * (inputs[:, 0] + np.sin(2 * inputs[:, 1])) + 0.1 * rng.normal(size=480)
    frame = pd.DataFrame({"a": inputs[:, 0], "b": inputs[:, 1], "day": day, "y": targets})
    config = {**NUMBERS, "hold_out": True, "ensemble_size": ensemble_size, "target": "y"}
    found = {}
    for split in ("time:day", ""):
        data = frame if split else frame.drop(columns="day")
        result = ensemble.train({**config, "num_epochs": 24, "split": split}, data, **QUIET)
        found[split] = result.report["cross_fitted"]
    assert found["time:day"]["best_epochs"] == [0] * ensemble_size
    assert found["time:day"]["latest_decides"]
    assert min(found[""]["best_epochs"]) > 3
    assert not found[""]["latest_decides"]
