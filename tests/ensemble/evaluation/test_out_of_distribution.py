"""Inputs unlike the training data, and how well they are told."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from run_parts import evaluated, read_in_blocks_of
from scipy.special import log_softmax
from test_sections import labelled

from ensemble.evaluation.out_of_distribution import constant_inputs, uniform_noise
from ensemble.evaluation.sections import score_detections


def _noise(*arguments, **keywords):
    return np.concatenate(list(uniform_noise(*arguments, **keywords)))


@pytest.mark.parametrize(
    ("low_high", "dtype"),
    [((0, 16), np.uint8), ((0, 255), np.uint8), ((7, 7), np.uint8), ((-1.5, 2.0), np.float32)],
)
def test_noise_in_pieces_is_what_numpy_draws_at_once(low_high, dtype, monkeypatch):
    whole, (low, high) = (
        np.random.Generator(np.random.Philox(np.random.SeedSequence([3, 5]))),
        low_high,
    )
    expected = (
        whole.integers(low, high, (100, 7), np.uint8, endpoint=True)
        if dtype == np.uint8
        else whole.uniform(low, high, (100, 7)).astype(np.float32)
    )
    for size in (1 << 22, 70, 21):
        read_in_blocks_of(monkeypatch, size)
        np.testing.assert_array_equal(_noise((100, 7), low_high, dtype, seed=5), expected)


def test_noise_is_uniform_over_the_range_and_seeded():
    images = _noise((500, 8, 8, 1), (0, 16), np.uint8)
    assert images.dtype == np.uint8
    counts = np.bincount(images.ravel(), minlength=17)
    assert len(counts) == 17
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    np.testing.assert_array_equal(images, _noise((500, 8, 8, 1), (0, 16), np.uint8))
    assert (images != _noise((500, 8, 8, 1), (0, 16), np.uint8, seed=1)).any()
    floats = _noise((1000, 3), (-1.0, 2.0), np.float32)
    assert floats.dtype == np.float32
    assert scipy.stats.kstest(floats.ravel(), "uniform", args=(-1, 3)).pvalue > 1e-3


def test_constants_cover_the_range():
    images = constant_inputs((8, 8, 1), (0, 16), np.uint8)
    assert images.shape == (17, 8, 8, 1)
    assert images[:, 0, 0, 0].tolist() == list(range(17))
    assert (images == images[:, :1, :1]).all()
    floats = constant_inputs((3,), (-1.0, 2.0), np.float32)
    assert floats.shape == (256, 3)
    assert floats[[0, -1], 0].tolist() == [-1, 2]


def make_log_probs(seed, sharpness, num_examples):
    rng = np.random.default_rng(seed)
    return log_softmax(sharpness * rng.normal(size=(3, num_examples, 4)), axis=-1)


def test_scores_are_what_they_are_called():
    log_probs = make_log_probs(0, 2.0, 30)
    mean = np.exp(log_probs).mean(axis=0)
    ours = labelled(log_probs, None).uncertainties()
    np.testing.assert_allclose(ours["entropy"], scipy.stats.entropy(mean, axis=1))
    np.testing.assert_allclose(ours["one_minus_max"], 1 - mean.max(axis=1))
    members = scipy.stats.entropy(np.exp(log_probs), axis=2).mean(axis=0)
    np.testing.assert_allclose(ours["mutual_information"], ours["entropy"] - members, atol=1e-12)


def test_confident_predictions_are_no_ties():
    log_probs = log_softmax(np.array([[[40.0, 0.0], [45.0, 0.0]]]), axis=-1)
    first, second = labelled(log_probs, None).uncertainties()["one_minus_max"]
    assert first > second > 0


def test_detection_matches_scikit_learn_and_has_intervals():
    inside, outside = make_log_probs(0, 6.0, 300), make_log_probs(1, 1.0, 100)
    scores_in = labelled(inside, None).uncertainties()
    whole = replace(evaluated(labelled(inside, None)), outside={"set": labelled(outside, None)})
    section = score_detections(whole)["set"]
    assert section["num_rows"] == 100
    scores_out = labelled(outside, None).uncertainties()
    assert section["mean_entropy"] == pytest.approx(scores_out["entropy"].mean())
    is_out = np.repeat([0, 1], [300, 100])
    for name, values in scores_in.items():
        expected = sklearn.metrics.roc_auc_score(is_out, np.append(values, scores_out[name]))
        assert section[name]["auroc"] == pytest.approx(expected)
        for score in ("auroc", "fpr95"):
            low, high = section[name]["interval"][score]
            assert low <= section[name][score] <= high
