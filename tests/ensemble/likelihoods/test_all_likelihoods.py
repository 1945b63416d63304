"""Likelihoods: what they learn, what targets they take, class weights and teachers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from run_parts import validated
from small_runs import regression_config, small_config

import ensemble
from ensemble import InputError, likelihoods
from ensemble.data import dataset_from_arrays
from ensemble.likelihoods import named
from ensemble.likelihoods.classes import Bernoulli, Categorical, Classes
from ensemble.likelihoods.numbers import (
    Gaussian,
    Numbers,
    SharedGaussian,
    StudentT,
    mean_and_spread,
)

TARGETS = np.array([1.0, 2.0, 4.0, 9.0], np.float32)
SPREAD = np.array([-1.0, 0.0, 1.0, 4.0])


# Targets.


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([1.0], "two or more different"),
        ([2.0, 2.0], "standard deviation 0"),
        (1e16 * SPREAD, "rescale"),
        (1e-18 * SPREAD, "rescale"),
        (1e6 + SPREAD, "subtract a constant"),
    ],
)
def test_numbers_that_float32_cannot_hold_are_refused(targets, message):
    with pytest.raises(InputError, match=message):
        mean_and_spread(np.asarray(targets))
    assert mean_and_spread(SPREAD) == (1.0, SPREAD.std())


@pytest.mark.parametrize(
    ("name", "target", "what"),
    [
        ("poisson", -1, "have -1"),
        ("poisson", 0.5, "0 to 16777216.*have 0.5"),
        ("negative_binomial", 2**24 + 2, "have 1.67772e"),
        ("log_normal", 0, "positive numbers.*have 0"),
    ],
)
def test_targets_of_another_kind_are_refused(name, target, what):
    with pytest.raises(InputError, match=what):
        named(name).from_data(np.array([1, 2, 3, target], np.float32), ())


def test_logarithms_may_differ_by_less_than_their_targets():
    prices = 1e6 * np.float32([0.99, 1.0, 1.01])
    assert named("log_normal").from_data(prices, ()).scale == pytest.approx(0.008165, rel=1e-3)


def test_classes_and_numbers_are_told_apart():
    for targets, names in ((np.zeros(3, np.float32), ["a", "b"]), (np.zeros(3, np.int32), [])):
        with pytest.raises(InputError, match="is for classes"):
            Categorical.from_data(targets, names)
    with pytest.raises(InputError, match=r"config\.likelihood='categorical'"):
        Gaussian.from_data(np.array([0, 1]), ("a", "b"))
    with pytest.raises(InputError, match="data have 3"):
        Bernoulli.from_data(np.array([0, 1, 2]), ("a", "b", "c"))


def test_several_targets_that_cannot_be_are_one_line():
    alike = np.stack([SPREAD, np.ones(4)], axis=1)
    with pytest.raises(InputError, match="standard deviation 0"):
        likelihoods.from_data("gaussian", alike, ())
    with pytest.raises(InputError, match=r"or \[N, D\]"):
        dataset_from_arrays({"inputs": alike, "targets": alike[:, None]})


class TwoOutputs(nn.Module):
    """As many outputs as one Gaussian needs, whatever is asked for."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x)


def test_more_targets_than_outputs_are_refused():
    targets = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    data = {"inputs": targets, "targets": targets}
    with pytest.raises(InputError, match=r"'gaussian'.*\(2, 6\)"):
        ensemble.train(small_config(model=TwoOutputs), data=data, show_progress=False)


@pytest.mark.parametrize("key", [{"label_smoothing": 0.1}, {"class_weights": "balanced"}])
def test_what_is_for_classes_is_refused_with_numbers(key):
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    with pytest.raises(InputError, match=rf"config\.{next(iter(key))}=.*classes"):
        ensemble.train(regression_config("gaussian", **key), data={"inputs": x, "targets": x[:, 0]})


@pytest.mark.parametrize("levels", ["0.1,0.9", "0,0.5", "0.5,1", "0.5,0.1", "0.5,nan", "half"])
def test_levels_are_within_0_and_1_with_the_median(levels):
    with pytest.raises(InputError, match=r"levels='.*'.*0.*1"):
        validated({"num_epochs": 1, "likelihood": "quantiles", "quantiles.levels": levels})


@pytest.mark.parametrize("method", ["hmc", "nuts", "mclmc"])
def test_samplers_refuse_what_has_no_density(method):
    with pytest.raises(InputError, match=rf"'quantiles'.*{method}"):
        validated({"method": method, "likelihood": "quantiles"})
    assert validated({"method": method, "likelihood": "auto"}).likelihood == "auto"


# Classes.


def test_class_weights_are_of_the_description_and_of_predictions_alone():
    plain, weighted = (Categorical("abc", weights) for weights in (None, [1, 4, 0.5]))
    again = Categorical.from_dict(weighted.to_dict())
    outputs = jnp.log(jnp.array([[0.2, 0.4, 0.4]]))
    labels = np.array([1])
    for one in (weighted, again):
        probs = np.exp(one.predict({}, outputs)["log_probs"])
        np.testing.assert_allclose(probs, [[0.2 / 1.1, 0.1 / 1.1, 0.8 / 1.1]], rtol=1e-6)
        assert one.log_prob({}, outputs, labels) == plain.log_prob({}, outputs, labels)


