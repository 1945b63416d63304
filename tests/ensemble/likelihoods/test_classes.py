"""What likelihoods of classes share, against `ensemble.metrics`."""

import json

import jax
import numpy as np
import pytest
import scipy.special
from formulas import summarise
from run_parts import ALONE, check_scores, over_axis

from ensemble import UserError, metrics
from ensemble.likelihoods.categorical import Categorical
from ensemble.scoring.sections import member_terms, score_split
from ensemble.sources import Examples
from ensemble.sources.dataset import make_dataset

CLASSES = Categorical(["cat", "dog", "newt"])
DEVICES = over_axis("devices")


@pytest.fixture
def case():
    """Log-probabilities [M, N, C] of four members, and labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    logits = rng.normal(0, 3, (4, 60, 3)) + 3 * np.eye(3)[labels]
    return scipy.special.log_softmax(logits, axis=-1).astype(np.float32), labels


# Descriptions.


def test_a_description_is_read_back():
    again = Categorical.described(CLASSES.describe())
    assert again.class_names == ("cat", "dog", "newt")
    assert again.describe() == CLASSES.describe()


def test_class_weights_are_of_the_description_and_of_predictions_alone():
    weighted = CLASSES.corrected([1, 4, 0.5])
    again = Categorical.described(json.loads(json.dumps(weighted.describe())))
    assert again.class_weights == (1, 4, 0.5)
    outputs, labels = np.log([[0.2, 0.4, 0.4]]), np.array([1])
    for one in (weighted, again):
        probs = np.exp(one.predict({}, outputs)["log_probs"])
        np.testing.assert_allclose(probs, [[0.2 / 1.1, 0.1 / 1.1, 0.8 / 1.1]], rtol=1e-6)
        assert one.log_prob({}, outputs, labels) == CLASSES.log_prob({}, outputs, labels)


@pytest.mark.parametrize(
    ("forged", "message"),
    [
        ({"class_weights": [1, 2]}, "a positive number for each class"),
        ({"class_weights": [1, 2, 0]}, "a positive number for each class"),
        ({"class_weights": [1, 2, "3"]}, "a positive number for each class"),
        ({"class_weights": {"cat": 1}}, "a positive number for each class"),
        ({"class_names": "cat"}, "must be texts"),
        ({"class_names": ["cat", "dog", 3]}, "must be texts"),
        ({"class_names": None}, "must be texts"),
        ({"class_names": ["cat"], "num_classes": 1}, "as many as num_classes, from 2"),
        ({"class_names": [], "num_classes": 0}, "as many as num_classes, from 2"),
        ({"num_classes": 4}, "as many as num_classes"),
        ({"num_classes": 3.0}, "as many as num_classes"),
        ({"num_classes": "3"}, "as many as num_classes"),
        ({"num_classes": [3]}, "as many as num_classes"),
    ],
)
def test_forged_descriptions_are_refused(forged, message):
    with pytest.raises(ValueError, match=message):
        Categorical.described(CLASSES.describe() | forged)


def test_targets_that_are_no_classes_are_refused():
    assert Categorical.of_data(np.array([0, 1]), ["a", "b"]).num_classes == 2
    with pytest.raises(UserError, match=r"targets are float32"):
        Categorical.of_data(np.zeros(3, np.float32), ["a", "b"])
    with pytest.raises(UserError, match="is for classes"):
        Categorical.of_data(np.zeros(3, np.int32), [])


# Scores on the devices.


def test_scores_of_examples_average_to_those_of_metrics(case):
    log_probs, labels = case
    scores = CLASSES.example_scores({"log_probs": log_probs}, labels)
    assert scores.keys() == set(CLASSES.draw_scores)
    for member, row in enumerate(log_probs):
        expected = metrics.scores(row, labels)
        for name, values in scores.items():
            np.testing.assert_allclose(values[member].mean(), expected[name], rtol=1e-5)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_the_mixture_is_the_mean_of_softmax_over_live_members(case, num_devices):
    log_probs, labels = case
    dead = log_probs.copy()
    dead[1] = np.nan  # A member that has failed.
    live = np.array([True, False, True, True])
    if num_devices == 1:
        found = CLASSES.mixture_scores({"log_probs": dead}, labels, live, ALONE)
    else:

        def of_device(log_probs, live):
            return CLASSES.mixture_scores({"log_probs": log_probs}, labels, live, DEVICES)

        split = (dead.reshape(2, 2, *dead.shape[1:]), live.reshape(2, 2))
        found = jax.vmap(of_device, axis_name="devices")(*split)
        found = {name: values[1] for name, values in found.items()}
    mean = metrics.ensemble_log_probs(log_probs[live])
    assert found.keys() == {"nll", CLASSES.progress}
    np.testing.assert_allclose(found["nll"], -mean[np.arange(60), labels], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found["accuracy"], mean.argmax(axis=-1) == labels)


def test_estimators_of_a_member_are_pooled_to_one(case):
    log_probs, _ = case
    found, counts = CLASSES.pooled({"log_probs": log_probs[None]}, np.ones(4, int))
    assert counts.tolist() == [4]
    assert found.keys() == {"log_probs", "entropies"}
    mean = np.exp(log_probs.astype(np.float64)).mean(axis=0)
    np.testing.assert_allclose(np.exp(found["log_probs"][0, 0]), mean, rtol=1e-9)
    entropies = metrics.uncertainty(log_probs)["aleatoric"]
    np.testing.assert_allclose(found["entropies"][0, 0], entropies, rtol=1e-9)


def test_an_impossible_class_has_no_entropy():
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array([[[[0.5, 0.5, 0.0]]]], np.float32))
    found, _ = CLASSES.pooled({"log_probs": log_probs}, np.ones(1, int))
    np.testing.assert_allclose(found["entropies"], [[[np.log(2)]]], rtol=1e-6)


# On the host.


@pytest.mark.parametrize(
    ("entropies", "message"),
    [
        (np.zeros((4, 59)), r"entropies must be finite, \(4, 60\)"),
        (np.full((4, 60), np.inf), "entropies must be finite"),
        (np.zeros((4, 60), int), "entropies must be finite"),
    ],
)
def test_entropies_that_do_not_fit_are_refused(case, entropies, message):
    log_probs, labels = case
    CLASSES.check_predictions({"log_probs": log_probs, "entropies": np.zeros((4, 60))}, labels)
    with pytest.raises(ValueError, match=message):
        CLASSES.check_predictions({"log_probs": log_probs, "entropies": entropies}, labels)


def test_scores_and_uncertainties_are_those_of_metrics(case):
    log_probs, labels = case
    arrays = {"log_probs": log_probs}
    check_scores(score_split(CLASSES.view(arrays, labels)), log_probs, labels)
    expected = summarise(log_probs, labels)["members"]["nll"]
    np.testing.assert_allclose(
        member_terms(CLASSES.view(arrays, labels), CLASSES.loss).mean(axis=1), expected, rtol=1e-5
    )
    name, values = CLASSES.spread(arrays)
    assert name == "entropy"
    np.testing.assert_array_equal(values, metrics.uncertainty(log_probs)["total"])
    assert set(CLASSES.headline) <= set(CLASSES.columns) <= set(metrics.SCORES)


@pytest.mark.check
def test_a_prediction_is_calibrated_by_the_temperature_alone(case):
    log_probs, labels = case
    arrays = {"log_probs": log_probs}
    temperature = CLASSES.view(arrays, labels).fit_factor()
    mean = metrics.ensemble_log_probs(log_probs)
    assert temperature == metrics.fit_temperature(mean, labels)
    plain, calibrated = (CLASSES.prediction(arrays, one) for one in (None, temperature))
    np.testing.assert_allclose(plain.probs, np.exp(mean))
    np.testing.assert_array_equal(calibrated.label, mean.argmax(axis=-1))
    np.testing.assert_allclose(
        calibrated.probs, np.exp(metrics.apply_temperature(mean, temperature))
    )
    np.testing.assert_array_equal(calibrated.total, plain.total)
    exported = CLASSES.exported(arrays, temperature)
    for name, values in exported.items():
        np.testing.assert_allclose(values, getattr(calibrated, name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "names"),
    [
        (np.zeros((60, 5), np.float32), {"reliability"}),
        (np.zeros((60, 4, 4, 1), np.uint8), {"reliability", "uncertain"}),
    ],
)
def test_only_pictures_are_shown(case, inputs, names):
    log_probs, labels = case
    source = make_dataset("mine", {"test": Examples(inputs, labels)}, CLASSES.class_names, 1.0)
    arrays = {"log_probs": log_probs}
    assert CLASSES.figures(arrays, source, "test", "mine test").keys() == names
    final = CLASSES.final_figures(arrays, labels, score_split(CLASSES.view(arrays, labels)))
    assert final.keys() == {"members", "entropy"}


# Predictions show themselves as a table.


def predicted(names=("cat", "dog", "<i>"), count=12):
    rng = np.random.default_rng(0)
    log_probs = np.log(rng.dirichlet([1.0] * len(names), (4, count)).astype(np.float32))
    return Categorical(names).prediction({"log_probs": log_probs}, None)


def test_text_has_the_class_its_probability_and_uncertainties():
    p = predicted()
    heading, titles, _, first, *_, last = repr(p).splitlines()
    assert heading == "12 predictions of 4 members"
    assert titles.split()[:3] == ["class", "prob", "runner-up"]
    row = first.split()
    assert row[0] == "0"
    assert row[1] == ("cat", "dog", "<i>")[p.label[0]]
    assert row[2] == f"{p.probs[0].max():.4f}"
    assert row[-1] == f"{p.epistemic[0]:.4f}"
    assert last == "and 2 more"
    assert str(p) == repr(p)


def test_a_notebook_has_the_same_with_names_escaped():
    page = predicted()._repr_html_()
    assert "<td>dog</td>" in page
    assert "&lt;i&gt;" in page
    assert "<i>" not in page


def test_labels_have_names():
    p = predicted()
    assert p.class_name.tolist() == [p.class_names[label] for label in p.label]


def test_without_names_classes_are_numbers():
    p = predicted()._replace(class_names=())
    assert p.class_name.tolist() == [str(label) for label in p.label]
    assert repr(p).splitlines()[3].split()[1] == str(p.label[0])
