"""The ensemble as scikit-learn's classifier: its own checks, real tables, and what builds on it."""

import json
import os
import pickle
import re
import subprocess
import sys

import joblib
import names
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

from ensemble import EnsembleClassifier, EnsembleRegressor

PLAIN, FOLDS = (names.config(method=one)["method"] for one in ("deep_ensemble", "kfold_bagging"))


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


# All checks of the regressor, and of the classifier, which has the same base, its own. None is
# expected to fail. Where SCIPY_ARRAY_API is not set, scikit-learn itself skips
# check_array_api_input.
def its_checks(estimator, named=""):
    small = estimator(ensemble_size=2, num_epochs=5, learning_rate=0.01, num_devices=1)
    mark = parametrize_with_checks([small])
    names, checks = mark.args  # A generator, by scikit-learn before 1.9, which pytest warns of.
    chosen = [
        (given, check)
        for given, check in checks
        # Of memory that may only be read there is a check of its own.
        if re.search(named, check.func.__name__) and "readonly_memmap" not in check.keywords
    ]
    return pytest.mark.parametrize(names, chosen, **mark.kwargs)


@pytest.mark.check
@its_checks(EnsembleClassifier, "class|decision|supervised|parameters|init|tag|equivalence")
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


@pytest.mark.check
@its_checks(EnsembleRegressor)
def test_scikit_learn_s_checks_of_the_regressor(estimator, check):
    check(estimator)


@pytest.mark.check
def test_strings_are_classes_and_uncertainty_adds_up(fitted, wine):
    _, test_inputs, _, test_labels = wine
    assert fitted.classes_.tolist() == ["class_0", "class_1", "class_2"]
    assert fitted.report_["dataset"]["class_names"] == ["class_0", "class_1", "class_2"]
    prediction = fitted.predict_uncertainty(test_inputs)
    label = fitted.classes_[names.labels(prediction)]
    probs = fitted.predict_proba(test_inputs)
    assert probs.shape == (len(test_labels), 3)
    assert probs.dtype == np.float64
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(
        probs, np.exp(names.member_log_probs(prediction)).mean(axis=0), atol=1e-6
    )
    assert (label == fitted.classes_[probs.argmax(axis=1)]).all()
    assert (label == fitted.predict(test_inputs)).all()
    nats = names.uncertainties(prediction)
    np.testing.assert_allclose(nats["total"], nats["aleatoric"] + nats["epistemic"], atol=1e-6)
    assert (label == test_labels).mean() == fitted.score(test_inputs, test_labels) > 0.93


