"""The sections of one test split, against the metrics they are made of and scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics
from run_parts import check_scores, evaluated
from scipy.special import log_softmax

from ensemble import metrics
from ensemble.evaluation.classes import are_unequal, score_classes, worst_classes
from ensemble.evaluation.questions.calibration import is_available
from ensemble.evaluation.sections import (
    conformal_range,
    score_conformal,
    score_factor,
)
from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax
from ensemble.scoring.facts import facts_of
from ensemble.scoring.sections import score_split, values_in, values_of
from ensemble.source import Strata

WITHOUT_INTERVAL = {"ece", "adaptive_ece", "matthews"}
"""Chance alone raises the first two; of the last none was simulated."""


def make_predictions(seed, num_members=4, num_examples=300, num_classes=5, sharpness=2.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=num_examples)
    logits = rng.normal(size=(num_members, num_examples, num_classes))
    logits[:, np.arange(num_examples), labels] += 1
    return labelled(log_softmax(sharpness * logits, -1), labels)


def labelled(log_probs, labels):
    return MeanOfSoftmax(arrays={LOG_PROBS: log_probs}, targets=labels)


def score_calibrated(test, calibration, **how):
    one = evaluated(test, calibration, **how)
    return {"temperature": score_factor(one), "conformal": score_conformal(one)["sets"]}


def test_every_score_has_its_value_interval_and_members():
    predictions = make_predictions(0)
    section = score_split(predictions)
    assert section["num_rows"] == 300
    check_scores(section, predictions.arrays[LOG_PROBS], predictions.targets)
    for name, members in values_in(section, "members").items():
        assert section["scores"][name]["mean"] == pytest.approx(np.mean(members))
        assert section["scores"][name]["sd"] == pytest.approx(np.std(members, ddof=1))
    for name in {*values_in(section)} - WITHOUT_INTERVAL:
        low, high = section["scores"][name]["interval"]
        assert low <= section["scores"][name]["value"] <= high, name
        assert low < high, name


def test_over_groups_every_interval_is_of_groups_drawn_anew():
    """Rows of a group are copies of one: over rows, intervals are too narrow by sqrt(10)."""
    one = make_predictions(1, num_examples=60)
    copies = labelled(np.repeat(one.arrays[LOG_PROBS], 10, axis=1), np.repeat(one.targets, 10))
    of_one = score_split(one)["scores"]
    found = score_split(copies, strata=Strata("site", "group", np.repeat(np.arange(60), 10)))[
        "scores"
    ]
    for name in {*found} - WITHOUT_INTERVAL:
        (low, high), (least, most) = found[name]["interval"], of_one[name]["interval"]
        assert high - low > 0.6 * (most - least), name
        assert low <= found[name]["value"] <= high, name


def test_overconfidence_is_mean_confidence_less_accuracy():
    for sharpness in (0.3, 5.0):
        predictions = make_predictions(0, num_members=1, sharpness=sharpness)
        confidence = np.exp(predictions.log_probs).max(axis=1).mean()
        section = score_split(predictions)
        expected = confidence - section["scores"]["accuracy"]["value"]
        assert section["scores"]["overconfidence"]["value"] == pytest.approx(expected)
        low, high = section["scores"]["overconfidence"]["interval"]
        assert (high < 0) if sharpness < 1 else (low > 0)


def test_one_member_has_no_spread():
    section = score_split(make_predictions(0, num_members=1))
    assert set(values_in(section, "sd").values()) == {0.0}
    assert facts_of(make_predictions(0, num_members=1))["disagreement_matrix"] == [[0.0]]
    assert section["scores"]["epistemic"]["value"] == 0


def test_classes_match_scikit_learn():
    predictions = make_predictions(1)
    section = score_classes(predictions, list("abcde"))
    predicted = predictions.log_probs.argmax(axis=1)
    labels = predictions.targets
    expected = sklearn.metrics.balanced_accuracy_score(labels, predicted)
    assert section["balanced_accuracy"] == pytest.approx(expected)
    np.testing.assert_array_equal(
        section["confusion"], sklearn.metrics.confusion_matrix(labels, predicted)
    )
    assert sum(section["counts"]) == 300
    low, high = section["interval"]
    assert low < section["balanced_accuracy"] < high


def test_a_class_without_examples_has_no_recall_and_does_not_count():
    predictions = make_predictions(1)
    predictions = replace(predictions, targets=np.minimum(predictions.targets, 3))
    section = score_classes(predictions, list("abcde"))
    assert section["counts"][4] == 0
    assert np.isnan(section["recall"][4])
    assert section["balanced_accuracy"] == pytest.approx(np.mean(section["recall"][:4]))


def test_calibration_is_fitted_on_its_own_split():
    sizes = {"num_members": 1, "sharpness": 6.0}
    test, calibration = make_predictions(2, **sizes), make_predictions(3, **sizes)
    section = score_calibrated(test, calibration, exact_sets=True)
    held_out = calibration.log_probs
    temperature = metrics.fit_temperature(held_out, calibration.targets)
    assert section["temperature"]["value"] == temperature
    assert temperature > 1
    mean = test.log_probs
    calibrated = metrics.apply_temperature(mean, temperature)
    for name, value in metrics.scores(calibrated, test.targets).items():
        assert section["temperature"]["scores"][name]["value"] == pytest.approx(value, rel=1e-12)
    change = section["temperature"]["scores"]["nll"]["value"] - metrics.nll(mean, test.targets)
    assert section["temperature"]["nll_change"] == pytest.approx(change)
    low, high = section["temperature"]["nll_change_interval"]
    assert low < change < high < 0
    assert section["temperature"]["on_folds"][1] < 0
    conformal = section["conformal"]
    surprisals = np.sort(-held_out[np.arange(300), calibration.targets])
    assert conformal["threshold"] == surprisals[int(np.ceil(301 * 0.9)) - 1]
    assert sum(conformal["sizes"]) == 300
    assert 0.85 < conformal["coverage"] < 0.95
    low, high = conformal["coverage_range"]
    assert 0.8 < low < 0.88 < 0.92 < high < 0.97
    low, high = conformal["interval"]["mean_size"]
    assert low < conformal["mean_size"] < high


def test_classes_are_unequal_only_beyond_chance():
    assert not are_unequal(np.array([892, 1135, 1032, 1010, 982, 980, 974, 1028, 958, 1009]))
    assert not are_unequal(np.array([26, 45, 36, 31, 42]))
    assert are_unequal(np.array([900, 100]))
    assert are_unequal(np.array([620, 380]))
    assert not are_unequal(np.array([32, 18]))
    assert are_unequal(np.array([200] * 9 + [20]))  # One is rare.
    rng = np.random.default_rng(0)
    drawn = [np.bincount(rng.integers(c, size=n), minlength=c) for c, n in [(2, 60), (200, 2000)]]
    assert not any(map(are_unequal, drawn))


def test_the_majority_class_stands_beside_the_scores():
    predictions = replace(make_predictions(1), targets=np.array([3] * 240 + [1] * 60))
    section = score_classes(predictions, list("abcde"))
    assert section["majority"]["name"] == "d"
    assert section["majority"]["share"] == 0.8
    hits = predictions.log_probs.argmax(axis=1) == predictions.targets
    wins, losses = hits[240:].sum(), (~hits[:240]).sum()
    assert section["majority"]["wins"] == metrics.error_interval(wins, wins + losses)
    low, high = section["majority"]["excess_interval"]
    assert low < (wins - losses) / 300 < high
    error = np.sqrt((wins + losses) / 300 - ((wins - losses) / 300) ** 2) / np.sqrt(300)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert section["are_unequal"] is True
    assert score_classes(make_predictions(1), list("abcde"))["are_unequal"] is False


def test_the_worst_classes_are_those_of_the_lowest_recall():
    recall = [0.5, 0.0, np.nan, 0.0, 0.9]
    classes = {"recall": recall, "counts": [10, 2, 0, 7, 10]}
    assert worst_classes(classes, 3) == [3, 1, 0]
    assert worst_classes(classes, 9) == [3, 1, 0, 4, 2]


def test_a_temperature_that_cannot_be_fitted_stays_one(caplog):
    easy = make_predictions(0, num_examples=6, sharpness=50.0)
    easy = replace(easy, targets=easy.log_probs.argmax(axis=1))
    section = score_calibrated(make_predictions(1), easy)["temperature"]
    assert not is_available(section)
    assert section["value"] == 1
    (line,) = caplog.messages
    assert "examples, 6, " in section["reason"]
    assert "examples, 6, " in line


def test_sets_that_are_never_empty_are_so_in_the_evaluation():
    test, calibration = (
        replace(one, targets=one.log_probs.argmax(axis=1))
        for one in (make_predictions(0), make_predictions(1))
    )  # All right, so that the least certain have empty sets.
    plain = score_calibrated(test, calibration, exact_sets=True)["conformal"]
    filled = score_calibrated(test, calibration)["conformal"]
    assert (plain["nonempty"], filled["nonempty"]) == (False, True)
    assert plain["sizes"][0] > 0
    assert filled["sizes"][0] == 0
    assert filled["coverage"] >= plain["coverage"]
    assert filled["coverage_range"] == [plain["coverage_range"][0], 1]


def test_without_a_calibration_split_nothing_is_available():
    section = score_calibrated(make_predictions(0), None)
    for part in section.values():
        assert not is_available(part)
        assert part["reason"].startswith("not available")


def test_a_label_of_probability_zero_leaves_only_the_temperature_out():
    calibration = make_predictions(0)
    log_probs = np.full((1, 2, 2), -np.inf)
    log_probs[:, :, 0] = 0
    calibration = labelled(log_probs, np.array([0, 1]))
    test = labelled(log_probs, np.array([0, 0]))
    section = score_calibrated(test, calibration)
    assert "probability 0" in section["temperature"]["reason"]
    assert section["conformal"]["coverage"] == 1


def test_ece_by_chance_is_that_of_labels_drawn_from_the_prediction():
    predictions = make_predictions(0, num_members=1)
    drawn = []
    for seed in range(100):
        noise = np.random.default_rng(seed).gumbel(size=predictions.log_probs.shape)
        labels = (predictions.log_probs + noise).argmax(axis=1)
        drawn.append(metrics.ece(predictions.log_probs, labels))
    section = facts_of(predictions)
    assert section["ece_by_chance"] == pytest.approx(np.quantile(drawn, 0.95), rel=0.15)


def test_p_values_tell_miscalibrated_predictions():
    for sharpness, gap in ((0.3, -1), (5.0, 1)):
        view = make_predictions(0, num_members=1, sharpness=sharpness)
        assert values_of(view)["overconfidence"] * gap > 0
        assert facts_of(view)["calibration_p"] == pytest.approx(
            {"overconfidence": 2 / 401, "ece": 1 / 401}
        )
    rng = np.random.default_rng(0)
    log_probs = make_predictions(0, num_members=1).arrays[LOG_PROBS]
    labels = (log_probs[0] + rng.gumbel(size=log_probs[0].shape)).argmax(axis=1)
    facts = facts_of(labelled(log_probs, labels))
    assert min(facts["calibration_p"].values()) > 0.05


def test_easy_calibration_examples_tell_nothing_of_a_temperature():
    easy = make_predictions(3, sharpness=6.0)
    easy = replace(easy, targets=easy.log_probs.argmax(axis=1))
    easy.targets[:2] = (easy.targets[:2] + 1) % 5
    assert score_calibrated(make_predictions(0), easy)["temperature"]["on_folds"] is None


def test_infinite_scores_are_counted_and_warn_of_nothing():
    log_probs = np.log(np.full((2, 3, 2), 0.5))
    log_probs[:, 0] = [0, -np.inf]
    view = labelled(log_probs, np.array([1, 0, 1]))
    section = score_split(view)
    assert facts_of(view)["num_impossible"] == 1
    assert section["scores"]["nll"]["value"] == np.inf
    assert np.isnan(section["scores"]["nll"]["sd"])


def test_where_scores_tie_coverage_may_be_higher():
    counts = np.repeat(np.arange(10.0), 10)
    low, high = conformal_range(np.arange(100.0), 90.0, 200)
    assert 0.8 < low < 0.9 < high < 1
    assert conformal_range(counts, 9.0, 200) == [low, 1]


def test_the_coverage_range_holds_95_percent_of_simulated_runs():
    rng = np.random.default_rng(0)
    coverages = []
    for _ in range(400):
        surprisal = rng.exponential(size=150)
        threshold = np.sort(surprisal)[int(np.ceil(151 * 0.9)) - 1]
        coverages.append(np.mean(rng.exponential(size=300) <= threshold))
    test, calibration = (make_predictions(0, num_examples=n) for n in (300, 150))
    exact = score_calibrated(test, calibration, exact_sets=True)
    low, high = exact["conformal"]["coverage_range"]
    inside = np.mean([low <= coverage <= high for coverage in coverages])
    assert 0.92 < inside < 0.98


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_a_temperature_of_one_changes_nothing_at_all(num_classes):
    log_probs = np.full((1, 40, num_classes), -np.log(num_classes), np.float32)
    uniform = labelled(log_probs, np.arange(40) % num_classes)
    section = score_calibrated(uniform, uniform)["temperature"]
    assert section["value"] == 1
    assert section["nll_change_interval"] == (0, 0)


def test_too_few_calibration_examples_take_every_class_in():
    section = score_calibrated(make_predictions(0), make_predictions(1, num_examples=4))
    assert section["conformal"]["threshold"] == np.inf
    assert section["conformal"]["coverage_range"] == [1, 1]
    assert section["conformal"]["coverage"] == 1
