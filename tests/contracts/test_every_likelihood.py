"""The contract of likelihoods, over all that the registry has, with SciPy as a judge.

What all promise has `ensemble.testing`. A new likelihood of numbers has a line of `IMPLEMENTATIONS`
too.
"""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from small_runs import regression_config, sampling_config

import ensemble
from ensemble import registry
from ensemble.export import export
from ensemble.likelihoods import named
from ensemble.report.advantage import beaten
from ensemble.scoring.sections import values_in
from ensemble.testing.likelihoods import PROMISES, default_settings, likelihood_case

RNG = np.random.default_rng(0)
NUM_MEMBERS, NUM_TARGETS = 3, 12
REAL = (5 + 3 * RNG.normal(size=NUM_TARGETS)).astype(np.float32)
POSITIVE = np.exp(1 + 0.6 * RNG.normal(size=NUM_TARGETS)).astype(np.float32)
COUNTED = RNG.negative_binomial(2, 0.2, NUM_TARGETS).astype(np.float32)


class Mixture:
    """A mixture of Gaussians with the functions of SciPy's distributions."""

    def __init__(self, log_weight, loc, scale):
        self._weights, self._each = np.exp(log_weight), scipy.stats.norm(loc, scale)

    def pdf(self, y):
        return (self._weights * self._each.pdf(np.asarray(y)[..., None])).sum(axis=-1)

    def logpdf(self, y):
        return np.log(self.pdf(y))

    def cdf(self, y):
        return (self._weights * self._each.cdf(np.asarray(y)[..., None])).sum(axis=-1)

    def mean(self):
        return (self._weights * self._each.mean()).sum(axis=-1)

    def var(self):
        squares = self._each.var() + self._each.mean() ** 2
        return (self._weights * squares).sum(axis=-1) - self.mean() ** 2


def _negative_binomial(rate, dispersion):
    return scipy.stats.nbinom(1 / dispersion, 1 / (1 + rate * dispersion))


def _gaussian(loc, scale, epistemic_share=None):
    return scipy.stats.norm(loc, scale)


IMPLEMENTATIONS = {
    "gaussian": (REAL, _gaussian),
    "gaussian_shared": (REAL, _gaussian),
    "gaussian_split": (REAL, _gaussian),
    "student_t": (REAL, lambda loc, scale, df: scipy.stats.t(df, loc, scale)),
    "laplace": (REAL, scipy.stats.laplace),
    "mixture_of_gaussians": (REAL, Mixture),
    "log_normal": (POSITIVE, lambda loc, scale: scipy.stats.lognorm(scale, 0, np.exp(loc))),
    "poisson": (COUNTED, lambda rate: scipy.stats.poisson(rate)),
    "negative_binomial": (COUNTED, _negative_binomial),
}
"""Targets, and the distribution of the same parameters in SciPy."""
COUNTS = ("poisson", "negative_binomial")


@functools.cache
def case_of(name):
    """A likelihood of targets that it takes, as the kit has it."""
    return likelihood_case(name)


def marks(name, promise):
    """What takes long for some."""
    quick = ("categorical", "gaussian", "quantiles")
    if promise.name == "weights_count_as_members" and name not in quick:
        return [pytest.mark.check]
    slow = ("student_t", "poisson", "negative_binomial")
    is_soak = promise.name == "crps_and_quantiles_are_of_the_mixture" and name in slow
    return [pytest.mark.soak] if is_soak else []


@pytest.mark.parametrize(
    ("name", "promise"),
    [
        pytest.param(name, one, marks=marks(name, one), id=f"{name}-{one}")
        for name in registry.LIKELIHOODS
        for one in PROMISES
        if one.applies(case_of(name))
    ],
)
def test_it_keeps(name, promise):
    promise.keep(case_of(name))


@pytest.mark.check
@pytest.mark.parametrize("name", registry.LIKELIHOODS)
def test_a_constant_is_scored_on_each_example(name):
    likelihood, targets = case_of(name).likelihood, case_of(name).targets
    found = beaten(likelihood, targets, targets)
    assert found.terms.shape == found.losses.shape == targets.shape
    assert found.loss == pytest.approx(np.mean(found.losses), rel=1e-4)


def make(name):
    """A likelihood of numbers of its targets, with the default settings."""
    return named(name).of_data(IMPLEMENTATIONS[name][0], (), **default_settings(name))


