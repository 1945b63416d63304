"""Quantiles: they do not cross, have no density, and are scored by the pinball loss."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from run_parts import ALONE, validated
from sklearn.metrics import mean_pinball_loss
from small_runs import regression_config

import ensemble
from ensemble import EnsembleRegressor, UserError
from ensemble.export import export
from ensemble.likelihoods.quantiles import QUANTILES, Quantiles
from ensemble.scoring.sections import member_terms, score_split, values_in, values_of

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
TARGETS = (100 + 20 * np.random.default_rng(0).normal(size=30)).astype(np.float32)


def make():
    return Quantiles.of_data(TARGETS, (), levels="0.05,0.25,0.5,0.75,0.95")


def predicted(size=1.0):
    """Quantiles [3, 30, 5] of three members."""
    outputs = size * np.random.default_rng(1).normal(size=(3, 30, 5))
    found = make().predict({}, jnp.asarray(outputs, jnp.float32))
    return {name: np.asarray(one) for name, one in found.items()}


def test_the_start_is_the_normal_distribution_of_the_targets():
    found = make().predict({}, jnp.zeros((1, 5)))[QUANTILES][0]
    np.testing.assert_allclose(
        found, scipy.stats.norm(TARGETS.mean(), TARGETS.std()).ppf(LEVELS), rtol=1e-5
    )


@pytest.mark.parametrize("size", [1, 1000])
def test_quantiles_never_cross(size):
    found = predicted(size)
    assert (np.diff(found[QUANTILES], axis=-1) >= 0).all()
    make().check_predictions(found, TARGETS)


def test_scores_are_scikit_learn_s_and_the_mean_member_is_never_better():
    likelihood, arrays = make(), predicted()
    section = score_split(likelihood.view(arrays, TARGETS))
    mean = arrays[QUANTILES].mean(axis=0)
    expected = np.mean(
        [mean_pinball_loss(TARGETS, mean[:, j], alpha=level) for j, level in enumerate(LEVELS)]
    )
    assert section["scores"]["pinball"]["value"] == pytest.approx(expected, rel=1e-5)
    assert section["scores"]["pinball"]["value"] < np.mean(section["scores"]["pinball"]["members"])
    np.testing.assert_allclose(
        member_terms(likelihood.view(arrays, TARGETS), likelihood.loss).mean(axis=1),
        section["scores"]["pinball"]["members"],
        rtol=1e-6,
    )
    held = (mean[:, 0] <= TARGETS) & (mean[:, 4] >= TARGETS)
    assert section["scores"]["coverage_90"]["value"] == held.mean()
    assert {"width_50", "interval_score_90"} <= values_in(section).keys()
    live = jnp.array([True, False, True])
    found = likelihood.mixture_scores(arrays, TARGETS, live, ALONE)
    kept = {QUANTILES: arrays[QUANTILES][[0, 2]]}
    scores = values_of(likelihood.view(kept, TARGETS))
    assert float(found["pinball"].mean()) == pytest.approx(scores["pinball"], rel=1e-4)
    assert float(found["absolute_error"].mean()) == pytest.approx(scores["mae"], rel=1e-4)
    one = likelihood.example_scores(arrays, TARGETS)
    np.testing.assert_allclose(
        one["pinball"].mean(axis=1), section["scores"]["pinball"]["members"], rtol=1e-4
    )


def test_what_is_maximised_is_largest_at_the_quantiles_of_the_targets():
    likelihood = make()

    def loss(outputs):
        repeated = jnp.broadcast_to(outputs, (len(TARGETS), 5))
        return -likelihood.log_prob({}, repeated, TARGETS).mean()

    descend = jax.jit(lambda outputs, size: outputs - size * jax.grad(loss)(outputs))
    outputs = jnp.zeros(5)
    for step in range(600):
        outputs = descend(outputs, 2 / (1 + 0.05 * step))
    found = likelihood.predict({}, outputs[None])[QUANTILES][0]
    shares = (TARGETS[:, None] <= found + 0.5).mean(axis=0)
    np.testing.assert_allclose(shares, LEVELS, atol=0.06)


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"loc": np.zeros((1, 4))}, "not a quantile"),
        ({QUANTILES: np.zeros((1, 4, 4))}, r"\[M, N, Q\]"),
        ({QUANTILES: np.zeros((1, 4, 5), int)}, "floating"),
        ({QUANTILES: -np.ones((1, 4, 5)).cumsum(axis=2)}, "ascend"),
        ({QUANTILES: np.full((1, 4, 5), np.nan)}, "finite"),
    ],
)
def test_forged_predictions_are_refused(arrays, what):
    with pytest.raises(ValueError, match=what):
        make().check_predictions(arrays, TARGETS[:4])


def test_a_description_makes_the_same_likelihood_and_forged_levels_are_refused():
    likelihood = make()
    assert vars(Quantiles.described(likelihood.describe())) == vars(likelihood)
    for levels in ([0.5], [0.1, 0.9], [0.5, 0.1], ["0.1", 0.5], "0.1,0.5", [0.5, 1.0]):
        with pytest.raises(ValueError, match=r"dataset\.levels"):
            Quantiles.described({**likelihood.describe(), "levels": levels})


@pytest.mark.parametrize("levels", ["0.1,0.9", "0,0.5", "0.5,1", "0.5,0.1", "0.5,nan", "half"])
def test_levels_are_within_0_and_1_with_the_median(levels):
    with pytest.raises(UserError, match=r"levels='.*'.*0.*1"):
        validated({"num_epochs": 1, "likelihood": "quantiles", "quantiles.levels": levels})


@pytest.mark.parametrize("method", ["hmc", "nuts", "mclmc"])
def test_samplers_refuse_what_has_no_density(method):
    with pytest.raises(UserError, match=rf"'quantiles'.*{method}"):
        validated({"method": method, "likelihood": "quantiles"})
    assert validated({"method": method, "likelihood": "auto"}).likelihood == "auto"


@pytest.mark.soak
def test_quantiles_are_learned_scored_loaded_and_exported(tmp_path):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2, 2, size=(300, 2)).astype(np.float32)
    targets = inputs[:, 0] + 0.3 * np.exp(inputs[:, 0]) * rng.normal(size=300)
    data = {"inputs": inputs, "targets": targets}
    config = regression_config("quantiles", num_epochs=40, eval_every_epochs=20)
    result = ensemble.train(config, data=data, workdir=str(tmp_path), show_progress=False)
    test = result.report["test"]
    assert test["scores"]["mae"]["value"] < 0.7 * np.abs(targets - np.median(targets)).mean()
    assert {path.name for path in (tmp_path / "plots").iterdir()} >= {
        "calibration.png",
        "members.png",
        "predictions.png",
        "training.png",
    }
    loaded, p = ensemble.load(tmp_path), result.predictor(inputs[:7])
    np.testing.assert_allclose(loaded(inputs[:7]).quantiles, p.quantiles, rtol=1e-4)
    exported = jax.export.deserialize(bytearray(export(loaded))).call(inputs[:7])
    np.testing.assert_allclose(exported["quantiles"], p.quantiles, rtol=1e-4, atol=1e-4)
    assert "97.5%" in repr(p)
    with pytest.raises(UserError, match="learned quantiles"):
        ensemble.distill(str(tmp_path), config={"likelihood": "gaussian"}, data=data)
    regressor = EnsembleRegressor(
        ensemble_size=2,
        num_epochs=2,
        likelihood="quantiles",
        config={"quantiles.levels": "0.1,0.5"},
    ).fit(inputs, targets)
    found = regressor.predict_uncertainty(inputs[:5])
    np.testing.assert_array_equal(regressor.predict(inputs[:5]), found.median)
    assert found.quantiles.shape == (5, 2)
