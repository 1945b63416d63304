"""Likelihoods: densities and CDFs against SciPy, slopes, mixtures, weights and descriptions."""

import functools
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from ensemble.config.build import keys_of
from ensemble.config.builtin import LIKELIHOODS
from ensemble.config.keys import fields_of
from ensemble.likelihoods import from_data, from_dict

NUM_ROWS = 12
_RNG = np.random.default_rng(0)
REAL = (5 + 3 * _RNG.normal(size=NUM_ROWS)).astype(np.float32)
POSITIVE = np.exp(1 + 0.6 * _RNG.normal(size=NUM_ROWS)).astype(np.float32)
COUNTS = _RNG.negative_binomial(2, 0.2, NUM_ROWS).astype(np.float32)
LABELS = np.arange(NUM_ROWS) % 2


def _mixture(log_weight, loc, scale):
    """A mixture of Gaussians with the functions of SciPy's distributions."""
    weights = np.exp(log_weight)
    each = scipy.stats.norm(loc, scale)

    def total(values):
        return (weights * values).sum(axis=-1)

    return types.SimpleNamespace(
        logpdf=lambda y: np.log(total(each.pdf(y[..., None]))),
        cdf=lambda y: total(each.cdf(y[..., None])),
        mean=lambda: total(each.mean()),
        var=lambda: total(each.var() + loc**2) - total(loc) ** 2,
    )


def _negative_binomial(rate, dispersion):
    return scipy.stats.nbinom(1 / dispersion, 1 / (1 + rate * dispersion))


NUMBERS = {
    "gaussian": (REAL, scipy.stats.norm),
    "gaussian_homoscedastic": (REAL, scipy.stats.norm),
    "student_t": (REAL, lambda loc, scale, df: scipy.stats.t(df, loc, scale)),
    "laplace": (REAL, scipy.stats.laplace),
    "mixture_of_gaussians": (REAL, _mixture),
    "log_normal": (POSITIVE, lambda loc, scale: scipy.stats.lognorm(scale, 0, np.exp(loc))),
    "poisson": (COUNTS, lambda rate: scipy.stats.poisson(rate)),
    "negative_binomial": (COUNTS, _negative_binomial),
}
"""Targets, and the distribution of the same parameters in SciPy."""
IS_COUNT = ("poisson", "negative_binomial")
OTHERS = {"categorical": (LABELS, "ab"), "bernoulli": (LABELS, "ab"), "quantiles": (REAL, ())}
ALL = (*NUMBERS, *OTHERS)
SLOW = ("student_t", *IS_COUNT)
"""Their functions take long to compile."""


def quick_of(names):
    return [pytest.param(one, marks=pytest.mark.check) if one in SLOW else one for one in names]


@functools.cache
def made(name):
    """A likelihood, its parameters, outputs [3, 12, K], what members predict, and targets."""
    targets, classes = OTHERS[name] if name in OTHERS else (NUMBERS[name][0], ())
    keys = fields_of(keys_of("likelihood", name))
    settings = {key: field.default for key, field in keys.items()}
    likelihood = from_data(name, targets, tuple(classes), **settings)
    params = jax.tree.map(lambda leaf: leaf + 0.1, likelihood.init(jax.random.key(0)))
    rng = np.random.default_rng(1)
    shape = (3, NUM_ROWS, likelihood.num_outputs)
    outputs = jnp.asarray(rng.normal(size=shape), jnp.float32)
    found = jax.jit(jax.vmap(likelihood.predict, in_axes=(None, 0)))(params, outputs)
    return (
        likelihood,
        params,
        outputs,
        {key: np.asarray(one) for key, one in found.items()},
        targets,
    )


def exact(arrays):
    return {key: np.asarray(one, np.float64) for key, one in arrays.items()}


def test_every_likelihood_is_here():
    assert set(ALL) == set(LIKELIHOODS.names)


@pytest.mark.parametrize("name", quick_of(NUMBERS))
def test_densities_cdfs_and_moments_are_those_of_scipy(name):
    likelihood, params, outputs, arrays, targets = made(name)
    family = likelihood.family
    its = NUMBERS[name][1](**exact(arrays))
    y = np.float64(targets)
    parts = exact(arrays)
    log_density = its.logpmf(y) if name in IS_COUNT else its.logpdf(y)
    np.testing.assert_allclose(family(parts).log_density(y), log_density, rtol=1e-9, atol=1e-9)
    learned = jax.vmap(likelihood.log_prob, in_axes=(None, 0, None))(params, outputs, targets)
    np.testing.assert_allclose(learned, log_density, rtol=1e-4, atol=1e-4)
    on_device = jax.tree.map(jnp.asarray, arrays)
    for at in (y, y - 0.4):  # Between counts.
        np.testing.assert_allclose(family(parts).cdf(at), its.cdf(at), rtol=1e-9, atol=1e-9)
        found = family(on_device).cdf(jnp.float32(at))
        np.testing.assert_allclose(found, its.cdf(at), rtol=3e-5, atol=3e-5)
    for given, rtol in ((parts, 2e-6), (on_device, 3e-5)):
        for found, expected in zip(family(given).moments(), (its.mean(), its.var()), strict=True):
            np.testing.assert_allclose(found, expected, rtol=rtol)


