"""A trained ensemble as a function: shapes, refusals, calibration."""

import gc
import shutil

import jax
import numpy as np
import pytest
from conftest import small_config

import ensemble
from ensemble import UserError, metrics


def test_any_number_of_examples(blobs_run, blobs):
    predictor = ensemble.load(blobs_run)
    whole = predictor(blobs["inputs"])
    assert whole.probs.shape == (203, 3)
    assert whole.member_log_probs.shape == (4, 203, 3)
    np.testing.assert_allclose(whole.probs.sum(axis=1), 1)
    np.testing.assert_array_equal(whole.label, whole.probs.argmax(axis=1))
    np.testing.assert_allclose(whole.total, whole.aleatoric + whole.epistemic, atol=1e-12)
    assert (whole.epistemic >= 0).all()
    for part in (slice(0, 1), slice(5, 22)):
        few = predictor(blobs["inputs"][part])
        np.testing.assert_allclose(few.probs, whole.probs[part], rtol=1e-5)


@pytest.mark.check
def test_devices_hold_the_members_from_the_first_prediction_on(blobs_run, blobs):
    def num_bytes():
        gc.collect()
        return sum(array.nbytes for array in jax.live_arrays())

    before = num_bytes()
    predictor = ensemble.load(blobs_run)
    assert num_bytes() <= before
    predictor(blobs["inputs"])
    of_members = sum(leaf.nbytes for leaf in jax.tree.leaves(predictor.fitted.sets))
    assert num_bytes() >= before + of_members


def test_a_temperature_sharpens_or_flattens_probs_alone(blobs_run, blobs):
    plain, calibrated = ensemble.load(blobs_run), ensemble.load(blobs_run, calibrated=True)
    with np.load(blobs_run / "predictions" / "calibration.npz") as stored:
        mean = metrics.ensemble_log_probs(stored["log_probs"])
        expected = metrics.fit_temperature(mean, stored["targets"])
    assert plain.temperature is None
    assert calibrated.temperature == expected
    p, q = plain(blobs["inputs"]), calibrated(blobs["inputs"])
    tempered = p.probs ** (1 / expected)
    np.testing.assert_allclose(q.probs, tempered / tempered.sum(axis=1, keepdims=True), rtol=1e-9)
    np.testing.assert_array_equal(q.label, p.label)
    np.testing.assert_array_equal(q.total, p.total)


def test_it_accepts_what_is_below_a_threshold_of_the_calibration_split(blobs_run, blobs):
    plain = ensemble.load(blobs_run)(blobs["inputs"])
    assert plain.accepted.all()
    predictor = ensemble.load(blobs_run, calibrated=True, abstain="coverage=0.5")
    with np.load(blobs_run / "predictions" / "calibration.npz") as stored:
        mean = metrics.ensemble_log_probs(stored["log_probs"])
        wrong = mean.argmax(axis=1) != stored["targets"]
    rule = metrics.Rule("coverage", 0.5)
    assert predictor.abstention == metrics.fit_abstention(rule, metrics.one_minus_max(mean), wrong)
    accepted = predictor(blobs["inputs"]).accepted
    expected = 1 - plain.probs.max(axis=1) < predictor.abstention.threshold
    np.testing.assert_array_equal(accepted, expected)  # Whatever the temperature.
    assert 0.3 < accepted.mean() < 0.7
    assert ensemble.load(blobs_run, abstain="max_error=0.9").abstention.num_accepted > 10


def test_an_error_that_the_calibration_split_cannot_prove_is_refused(blobs_run):
    with pytest.raises(UserError, match=r"max_error=0\.01: 20 calibration"):
        ensemble.load(blobs_run, abstain="max_error=0.01")
    with pytest.raises(UserError, match="max_error=E or coverage=C"):
        ensemble.load(blobs_run, abstain="0.01")
    with pytest.raises(UserError, match=r"draws=4 is for posteriors, and .* config\.method='sgd'"):
        ensemble.load(blobs_run, draws=4)


