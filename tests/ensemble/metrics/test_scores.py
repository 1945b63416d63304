"""Every score against an independent implementation or a hand-worked case."""

import itertools
import json

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from formulas import summarise
from scipy.special import log_softmax

from ensemble import metrics
from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax
from ensemble.scoring.score import scores_of


def random_case(seed, num_members=5, num_examples=200, num_classes=7, scale=2.0):
    """Log-probabilities [M, N, C] that favour the label, and labels [N]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=num_examples)
    logits = scale * rng.normal(size=(num_members, num_examples, num_classes))
    logits[:, np.arange(num_examples), labels] += scale
    return log_softmax(logits, axis=-1), labels


def log_of(probs):
    """Logarithm with log 0 = -inf and no warning."""
    probs = np.asarray(probs, np.float64)
    return np.log(probs, out=np.full_like(probs, -np.inf), where=probs > 0)


def view_of(log_probs, labels):
    return MeanOfSoftmax(arrays={LOG_PROBS: np.asarray(log_probs)}, targets=np.asarray(labels))


def intervals(log_probs, labels):
    """95% intervals of all scores, by name."""
    view = view_of(log_probs, labels)
    return {name: one.interval(view) for name, one in scores_of(view).items()}


def unevenly_calibrated_case(seed, **sizes):
    """Too sure at low confidence and not sure enough at high, so that bins differ in sign."""
    log_probs, labels = random_case(seed, **sizes)
    mean = log_probs.mean(axis=0)
    confidence = mean.max(axis=-1)
    unsure = confidence < np.median(confidence)
    return log_probs, np.where(unsure, mean.argmin(axis=-1), labels)


def certain_case():
    """Three members that put probability 1 on one class: agreeing, split, all wrong."""
    predicted = np.array([[0, 1, 2, 0], [0, 1, 2, 1], [0, 2, 2, 1]])
    return log_of(np.eye(3)[predicted]), np.array([0, 1, 1, 2])


def tied_case():
    """Members whose mean is exactly tied between classes."""
    one = [0.1, 0.2, 0.7]
    probs = [[row] for row in itertools.permutations(one)]
    return log_of(probs), np.array([1])


def edge_cases():
    """(name, log_probs, labels) that random draws would never visit."""
    single_example = random_case(1, num_examples=1)
    single_member = random_case(2, num_members=1)
    log_probs, labels = random_case(3)
    uniform = np.full_like(log_probs, -np.log(log_probs.shape[-1]))
    float32, float32_labels = random_case(4, scale=8.0)
    return {
        "one example": single_example,
        "one member": single_member,
        "one class": (np.zeros((3, 4, 1)), np.zeros(4, int)),
        "two classes": random_case(5, num_classes=2),
        "class absent from the labels": (log_probs, np.minimum(labels, 4)),
        "uniform": (uniform, labels),
        "certain": certain_case(),
        "tied": tied_case(),
        "float32": (float32.astype(np.float32), float32_labels.astype(np.int32)),
    }


EDGE_CASES = edge_cases()


@pytest.fixture(params=EDGE_CASES, ids=lambda name: name.replace(" ", "_"))
def edge_case(request):
    return EDGE_CASES[request.param]


# The ensemble's prediction.


def test_ensemble_is_the_mean_of_probabilities():
    log_probs, _ = random_case(0)
    expected = np.exp(log_probs).mean(axis=0)
    np.testing.assert_allclose(np.exp(metrics.ensemble_log_probs(log_probs)), expected, rtol=1e-13)


def test_ensemble_survives_probabilities_that_underflow():
    log_probs = np.array([[[-2000.0, 0.0]], [[-2001.0, 0.0]]])
    expected = -2000.0 + np.log((1 + np.exp(-1.0)) / 2)
    assert metrics.ensemble_log_probs(log_probs)[0, 0] == pytest.approx(expected, rel=1e-14)


def test_impossible_for_every_member_is_impossible_for_the_ensemble():
    log_probs = log_of([[[1.0, 0.0]], [[1.0, 0.0]]])
    np.testing.assert_array_equal(metrics.ensemble_log_probs(log_probs), [[0.0, -np.inf]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_member_comes_back_bit_for_bit(dtype):
    log_probs = random_case(0, num_members=1, scale=3.0)[0].astype(dtype)
    np.testing.assert_array_equal(
        metrics.ensemble_log_probs(log_probs), log_probs[0].astype(np.float64), strict=True
    )


def test_one_member_scores_as_the_single_model(edge_case):
    log_probs, labels = edge_case
    summary = summarise(log_probs[:1], labels)
    assert summary["ensemble"] == metrics.scores(log_probs[0], labels)
    assert summary["members"] == {name: [value] for name, value in summary["ensemble"].items()}
    assert summary["diversity"]["disagreement"] == 0.0
    assert summary["diversity"]["epistemic"] == 0.0


def test_inputs_are_left_alone():
    log_probs, labels = random_case(0)
    kept = log_probs.copy()
    summarise(log_probs, labels)
    intervals(log_probs, labels)
    np.testing.assert_array_equal(log_probs, kept)


# Scores of one predictor.


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_scores_match_scikit_learn(num_classes):
    log_probs, labels = random_case(num_classes, num_members=1, num_classes=num_classes)
    log_probs, probs, classes = log_probs[0], np.exp(log_probs[0]), np.arange(num_classes)
    ours = metrics.scores(log_probs, labels)
    assert ours["accuracy"] == sklearn.metrics.accuracy_score(labels, probs.argmax(axis=1))
    assert ours["nll"] == pytest.approx(
        sklearn.metrics.log_loss(labels, probs, labels=classes), rel=1e-12
    )
    assert ours["brier"] == pytest.approx(
        sklearn.metrics.brier_score_loss(labels, probs, labels=classes, scale_by_half=False),
        rel=1e-12,
    )


def test_scores_of_certain_predictions():
    log_probs = log_of(np.eye(3)[[0, 1, 2, 2]])
    assert metrics.scores(log_probs[:3], np.array([0, 1, 2])) == {
        "accuracy": 1.0,
        "nll": 0.0,
        "brier": 0.0,
        "ece": 0.0,
        "adaptive_ece": 0.0,
        "aurc": 0.0,
        "accuracy_at_80": 1.0,
    }
    assert metrics.scores(log_probs, np.array([0, 1, 2, 0])) == {
        "accuracy": 0.75,
        "nll": np.inf,
        "brier": 0.5,
        "ece": 0.25,
        "adaptive_ece": 0.25,
        "aurc": 0.25,
        "accuracy_at_80": 0.75,
    }


def test_zero_is_not_written_as_negative_zero():
    summary = summarise(log_of(np.eye(2)[None]), np.array([0, 1]))
    assert "-0.0" not in json.dumps(summary)


def test_the_lowest_class_wins_a_tie():
    log_probs = np.log([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
    assert metrics.accuracy(log_probs, np.array([0, 1])) == 1.0
    assert metrics.accuracy(log_probs, np.array([1, 2])) == 0.0


def test_float32_is_accumulated_in_float64():
    log_probs = np.full((100_001, 2), np.log(0.5), np.float32)
    log_probs[0] = [-30.0, 0.0]
    labels = np.zeros(len(log_probs), int)
    expected = (30.0 + 100_000 * -float(np.float32(np.log(0.5)))) / 100_001
    assert metrics.nll(log_probs, labels) == pytest.approx(expected, rel=1e-13)


# Calibration.


def binary(confidences):
    """Two-class log-probabilities whose first class has the given confidence, all >= 0.5."""
    confidences = np.asarray(confidences)
    return log_of(np.stack([confidences, 1 - confidences], axis=-1))


def test_ece_by_hand():
    log_probs = binary([0.6, 0.7, 0.9, 0.9, 1.0])
    labels = np.array([0, 1, 0, 1, 0])
    # Five bins: (.4, .6] holds .6, right; (.6, .8] holds .7, wrong; (.8, 1] the rest, 2 of 3 right.
    expected = (1 * 0.4 + 1 * 0.7 + 3 * abs(2 / 3 - 2.8 / 3)) / 5
    assert metrics.ece(log_probs, labels, num_bins=5) == pytest.approx(expected, rel=1e-12)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    log_probs = binary([0.5, 0.75, np.nextafter(0.75, 1), 1.0])
    assert np.exp(log_probs[1, 0]) == 0.75  # the edge survives the logarithm
    bins = metrics.reliability_bins(log_probs, np.zeros(4, int), num_bins=4)
    np.testing.assert_array_equal(bins.counts, [0, 1, 1, 2])


def test_certainty_falls_in_the_last_bin_despite_rounding():
    rounded_up = np.array([[1e-9, -np.inf]])
    bins = metrics.reliability_bins(rounded_up, np.array([0]))
    np.testing.assert_array_equal(bins.counts, [0] * 14 + [1])
    assert bins.confidence[-1] == 1.0


def test_reliability_bins_match_a_loop():
    log_probs, labels = random_case(0, num_members=1, num_examples=500)
    log_probs = log_probs[0]
    bins = metrics.reliability_bins(log_probs, labels, num_bins=15)
    confidence = np.exp(log_probs).max(axis=1)
    right = np.exp(log_probs).argmax(axis=1) == labels
    assert bins.counts.sum() == 500
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        assert bins.counts[k] == inside.sum()
        if inside.any():
            assert bins.confidence[k] == pytest.approx(confidence[inside].mean(), rel=1e-12)
            assert bins.accuracy[k] == pytest.approx(right[inside].mean(), rel=1e-12)
        else:
            assert np.isnan(bins.confidence[k])
            assert np.isnan(bins.accuracy[k])


def test_ece_matches_scipy_binning():
    log_probs, labels = unevenly_calibrated_case(3, num_members=1, num_examples=1000)
    log_probs = log_probs[0]
    confidence, right = np.exp(log_probs).max(axis=1), log_probs.argmax(axis=1) == labels
    edges = np.linspace(0, 1, 16)
    gap_sums, _, _ = scipy.stats.binned_statistic(confidence, right - confidence, "sum", edges)
    assert metrics.ece(log_probs, labels) == pytest.approx(np.abs(gap_sums).sum() / 1000, rel=1e-12)


def test_labels_drawn_from_the_prediction_are_calibrated():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(4), size=100_000)
    labels = (rng.random(len(probs))[:, None] > probs.cumsum(axis=1)).sum(axis=1)
    assert metrics.ece(np.log(probs), labels) < 0.01
    assert metrics.ece(np.log(probs), (labels + 1) % 4) > 0.2


# Diversity and uncertainty.


def pairwise_disagreement(log_probs):
    """Loop over pairs, example by example."""
    predicted = log_probs.argmax(axis=-1)
    pairs = itertools.combinations(range(len(predicted)), 2)
    return np.mean([np.mean(predicted[i] != predicted[j]) for i, j in pairs])


@pytest.mark.parametrize("num_members", [2, 3, 8])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_disagreement_matches_the_loop_over_pairs(num_members, num_classes):
    log_probs, _ = random_case(0, num_members=num_members, num_classes=num_classes)
    expected = pairwise_disagreement(log_probs)
    assert 0 < metrics.disagreement(log_probs) == pytest.approx(expected, rel=1e-12)


def test_disagreement_by_hand():
    log_probs, _ = certain_case()  # pairs that differ, of three: 0, 2, 0, 2
    assert metrics.disagreement(log_probs) == pytest.approx(4 / 12)
    assert metrics.disagreement(log_of(np.eye(3)[:, None])) == 1.0


def test_uncertainty_matches_scipy():
    log_probs, _ = random_case(0)
    probs = np.exp(log_probs)
    ours = metrics.uncertainty(log_probs)
    total = scipy.stats.entropy(probs.mean(axis=0), axis=-1)
    aleatoric = scipy.stats.entropy(probs, axis=-1).mean(axis=0)
    divergence = scipy.stats.entropy(probs, probs.mean(axis=0)[None], axis=-1).mean(axis=0)
    np.testing.assert_allclose(ours["total"], total, rtol=1e-12)
    np.testing.assert_allclose(ours["aleatoric"], aleatoric, rtol=1e-12)
    np.testing.assert_allclose(ours["epistemic"], divergence, rtol=1e-9)


def test_uncertainty_of_certain_members():
    log_probs, _ = certain_case()
    ours = metrics.uncertainty(log_probs)
    two_to_one = scipy.stats.entropy([2 / 3, 1 / 3])
    np.testing.assert_allclose(ours["total"], [0, two_to_one, 0, two_to_one], atol=1e-15)
    np.testing.assert_array_equal(ours["aleatoric"], np.zeros(4))
    np.testing.assert_array_equal(ours["epistemic"], ours["total"])


# Properties that hold for any ensemble.


def test_uncertainties_are_bounded(edge_case):
    log_probs, _ = edge_case
    ours = metrics.uncertainty(log_probs)
    assert np.all(ours["epistemic"] >= 0)
    assert np.all(ours["aleatoric"] >= 0)
    assert np.all(ours["total"] <= np.log(log_probs.shape[-1]) + 1e-6)
    np.testing.assert_allclose(ours["total"], ours["aleatoric"] + ours["epistemic"], atol=1e-12)


@pytest.mark.parametrize("seed", range(50))
def test_ensemble_nll_and_brier_are_never_above_the_mean_members(seed):
    rng = np.random.default_rng(seed)
    log_probs, labels = random_case(
        seed,
        num_members=int(rng.integers(1, 9)),
        num_examples=int(rng.integers(1, 40)),
        num_classes=int(rng.integers(2, 12)),
        scale=float(rng.exponential(4.0)),
    )
    summary = summarise(log_probs, labels)
    for name in ("nll", "brier"):
        mean_member = np.mean(summary["members"][name])
        assert summary["ensemble"][name] <= mean_member * (1 + 1e-12), name


def test_ensemble_nll_is_never_above_the_mean_members_at_the_edges(edge_case):
    summary = summarise(*edge_case)
    assert summary["ensemble"]["nll"] <= np.mean(summary["members"]["nll"]) + 1e-12


def test_order_of_members_changes_nothing(edge_case):
    log_probs, labels = edge_case
    summary = summarise(log_probs, labels)
    interval = intervals(log_probs, labels)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(log_probs))
        permuted = summarise(log_probs[order], labels)
        assert permuted["ensemble"] == summary["ensemble"]
        for name, values in summary["members"].items():
            assert permuted["members"][name] == [values[k] for k in order]
        assert permuted["diversity"] == pytest.approx(summary["diversity"], abs=1e-12)
        assert intervals(log_probs[order], labels) == interval


def test_order_of_examples_changes_nothing(edge_case):
    log_probs, labels = edge_case
    order = np.random.default_rng(0).permutation(len(labels))
    summary = summarise(log_probs, labels)
    permuted = summarise(log_probs[:, order], labels[order])
    assert permuted["ensemble"] == pytest.approx(summary["ensemble"], rel=1e-12)
    assert permuted["diversity"] == pytest.approx(summary["diversity"], abs=1e-12)


def test_copies_of_a_member_score_as_one(edge_case):
    log_probs, labels = edge_case
    copies = np.repeat(log_probs[:1], 6, axis=0)
    summary = summarise(copies, labels)
    alone = metrics.scores(log_probs[0], labels)
    assert summary["ensemble"] == pytest.approx(alone, rel=1e-12, abs=1e-12)
    assert summary["diversity"]["disagreement"] == 0.0
    epistemic = metrics.uncertainty(copies)["epistemic"]
    assert np.all(epistemic >= 0)  # the difference of two equal entropies rounds either way
    np.testing.assert_allclose(epistemic, 0, atol=1e-12)


def test_summary_is_plain_and_complete(edge_case):
    log_probs, labels = edge_case
    summary = summarise(log_probs, labels)
    assert json.loads(json.dumps(summary)) == summary
    assert list(summary) == ["ensemble", "members", "diversity"]
    assert tuple(summary["ensemble"]) == metrics.SCORES
    for name, values in summary["members"].items():
        assert values == [metrics.scores(member, labels)[name] for member in log_probs]
        assert {type(value) for value in values} == {float}
    assert set(summary["diversity"]) == {"disagreement", "total", "aleatoric", "epistemic"}
    assert summary["diversity"]["total"] == np.mean(metrics.uncertainty(log_probs)["total"])


# Bad input: one line with the value, the rule and the remedy.

UNIFORM = np.log(np.full((2, 3, 4), 0.25))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.ensemble_log_probs(UNIFORM[0]), r"\(3, 4\), must be \[M, N, C\]"),
        (lambda: metrics.uncertainty(UNIFORM[:0]), r"\(0, 3, 4\), must be .* no empty axis"),
        (lambda: metrics.accuracy(UNIFORM, np.zeros(3, int)), r"\(2, 3, 4\), must be \[N, C\]"),
        (lambda: metrics.disagreement(np.zeros((2, 3, 4), int)), "dtype int64, must be float"),
        (lambda: metrics.disagreement(UNIFORM - 5.0), "1.*0.006738.*log_softmax"),
        (lambda: metrics.uncertainty(UNIFORM * np.nan), r"nan at index \[0, 0\].*not finite"),
        (lambda: metrics.uncertainty(UNIFORM + 5000.0), "sum to 1 .* inf"),
        (lambda: metrics.nll(UNIFORM[0], np.zeros(2, int)), r"\(2,\), must be \(3,\) to match"),
        (lambda: metrics.nll(UNIFORM[0], np.zeros((3, 1), int)), r"\(3, 1\), must be \(3,\)"),
        (lambda: metrics.brier(UNIFORM[0], np.zeros(3)), "float64, must be integer"),
        (lambda: metrics.ece(UNIFORM[0], np.array([0, 1, 4])), r"0\.\.4, must be within 0\.\.3"),
        (lambda: metrics.ece(UNIFORM[0], np.array([-1, 1, 2])), r"-1\.\.2, must be within"),
        (lambda: metrics.ece(UNIFORM[0], np.zeros(3, int), num_bins=0), "num_bins=0 must be pos"),
        (
            lambda: metrics.intervals(lambda _: {}, 3, num_resamples=0),
            "num_resamples=0 must be positive",
        ),
        (
            lambda: metrics.intervals(lambda _: {}, 3, level=95),
            "level=95 between 0 and 1",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_one_bad_member_is_pointed_at():
    log_probs = UNIFORM.copy()
    log_probs[1, 2, 3] = np.nan
    with pytest.raises(ValueError, match=r"nan at index \[1, 2\]"):
        metrics.ensemble_log_probs(log_probs)
