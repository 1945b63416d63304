"""Members that learn with class weights, and probabilities that are corrected for these."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from run_parts import task_of

import ensemble
from ensemble import EnsembleClassifier, UserError
from ensemble.export import export
from ensemble.methods.members import linear_start
from ensemble.methods.members.folds import make_folds
from ensemble.methods.members.laplace_member import closed_prediction, information_root

QUIET = {"show_progress": False}
CONFIG = small_config(
    model="logistic_regression", num_devices=1, class_weights="balanced", optimizer="adam"
) | {"learning_rate": 0.1, "schedule": "cosine", "num_epochs": 30, "batch_size": 100}
CROSS_FITTED = {"method": "cross_fitted", "model": "mlp", "mlp.widths": "16"} | {
    "hold_out": False,
    "num_epochs": 24,
    "cross_fitted.patience": 6,
    "learning_rate": 0.005,
}


def rare(num_rows, seed):
    """Inputs, labels of which about 1.3% are positive, and the probabilities of that."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_rows, 3)).astype(np.float32)
    probs = 1 / (1 + np.exp(5.1 - 1.3 * inputs[:, 0] - 0.4 * inputs[:, 1]))
    return inputs, (rng.random(num_rows) < probs).astype(int), probs


def parts_of(seed=0, num_rows=5000):
    (inputs, labels, _), test = rare(num_rows, seed), rare(5000, seed + 100)
    data = {"train_inputs": inputs, "train_labels": labels, "class_names": ["no", "yes"]}
    return {**data, "test_inputs": test[0], "test_labels": test[1]}, test


@pytest.mark.parametrize(
    ("keys", "likelihood"),
    [
        ({}, "categorical"),
        pytest.param({}, "bernoulli", marks=pytest.mark.check),
        pytest.param(CROSS_FITTED, "categorical", marks=pytest.mark.check),
        pytest.param(CROSS_FITTED, "bernoulli", marks=pytest.mark.check),
    ],
)
def test_probabilities_are_right_on_average_and_by_their_size(keys, likelihood):
    """What is left is the chance of which training rows are positive, 65 of them."""
    data, (inputs, _, truth) = parts_of(1)
    config = {**CONFIG, **keys, "likelihood": likelihood}
    said = ensemble.train(config, data, **QUIET).predictor(inputs).probs[:, 1]
    error = 1 / np.sqrt(np.sum(data["train_labels"]))  # Relative, of a count.
    assert truth.mean() == pytest.approx(0.013, abs=0.002)
    assert abs(said.mean() / truth.mean() - 1) < 2.5 * error
    large = truth > np.quantile(truth, 0.9)  # Half of all positives are among these.
    assert abs(said[large].mean() / truth[large].mean() - 1) < 2.5 * np.sqrt(2) * error
    if keys:
        return
    raw = ensemble.train({**config, "correct_class_weights": False}, data, **QUIET)
    assert raw.predictor(inputs).probs[:, 1].mean() > 10 * truth.mean()


@pytest.mark.check
def test_held_out_scores_are_of_corrected_probabilities():
    """They choose among trials, and say when a member stops and how wide predictions are."""
    data, (_, labels, _) = parts_of(1)
    result = ensemble.train({**CONFIG, **CROSS_FITTED}, data, **QUIET)
    found = result.report["cross_fitted"]
    constant = -np.mean(np.log(np.where(labels == 1, labels.mean(), 1 - labels.mean())))
    assert all(0 < one["nll"] < constant for one in found["trials"])
    assert abs(found["below_linear"][0]) < 0.01
    assert found["width"] == pytest.approx(1, abs=0.2)
    raw = ensemble.train({**CONFIG, **CROSS_FITTED, "correct_class_weights": False}, data, **QUIET)
    assert all(one["nll"] > 5 * constant for one in raw.report["cross_fitted"]["trials"])


@pytest.mark.check
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli"])
def test_members_start_from_the_linear_model_of_rows_as_they_come(likelihood):
    data, _ = parts_of()
    config = {**CONFIG, **CROSS_FITTED, "likelihood": likelihood}
    said, losses = [], []
    for spec in ("none", "balanced"):
        task = task_of({**config, "class_weights": spec}, data)
        found = linear_start.fit(task, make_folds(task.dataset, 2, 0), None)
        seen = task.prepare(jnp.asarray(data["train_inputs"]))
        said.append(
            task.likelihood.predict({}, seen @ found.kernel[0] + found.bias[0])["log_probs"]
        )
        losses.append(found.losses)
    np.testing.assert_allclose(*said, atol=1e-4)
    np.testing.assert_array_equal(*losses)


