"""A trained ensemble as a function: shapes, refusals, calibration."""

import numpy as np
import pytest

import ensemble
from ensemble import InputError
from ensemble.data.source import MadeInputs
from ensemble.likelihoods.classes import Classes
from ensemble.metrics.abstention import Rule, fit_abstention
from ensemble.metrics.calibration import fit_scale


def test_any_number_of_examples(blobs_run, blobs):
    predictor = ensemble.load(blobs_run)
    whole = predictor(blobs["inputs"])
    assert whole.probs.shape == (203, 3)
    assert whole.member_log_probs.shape == (4, 203, 3)
    np.testing.assert_allclose(whole.probs.sum(axis=1), 1)
    np.testing.assert_array_equal(whole.labels, whole.probs.argmax(axis=1))
    assert (whole.epistemic_uncertainty >= 0).all()
    for part in (slice(0, 1), slice(5, 22)):
        few = predictor(blobs["inputs"][part])
        np.testing.assert_allclose(few.probs, whole.probs[part], rtol=1e-5)
    made = MadeInputs(203, lambda: iter(np.split(blobs["inputs"], 7)))
    np.testing.assert_allclose(predictor.predict_members(made).probs, whole.probs, rtol=1e-5)


def calibration(run):
    """Predictions of the calibration split, and its labels."""
    with np.load(run / "predictions" / "calibration.npz") as stored:
        return Classes({"log_probs": stored["log_probs"]}), stored["targets"]


def test_a_temperature_sharpens_or_flattens_probs_alone(blobs_run, blobs):
    plain = ensemble.load(blobs_run)
    calibrated = ensemble.load(blobs_run, calibrated=True)
    expected = fit_scale(*calibration(blobs_run))
    assert plain.scale is None
    assert calibrated.scale == expected
    p = plain(blobs["inputs"])
    q = calibrated(blobs["inputs"])
    tempered = p.probs ** (1 / expected)
    np.testing.assert_allclose(q.probs, tempered / tempered.sum(axis=1, keepdims=True), rtol=1e-9)
    np.testing.assert_array_equal(q.labels, p.labels)
    np.testing.assert_array_equal(q.total_uncertainty, p.total_uncertainty)
    np.testing.assert_array_equal(q.member_log_probs, p.member_log_probs)


def test_it_accepts_what_is_below_a_threshold_of_the_calibration_split(blobs_run, blobs):
    plain = ensemble.load(blobs_run)(blobs["inputs"])
    assert plain.accepted.all()
    predictor = ensemble.load(blobs_run, calibrated=True, coverage=0.5)
    p, labels = calibration(blobs_run)
    expected = fit_abstention(Rule("coverage", 0.5), p.doubt(), p.labels != labels)
    assert predictor.abstention == expected
    accepted = predictor(blobs["inputs"]).accepted
    expected = 1 - plain.probs.max(axis=1) < predictor.abstention.threshold
    np.testing.assert_array_equal(accepted, expected)  # Whatever the temperature.
    assert 0.3 < accepted.mean() < 0.7
    assert ensemble.load(blobs_run, max_error=0.9).abstention.threshold > 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"max_error": 0.01}, r"max_error=0\.01: .* 299 .* 20 calibration examples"),
        ({"max_error": 2}, "max_error=E or coverage=C"),
        ({"max_error": 0.1, "coverage": 0.9}, "and coverage=0.9 must be max_error=E"),
        ({"max_error": 0.1, "tolerance": 3}, "Remove it"),
        ({"tolerance": 3}, "@3 must be max_error=E"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_a_line(options, line, blobs_run):
    with pytest.raises(InputError, match=line):
        ensemble.load(blobs_run, **options)


def test_predictions_show_their_first_rows(blobs_run, blobs):
    p = ensemble.load(blobs_run)(blobs["inputs"])
    lines = repr(p).splitlines()
    assert lines[0] == "203 predictions of 4 members"
    assert len(lines) == 1 + 2 + 10 + 1
    assert lines[-1] == "and 193 more"
    assert lines[1].split()[0] == "class"


@pytest.mark.parametrize(
    ("inputs", "line"),
    [
        (np.zeros((2, 5)), r"\(2, 5\).*ensemble.*\[N, 6\].*> 0"),
        (np.zeros(6), r"inputs of shape \(6,\)"),
        (np.zeros((0, 6)), "with N > 0"),
        (np.full((1, 6), np.nan), "hold NaN or infinities"),
        (np.full((1, 6), 1e300), "hold NaN or infinities"),  # In float32.
        (np.full((1, 6), "a"), "of dtype <U1: the ensemble takes numbers"),
        ([[0] * 6, [1]], "ragged"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_line(blobs_run, inputs, line):
    with pytest.raises(InputError, match=line):
        ensemble.load(blobs_run)(inputs)


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i2", np.int64])
def test_numbers_of_any_type_are_those_that_they_say(blobs_run, dtype):
    inputs = np.rint(1e10 * np.random.default_rng(0).normal(size=(4, 6)))  # Beyond int32.
    inputs = inputs if np.dtype(dtype).itemsize > 2 else np.rint(inputs / 1e8)
    predictor = ensemble.load(blobs_run)
    expected = predictor(inputs.astype(np.float32)).member_log_probs
    np.testing.assert_array_equal(predictor(inputs.astype(dtype)).member_log_probs, expected)
