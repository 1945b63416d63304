"""Likelihoods of a number: densities, mixtures, chains, and what is kept of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from run_parts import ALONE

from ensemble import UserError
from ensemble.likelihoods import named
from ensemble.likelihoods.parametric import MIN_SCALE, positive
from ensemble.scoring.sections import member_terms, score_split

NAMES = ["gaussian_shared", "student_t"]  # `test_parametric.py` has all of them.
RNG = np.random.default_rng(0)
TARGETS = (5 + 3 * RNG.normal(size=40)).astype(np.float32)


def make(name):
    """A likelihood, its parameters, and outputs [3, 40, K] of three members."""
    likelihood = named(name).of_data(TARGETS, ())
    outputs = jnp.asarray(RNG.normal(size=(3, 40, likelihood.num_outputs)), jnp.float32)
    params = jax.tree.map(lambda leaf: leaf + 0.3, likelihood.init(jax.random.key(0)))
    return likelihood, params, outputs


def predicted(name):
    """A likelihood and predictions of three members as arrays on the host."""
    likelihood, params, outputs = make(name)
    found = jax.vmap(likelihood.predict, in_axes=(None, 0))(params, outputs)
    return likelihood, {key: np.asarray(one) for key, one in found.items()}


def scipys(arrays):
    """The members' distributions [3, 40] as SciPy has them."""
    arrays = {key: np.asarray(one, np.float64) for key, one in arrays.items()}
    if "df" in arrays:
        return scipy.stats.t(arrays["df"], arrays["loc"], arrays["scale"])
    return scipy.stats.norm(arrays["loc"], arrays["scale"])


@pytest.mark.parametrize("name", NAMES)
def test_densities_are_scipy_s_in_the_target_s_units(name):
    likelihood, params, outputs = make(name)
    _, arrays = (
        likelihood,
        {
            key: np.asarray(one)
            for key, one in jax.vmap(likelihood.predict, in_axes=(None, 0))(params, outputs).items()
        },
    )
    found = jax.vmap(likelihood.log_prob, in_axes=(None, 0, None))(params, outputs, TARGETS)
    np.testing.assert_allclose(found, scipys(arrays).logpdf(TARGETS), rtol=2e-5, atol=2e-5)
    nll = member_terms(likelihood.view(arrays, TARGETS), likelihood.loss).mean(axis=1)
    np.testing.assert_allclose(nll, -np.asarray(found).mean(axis=1), rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_start_is_the_targets_own_mean_and_deviation(name):
    likelihood = named(name).of_data(TARGETS, ())
    params = likelihood.init(jax.random.key(0))
    parts = likelihood.predict(params, jnp.zeros((1, likelihood.num_outputs)))
    np.testing.assert_allclose(parts["loc"], TARGETS.mean(), rtol=1e-5)
    np.testing.assert_allclose(parts["scale"], TARGETS.std(), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_mixture_of_live_members_is_scored(name):
    likelihood, arrays = predicted(name)
    live = jnp.array([True, False, True])
    found = likelihood.mixture_scores(arrays, TARGETS, live, ALONE)
    kept = {key: one[[0, 2]] for key, one in arrays.items()}
    density = scipys(kept).pdf(TARGETS).mean(axis=0)
    np.testing.assert_allclose(found["nll"], -np.log(density), rtol=1e-3, atol=1e-4)
    error = (kept["loc"].mean(axis=0) - TARGETS) ** 2
    np.testing.assert_allclose(found["squared_error"], error, rtol=1e-4)
    section = score_split(likelihood.view(kept, TARGETS))
    assert section["scores"]["nll"]["value"] == pytest.approx(float(found["nll"].mean()), rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_description_makes_the_same_likelihood(name):
    likelihood = named(name).of_data(TARGETS, ())
    again = named(name).described(likelihood.describe())
    assert vars(again) == vars(likelihood)


@pytest.mark.parametrize(
    "change",
    [
        {"target_scale": 0.0},
        {"target_scale": "1"},
        {"target_shift": 1e300},
        {"target_low": 3.0, "target_high": 3.0},
        {"target_high": True},
    ],
)
def test_a_forged_description_is_refused(change):
    description = named("gaussian").of_data(TARGETS, ()).describe()
    with pytest.raises(ValueError, match="target_"):
        named("gaussian").described(description | change)


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"loc": np.zeros((2, 4))}, "not a distribution"),
        ({"loc": np.zeros((2, 4)), "scale": np.zeros((2, 4))}, "positive"),
        ({"loc": np.full((2, 4), np.nan), "scale": np.ones((2, 4))}, "finite"),
        ({"loc": np.zeros((2, 4, 1)), "scale": np.ones((2, 4))}, r"\[E, N\]"),
        ({"loc": np.zeros((2, 4), int), "scale": np.ones((2, 4))}, "floating"),
    ],
)
def test_forged_predictions_are_refused(arrays, what):
    likelihood = named("gaussian").of_data(TARGETS, ())
    with pytest.raises(ValueError, match=what):
        likelihood.check_predictions(arrays, TARGETS[:4])


def test_classes_and_constants_are_no_targets():
    with pytest.raises(UserError, match=r"config\.likelihood='categorical'"):
        named("gaussian").of_data(np.array([0, 1]), ("a", "b"))
    with pytest.raises(UserError, match="standard deviation 0"):
        named("gaussian").of_data(np.ones(5), ())


def test_scales_are_bounded_away_from_zero():
    assert float(positive(jnp.float32(-100))) == pytest.approx(MIN_SCALE)
    assert float(positive(jnp.float32(0))) == pytest.approx(1)