@pytest.mark.check
def test_whatever_predicts_is_corrected_alike(tmp_path):
    data, (inputs, labels, _) = parts_of()
    result = ensemble.train(CONFIG, data, str(tmp_path / "run"), **QUIET)
    said = result.predictor(inputs)
    assert said.probs[:, 1].mean() < 0.03
    loaded = ensemble.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded(inputs).probs, said.probs)
    exported = jax.export.deserialize(bytearray(export(loaded)))
    np.testing.assert_allclose(exported.call(inputs)["probs"], said.probs, atol=1e-6)
    nll = -np.mean(np.log(said.probs[np.arange(len(labels)), labels]))
    assert result.report["test"]["scores"]["nll"]["value"] == pytest.approx(nll, rel=1e-4)
    evaluation = ensemble.evaluate(tmp_path / "run", data=data, datasets=[], **QUIET)
    assert evaluation["test"]["scores"]["nll"]["value"] == pytest.approx(nll, rel=1e-4)


@pytest.mark.check
def test_an_estimator_decides_by_weights_and_its_probabilities_are_right():
    inputs, labels, _ = rare(5000, 0)
    test_inputs, test_labels, truth = rare(5000, 100)
    given = {"ensemble_size": 2, "model": "logistic_regression", "method": "sgd", "num_devices": 1}
    given |= {"num_epochs": 10, "batch_size": 100, "learning_rate": 0.02, "random_state": 0}
    names = np.array(["no", "yes"])
    fitted = EnsembleClassifier(**given, class_weight="balanced").fit(inputs, names[labels])
    probs = fitted.predict_proba(test_inputs)
    assert probs[:, 1].mean() == pytest.approx(truth.mean(), rel=0.35)
    found = fitted.predict(test_inputs)
    assert np.mean(found[test_labels == 1] == "yes") > 0.6  # And 0 by the most probable class.
    assert (fitted.predict_uncertainty(test_inputs).label == found).all()
    weights = 1 / np.bincount(labels)
    np.testing.assert_array_equal(found, names[(probs * weights).argmax(axis=1)])


@pytest.mark.check
def test_smoothed_labels_are_not_corrected_for(caplog):
    """The share of a smoothed label that a weight multiplies is not known from a probability."""
    data, (inputs, _, truth) = parts_of(num_rows=500)
    config = {**CONFIG, "label_smoothing": 0.1, "num_epochs": 2}
    result = ensemble.train(config, data, **QUIET)
    assert result.predictor(inputs).probs[:, 1].mean() > 10 * truth.mean()
    (line,) = [one for one in result.report["notes"] if "class_weights" in one]
    assert "config.label_smoothing=0.1" in line
    config = {**CONFIG, "method": "varied", "varied.label_smoothing": "0,0.2", "num_epochs": 1}
    result = ensemble.train(config, data, **QUIET)
    (line,) = [one for one in result.report["notes"] if "class_weights" in one]
    assert "config.varied.label_smoothing='0,0.2'" in line


@pytest.mark.check
def test_a_laplace_approximation_is_around_what_the_outputs_say(tmp_path):
    data, _ = parts_of(num_rows=500)
    plain, weighted = (
        task_of({**CONFIG, "class_weights": spec}, data) for spec in ("none", "balanced")
    )
    variables = plain.init_variables(jax.random.key(0))
    outputs = jnp.array([0.3, -0.4])
    np.testing.assert_array_equal(
        *(information_root(task, variables, outputs) for task in (plain, weighted))
    )
    # Moderated is the log-odds that is predicted.
    moderated = closed_prediction(weighted, {}, outputs[None], jnp.full((1, 2), 8 / np.pi))
    certain = weighted.likelihood.predict({}, outputs[None])
    odds = [np.subtract(*one["log_probs"][0]) for one in (moderated, certain)]
    assert odds[0] == pytest.approx(odds[1] / np.sqrt(2), rel=1e-5)
    ensemble.train({**CONFIG, "num_epochs": 2}, data, str(tmp_path / "run"), **QUIET)
    config = {"method": "laplace", "init_from": str(tmp_path / "run"), "ensemble_size": 2}
    config |= {"model": "logistic_regression", "num_devices": 1}
    with pytest.raises(UserError, match="for other class weights than here; set"):
        ensemble.train(config, data, **QUIET)
    result = ensemble.train(
        {**config, "class_weights": "balanced", "batch_size": 100}, data, **QUIET
    )
    assert result.predictor(data["test_inputs"]).probs[:, 1].mean() < 0.15
