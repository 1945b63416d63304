"""Scores that sort by confidence, and those by class: against loops and scikit-learn."""

import itertools

import numpy as np
import pytest
import sklearn.metrics
from test_scores import certain_case, log_of, random_case

from ensemble import metrics
from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax
from ensemble.scoring.score import scores_of


def coarse_case(seed, num_examples=60, num_classes=3):
    """Probabilities in tenths: many examples have the same confidence, some probability 1."""
    rng = np.random.default_rng(seed)
    probs = rng.multinomial(10, rng.dirichlet(np.full(num_classes, 0.5)), num_examples) / 10
    return log_of(probs), rng.integers(num_classes, size=num_examples)


def confidences_and_hits(log_probs, labels):
    return np.exp(log_probs.max(axis=1)), log_probs.argmax(axis=1) == labels


def naive_risks(confidences, hits):
    """The share of errors among the k most confident, in one order of the ties."""
    order = sorted(range(len(hits)), key=lambda n: -confidences[n])
    wrong = [not hits[n] for n in order]
    return [sum(wrong[:k]) / k for k in range(1, len(wrong) + 1)]


def test_selective_scores_match_a_loop():
    (log_probs,), labels = random_case(0, num_members=1)
    risks = naive_risks(*confidences_and_hits(log_probs, labels))
    assert metrics.aurc(log_probs, labels) == pytest.approx(np.mean(risks), rel=1e-12)
    for coverage, count in [(0.8, 160), (0.801, 161), (1.0, 200), (0.001, 1)]:
        expected = 1 - risks[count - 1]
        ours = metrics.accuracy_at_coverage(log_probs, labels, coverage)
        assert ours == pytest.approx(expected, rel=1e-12), coverage
    whole = metrics.accuracy_at_coverage(log_probs, labels, 1.0)
    assert whole == metrics.accuracy(log_probs, labels)


def test_coverage_does_not_round_up_to_one_example_more():
    """In binary, .07 * 100 is a hair above 7."""
    confidence = np.linspace(1, 0.6, 100)
    probs = log_of(np.column_stack([confidence, 1 - confidence]))
    labels = np.repeat([0, 1], [7, 93])
    assert metrics.accuracy_at_coverage(probs, labels, 0.07) == 1
    assert metrics.accuracy_at_coverage(probs, labels, 0.071) == 7 / 8


def test_ties_count_as_the_mean_over_their_orders():
    probs = log_of([[0.9, 0.1], [0.7, 0.3], [0.3, 0.7], [0.7, 0.3], [0.6, 0.4]])
    labels = np.array([0, 0, 0, 1, 1])
    confidences, hits = confidences_and_hits(probs, labels)
    risks = np.mean(
        [
            naive_risks(confidences[list(order)], hits[list(order)])
            for order in itertools.permutations(range(5))
        ],
        axis=0,
    )
    assert metrics.aurc(probs, labels) == pytest.approx(risks.mean(), rel=1e-12)
    for k in range(1, 6):
        ours = metrics.accuracy_at_coverage(probs, labels, k / 5)
        assert ours == pytest.approx(1 - risks[k - 1], rel=1e-12)


