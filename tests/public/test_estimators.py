"""The ensemble as scikit-learn's classifier: its own checks, real tables, and what builds on it."""

import json
import os
import pickle
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from sklearn import datasets
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import ensemble
from ensemble import EnsembleClassifier, EnsembleRegressor, UserError


def small_classifier(**params):
    """One that fits in a second or two."""
    small = {
        "ensemble_size": 2,
        "num_epochs": 10,
        "learning_rate": 0.01,
        "num_devices": 1,
        "random_state": 0,
    }
    return EnsembleClassifier(**{**small, **params})


@pytest.fixture(scope="module")
def wine():
    """Train and test examples, labels as strings."""
    table = datasets.load_wine()
    labels = table.target_names[table.target]
    return train_test_split(table.data, labels, stratify=labels, random_state=0)


@pytest.fixture(scope="module")
def fitted(wine):
    inputs, _, labels, _ = wine
    return small_classifier().fit(inputs, labels)


# No check is expected to fail. Where SCIPY_ARRAY_API is not set, scikit-learn itself skips
# check_array_api_input.
def its_checks(estimator):
    small = estimator(ensemble_size=2, num_epochs=5, learning_rate=0.01, num_devices=1)
    mark = parametrize_with_checks([small])
    names, checks = mark.args  # A generator, by scikit-learn before 1.9, which pytest warns of.
    return pytest.mark.parametrize(names, list(checks), **mark.kwargs)


@pytest.mark.check
@its_checks(EnsembleClassifier)
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


@pytest.mark.check
@its_checks(EnsembleRegressor)
def test_scikit_learn_s_checks_of_the_regressor(estimator, check):
    check(estimator)


@pytest.mark.check
@pytest.mark.parametrize(
    ("load", "bar"),
    [(datasets.load_iris, 0.89), pytest.param(datasets.load_digits, 0.95, marks=pytest.mark.soak)],
)
def test_learns_real_tables(load, bar):
    inputs, labels = load(return_X_y=True)
    inputs, test_inputs, labels, test_labels = train_test_split(
        inputs, labels, stratify=labels, random_state=0
    )
    classifier = small_classifier().fit(inputs, labels)
    assert classifier.score(test_inputs, test_labels) > bar
    assert classifier.report_["num_train_examples"] == len(labels)


@pytest.mark.check
def test_strings_are_classes_and_uncertainty_adds_up(fitted, wine):
    _, test_inputs, _, test_labels = wine
    assert fitted.classes_.tolist() == ["class_0", "class_1", "class_2"]
    assert fitted.report_["dataset"]["class_names"] == ["class_0", "class_1", "class_2"]
    prediction = fitted.predict_uncertainty(test_inputs)
    probs = fitted.predict_proba(test_inputs)
    assert probs.shape == (len(test_labels), 3)
    assert probs.dtype == np.float64
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(probs, np.exp(prediction.member_log_probs).mean(axis=0), atol=1e-6)
    assert (prediction.label == fitted.classes_[probs.argmax(axis=1)]).all()
    assert (prediction.label == fitted.predict(test_inputs)).all()
    np.testing.assert_allclose(
        prediction.total, prediction.aleatoric + prediction.epistemic, atol=1e-6
    )
    assert (prediction.label == test_labels).mean() == fitted.score(test_inputs, test_labels) > 0.93


@pytest.mark.check
def test_what_is_said_of_an_example_depends_on_no_other(fitted, wine):
    _, test_inputs, _, _ = wine
    probs = fitted.predict_proba(test_inputs)
    single = [fitted.predict_proba(test_inputs[i : i + 1])[0] for i in range(len(test_inputs))]
    assert (np.stack(single) == probs).all()
    many = fitted.predict_proba(np.resize(test_inputs, (300, test_inputs.shape[1])))
    assert (many == np.resize(probs, many.shape)).all()


@pytest.mark.check
def test_it_is_the_ensemble_that_train_gives(fitted, wine):
    inputs, test_inputs, labels, _ = wine
    config = {
        "method": "cross_fitted",
        "scaling": "robust",
        "model": "mlp",
        "mlp.widths": "128,128",
        "ensemble_size": 2,
        "num_epochs": 10,
        "batch_size": fitted.batch_size,
        "optimizer": fitted.optimizer,
        "learning_rate": 0.01,
        "schedule": fitted.schedule,
        "weight_decay": fitted.weight_decay,
        "num_devices": 1,
        "seed": 0,
        "hold_out": False,
    }
    numbers = np.searchsorted(fitted.classes_, labels)
    result = ensemble.train(config, {"train_inputs": inputs, "train_labels": numbers})
    np.testing.assert_allclose(
        fitted.predict_proba(test_inputs), result.predictor(test_inputs).probs, atol=1e-6
    )