def predicted(name):
    """A likelihood, and predictions [3, 12, ...] of three members, float32."""
    likelihood, rng = make(name), np.random.default_rng(1)
    shape = (NUM_MEMBERS, NUM_TARGETS, likelihood.num_outputs)
    outputs = jnp.asarray(rng.normal(size=shape), jnp.float32)
    params = jax.tree.map(lambda leaf: leaf + 0.3, likelihood.init(jax.random.key(0)))
    found = jax.jit(jax.vmap(likelihood.predict, in_axes=(None, 0)))(params, outputs)
    return likelihood, {key: np.asarray(one) for key, one in found.items()}


def judge(name, arrays):
    """The members' distributions [3, 12] as SciPy has them."""
    return IMPLEMENTATIONS[name][1](
        **{key: np.asarray(one, np.float64) for key, one in arrays.items()}
    )


def test_every_implementation_is_judged():
    kinds = {name: named(name) for name in registry.LIKELIHOODS}
    assert IMPLEMENTATIONS.keys() == {
        name for name, kind in kinds.items() if hasattr(kind, "log_density")
    }


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_densities_cdfs_and_moments_are_scipy_s_in_the_target_s_units(name):
    (likelihood, arrays), targets = predicted(name), IMPLEMENTATIONS[name][0].astype(np.float64)
    its = judge(name, arrays)
    log_density = getattr(its, "logpmf" if name in COUNTS else "logpdf")(targets)
    parts = {key: np.asarray(one, np.float64) for key, one in arrays.items()}
    near = {"rtol": 1e-9, "atol": 1e-9}  # As NumPy has them; the kit compares JAX with that.
    found = likelihood.log_density(parts, targets, np, scipy.special)
    np.testing.assert_allclose(found, log_density, **near)
    for at in (targets, targets - 0.4):  # Between counts.
        found = likelihood.cdf(parts, at, np, scipy.special)
        np.testing.assert_allclose(found, its.cdf(at), **near)
    np.testing.assert_allclose(likelihood.mean(parts, np), its.mean(), rtol=1e-9)
    np.testing.assert_allclose(likelihood.variance(parts, np), its.var(), rtol=2e-6)
    scaled = 100 * likelihood.variance(parts, np, 10.0)
    np.testing.assert_allclose(scaled, its.var(), rtol=5e-6)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_the_start_is_where_the_targets_are(name):
    likelihood, targets = make(name), np.asarray(IMPLEMENTATIONS[name][0], np.float64)
    params = likelihood.init(jax.random.key(0))
    parts = likelihood.predict(params, jnp.zeros((1, likelihood.num_outputs)))
    if name == "log_normal":
        assert float(parts["loc"][0]) == pytest.approx(np.log(targets).mean(), rel=1e-5)
        assert float(parts["scale"][0]) == pytest.approx(np.log(targets).std(), rel=1e-5)
        return
    assert float(likelihood.mean(parts, jnp)[0]) == pytest.approx(targets.mean(), rel=1e-4)
    ratio = float(likelihood.variance(parts, jnp)[0]) / targets.var()
    expected = {"laplace": 2, "student_t": 1.4, "poisson": targets.mean() / targets.var()}
    assert ratio == pytest.approx(expected.get(name, 1), rel=0.01)


# Whole runs.


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in IMPLEMENTATIONS if name != "gaussian_split"])
def test_every_likelihood_of_numbers_is_learned_loaded_exported_and_sampled(name, tmp_path):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2, 2, size=(300, 2)).astype(np.float32)
    targets = np.exp(1 + inputs[:, 0] + 0.2 * rng.normal(size=300))
    if name in COUNTS:
        targets = np.round(targets)
    data = {"inputs": inputs, "targets": targets}
    config = regression_config(name, num_epochs=60, eval_every_epochs=30)
    result = ensemble.train(config, data=data, workdir=str(tmp_path / "a"), show_progress=False)
    scores = values_in(result.report["test"])
    assert scores["rmse"] < 0.7 * targets.std()
    loaded, p = ensemble.load(tmp_path / "a"), result.predictor(inputs[:7])
    np.testing.assert_allclose(loaded(inputs[:7]).quantiles, p.quantiles, rtol=1e-4)
    exported = jax.export.deserialize(bytearray(export(loaded))).call(inputs[:7])
    np.testing.assert_allclose(exported["mean"], p.mean, rtol=1e-4)
    np.testing.assert_allclose(exported["quantiles"], p.quantiles, rtol=1e-2, atol=0.01)
    sampled = sampling_config(name, **{"sampler.num_warmup": 50, "sampler.num_samples": 50})
    report = ensemble.train(sampled, data, str(tmp_path / "b"), show_progress=False).report
    scores = values_in(report["test"])  # Of chains that are too short to be good.
    assert np.isfinite([scores["rmse"], scores["nll"]]).all()
    assert ensemble.load(tmp_path / "b")(inputs[:7]).mean.shape == (7,)
