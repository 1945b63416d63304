"""Members that hold each other's rows out."""

import json

import jax
import numpy as np
import pytest
from conftest import small_config
from run_parts import loop_of, task_of

import ensemble
from ensemble import InputError
from ensemble.likelihoods.classes import Categorical
from ensemble.likelihoods.numbers import Gaussian
from ensemble.methods import kfold_bagging
from ensemble.methods.kfold_bagging import Folds, fitted_factor, make_folds, mixtures
from ensemble.storage.predictions import read_held_out
from ensemble.storage.workdir import Workdir

QUIET = {"show_progress": False}
CONFIG = small_config(
    method="kfold_bagging", model="mlp", train_on_all=True, scaler="robust", optimizer="adam"
) | {"mlp.widths": "16", "learning_rate": 0.02, "num_epochs": 8, "early_stopping_epochs": 4}
NUMBERS = {**CONFIG, "likelihood": "gaussian"}


def numbers(num_rows=200, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_rows, 4)).astype(np.float32)
    targets = 5 + 3 * (inputs[:, 0] + np.sin(2 * inputs[:, 1]) + noise * rng.normal(size=num_rows))
    return {"train_inputs": inputs, "train_targets": targets.astype(np.float32)}


@pytest.mark.check
def test_a_member_never_learns_the_rows_of_its_fold(monkeypatch):
    """Their targets change nothing of what it becomes, and all of what the others do."""
    folds = Folds(2, np.arange(200) % 2, np.zeros(200, bool))
    monkeypatch.setattr(kfold_bagging, "make_folds", lambda *_: folds)
    # One setting is tried, without a linear model, whose penalty is chosen by all rows.
    config = {**NUMBERS, "likelihood": "gaussian_homoscedastic", "num_epochs": 3}
    data = numbers()
    held = folds.held_out(0)
    targets = data["train_targets"].copy()
    targets[held] = targets[held][::-1]  # Their mean and deviation stay.
    found = []
    for one in (data, {**data, "train_targets": targets}):
        loop = loop_of(config, one)
        loop.start()
        loop.go()
        # Which of the epochs is best, the rows do decide.
        moving = loop.members.state.moving
        found.append(loop.devices.fetch_members(moving.variables["params"]))
    gaps = [
        np.abs(a - b).reshape(4, -1).max(axis=1)
        for a, b in zip(*map(jax.tree.leaves, found), strict=True)
    ]
    assert (np.max(gaps, axis=0)[[0, 2]] == 0).all()
    assert (np.max(gaps, axis=0)[[1, 3]] > 1e-4).all()


@pytest.mark.check
def test_members_over_several_devices_are_those_of_one():
    """The linear model that they start from is no sum over devices."""
    config = {**NUMBERS, "ensemble_size": 2, "num_epochs": 1}
    data = numbers()
    found = []
    for num_devices in (1, 6):
        result = ensemble.train({**config, "num_devices": num_devices}, data, **QUIET)
        found.append(result.predictor(data["train_inputs"]).member_means)
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.check
def test_where_nothing_is_better_members_are_the_linear_model():
    """A step so large that all later epochs are worse: what predicts is the start."""
    data = numbers()
    config = {**NUMBERS, "learning_rate": 1e4, "num_epochs": 2}
    result = ensemble.train(config, data, **QUIET)
    assert result.report["kfold_bagging"]["best_epochs"] == [0, 0, 0, 0]
    assert "They start from a linear model" in result.report["kfold_bagging"]["summary"]
    said = result.predictor(data["train_inputs"]).mean
    slopes = np.linalg.lstsq(
        np.c_[data["train_inputs"], np.ones(200)], data["train_targets"], rcond=None
    )[0]
    assert np.corrcoef(said, np.c_[data["train_inputs"], np.ones(200)] @ slopes)[0, 1] > 0.97


@pytest.mark.check
def test_nobody_stops_in_a_trial_and_the_rate_is_what_was_chosen(tmp_path):
    config = {**NUMBERS, "learning_rate": 0.5, "num_epochs": 16, "early_stopping_epochs": 1}
    found = ensemble.train(config, numbers(), str(tmp_path), **QUIET).report["kfold_bagging"]
    assert min(found["best_epochs"]) > 4  # Those of a trial.
    assert "at rate 0.1" in found["summary"]
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    rates = [line["train/learning_rate"] for line in lines if "train/learning_rate" in line]
    np.testing.assert_allclose(rates, 0.1, rtol=1e-6)