@pytest.mark.check
def test_a_random_state_gives_the_same_bits_and_another_does_not(fitted, wine):
    inputs, test_inputs, labels, _ = wine
    probs = fitted.predict_proba(test_inputs)
    again = clone(fitted).fit(inputs, labels)
    assert (again.predict_proba(test_inputs) == probs).all()
    again.set_params(random_state=1).fit(inputs, labels)
    assert not (again.predict_proba(test_inputs) == probs).all()
    seeds = [
        small_classifier(random_state=np.random.RandomState(7), num_epochs=1)
        .fit(inputs, labels)
        .report_["config"]["seed"]
        for _ in range(2)
    ]
    assert seeds[0] == seeds[1]


@pytest.mark.check
def test_grid_search_of_a_pipeline_finds_the_learning_rate(wine):
    inputs, test_inputs, labels, test_labels = wine
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), small_classifier(method="sgd")),
        {"ensembleclassifier__learning_rate": np.array([1e-6, 0.01])},
        scoring="neg_log_loss",
        cv=2,
        error_score="raise",
    )
    search.fit(inputs, labels)
    assert search.best_params_ == {"ensembleclassifier__learning_rate": 0.01}
    assert search.score(test_inputs, test_labels) > -0.5


@pytest.mark.check
def test_it_is_stored_without_its_examples_and_predicts_the_same(fitted, wine, tmp_path):
    inputs, test_inputs, _, _ = wine
    path = tmp_path / "classifier.joblib"
    joblib.dump(fitted, path)
    probs = fitted.predict_proba(test_inputs)
    assert (joblib.load(path).predict_proba(test_inputs) == probs).all()
    first_row = inputs[0].astype(np.float32).tobytes()
    assert first_row not in path.read_bytes()
    np.save(tmp_path / "inputs.npy", test_inputs)
    code = (
        "import json, sys, joblib, numpy as np;"
        "classifier = joblib.load(sys.argv[1]);"
        "print(json.dumps(classifier.predict_proba(np.load(sys.argv[2])).tolist()))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, path, tmp_path / "inputs.npy"],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), probs, rtol=1e-5, atol=1e-7)


@pytest.mark.check
def test_images_go_to_a_network_for_images():
    digits = datasets.load_digits()
    images, labels = digits.images[:300].astype(np.uint8), digits.target[:300]
    classifier = small_classifier(model="lenet5", num_epochs=6).fit(images[:200], labels[:200])
    assert classifier.report_["dataset"]["input_shape"] == [8, 8, 1]
    assert classifier.report_["dataset"]["dtype"] == "uint8"
    assert classifier.score(images[200:], labels[200:]) > 0.7
    with pytest.raises(UserError, match=r"\[N, 8, 8, 1\]"):
        classifier.predict(images[:, :, :4])


@pytest.mark.check
def test_other_keys_go_through_config(wine):
    inputs, _, labels, _ = wine
    classifier = small_classifier(num_epochs=None, config={"num_steps": 3, "label_smoothing": 0.1})
    report = classifier.fit(inputs, labels).report_
    assert report["config"]["num_steps"] == 3
    assert report["config"]["label_smoothing"] == 0.1
    assert classifier.config == {"num_steps": 3, "label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"config": {"learning_rate": 0.1}}, "is a parameter: learning_rate=0.1"),
        ({"config": {"seed": 1}}, "'seed'.*random_state"),
        ({"config": {"split": "group:a"}}, "split='group:a'.* all rows.*ensemble.train"),
        ({"config": {"momentun": 0.1}}, "did you mean momentum"),
        ({"model": "mpl"}, "model='mpl' is not a known model"),
        ({"optimizer": "adamm"}, "must be one of sgd, adam, adamw"),
        ({"n_jobs": 0}, "n_jobs=0 must be a whole number"),
        ({"n_jobs": 1.5}, "n_jobs=1.5 must be a whole number"),
        ({"n_jobs": 1, "num_devices": 2}, "num_devices=2.*n_jobs=1"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_by_fit(params, message, wine):
    inputs, _, labels, _ = wine
    with pytest.raises(UserError, match=message):
        small_classifier(**params).fit(inputs, labels)


def test_labels_of_one_class_and_prediction_before_fit_are_refused(wine):
    inputs, _, labels, _ = wine
    with pytest.raises(UserError, match=r"^y .*class \w+;"):
        small_classifier().fit(inputs, np.full(len(labels), "a"))
    with pytest.raises(NotFittedError):
        small_classifier().predict(inputs)
    assert not hasattr(small_classifier(), "predictor_")


JOBS = """
import logging
import numpy as np
from ensemble import EnsembleRegressor
logged, handler = [], logging.Handler()
handler.emit = lambda record: logged.append(record.getMessage())
logging.getLogger("ensemble").addHandler(handler)
X = np.arange(20.0).reshape(10, 2)
few = EnsembleRegressor(2, num_epochs=1, hidden=(4,), n_jobs=1).fit(X, X[:, 0])
import jax
assert jax.local_device_count() == 1
assert not any("n_jobs" in line for line in logged)
few.set_params(n_jobs=2).fit(X, X[:, 0])
assert any("n_jobs=2 changes nothing" in line for line in logged)
"""


@pytest.mark.check
def test_jobs_are_the_threads_that_jax_starts_with():
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", JOBS],
        cwd=ROOT,
        env={**env, "JAX_NUM_CPU_DEVICES": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.check
def test_fitting_is_quiet(wine, capfd):
    inputs, _, labels, _ = wine
    small_classifier(num_epochs=1).fit(inputs, labels)
    assert capfd.readouterr() == ("", "")


@pytest.mark.check
def test_one_word_samples_instead(blobs):
    hmc = {"num_warmup": 4, "num_samples": 12, "num_leapfrog_steps": 2, "thin": 4}
    classifier = EnsembleClassifier(
        2, model="tiny", num_devices=2, random_state=0, method="hmc", config={"sampler": hmc}
    )
    classifier.fit(blobs["inputs"], blobs["labels"])
    assert classifier.report_["config"]["sampler"]["thin"] == 4
    assert classifier.predictor_.description == "6 draws of 2 chains"
    assert classifier.predict_proba(blobs["inputs"][:5]).shape == (5, 3)
    with pytest.raises(UserError, match=r"config.batch_size=8 is for config.method='sgd'"):
        classifier.set_params(batch_size=8).fit(blobs["inputs"], blobs["labels"])


@pytest.mark.check
def test_a_number_is_predicted_with_its_uncertainty():
    table = datasets.load_diabetes(scaled=False)
    X_train, X_test, y_train, y_test = train_test_split(table.data, table.target, random_state=0)
    regressor = EnsembleRegressor(
        ensemble_size=2, num_epochs=20, num_devices=1, random_state=0
    ).fit(X_train, y_train)
    assert regressor.score(X_test, y_test) > 0.2
    p = regressor.predict_uncertainty(X_test)
    np.testing.assert_array_equal(p.mean, regressor.predict(X_test))
    assert p.quantiles.shape == (len(y_test), len(p.levels))
    inside = (y_test >= p.quantiles[:, 1]) & (y_test <= p.quantiles[:, -2])
    assert 0.7 < inside.mean() < 1
    alone = regressor.predict_uncertainty(X_test[3:4])
    assert alone.standard_deviation[0] == p.standard_deviation[3]
    assert clone(regressor).get_params()["likelihood"] == "gaussian"
    with pytest.raises(UserError, match="standard deviation 0"):
        clone(regressor).fit(X_train, np.ones(len(X_train)))


@pytest.mark.check
@pytest.mark.parametrize(
    ("likelihood", "num_targets"), [("gaussian", 1), ("student_t", 1), ("gaussian", 2)]
)
def test_intervals_and_quantiles_are_those_of_the_mixture(likelihood, num_targets):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).astype(np.float32)
    y = X[:, :num_targets].squeeze() + rng.normal(size=(60, num_targets)).squeeze()
    few = {"ensemble_size": 2, "num_epochs": 3, "num_devices": 1, "hidden": (8,)}
    regressor = EnsembleRegressor(**few, likelihood=likelihood, random_state=0).fit(X, y)
    mean, sd = regressor.predict(X, return_std=True)
    said = regressor.predict_uncertainty(X)
    np.testing.assert_array_equal(mean, regressor.predict(X))
    np.testing.assert_array_equal(sd, said.standard_deviation)
    assert sd.shape == mean.shape == y.shape
    found = regressor.predict_quantiles(X, said.levels)
    np.testing.assert_allclose(found, said.quantiles, rtol=1e-6)
    interval = regressor.predict_interval(X, coverage=0.9)
    np.testing.assert_allclose(interval[..., 0], said.quantiles[..., 1], rtol=1e-5, atol=1e-6)
    assert interval.shape == (*y.shape, 2)
    if num_targets == 1:  # The share of the mixture below a quantile is its level.
        median = regressor.predict_quantiles(X, [0.3])[:, 0]
        likelihoods = regressor.predictor_.likelihood
        below = likelihoods.distribution(said.members).cdf(median)
        np.testing.assert_allclose(below, 0.3, atol=1e-4)
    for bad in ([0.0], [1.0], [], [np.nan]):
        with pytest.raises(UserError, match="above 0 and below 1"):
            regressor.predict_quantiles(X, bad)
    for coverage in (1, "0.9"):
        with pytest.raises(UserError, match=f"coverage={coverage!r} must be above 0"):
            regressor.predict_interval(X, coverage=coverage)
    with pytest.raises(UserError, match=r"levels=.* must be numbers above 0"):
        regressor.predict_quantiles(X, ["a"])


@pytest.mark.check
def test_of_learned_quantiles_there_are_these_alone():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).astype(np.float32)
    few = {"ensemble_size": 2, "num_epochs": 3, "num_devices": 1, "hidden": (8,)}
    regressor = EnsembleRegressor(**few, likelihood="quantiles", random_state=0).fit(X, X[:, 0])
    said = regressor.predict_uncertainty(X)
    np.testing.assert_allclose(regressor.predict_interval(X), said.quantiles[:, [1, -2]])
    with pytest.raises(UserError, match="was not learned"):
        regressor.predict_quantiles(X, [0.123])
    with pytest.raises(UserError, match="has none"):
        regressor.predict(X, return_std=True)


@pytest.mark.check
@pytest.mark.parametrize("method", ["cross_fitted", "sgd"])
def test_a_whole_weight_is_as_many_rows(method):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=40), "town": np.tile(["a", "b", None, "c"], 10)})
    frame.loc[::7, "size"] = np.nan
    y = rng.normal(size=40)
    weights = rng.integers(0, 4, 40)
    few = {"ensemble_size": 2, "num_epochs": 3, "num_devices": 1, "hidden": (8,)}
    regressor = EnsembleRegressor(**few, method=method, random_state=0)
    rows = rng.permutation(np.repeat(np.arange(40), weights))
    repeated = clone(regressor).fit(frame.iloc[rows], y[rows], censored=y[rows] > 1)
    regressor.fit(frame, y, weights, censored=y > 1)
    np.testing.assert_array_equal(regressor.predict(frame), repeated.predict(frame))
    held = regressor.report_["num_train_examples"]
    assert held == repeated.report_["num_train_examples"]
    halves = clone(regressor).fit(frame, y, weights / 2, censored=y > 1)
    assert halves.report_["num_train_examples"] < held