@pytest.mark.check
def test_what_is_said_of_an_example_depends_on_no_other(fitted, wine):
    _, test_inputs, _, _ = wine
    probs = fitted.predict_proba(test_inputs)
    single = [fitted.predict_proba(test_inputs[i : i + 1])[0] for i in range(len(test_inputs))]
    assert (np.stack(single) == probs).all()
    many = fitted.predict_proba(np.resize(test_inputs, (300, test_inputs.shape[1])))
    assert (many == np.resize(probs, many.shape)).all()


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
        make_pipeline(MinMaxScaler(), small_classifier(method=PLAIN)),
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
    images = digits.images[:300].astype(np.uint8)
    labels = digits.target[:300]
    classifier = small_classifier(model="lenet5", num_epochs=6).fit(images[:200], labels[:200])
    assert classifier.report_["dataset"]["input_shape"] == [8, 8, 1]
    assert classifier.report_["dataset"]["dtype"] == "uint8"
    assert classifier.score(images[200:], labels[200:]) > 0.7
    with pytest.raises(names.InputError, match=r"\[N, 8, 8, 1\]"):
        classifier.predict(images[:, :, :4])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"config": {"learning_rate": 0.1}}, "is a parameter: learning_rate=0.1"),
        ({"config": {"seed": 1}}, "'seed'.*random_state"),
        ({"config": {"split_by": "group:a"}}, "split_by='group:a'.* all rows.*ensemble.train"),
        ({"config": {"momentun": 0.1}}, "Did you mean config.momentum"),
        ({"model": "mpl"}, "model='mpl' is unknown. Did you mean 'mlp'"),
        ({"optimizer": "adamm"}, "Did you mean 'adam"),
        ({"n_jobs": 0}, "n_jobs=0 must be a whole number"),
        ({"n_jobs": 1.5}, "n_jobs=1.5 must be a whole number"),
        ({"n_jobs": 1, "num_devices": 2}, "num_devices=2.*n_jobs=1"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_by_fit(params, message, wine):
    inputs, _, labels, _ = wine
    with pytest.raises(names.InputError, match=message):
        small_classifier(**params).fit(inputs, labels)


def test_labels_of_one_class_and_prediction_before_fit_are_refused(wine):
    inputs, _, labels, _ = wine
    with pytest.raises(names.InputError, match=r"^y .*class \w+;"):
        small_classifier().fit(inputs, np.full(len(labels), "a"))
    with pytest.raises(NotFittedError):
        small_classifier().predict(inputs)
    assert not hasattr(small_classifier(), "predictor_")


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
    assert names.quantiles(p).shape == (len(y_test), len(p.levels))
    inside = (y_test >= names.quantiles(p)[:, 1]) & (y_test <= names.quantiles(p)[:, -2])
    assert 0.7 < inside.mean() < 1
    alone = regressor.predict_uncertainty(X_test[3:4])
    assert names.std(alone)[0] == names.std(p)[3]
    assert clone(regressor).get_params()["likelihood"] == "gaussian"
    with pytest.raises(names.InputError, match="standard deviation 0"):
        clone(regressor).fit(X_train, np.ones(len(X_train)))


@pytest.mark.check
@pytest.mark.parametrize(("likelihood", "num_targets"), [("student_t", 1), ("gaussian", 2)])
def test_intervals_and_quantiles_are_those_of_the_mixture(likelihood, num_targets):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).astype(np.float32)
    y = X[:, :num_targets].squeeze() + rng.normal(size=(60, num_targets)).squeeze()
    few = {"ensemble_size": 2, "num_epochs": 3, "num_devices": 1, "hidden": (8,)}
    regressor = EnsembleRegressor(**few, likelihood=likelihood, random_state=0).fit(X, y)
    mean, sd = regressor.predict(X, return_std=True)
    said = regressor.predict_uncertainty(X)
    np.testing.assert_array_equal(mean, regressor.predict(X))
    np.testing.assert_array_equal(sd, names.std(said))
    assert sd.shape == mean.shape == y.shape
    found = regressor.predict_quantiles(X, said.levels)
    np.testing.assert_allclose(found, names.quantiles(said), rtol=1e-6)
    interval = regressor.predict_interval(X, coverage=0.9)
    np.testing.assert_allclose(
        interval[..., 0], names.quantiles(said)[..., 1], rtol=1e-5, atol=1e-6
    )
    assert interval.shape == (*y.shape, 2)
    for bad in ([0.0], [1.0], [], [np.nan]):
        with pytest.raises(names.InputError, match="above 0 and below 1"):
            regressor.predict_quantiles(X, bad)
    for coverage in (1, "0.9"):
        with pytest.raises(names.InputError, match=f"coverage={coverage!r} must be above 0"):
            regressor.predict_interval(X, coverage=coverage)
    with pytest.raises(names.InputError, match=r"levels=.* must be numbers above 0"):
        regressor.predict_quantiles(X, ["a"])


@pytest.mark.check
@pytest.mark.parametrize("method", [PLAIN, FOLDS])
def test_a_whole_weight_is_as_many_rows(method):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=40), "town": np.tile(["a", "b", None, "c"], 10)})
    frame.loc[::7, "size"] = np.nan
    y = rng.normal(size=40)
    weights = rng.integers(0, 4, 40)
    few = {"ensemble_size": 2, "num_epochs": 3, "num_devices": 1, "hidden": (8,)}
    regressor = EnsembleRegressor(**few, method=method, random_state=0)
    rows = rng.permutation(np.repeat(np.arange(40), weights))
    repeated = clone(regressor).fit(frame.iloc[rows], y[rows])
    regressor.fit(frame, y, weights)
    np.testing.assert_array_equal(regressor.predict(frame), repeated.predict(frame))
    held = regressor.report_["num_train_examples"]
    assert held == repeated.report_["num_train_examples"]
    halves = clone(regressor).fit(frame, y, weights / 2)
    assert halves.report_["num_train_examples"] < held