def test_smoothed_labels_and_teachers_are_cross_entropies():
    rng = np.random.default_rng(0)
    likelihood = Categorical("abcd")
    outputs = rng.normal(0, 3, (50, 4)).astype(np.float32)
    labels = rng.integers(0, 4, 50)
    log_probs = scipy.special.log_softmax(outputs, axis=-1)
    mixed = 0.7 * np.eye(4)[labels] + 0.3 / 4
    found = likelihood.smoothed_log_prob(outputs, labels, 0.3)
    np.testing.assert_allclose(found, (mixed * log_probs).sum(axis=-1), rtol=1e-5, atol=1e-6)
    taught = scipy.special.log_softmax(rng.normal(size=(1, 50, 4)), axis=-1)
    found = likelihood.expected_log_prob({}, outputs, Classes({"log_probs": jnp.asarray(taught)}))
    np.testing.assert_allclose(found, (np.exp(taught[0]) * log_probs).sum(axis=-1), rtol=1e-5)


def test_probabilities_are_float32_whatever_the_network_computes_in():
    half = jnp.array([[0.1, 3.0]], jnp.bfloat16)
    labels = np.array([1])
    found = Categorical("ab").log_prob({}, half, labels)
    assert found.dtype == jnp.float32
    assert found == Categorical("ab").log_prob({}, half.astype(jnp.float32), labels)


def test_one_logit_is_the_softmax_of_two():
    logits = jnp.array([[-2.0], [0.0], [90.0]])
    two = jnp.concatenate([0 * logits, logits], axis=-1)
    labels = jnp.array([0, 1, 1])
    found = Bernoulli("ab").log_prob({}, logits, labels)
    np.testing.assert_allclose(found, Categorical("ab").log_prob({}, two, labels), rtol=1e-6)


# Numbers.


def test_the_shared_noise_that_fits_best_is_the_residuals_deviation():
    likelihood = SharedGaussian.from_data(TARGETS, ())

    def total(raw):
        return likelihood.log_prob({"raw_scale": raw}, jnp.zeros((4, 1)), TARGETS).sum()

    # The start has the targets' own deviation, which is that of the residuals of a constant.
    assert float(jax.grad(total)(jnp.zeros(()))) == pytest.approx(0, abs=1e-5)
    assert float(jax.grad(total)(jnp.float32(1))) < 0 < float(jax.grad(total)(jnp.float32(-1)))


def test_a_student_of_a_mixture_learns_its_moments():
    likelihood = Gaussian.from_data(TARGETS, ())
    taught = Numbers({"loc": jnp.array([[2.0], [4.0]]), "scale": jnp.ones((2, 1))})

    def objective(outputs):
        return likelihood.expected_log_prob({}, outputs, taught)[0]

    outputs = jnp.array([[0.3, -0.4]])
    ascend = jax.jit(lambda outputs: outputs + 0.1 * jax.grad(objective)(outputs))
    for _ in range(300):
        outputs = ascend(outputs)
    found = likelihood.predict({}, outputs)
    assert float(found["loc"][0]) == pytest.approx(3.0, abs=1e-3)
    assert float(found["scale"][0] ** 2) == pytest.approx(2.0, abs=1e-3)


@pytest.mark.check
def test_the_degrees_of_freedom_go_with_the_tails():
    targets = np.random.default_rng(0).normal(size=500).astype(np.float32)
    likelihood = StudentT.from_data(targets, ())
    heavy = np.random.default_rng(1).standard_t(2.5, size=500).astype(np.float32)

    def slope(targets):
        def mean(raw):
            return likelihood.log_prob({"raw_df": raw}, jnp.zeros((500, 2)), targets).mean()

        return float(jax.grad(mean)(jnp.zeros(())))

    assert slope(targets) > 0 > slope(heavy)
    least = likelihood.predict({"raw_df": jnp.float32(-100)}, jnp.zeros((1, 2)))
    assert np.isfinite(likelihood.family(least).moments()[1]).all()


@pytest.mark.check
def test_quantiles_are_learned_and_never_cross():
    targets = (100 + 20 * np.random.default_rng(0).normal(size=30)).astype(np.float32)
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    likelihood = named("quantiles").from_data(targets, (), levels=levels)
    start = likelihood.predict({}, jnp.zeros((1, 5)))["quantile"][0]
    expected = scipy.stats.norm(targets.mean(), targets.std()).ppf(levels)
    np.testing.assert_allclose(start, expected, rtol=1e-5)
    wild = 1000 * np.random.default_rng(1).normal(size=(30, 5))
    assert (np.diff(likelihood.predict({}, jnp.asarray(wild))["quantile"], axis=-1) >= 0).all()

    def loss(outputs):
        return -likelihood.log_prob({}, jnp.broadcast_to(outputs, (30, 5)), targets).mean()

    descend = jax.jit(lambda outputs, size: outputs - size * jax.grad(loss)(outputs))
    outputs = jnp.zeros(5)
    for step in range(600):
        outputs = descend(outputs, 2 / (1 + 0.05 * step))
    found = likelihood.predict({}, outputs[None])["quantile"][0]
    shares = (targets[:, None] <= found + 0.5).mean(axis=0)
    np.testing.assert_allclose(shares, levels, atol=0.06)
