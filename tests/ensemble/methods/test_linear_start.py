"""The linear models that members may start from, beside scikit-learn's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from run_parts import task_of as created
from sklearn.linear_model import LogisticRegression, Ridge

from ensemble.methods import linear_start
from ensemble.methods.kfold_bagging import make_folds


def task_of(data, **keys):
    given = {f"train_{name}": one for name, one in data.items()}
    config = small_config(model="mlp", train_on_all=True) | {"mlp.widths": "8"} | keys
    return created(config, given)


def numbers(num_rows=120, noise=0.5):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num_rows, 4)).astype(np.float32)
    targets = 30 + 10 * (inputs @ [1.0, -2.0, 0.5, 0.0] + noise * rng.normal(size=num_rows))
    return {"inputs": inputs, "targets": targets.astype(np.float32)}


def ones(task):
    return np.ones(task.num_train_examples)


def outputs_of(task, found, folds):
    """What each fold's model puts out for the rows held out, [N, K]."""
    inputs = np.asarray(task.prepare(jnp.asarray(task.dataset.splits["train"].inputs)))
    outputs = [
        inputs[[i]] @ found["kernel"][fold] + found["bias"][fold]
        for i, fold in enumerate(folds.of_rows)
    ]
    return np.concatenate(outputs).astype(np.float32)


def losses_of(task, found, folds):
    """The loss [N] of each row by the model of its fold."""
    own = task.likelihood.init(jax.random.key(0))
    outputs = outputs_of(task, found, folds)
    return -task.likelihood.log_prob(own, outputs, task.dataset.splits["train"].targets)


@pytest.mark.check
@pytest.mark.parametrize("name", ["gaussian", "student_t", "laplace"])
def test_numbers_are_ridge_regression_of_the_other_rows(name):
    task = task_of(numbers(), likelihood=name)
    folds = make_folds(task.dataset, 3, 0)
    found = linear_start.fit(task, folds, ones(task))
    split = task.dataset.splits["train"]
    inputs = np.asarray(task.prepare(jnp.asarray(split.inputs)), np.float64)
    y = (split.targets - task.likelihood.shift) / task.likelihood.scale
    rows = folds.learned(1)
    fits = [
        Ridge(alpha=penalty * len(rows)).fit(inputs[rows], y[rows])
        for penalty in np.logspace(-4, 2, 7)
    ]
    gaps = [np.abs(found["kernel"][1][:, 0] - fit.coef_).max() for fit in fits]
    assert min(gaps) < 1e-5
    assert np.argmin(gaps) < 3  # There is little noise to fear.
    assert (found["kernel"][..., 1] == 0).all()
    outputs = outputs_of(task, found, folds)
    losses = losses_of(task, found, folds)
    own = task.likelihood.init(jax.random.key(0))
    for wider in (0.9, 1.1):  # No other scale suits the rows held out better.
        others = task.likelihood.tempered(task.likelihood.predict(own, outputs), wider)
        other = task.likelihood.predictive({name: one[None] for name, one in others.items()})
        assert -other.log_prob(split.targets).mean() > losses.mean()


def test_noise_is_told_by_a_constant():
    data = numbers()
    data["targets"] = np.random.default_rng(5).normal(size=120).astype(np.float32)
    task = task_of(data, likelihood="gaussian")
    folds = make_folds(task.dataset, 4, 0)
    losses = losses_of(task, linear_start.fit(task, folds, ones(task)), folds)
    deviation = np.std(data["targets"])
    assert losses.mean() < np.log(deviation * np.sqrt(2 * np.pi * np.e)) + 0.03
    data = {"inputs": data["inputs"], "labels": np.random.default_rng(6).integers(0, 2, 120)}
    task = task_of(data)
    folds = make_folds(task.dataset, 4, 0)
    assert (
        losses_of(task, linear_start.fit(task, folds, ones(task)), folds).mean() < np.log(2) + 0.02
    )


@pytest.mark.check
@pytest.mark.parametrize(("likelihood", "num_classes"), [("categorical", 3), ("bernoulli", 2)])
def test_classes_are_logistic_regression_of_the_other_rows(likelihood, num_classes):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, 150)
    inputs = rng.normal(size=(num_classes, 4))[labels] + rng.normal(size=(150, 4))
    data = {"inputs": inputs.astype(np.float32), "labels": labels}
    task = task_of(data, likelihood=likelihood)
    folds = make_folds(task.dataset, 3, 0)
    weights = rng.uniform(0.5, 2, 150)
    found = linear_start.fit(task, folds, weights)
    outputs = outputs_of(task, found, folds)
    log_probs = np.asarray(task.likelihood.class_log_probs(outputs))
    seen = np.asarray(task.prepare(jnp.asarray(data["inputs"])))
    rows = folds.learned(2)
    held = folds.of_rows == 2
    gaps = []
    for strength in np.logspace(-3, 2, 6):
        fit = LogisticRegression(C=strength, tol=1e-6, max_iter=1000)
        fit.fit(seen[rows], labels[rows], sample_weight=weights[rows])
        gaps.append(np.abs(fit.predict_proba(seen[held]) - np.exp(log_probs[held])).max())
    assert min(gaps) < 0.04


def test_a_class_that_a_fold_alone_has_is_not_impossible():
    rng = np.random.default_rng(0)
    labels = np.r_[rng.integers(0, 2, 59), 2]
    data = {"inputs": rng.normal(size=(60, 3)).astype(np.float32), "labels": labels}
    task = task_of(data)
    folds = make_folds(task.dataset, 4, 0)
    losses = losses_of(task, linear_start.fit(task, folds, ones(task)), folds)
    assert np.isfinite(losses).all()
    assert losses[-1] > 3