@pytest.mark.check
def test_network_weights_and_method_are_parameters(wine):
    inputs, test_inputs, labels, test_labels = wine
    classifier = small_classifier(
        hidden=(16, 8), activation="tanh", class_weight={"class_0": 3.0}, num_epochs=20
    ).fit(inputs, labels, sample_weight=np.where(labels == "class_1", 0, 1.0))
    config = classifier.report_["config"]
    assert (config["mlp"]["widths"], config["mlp"]["activation"]) == ((16, 8), "tanh")
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
    with pytest.raises(names.InputError, match="class_weights"):
        small_classifier(class_weight="unknown").fit(inputs, labels)
    with pytest.raises(names.InputError, match=r"class_weight.*clas_0"):
        small_classifier(class_weight={"clas_0": 3.0}).fit(inputs, labels)
    with pytest.raises(ValueError, match="at least one non-zero"):
        small_classifier().fit(inputs, labels, sample_weight=np.zeros(len(labels)))


@pytest.mark.check
def test_data_frames_are_learned_as_tables(wine, caplog):
    inputs, test_inputs, labels, test_labels = wine
    columns = datasets.load_wine().feature_names
    frame = pd.DataFrame(inputs, columns=columns)
    frame["region"] = pd.Categorical(np.where(np.arange(len(frame)) % 3, "north", "south"))
    frame.loc[::5, "ash"] = None
    weights = np.r_[np.zeros(4), np.ones(len(frame) - 4)]
    classifier = small_classifier().fit(frame, labels, weights)
    new = pd.DataFrame(test_inputs, columns=columns).assign(region="unknown")
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
    labels = classifier.classes_[names.labels(classifier.predictor_(more))]
    np.testing.assert_array_equal(labels, expected)


LABELS = {
    "boolean": (lambda y: pd.Series(y).astype("boolean"), [False, True]),
    "small": (lambda y: y.astype(np.int8), np.array([0, 1], np.int8)),
    "categories": (lambda y: pd.Categorical(np.where(y, 4, 3), [4, 3, 9]), [3, 4]),
}


@pytest.mark.parametrize("form", LABELS)
def test_labels_keep_their_type_in_every_form(form):
    inputs = np.random.default_rng(0).normal(size=(60, 2))
    make, expected = LABELS[form]
    classifier = small_classifier(num_epochs=1, method=PLAIN).fit(inputs, make(inputs[:, 0] > 0))
    assert classifier.classes_.tolist() == np.asarray(expected).tolist()
    assert classifier.classes_.dtype == np.asarray(expected).dtype
    assert classifier.predict(inputs).dtype == classifier.classes_.dtype


@pytest.mark.parametrize(
    ("y", "what"),
    [
        ([np.nan, 1, 2, 3], "nan.*0.*1.*4 targets.*missing.*infinite"),
        ([0, 1, np.inf, 3], "y is inf for example 2"),
        ([[0, 1], [0, None], [1, 2], [3, 4]], "y is None for example 1, and 1 of 8"),
        (["0", "1", "two", "3"], "two.*EnsembleClassifier"),
        ([[0], [1, 2], [3], [4]], "y is ragged"),
    ],
)
def test_bad_targets_are_one_line(y, what):
    with pytest.raises(names.InputError, match=what) as raised:
        EnsembleRegressor().fit(np.zeros((4, 2)), y)
    assert "\n" not in str(raised.value)


def test_bad_inputs_are_one_line():
    with pytest.raises(names.InputError, match=r"^X .*NaN.* example 1"):
        EnsembleRegressor().fit(np.array([[0, 1], [np.nan, 2], [3, 4]]), [0.0, 1, 2])
    for estimator in (EnsembleClassifier(), EnsembleRegressor()):
        with pytest.raises(ValueError, match="y is None"):
            estimator.fit(np.zeros((3, 2)), None)
    with pytest.raises(names.InputError, match=r"^y .*None.* example 1"):
        EnsembleClassifier().fit(np.zeros((3, 2)), ["a", None, "b"])