@pytest.mark.check
def test_network_weights_and_method_are_parameters(wine):
    inputs, test_inputs, labels, test_labels = wine
    classifier = small_classifier(
        hidden=(16, 8), activation="tanh", class_weight={"class_0": 3.0}, num_epochs=20
    ).fit(inputs, labels, sample_weight=np.where(labels == "class_1", 0, 1.0))
    config = classifier.report_["config"]
    assert config["mlp"] == {"widths": "16,8", "activation": "tanh", "dropout": 0.0}
    assert config["class_weights"] == "3.0,1.0,1.0"
    assert "class_1" not in classifier.predict(test_inputs)
    sampled = EnsembleClassifier(
        2,
        method="hmc",
        model="logistic_regression",
        num_devices=1,
        random_state=0,
        config={"sampler.num_warmup": 60, "sampler.num_samples": 60, "log_every_steps": 60},
    )
    assert sampled.fit(inputs, labels).score(test_inputs, test_labels) > 0.9
    assert sampled.report_["config"]["num_chains"] == 2
    with pytest.raises(UserError, match="class_weights"):
        small_classifier(class_weight="unknown").fit(inputs, labels)
    with pytest.raises(UserError, match=r"class_weight.*clas_0"):
        small_classifier(class_weight={"clas_0": 3.0}).fit(inputs, labels)
    with pytest.raises(ValueError, match="at least one non-zero"):
        small_classifier().fit(inputs, labels, sample_weight=np.zeros(len(labels)))


