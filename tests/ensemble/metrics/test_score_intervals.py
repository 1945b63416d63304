"""Intervals of classifiers' scores: widths against a bootstrap, ceilings, what cannot be told."""

import numpy as np
import pytest
from test_scores import intervals, log_of, random_case, view_of

from ensemble import metrics
from ensemble.metrics.score_intervals import FEW_ERRORS
from ensemble.metrics.scores import aurc_influence, aurc_of
from ensemble.scoring.score import scores_of


def test_intervals_are_about_as_wide_as_a_bootstrap_has_them():
    log_probs, labels = random_case(0, num_members=2, num_examples=800)
    scores = scores_of(view_of(log_probs, labels))
    both = {
        name: (one.combine, one.terms(view_of(log_probs, labels))) for name, one in scores.items()
    }
    reference = metrics.intervals(
        lambda counts: {name: rule.value(each, counts) for name, (rule, each) in both.items()}, 800
    )
    found = intervals(log_probs, labels)
    for name in ("accuracy", "nll", "brier", "aurc", "accuracy_at_80"):
        low, high = reference[name]
        assert found[name] == pytest.approx((low, high), abs=0.055 * (high - low)), name


def test_the_influence_on_aurc_is_what_leaving_an_example_out_changes():
    log_probs, labels = random_case(0, num_members=1, num_examples=120)
    found = metrics.terms(log_probs[0], labels)
    influence = aurc_influence(found.confidence, found.hit)
    value = aurc_of(found.confidence, found.hit)
    order = metrics.terms(log_probs[0], labels).order
    without = [metrics.aurc(np.delete(log_probs[0], i, 0), np.delete(labels, i)) for i in order]
    assert value == pytest.approx(metrics.aurc(log_probs[0], labels))
    left_out = 119 * (value - np.array(without))
    assert np.corrcoef(left_out, influence)[0, 1] > 0.99
    assert np.std(influence) == pytest.approx(np.std(left_out), rel=0.1)


def test_calibration_errors_have_no_interval_and_nll_needs_errors():
    probs = np.array([[0.8, 0.2]] * 200)
    labels = np.arange(200) < FEW_ERRORS - 1
    found = intervals(log_of(probs)[None], labels.astype(int))
    assert found["ece"] is found["adaptive_ece"] is found["nll"] is None
    labels[-1] = True
    low, high = intervals(log_of(probs)[None], labels.astype(int))["nll"]
    assert 0 < low < high


def test_scores_at_their_ceiling_have_no_point_for_an_interval():
    found = intervals(log_of([[0.9, 0.1]] * 100)[None], np.zeros(100, int))
    for name in ("accuracy", "accuracy_at_80"):
        low, high = found[name]
        assert 0.9 < low < 0.97, name
        assert high == pytest.approx(1), name
    assert found["aurc"][0] == pytest.approx(0, abs=1e-12)
    assert 0.02 < found["aurc"][1] < 0.05
    low, high = found["overconfidence"]
    assert low < -0.1 < high


def test_few_examples_of_a_class_make_the_balanced_accuracy_uncertain():
    def interval(counts, num_wrong=0):
        labels = np.repeat(np.arange(len(counts)), counts)
        return metrics.balanced_accuracy_interval(np.arange(len(labels)) >= num_wrong, labels)

    low, high = interval((1000, 3))
    assert low < 0.7
    assert high == pytest.approx(1)
    low, high = interval((1000, 1000), 500)
    assert (low + high) / 2 == pytest.approx(0.75, abs=0.005)
    assert high - low == pytest.approx(2 * 1.96 * (0.25 / 1000) ** 0.5 / 2, rel=0.05)
    assert interval((1000, 0, 1000), 500) == (low, high)  # A class without examples counts not.


@pytest.mark.parametrize("confidences", [[0.7], [0.7, 0.999, 0.999, 0.999]])
def test_examples_of_equal_confidence_have_no_order(confidences):
    rng = np.random.default_rng(0)
    sure = rng.choice(confidences, 400)
    labels = (rng.random(400) > sure * 0.9).astype(int)
    labels.sort()  # As in folders of images, one class after the other.
    log_probs = log_of(np.stack([sure, 1 - sure], axis=1))
    scores = metrics.scores(log_probs, labels)
    found = intervals(log_probs[None], labels)
    for name in ("aurc", "accuracy_at_80"):
        low, high = found[name]
        assert low < scores[name] < high, name
    turned = intervals(log_probs[None, ::-1], labels[::-1])
    assert turned["aurc"] == pytest.approx(found["aurc"])
    assert turned["accuracy_at_80"] == pytest.approx(found["accuracy_at_80"])


def test_the_influence_on_aurc_is_right_where_confidences_are_equal():
    rng = np.random.default_rng(1)
    sure = rng.choice([0.6, 0.8, 0.9], 300)
    labels = np.sort(rng.random(300) > sure).astype(int)
    log_probs = log_of(np.stack([sure, 1 - sure], axis=1))
    found = metrics.terms(log_probs, labels)
    influence = aurc_influence(found.confidence, found.hit)
    value = aurc_of(found.confidence, found.hit)
    without = [metrics.aurc(np.delete(log_probs, i, 0), np.delete(labels, i)) for i in found.order]
    left_out = 299 * (value - np.array(without))
    assert np.corrcoef(left_out, influence)[0, 1] > 0.99
    assert np.std(influence) == pytest.approx(np.std(left_out), rel=0.1)
