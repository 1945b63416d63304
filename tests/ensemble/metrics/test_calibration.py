"""Temperature and conformal sets: known answers, coverage by simulation."""

import numpy as np
import pytest
from scipy.special import log_softmax
from test_scores import log_of, random_case

from ensemble import metrics
from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax
from ensemble.metrics.calibration import TEMPERATURES
from ensemble.metrics.number_calibration import conformal_quantile
from ensemble.scoring.folds import change_on_folds


def drawn_labels(log_probs, rng):
    """Labels drawn from the prediction: it is calibrated by construction."""
    noise = rng.gumbel(size=log_probs.shape)
    return np.argmax(log_probs + noise, axis=-1)


@pytest.mark.parametrize("true_temperature", [0.5, 1.0, 3.0])
def test_a_known_temperature_is_found(true_temperature):
    rng = np.random.default_rng(0)
    log_probs = log_softmax(2 * rng.normal(size=(20_000, 5)), axis=-1)
    labels = drawn_labels(log_probs, rng)
    stretched = log_softmax(log_probs * true_temperature, axis=-1)
    temperature = metrics.fit_temperature(stretched, labels)
    assert temperature == pytest.approx(true_temperature, rel=0.05)
    calibrated = metrics.apply_temperature(stretched, temperature)
    assert metrics.ece(calibrated, labels) < 0.015


def test_no_temperature_on_a_grid_is_better():
    (log_probs,), labels = random_case(0, num_members=1, num_examples=150)
    best = metrics.fit_temperature(log_probs, labels)
    nll = metrics.nll(metrics.apply_temperature(log_probs, best), labels)
    for temperature in np.geomspace(*TEMPERATURES, 400):
        other = metrics.nll(metrics.apply_temperature(log_probs, temperature), labels)
        assert nll <= other + 1e-9


def test_temperature_one_changes_nothing_and_none_changes_the_class():
    (log_probs,), _ = random_case(0, num_members=1)
    np.testing.assert_allclose(metrics.apply_temperature(log_probs, 1.0), log_probs, atol=1e-12)
    hot = metrics.apply_temperature(log_probs, 7.0)
    np.testing.assert_array_equal(hot.argmax(axis=1), log_probs.argmax(axis=1))
    np.testing.assert_allclose(np.exp(hot).sum(axis=1), 1)