def test_confidence_that_ranks_perfectly():
    probs = log_of([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    assert metrics.aurc(probs, np.array([0, 0, 0, 1])) == pytest.approx(1 / 4 / 4)
    assert metrics.aurc(probs, np.array([1, 0, 0, 0])) == pytest.approx(
        (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
    )


def naive_adaptive_ece(log_probs, labels, num_bins):
    confidences, hits = confidences_and_hits(log_probs, labels)
    hits = np.array([hits[confidences == c].mean() for c in confidences])  # Ties share.
    order = np.argsort(-confidences)
    edges = [b * len(hits) // num_bins for b in range(num_bins + 1)]
    total = 0.0
    for lo, hi in itertools.pairwise(edges):
        if hi > lo:
            members = order[lo:hi]
            total += len(members) * abs(hits[members].mean() - confidences[members].mean())
    return total / len(hits)


@pytest.mark.parametrize("num_examples", [1, 2, 14, 15, 16, 200])
@pytest.mark.parametrize("make", [random_case, coarse_case])
def test_adaptive_ece_matches_a_loop(make, num_examples):
    log_probs, labels = make(1, num_examples=num_examples)
    log_probs = log_probs[0] if log_probs.ndim == 3 else log_probs
    for num_bins in (1, 15):
        ours = metrics.adaptive_ece(log_probs, labels, num_bins)
        expected = naive_adaptive_ece(log_probs, labels, num_bins)
        assert ours == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert metrics.scores(log_probs, labels)["adaptive_ece"] == metrics.adaptive_ece(
        log_probs, labels
    )


@pytest.mark.parametrize("seed", range(5))
def test_order_of_tied_examples_changes_nothing(seed):
    log_probs, labels = coarse_case(seed)
    order = np.random.default_rng(seed).permutation(len(labels))
    ours = metrics.scores(log_probs, labels)
    assert metrics.scores(log_probs[order], labels[order]) == pytest.approx(ours, rel=1e-12)


def test_a_resample_scores_as_its_examples_do():
    log_probs, labels = coarse_case(3)
    counts = np.random.default_rng(0).integers(0, 4, len(labels))
    repeated = np.repeat(np.arange(len(labels)), counts)
    view = MeanOfSoftmax(arrays={LOG_PROBS: log_probs[None]}, targets=labels)
    scores = scores_of(view)
    ours = {
        name: scores[name].combine.value(scores[name].terms(view), counts)
        for name in metrics.SCORES
    }
    assert ours == pytest.approx(metrics.scores(log_probs[repeated], labels[repeated]), rel=1e-12)


def test_confusion_and_recall_match_scikit_learn():
    (log_probs,), labels = random_case(5, num_members=1)
    labels = np.where(labels == 2, 3, labels)  # Class 2 is absent.
    confusion = metrics.confusion_matrix(log_probs, labels)
    predicted = log_probs.argmax(axis=1)
    np.testing.assert_array_equal(
        confusion, sklearn.metrics.confusion_matrix(labels, predicted, labels=range(7))
    )
    recall = metrics.recall(confusion)
    assert np.isnan(recall[2])
    present = [0, 1, 3, 4, 5, 6]
    expected = sklearn.metrics.recall_score(labels, predicted, average=None, labels=present)
    np.testing.assert_allclose(recall[present], expected)
    # scikit-learn's balanced accuracy, too, leaves absent classes out, with a warning.
    kept = np.isin(predicted, labels)
    assert np.nanmean(recall) == pytest.approx(expected.mean())
    assert kept.any()


def test_disagreement_matrix_has_disagreement_off_the_diagonal():
    log_probs, _ = random_case(0)
    matrix = metrics.disagreement_matrix(log_probs)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_array_equal(np.diag(matrix), 0)
    off_diagonal = matrix[~np.eye(5, dtype=bool)]
    assert off_diagonal.mean() == pytest.approx(metrics.disagreement(log_probs), rel=1e-12)
    assert metrics.disagreements(log_probs).shape == (200,)


def test_agreement_and_total_variation_by_hand():
    p, q = log_of([[1.0, 0.0], [0.75, 0.25]]), log_of([[0.0, 1.0], [0.5, 0.5]])
    assert metrics.agreement(p, q) == 0.5
    assert metrics.total_variation(p, q) == pytest.approx((1 + 0.25) / 2)
    assert metrics.agreement(p, p) == 1
    assert metrics.total_variation(p, p) == 0
    with pytest.raises(ValueError, match="must have one shape"):
        metrics.agreement(p, q[:1])


def test_total_variation_is_bounded_by_certain_members():
    log_probs, _ = certain_case()
    assert metrics.total_variation(log_probs[0], log_probs[2]) == pytest.approx(0.5)


@pytest.mark.parametrize("coverage", [0.0, 1.5, np.nan])
def test_coverage_is_a_share(coverage):
    with pytest.raises(ValueError, match="must be above 0 and at most 1"):
        metrics.accuracy_at_coverage(np.log([[0.5, 0.5]]), np.array([0]), coverage)