@pytest.mark.check
def test_what_is_found_at_the_end_is_said(caplog):
    """An estimator has no table under which the notes of its run could stand."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(60, 3)), np.repeat(["a", "b"], 30)
    small_classifier(num_epochs=1, learning_rate=100.0, method="sgd").fit(inputs, labels)
    (line,) = caplog.messages
    assert "loss" in line


@pytest.mark.check
def test_a_tenth_of_the_rows_stops_members_and_few_rows_are_all_learned():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(60, 2))
    targets = inputs[:, 0] + rng.normal(size=60)
    weights = np.r_[np.zeros(5), np.ones(55)]
    small = EnsembleRegressor(
        2, num_epochs=99, learning_rate=0.1, num_devices=1, random_state=0, method="sgd"
    )
    frame = pd.DataFrame(inputs, columns=["a", "b"])
    report = small.fit(frame, targets, weights, censored=targets > 2).report_
    assert report["num_train_examples"] == 49
    assert report["stopped_early"]
    assert small.fit(inputs[:49], targets[:49]).report_["num_train_examples"] == 49
    everything = clone(small).set_params(config={"early_stopping_epochs": 0}, num_epochs=1)
    assert everything.fit(inputs, targets).report_["num_train_examples"] == 60


@pytest.mark.check
def test_data_frames_are_learned_as_tables(wine, caplog):
    inputs, test_inputs, labels, test_labels = wine
    names = datasets.load_wine().feature_names
    frame = pd.DataFrame(inputs, columns=names)
    frame["region"] = pd.Categorical(np.where(np.arange(len(frame)) % 3, "north", "south"))
    frame.loc[::5, "ash"] = None
    weights = np.r_[np.zeros(4), np.ones(len(frame) - 4)]
    classifier = small_classifier().fit(frame, labels, weights)
    new = pd.DataFrame(test_inputs, columns=names).assign(region="unknown")
    new.loc[0, "ash"] = np.nan
    assert classifier.score(new, test_labels) > 0.8
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(new), classifier.predict_proba(new))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(
            classifier.predict_proba(new.to_numpy()), classifier.predict_proba(new)
        )
    with pytest.raises(ValueError, match="ash"):
        classifier.predict(new.drop(columns="ash"))
    # What docs/tables.md says of the order, and of further columns.
    backwards = new[new.columns[::-1]]
    more = backwards.assign(other=1)
    caplog.clear()
    with pytest.raises(ValueError, match="must be in the same order"):
        classifier.predict(backwards)
    with pytest.raises(ValueError, match="unseen at fit time"):
        classifier.predict(new.assign(other=1))
    assert not caplog.records  # Nothing is said to be left out before all is refused.
    expected = classifier.predict(new)
    np.testing.assert_array_equal(classifier.predict(more[classifier.feature_names_in_]), expected)
    labels = classifier.classes_[classifier.predictor_(more).label]
    np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize(
    ("y", "what"),
    [
        ([np.nan, 1, 2, 3], "nan.*0.*1.*4 targets.*missing.*infinite"),
        ([0, 1, np.inf, 3], "y is inf for example 2"),
        ([[0, 1], [0, None], [1, 2], [3, 4]], "y is nan for example 1, and 1 of 8"),
        (["0", "1", "two", "3"], "two.*EnsembleClassifier"),
        ([[0], [1, 2], [3], [4]], "y is ragged"),
    ],
)
def test_bad_targets_are_one_line(y, what):
    with pytest.raises(UserError, match=what) as raised:
        EnsembleRegressor().fit(np.zeros((4, 2)), y)
    assert "\n" not in str(raised.value)


def test_bad_inputs_are_one_line():
    with pytest.raises(UserError, match=r"^X .*NaN.* example 1"):
        EnsembleRegressor().fit(np.array([[0, 1], [np.nan, 2], [3, 4]]), [0.0, 1, 2])
    for estimator in (EnsembleClassifier(), EnsembleRegressor()):
        with pytest.raises(ValueError, match="y is None"):
            estimator.fit(np.zeros((3, 2)), None)
    with pytest.raises(UserError, match=r"^y .*None.* example 1"):
        EnsembleClassifier().fit(np.zeros((3, 2)), ["a", None, "b"])