@pytest.mark.parametrize(
    ("inputs", "line"),
    [
        (np.zeros((2, 5)), r"\(2, 5\).*ensemble.*\[N, 6\].*> 0"),
        (np.zeros(6), r"inputs of shape \(6,\)"),
        (np.zeros((0, 6)), "with N > 0"),
        (np.full((1, 6), np.nan), "hold NaN or infinities"),
        (np.full((1, 6), 1e300), "hold NaN or infinities"),  # In float32.
        ([[1.0, 2.0], [3.0]], "inputs are ragged"),
        (np.full((1, 6), "a"), "of dtype <U1: the ensemble takes numbers"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_line(blobs_run, inputs, line):
    with pytest.raises(UserError, match=line):
        ensemble.load(blobs_run)(inputs)


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i2", np.int64])
def test_numbers_of_any_type_are_those_that_they_say(blobs_run, dtype):
    inputs = np.rint(1e10 * np.random.default_rng(0).normal(size=(4, 6)))  # Beyond int32.
    inputs = inputs if np.dtype(dtype).itemsize > 2 else np.rint(inputs / 1e8)
    predictor = ensemble.load(blobs_run)
    expected = predictor(inputs.astype(np.float32)).member_log_probs
    np.testing.assert_array_equal(predictor(inputs.astype(dtype)).member_log_probs, expected)


@pytest.mark.check
def test_images_of_other_axes_and_channels_are_brought_to_the_form(caplog):
    rng = np.random.default_rng(0)
    colour = rng.integers(0, 256, (40, 7, 6, 3), np.uint8)
    data = {"inputs": np.moveaxis(colour, -1, 1), "labels": np.arange(40) % 2}
    predictor = ensemble.train(small_config(num_epochs=1), data=data).predictor
    assert predictor.dataset.input_shape == (7, 6, 3)
    expected = predictor(colour).probs
    np.testing.assert_array_equal(predictor(data["inputs"]).probs, expected)
    grey = colour[..., :1]
    expected = predictor(grey.repeat(3, axis=-1)).probs
    for inputs in (grey, grey[..., 0], np.moveaxis(grey, -1, 1)):
        np.testing.assert_array_equal(predictor(inputs).probs, expected)
    with pytest.raises(UserError, match=r"\[N, 7, 6, 3\]"):
        predictor(colour[:, :6])


@pytest.mark.check
def test_floats_where_whole_numbers_were_learned_are_warned_of(caplog):
    data = {"inputs": np.arange(600).reshape(60, 10) % 256, "labels": np.arange(60) % 2}
    predictor = ensemble.train(small_config(num_epochs=1), data=data).predictor
    predictor(data["inputs"].astype(np.float64))
    assert "within 0..1" not in caplog.text
    predictor(data["inputs"] / 255)
    assert "floats within 0..1" in caplog.text


@pytest.mark.check
def test_a_run_without_calibration_data_cannot_be_calibrated(blobs, tmp_path):
    ensemble.train(small_config(hold_out=False), data=blobs, workdir=str(tmp_path))
    with pytest.raises(UserError, match="calibration"):
        ensemble.load(tmp_path, calibrated=True)
    with pytest.raises(UserError, match="calibration"):
        ensemble.load(tmp_path, abstain="coverage=0.5")


@pytest.mark.check
def test_a_temperature_that_cannot_be_fitted_is_one_with_a_warning(blobs, tmp_path, caplog):
    data = {f"train_{name}": one for name, one in blobs.items()}
    data |= {f"test_{name}": one[:40] for name, one in blobs.items()}
    right = np.flatnonzero(blobs["labels"] == 0)[:1]
    data |= {f"calibration_{name}": one[right] for name, one in blobs.items()}  # One, and easy.
    ensemble.train(small_config(), data=data, workdir=str(tmp_path))
    predictor = ensemble.load(tmp_path, calibrated=True)
    assert predictor.temperature == 1
    (line,) = [line for line in caplog.messages if "gives no temperature" in line]
    assert line.endswith(
        "calibration.npz gives no temperature: so few or so easy examples, 1, determine no "
        "temperature within 0.05..20. It stays 1."
    )
    plain = ensemble.load(tmp_path)(blobs["inputs"])
    np.testing.assert_allclose(predictor(blobs["inputs"]).probs, plain.probs, rtol=1e-6)


def test_a_run_that_has_not_finished_cannot_be_calibrated(blobs_run, tmp_path):
    shutil.copytree(blobs_run, tmp_path / "copy")
    (tmp_path / "copy" / "report.json").unlink()
    assert ensemble.load(tmp_path / "copy").members == (0, 1, 2, 3)
    with pytest.raises(UserError, match="has not finished"):
        ensemble.load(tmp_path / "copy", calibrated=True)


def test_what_is_no_workdir_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a workdir"):
        ensemble.load(tmp_path)