def test_trials_end_when_the_time_is_over(monkeypatch):
    """The rest of the settings is not tried, and the members go on from where they are."""
    epochs = []

    def is_over():
        epochs.append(len(epochs))
        return len(epochs) == 2

    monkeypatch.setattr(kfold_bagging.signals, "check", is_over)
    loop = loop_of({**NUMBERS, "num_epochs": 40}, numbers())
    loop.start()
    assert len(epochs) == 2
    assert np.isfinite(jax.tree.leaves(loop.devices.fetch_members(loop.members.state))[0]).all()


@pytest.mark.check
def test_losses_of_rows_held_out_are_kept_as_the_ensemble_predicts_them(tmp_path):
    found = ensemble.train({**NUMBERS, "ensemble_size": 8}, numbers(), str(tmp_path), **QUIET)
    predictor = found.predictor
    kept = read_held_out(Workdir(tmp_path))
    assert np.isfinite(kept).all()
    source = task_of(NUMBERS, numbers()).dataset
    folds = make_folds(source, 0, 0)
    arrays = predictor(numbers()["train_inputs"]).arrays
    targets = source.targets("train")
    for row in (0, 1, 2, 199):
        own = [k for k in range(8) if row in folds.held_out(k)]
        said = {name: one[own][:, row : row + 1] for name, one in arrays.items()}
        nll = -predictor.likelihood.predictive(said).log_prob(targets[row : row + 1])
        np.testing.assert_allclose(kept[row], nll[0], rtol=1e-4)
    damaged = tmp_path / "predictions/held_out.npz"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(InputError, match="damaged"):
        read_held_out(Workdir(tmp_path))


# How wide the mixture is.


def factor_of(likelihood, arrays, targets, folds):
    """The factor by predictions of members [M, N] by name, of the rows of their folds alone."""
    num_rows = len(targets)
    rows = np.arange(num_rows)
    holds = np.stack([rows % folds == k % folds for k in range(len(arrays))])
    whole = {name: np.stack([one[name][None] for one in arrays]) for name in arrays[0]}
    given = rows, holds, whole, targets, np.ones(num_rows), likelihood
    return fitted_factor(mixtures(1, *given), mixtures(2, *given), len(arrays))


@pytest.mark.parametrize("claimed", [0.7, 0.9, 1.1])
def test_the_mixture_covers_as_it_says(claimed):
    """Members err independently, by half the noise: their mixture's width is not theirs."""
    rng = np.random.default_rng(0)
    likelihood = Gaussian(0.0, 1.0)
    num_rows = 6000
    num_members = 8
    truth = rng.normal(size=num_rows)
    targets = (truth + rng.normal(size=num_rows)).astype(np.float32)
    members = [
        {
            "loc": (truth + 0.5 * rng.normal(size=num_rows)).astype(np.float32),
            "scale": np.full(num_rows, claimed, np.float32),
        }
        for _ in range(num_members)
    ]
    factor = factor_of(likelihood, members, targets, 4)
    whole = {name: np.stack([one[name] for one in members]) for name in ("loc", "scale")}
    wide = likelihood.tempered(whole, factor)
    low, high = likelihood.predictive(wide).central(0.9)
    assert np.mean((low < targets) & (targets < high)) == pytest.approx(0.9, abs=0.02)


def test_classes_get_a_temperature_and_few_rows_hardly_one():
    rng = np.random.default_rng(1)
    logits = 2 * rng.normal(size=(4000, 3))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (rng.random((4000, 1)) > probs.cumsum(axis=1)).sum(axis=1)
    said = 1.4 * logits - np.log(np.exp(1.4 * logits).sum(axis=1, keepdims=True))
    likelihood = Categorical(["a", "b", "c"])
    arrays = [{"log_probs": said.astype(np.float32)}] * 4
    assert factor_of(likelihood, arrays, labels, 2) == pytest.approx(1.4, abs=0.06)
    few = [{"log_probs": said[:10].astype(np.float32)}] * 4
    assert abs(factor_of(likelihood, few, labels[:10], 2) - 1) < 0.1
    assert factor_of(likelihood, arrays[:2], labels, 2) == 1  # One holds a row out.


def test_weights_count_in_what_is_held_out():
    """Rows of hardly any weight are as good as none: those of a second population."""
    data = numbers(300)
    noise = np.random.default_rng(9).normal(size=(300, 4)).astype(np.float32)
    joined = {
        "train_inputs": np.concatenate([data["train_inputs"], noise]),
        "train_targets": np.concatenate([data["train_targets"], 50 + 0 * noise[:, 0]]),
        "sample_weight": np.repeat([1.0, 1e-6], 300).astype(np.float32),
    }
    loop = loop_of({**NUMBERS, "num_epochs": 2}, joined)
    loop.start()
    loop.go()
    lowest = loop.devices.fetch_members(loop.members.state.lowest)
    assert (lowest < 4).all()  # Of a normal distribution about all rows it is 4.7.