def test_impossible_classes_stay_impossible():
    hot = metrics.apply_temperature(log_of([[1.0, 0.0], [0.5, 0.5]]), 2.0)
    np.testing.assert_array_equal(np.exp(hot), [[1, 0], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("log_probs", "labels"),
    [
        (log_softmax(3 * np.eye(4), axis=-1), np.arange(4)),  # All right: the colder the better.
        (log_softmax(3 * np.eye(4), axis=-1), np.arange(4)[::-1]),  # All wrong: the hotter.
    ],
)
def test_examples_that_determine_no_temperature_are_refused(log_probs, labels):
    with pytest.raises(ValueError, match=r"4, determine.*temperature.*0\.05\.\.20"):
        metrics.fit_temperature(log_probs, labels)


def test_where_all_temperatures_are_alike_there_is_none():
    assert metrics.fit_temperature(log_of(np.eye(3)), np.arange(3)) == 1
    assert metrics.fit_temperature(np.log(np.full((5, 2), 0.5)), np.zeros(5, int)) == 1


def test_a_label_of_probability_zero_cannot_be_mended():
    with pytest.raises(ValueError, match="a label has probability 0"):
        metrics.fit_temperature(log_of([[1.0, 0.0]]), np.array([1]))
    with pytest.raises(ValueError, match="temperature=0 must be positive"):
        metrics.apply_temperature(log_of([[1.0, 0.0]]), 0)


def conformal_of(log_probs, labels, is_exact=True):
    arrays = {LOG_PROBS: np.asarray(log_probs)[None]}
    (found,) = MeanOfSoftmax(arrays=arrays, targets=np.asarray(labels)).conformals(is_exact)
    return found


def test_conformal_threshold_by_hand():
    probs = np.arange(1, 20) / 20  # Of the label; 19 examples: the 18th smallest surprisal.
    sets = conformal_of(np.log(np.column_stack([probs, 1 - probs])), np.zeros(19, int))
    assert conformal_quantile(sets.scores, 0.9) == pytest.approx(-np.log(2 / 20))
    assert conformal_quantile(sets.scores, 0.5) == pytest.approx(-np.log(10 / 20))
    at = -np.log(0.6)
    assert np.mean(sets.scores <= at) == pytest.approx(8 / 19)  # .60 to .95
    # Neither class has .6 where p is .45 to .55.
    assert sets.describe(sets.size(at)) == {"nonempty": False, "sizes": [3, 16, 0]}


def test_too_few_examples_take_every_class_in():
    log_probs, labels = np.log([[0.9, 0.1]] * 8), np.zeros(8, int)
    assert conformal_quantile(conformal_of(log_probs, labels).scores, 0.9) == np.inf
    sets = conformal_of(log_of([[1.0, 0.0]]), np.array([1]))
    assert sets.may_hold_all
    assert sets.size(np.inf).tolist() == [2]
    more = conformal_of(*(np.repeat(x, 2, axis=0) for x in (log_probs, labels)))
    assert conformal_quantile(more.scores, 0.9) < 1


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("stretch", [0.3, 3.0])
def test_conformal_coverage_holds_whatever_the_calibration(level, stretch):
    """Over many draws of calibration and test sets the mean coverage is the level, at least."""
    rng = np.random.default_rng(0)
    coverages = []
    for _ in range(300):
        log_probs = log_softmax(2 * rng.normal(size=(200, 6)), axis=-1)
        labels = drawn_labels(log_probs, rng)
        scores = conformal_of(log_softmax(stretch * log_probs, axis=-1), labels).scores
        coverages.append(np.mean(scores[100:] <= conformal_quantile(scores[:100], level)))
    standard_error = np.std(coverages) / np.sqrt(len(coverages))
    assert np.mean(coverages) >= level - 4 * standard_error
    assert np.mean(coverages) <= level + 1 / 101 + 4 * standard_error


@pytest.mark.parametrize(("level", "sharpness"), [(0.5, 3), (0.9, 20)])
def test_sets_that_are_never_empty_cover_no_less(level, sharpness):
    """Only empty sets change, to one class; so the mean coverage stays at the level, at least."""
    rng = np.random.default_rng(1)
    coverages, num_empty = [], 0
    for _ in range(200):
        log_probs = log_softmax(sharpness * rng.normal(size=(200, 6)), axis=-1)
        labels = drawn_labels(log_probs, rng)
        held_out = conformal_of(log_probs[:100], labels[:100])
        threshold = conformal_quantile(held_out.scores, level)
        plain, filled = (conformal_of(log_probs[100:], labels[100:], one) for one in (True, False))
        sizes, held = plain.size(threshold), filled.holds(threshold)
        np.testing.assert_array_equal(filled.size(threshold), np.maximum(sizes, 1))
        is_right = log_probs[100:].argmax(axis=-1) == labels[100:]
        expected = (plain.scores <= threshold) | ((sizes == 0) & is_right)
        np.testing.assert_array_equal(held, expected)
        coverages.append(held.mean())
        num_empty += (sizes == 0).sum()
    assert num_empty > 0
    assert np.mean(coverages) >= level - 4 * np.std(coverages) / np.sqrt(len(coverages))


def test_on_folds_a_temperature_is_judged_on_examples_that_it_was_not_fitted_on():
    """Of a calibrated predictor it can only do harm, which its own examples would not show."""
    rng, changes = np.random.default_rng(0), []
    for _ in range(30):
        log_probs = log_softmax(rng.normal(size=(40, 3)), axis=-1)
        labels = (log_probs + rng.gumbel(size=log_probs.shape)).argmax(axis=-1)
        view = MeanOfSoftmax(arrays={LOG_PROBS: log_probs[None]}, targets=labels)
        changes.append(np.mean(change_on_folds(view)))
    assert np.mean(changes) > 0.005


def test_chance_gives_every_calibrated_predictor_any_p_value():
    rng, found = np.random.default_rng(0), []
    for _ in range(60):
        log_probs = log_softmax(2 * rng.normal(size=(50, 3)), axis=-1)
        labels = (log_probs + rng.gumbel(size=log_probs.shape)).argmax(axis=-1)
        found.append(metrics.calibration_by_chance(metrics.terms(log_probs, labels))[1:])
    for each in np.transpose(found):
        assert 0.35 < np.mean(each) < 0.7
        assert np.mean(each < 0.1) < 0.25