@pytest.mark.parametrize("name", ["categorical", "bernoulli"])
def test_probabilities_of_classes_sum_to_one(name):
    likelihood, params, outputs, arrays, labels = made(name)
    np.testing.assert_allclose(np.exp(exact(arrays)["log_probs"]).sum(axis=-1), 1, rtol=1e-6)
    found = likelihood.log_prob(params, outputs[0], labels)
    logits = np.float64(outputs[0])
    if name == "bernoulli":
        logits = np.concatenate([0 * logits, logits], axis=-1)
    expected = scipy.special.log_softmax(logits, axis=-1)[np.arange(NUM_ROWS), labels]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_quantiles_learn_the_pinball_loss():
    likelihood, params, outputs, arrays, y = made("quantiles")
    levels = np.array(likelihood.levels)
    missed = y[:, None] - arrays["quantile"][0]
    loss = np.maximum(levels * missed, (levels - 1) * missed).mean(axis=1)
    member = likelihood.predictive(arrays).members[0]
    np.testing.assert_allclose(member.scores(y)["pinball"], loss, rtol=1e-5)
    learned = -likelihood.log_prob(params, outputs[0], y)
    np.testing.assert_allclose(learned / loss, (learned / loss)[0], rtol=1e-4)
    assert (np.diff(arrays["quantile"], axis=-1) >= 0).all()


@pytest.mark.parametrize("name", quick_of(ALL))
def test_extreme_outputs_have_finite_probabilities_slopes_and_predictions(name):
    likelihood, _, _, _, targets = made(name)
    size = (NUM_ROWS, likelihood.num_outputs)
    outputs = jnp.asarray(np.random.default_rng(2).choice([-60.0, 0, 60.0], size), jnp.float32)

    def total(params, outputs):
        return likelihood.log_prob(params, outputs, targets).sum()

    params = likelihood.init(jax.random.key(0))
    found = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(params, outputs)
    predicted = jax.jit(likelihood.predict)(params, outputs)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((found, predicted)))
    assert "scale" not in predicted or (predicted["scale"] > 0).all()


@pytest.mark.parametrize("name", NUMBERS)
def test_quantiles_and_the_crps_are_of_the_mixture_of_members(name):
    likelihood, _, _, arrays, targets = made(name)
    p = likelihood.predictive(arrays)
    for level, values in zip(p.levels, p.quantiles().T, strict=True):
        reached = p.cdf(values)
        if name not in IS_COUNT:
            np.testing.assert_allclose(reached, level, atol=1e-6)
            continue
        assert (reached >= level - 1e-12).all()
        assert (p.cdf(values - 1) < level).all()
    grid = np.arange(3000.0) if name in IS_COUNT else 5 + 2 * np.sinh(np.linspace(-9, 9, 40_001))
    # A count's CDF is a step; a log normal's has no numbers below 0.
    at = np.maximum(grid, 1e-9) if name == "log_normal" else grid
    cdf = p.rows([0]).cdf(at[:, None])[:, 0]
    squares = (cdf - (grid >= targets[0])) ** 2
    expected = squares.sum() if name in IS_COUNT else np.trapezoid(squares, grid)
    np.testing.assert_allclose(p.crps(targets)[0], expected, rtol=5e-4)


@pytest.mark.check
@pytest.mark.parametrize("name", quick_of(ALL))
def test_a_member_of_twice_the_weight_counts_as_two_on_host_and_devices(name):
    likelihood, _, _, arrays, targets = made(name)
    four = likelihood.predictive({key: one[[0, 1, 2, 2]] for key, one in arrays.items()})
    expected = four.columns()
    weights = np.array([1, 1, 2]) / 4
    three = likelihood.predictive(arrays, weights=weights)
    loss = likelihood.loss
    np.testing.assert_allclose(three.scores(targets)[loss], four.scores(targets)[loss], rtol=1e-6)
    exported = jax.jit(lambda arrays: likelihood.predictive(arrays, None, weights).columns())
    on_device = exported(arrays)
    assert on_device.keys() == expected.keys() - {"class"}
    for key, one in three.columns().items():
        if key != "class":
            np.testing.assert_allclose(one, expected[key], rtol=2e-6, atol=1e-9)
            np.testing.assert_allclose(on_device[key], one, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", quick_of(ALL))
def test_a_member_that_failed_is_left_out_of_the_loss_on_devices(name):
    likelihood, _, _, arrays, targets = made(name)
    live = np.array([True, False, True])
    failed = {key: one.copy() for key, one in arrays.items()}
    for one in failed.values():
        one[1] = np.nan
    found = jax.jit(likelihood.scores)(failed, targets, live)[likelihood.loss]
    alive = likelihood.predictive({key: one[live] for key, one in arrays.items()})
    expected = alive.scores(targets)[likelihood.loss]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
    each = jax.jit(likelihood.each_score)(arrays, targets)[likelihood.loss]
    first = likelihood.predictive(arrays).members[0].scores(targets)[likelihood.loss]
    np.testing.assert_allclose(each[0], first, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ALL)
def test_a_description_makes_the_same_likelihood(name):
    likelihood, params, outputs, _, _ = made(name)
    again = from_dict(name, json.loads(json.dumps(likelihood.to_dict())))
    assert again.to_dict() == likelihood.to_dict()
    pair = (one.predict(params, outputs[0]) for one in (likelihood, again))
    jax.tree.map(np.testing.assert_array_equal, *pair)


@pytest.mark.parametrize("name", NUMBERS)
def test_training_starts_at_the_mean_and_spread_of_the_targets(name):
    likelihood, _, _, _, targets = made(name)
    start = likelihood.predict(
        likelihood.init(jax.random.key(0)), jnp.zeros((1, likelihood.num_outputs))
    )
    y = np.float64(targets)
    if name == "log_normal":
        found = (start["loc"], start["scale"] ** 2)
        y = np.log(y)
    else:
        found = likelihood.family(start).moments()
    ratios = {"laplace": 2, "student_t": 1.4, "poisson": y.mean() / y.var()}
    np.testing.assert_allclose(found[0], y.mean(), rtol=1e-4)
    np.testing.assert_allclose(found[1], y.var() * ratios.get(name, 1), rtol=0.01)
