"""Gaussian noise: by input, and shared."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from small_runs import regression_config, sampling_config

import ensemble
from ensemble import UserError
from ensemble.export import export
from ensemble.likelihoods.gaussian import Gaussian, SharedGaussian
from ensemble.scoring.sections import values_in, values_of
from ensemble.sources import dataset_from_arrays
from ensemble.storage.predictions import MemberPredictions, write_arrays

TARGETS = np.array([1.0, 2.0, 4.0, 9.0], np.float32)


def test_the_second_output_sets_the_noise_of_its_input():
    likelihood = Gaussian.of_data(TARGETS, ())
    parts = likelihood.predict({}, jnp.array([[0.0, -3.0], [0.0, 3.0]]))
    assert parts["scale"][0] < likelihood.scale < parts["scale"][1]
    np.testing.assert_allclose(parts["loc"], TARGETS.mean())


def test_a_shared_noise_is_a_parameter_and_all_inputs_have_it():
    likelihood = SharedGaussian.of_data(TARGETS, ())
    assert likelihood.num_outputs == 1
    params = likelihood.init(jax.random.key(0))
    assert list(params) == ["raw_scale"]
    outputs = jnp.array([[0.0], [2.0]])
    small, large = (
        likelihood.predict({"raw_scale": jnp.float32(raw)}, outputs)["scale"] for raw in (-1, 1)
    )
    assert small[0] == small[1] < large[0]


def test_the_shared_noise_that_fits_best_is_the_residuals_deviation():
    likelihood = SharedGaussian.of_data(TARGETS, ())
    outputs = jnp.zeros((4, 1))

    def total(raw):
        return likelihood.log_prob({"raw_scale": raw}, outputs, TARGETS).sum()

    # The start has the targets' own deviation, which is that of the residuals of a constant.
    assert float(jax.grad(total)(jnp.zeros(()))) == pytest.approx(0, abs=1e-5)
    assert float(jax.grad(total)(jnp.float32(1))) < 0 < float(jax.grad(total)(jnp.float32(-1)))


def test_the_mean_over_a_teacher_s_mixture_is_that_of_its_draws_and_largest_at_its_moments():
    likelihood = Gaussian.of_data(TARGETS, ())
    taught = {"mean": 3.0, "aleatoric": 1.5, "epistemic": 0.5}
    outputs = jnp.array([[0.3, -0.4]])
    draws = np.random.default_rng(0).normal(3.0, np.sqrt(2.0), 100_000)
    log_probs = likelihood.log_prob({}, outputs, draws)
    found = likelihood.expected_log_prob({}, outputs, taught)
    assert found[0] == pytest.approx(float(log_probs.mean()), abs=0.02)

    def objective(outputs):
        return likelihood.expected_log_prob({}, outputs, taught)[0]

    ascend = jax.jit(lambda outputs: outputs + 0.1 * jax.grad(objective)(outputs))
    for _ in range(300):
        outputs = ascend(outputs)
    parts = likelihood.predict({}, outputs)
    assert float(parts["loc"][0]) == pytest.approx(3.0, abs=1e-3)
    assert float(parts["scale"][0] ** 2) == pytest.approx(2.0, abs=1e-3)


# Whole runs.


@pytest.fixture(scope="module")
def waves():
    """A wave of 2 features whose noise grows with the first."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(211, 2)).astype(np.float32)
    noise = 0.1 * np.exp(0.7 * x[:, 0]) * rng.normal(size=211)
    return {"inputs": x, "targets": 100 + 20 * (np.sin(2 * x[:, 0]) + x[:, 1] + noise)}


@pytest.mark.parametrize(
    "likelihood",
    [
        pytest.param("gaussian", marks=pytest.mark.check),
        pytest.param("gaussian_shared", marks=pytest.mark.soak),
        pytest.param("student_t", marks=pytest.mark.soak),
    ],
)
def test_numbers_are_learned_scored_loaded_and_exported(likelihood, waves, tmp_path):
    config = regression_config(likelihood, num_epochs=60, eval_every_epochs=30)
    result = ensemble.train(config, data=waves, workdir=str(tmp_path), show_progress=False)
    test = result.report["test"]
    assert test["scores"]["rmse"]["value"] < 0.4 * waves["targets"].std()
    assert (
        test["scores"]["nll"]["value"] < np.mean(test["scores"]["nll"]["members"]) + 1e-6
    )  # Jensen.
    assert {"crps", "mae", "coverage_50", "coverage_95", "width_90"} <= values_in(test).keys()
    assert {path.name for path in (tmp_path / "plots").iterdir()} >= {
        "calibration.png",
        "members.png",
        "predictions.png",
        "training.png",
    }
    inputs = waves["inputs"][:7]
    loaded, p = ensemble.load(tmp_path), result.predictor(inputs)
    for name in ("mean", "standard_deviation", "quantiles", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(loaded(inputs), name), getattr(p, name), rtol=1e-4)
    exported = jax.export.deserialize(bytearray(export(loaded))).call(inputs)
    np.testing.assert_allclose(exported["mean"], p.mean, rtol=1e-4)
    np.testing.assert_allclose(exported["quantiles"], p.quantiles, rtol=1e-3)
    params = loaded.fitted.sets["params"]
    assert ("likelihood" in params) == (likelihood != "gaussian")


@pytest.mark.soak
def test_the_noise_of_an_input_is_found(waves):
    config = regression_config("gaussian", num_epochs=120)
    predictor = ensemble.train(config, data=waves, show_progress=False).predictor
    quiet, loud = predictor(np.array([[-1.5, 0], [1.5, 0]], np.float32)).aleatoric
    assert loud > 3 * quiet


@pytest.mark.soak
@pytest.mark.parametrize(
    "likelihood", ["gaussian_shared", pytest.param("student_t", marks=pytest.mark.soak)]
)
def test_a_resumed_run_is_the_straight_one_and_devices_change_nothing(likelihood, waves, tmp_path):
    config = regression_config(likelihood, early_stopping_epochs=4, keep_checkpoints=9)
    straight = ensemble.train(config, waves, str(tmp_path / "a"), show_progress=False).predictor
    half = {**config, "num_epochs": 3}
    ensemble.train(half, waves, str(tmp_path / "b"), show_progress=False)
    resumed = ensemble.train(config, waves, str(tmp_path / "b"), show_progress=False).predictor
    jax.tree.map(np.testing.assert_array_equal, straight.fitted.sets, resumed.fitted.sets)
    other = ensemble.train({**config, "num_devices": 8}, waves, show_progress=False).predictor
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        straight.fitted.sets,
        other.fitted.sets,
    )


@pytest.mark.check
def test_the_draws_that_are_reported_are_those_that_are_loaded_and_evaluated(waves, tmp_path):
    config = sampling_config("gaussian_shared", **{"sampler.thin": 1})
    report = ensemble.train(config, waves, str(tmp_path), show_progress=False).report
    scores = values_in(report["test"])
    assert report["posterior"]["predictive"]["num_draws"] == 10
    predictor = ensemble.load(tmp_path)
    assert predictor.description == "20 draws of 2 chains"
    source = dataset_from_arrays(waves)
    inputs, targets = source.read("test", slice(None))
    said = predictor.predict_members(inputs)
    assert said.member_of.tolist() == [0] * 10 + [1] * 10
    loaded = values_of(said.view(predictor.likelihood, targets))
    found = values_in(ensemble.evaluate(tmp_path, datasets=["none"], data=waves)["test"])
    for name in ("nll", "rmse", "crps", "width_90", "coverage_90"):
        assert loaded[name] == pytest.approx(scores[name], rel=1e-5)
        assert found[name] == scores[name]
    assert report["average_draw"]["test"].keys() == {"squared_error", "nll"}
    assert {"squared_error", "nll"} <= report["posterior"]["monte_carlo"].keys()
    assert ensemble.load(tmp_path, draws=4).description == "8 draws of 2 chains"
    assert ensemble.load(tmp_path, draws=1000).description == "20 draws of 2 chains"
    with pytest.raises(UserError, match="draws=0 must be a whole number from 1"):
        ensemble.load(tmp_path, draws=0)
    # A finished run that is scored again, with fewer.
    again = {**config, "num_predictive_draws": 4}
    report = ensemble.train(again, waves, str(tmp_path), show_progress=False).report
    assert report["posterior"]["predictive"]["num_draws"] == 4
    assert ensemble.load(tmp_path).description == "8 draws of 2 chains"
    scores = values_in(report["test"])
    # Predictions as earlier versions stored them, of which no distribution is left.
    path = epath.Path(tmp_path) / "predictions" / "test.npz"
    with np.load(path) as stored:
        arrays = {name: one for name, one in stored.items() if name not in ("loc", "member_of")}
    sums = {"grid_cdf": np.zeros((2, len(targets), 200)), "cdf": np.zeros((2, len(targets)))}
    write_arrays(path, MemberPredictions(sums), np.savez, **arrays)
    again = values_in(ensemble.evaluate(tmp_path, datasets=["none"], data=waves)["test"])
    assert again["crps"] == pytest.approx(scores["crps"], rel=1e-5)
    with pytest.raises(UserError, match="keeps sums over draws, and needs its data to predict"):
        ensemble.evaluate(tmp_path, datasets=["none"])


def test_numbers_as_classes_and_classes_as_numbers_are_refused(waves, blobs):
    with pytest.raises(UserError, match=r"config\.likelihood='gaussian' for numbers"):
        ensemble.train(regression_config("categorical"), data=waves)
    with pytest.raises(UserError, match="'gaussian' is for numbers"):
        ensemble.train(regression_config("gaussian"), data=blobs)


@pytest.mark.parametrize("key", [{"label_smoothing": 0.1}, {"class_weights": "balanced"}])
def test_what_is_for_classes_is_refused_with_numbers(key, waves):
    with pytest.raises(UserError, match=rf"config\.{next(iter(key))}=.*classes"):
        ensemble.train(regression_config("gaussian", **key), data=waves)
