"""The contract of likelihoods, over all that the registry has, with SciPy as a judge.

A new likelihood is judged by its sums here, and one of numbers by a line of `IMPLEMENTATIONS` too.
"""

import json

import jax
import jax.export
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import pytest
import scipy.special
import scipy.stats
from small_runs import regression_config, sampling_config

import ensemble
from ensemble import UserError, registry
from ensemble.config import likelihood_block
from ensemble.export import export
from ensemble.likelihoods import described, named, of_data
from ensemble.likelihoods.number_prediction import LEVELS
from ensemble.likelihoods.parametric import MIN_SCALE
from ensemble.report.advantage import beaten
from ensemble.scoring.sections import member_terms, score_split, terms_of, values_in, values_of

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


SLOW = pytest.mark.check
LABELS = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1])
KINDS = {
    "real": (REAL, ()),
    "positive": (POSITIVE, ()),
    "count": (COUNTED, ()),
    "label": (LABELS, ("a", "b")),
}
"""Targets of each kind and their classes, the most general kind of numbers first."""


def settings_of(name):
    """The default settings of a likelihood."""
    keys = likelihood_block(name).keys.items()
    return {key.removeprefix(f"{name}."): one.default for key, one in keys}


def kind_of(name):
    """The first kind of targets that a likelihood takes."""
    for kind, (targets, classes) in KINDS.items():
        try:
            of_data(name, targets, classes, **settings_of(name))
        except UserError:
            continue
        return kind
    raise AssertionError(f"{name} takes no targets of {', '.join(KINDS)}")


def outputs_of(name, num_examples=NUM_TARGETS):
    """A likelihood of the targets it takes, parameters, and outputs [N, K] of a network."""
    likelihood = of_data(name, *KINDS[kind_of(name)], **settings_of(name))
    params = jax.tree.map(lambda leaf: leaf + 0.1, likelihood.init(jax.random.key(0)))
    outputs = np.random.default_rng(3).normal(size=(num_examples, likelihood.num_outputs))
    return likelihood, params, jnp.asarray(outputs, jnp.float32)


def support(kind):
    """Every target of a kind, or a fine grid of them, and the length that each stands for."""
    if kind == "label":
        return np.arange(2), np.ones(2)
    if kind == "count":
        return np.arange(5000.0), np.ones(5000)
    at = np.linspace(-25, 25, 20_001)
    if kind == "positive":
        return np.exp(at), np.exp(at) * (at[1] - at[0])
    at = np.linspace(-12, 12, 20_001)
    return 5 + np.sinh(at), np.cosh(at) * (at[1] - at[0])


DENSITIES = [name for name in registry.LIKELIHOODS if named(name).has_density]


@pytest.mark.parametrize("name", DENSITIES)
def test_the_probability_of_all_targets_is_one(name):
    likelihood, params, outputs = outputs_of(name, 4)
    targets, lengths = support(kind_of(name))
    if kind_of(name) != "label":
        targets = targets.astype(np.float32)
    one = jax.vmap(likelihood.log_prob, in_axes=(None, None, 0))
    log_probs = jax.jit(one)(params, outputs, np.broadcast_to(targets[:, None], (len(targets), 4)))
    total = np.exp(np.asarray(log_probs, np.float64)).T @ lengths
    np.testing.assert_allclose(total, 1, rtol=2e-3)


@pytest.mark.parametrize("name", registry.LIKELIHOODS)
def test_predictions_and_scores_have_a_row_for_each_example(name):
    likelihood, params, outputs = outputs_of(name)
    targets = KINDS[kind_of(name)][0]
    assert likelihood.log_prob(params, outputs, targets).shape == (NUM_TARGETS,)
    predicted = likelihood.predict(params, outputs)
    assert {len(one) for one in predicted.values()} == {NUM_TARGETS}
    arrays = {key: np.stack([one, one]) for key, one in predicted.items()}
    likelihood.check_predictions(arrays, targets)
    scores = score_split(likelihood.view(arrays, targets))
    assert values_in(scores, "members").keys() >= set(likelihood.columns) - {"crps"}
    assert {len(one) for one in values_in(scores, "members").values()} == {2}
    view = likelihood.view(arrays, targets)
    losses = terms_of(view, likelihood.loss)
    assert losses.shape == (NUM_TARGETS,)
    assert member_terms(view, likelihood.headline[0]).shape == (2, NUM_TARGETS)
    assert np.mean(losses) == pytest.approx(values_in(scores)[likelihood.loss], rel=1e-4)
    prediction = likelihood.prediction(arrays, None)
    assert len(likelihood.uncertainty(prediction)) == NUM_TARGETS
    json.dumps(likelihood.entry(prediction, 0))
    columns = likelihood.as_columns(prediction)
    assert {one.shape for one in columns.values()} == {(NUM_TARGETS,)}
    json.dumps({key: one.tolist() for key, one in columns.items()}, allow_nan=False)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("categorical", "gaussian", "quantiles") else SLOW)
        for name in registry.LIKELIHOODS
    ],
)
def test_a_member_of_twice_the_weight_counts_as_two(name):
    likelihood, params, _ = outputs_of(name)
    shape = (3, NUM_TARGETS, likelihood.num_outputs)
    outputs = jnp.asarray(np.random.default_rng(4).normal(size=shape), jnp.float32)
    each = [likelihood.predict(params, one) for one in outputs]
    arrays = {key: np.stack([one[key] for one in each]) for key in each[0]}
    twice = {key: one[[0, 1, 2, 2]] for key, one in arrays.items()}
    weights = np.array([1, 1, 2]) / 4
    targets = KINDS[kind_of(name)][0]
    weighted = likelihood.view(arrays, targets, weights=weights)
    losses = terms_of(likelihood.view(twice, targets), likelihood.loss)
    np.testing.assert_allclose(terms_of(weighted, likelihood.loss), losses, rtol=1e-6)

    def compare(found, expected):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)

    pair = (
        likelihood.prediction(arrays, None, weights=weights),
        likelihood.prediction(twice, None),
    )
    for field, found in pair[0]._asdict().items():
        if isinstance(found, np.ndarray) and not field.startswith("member"):
            compare(found, getattr(pair[1], field))
    exported_of = jax.jit(lambda said, weights: likelihood.exported(said, None, weights=weights))
    exported = exported_of(arrays, jnp.asarray(weights, jnp.float32))
    for key, expected in exported_of(twice, None).items():
        if not key.startswith("member"):
            compare(exported[key], expected)
            compare(exported[key], getattr(pair[0], key, expected))


@pytest.mark.check
@pytest.mark.parametrize("name", registry.LIKELIHOODS)
def test_a_constant_is_scored_on_each_example(name):
    likelihood, targets = outputs_of(name)[0], KINDS[kind_of(name)][0]
    found = beaten(likelihood, targets, targets)
    assert found.terms.shape == found.losses.shape == (NUM_TARGETS,)
    assert found.loss == pytest.approx(np.mean(found.losses), rel=1e-4)


@pytest.mark.parametrize("name", DENSITIES)
def test_the_loss_is_what_the_network_learns(name):
    likelihood, params, outputs = outputs_of(name)
    targets = KINDS[kind_of(name)][0]
    arrays = {
        key: np.asarray(one)[None] for key, one in likelihood.predict(params, outputs).items()
    }
    learned = -float(likelihood.log_prob(params, outputs, targets).mean())
    assert float(
        member_terms(likelihood.view(arrays, targets), likelihood.loss).mean(axis=1)[0]
    ) == pytest.approx(learned, rel=1e-4)
    found = values_of(likelihood.view(arrays, targets))["nll"]
    assert found == pytest.approx(learned, rel=1e-4)


@pytest.mark.parametrize("name", registry.LIKELIHOODS)
def test_what_a_workdir_keeps_makes_the_same_likelihood(name):
    likelihood, params, outputs = outputs_of(name)
    again = described(name, json.loads(json.dumps(likelihood.describe())))
    jax.tree.map(
        np.testing.assert_array_equal,
        likelihood.predict(params, outputs),
        again.predict(params, outputs),
    )


def make(name):
    """A likelihood of numbers of its targets, with the default settings."""
    return named(name).of_data(IMPLEMENTATIONS[name][0], (), **settings_of(name))


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
    on_host = {key: np.asarray(one, np.float64) for key, one in arrays.items()}

    def all_of(parts, targets, xp, special):
        return {
            "log_density": likelihood.log_density(parts, targets, xp, special),
            "cdf": likelihood.cdf(parts, targets, xp, special),
            "between": likelihood.cdf(parts, targets - 0.4, xp, special),  # Of counts.
            "mean": likelihood.mean(parts, xp),
            "variance": likelihood.variance(parts, xp),
            "scaled": likelihood.variance(parts, xp, 10.0),
        }

    on_devices = jax.jit(lambda parts, targets: all_of(parts, targets, jnp, jax.scipy.special))
    for found, tolerance in (
        (all_of(on_host, targets, np, scipy.special), 1e-9),
        (on_devices(arrays, np.float32(targets)), 3e-5),
    ):
        near = {"rtol": tolerance, "atol": tolerance}
        np.testing.assert_allclose(found["log_density"], log_density, **near)
        np.testing.assert_allclose(found["cdf"], its.cdf(targets), **near)
        np.testing.assert_allclose(found["between"], its.cdf(targets - 0.4), **near)
        np.testing.assert_allclose(found["mean"], its.mean(), rtol=tolerance)
        np.testing.assert_allclose(found["variance"], its.var(), rtol=max(tolerance, 2e-6))
        np.testing.assert_allclose(100 * found["scaled"], its.var(), rtol=max(tolerance, 5e-6))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak)
        if name in ("student_t", "poisson", "negative_binomial")
        else name
        for name in IMPLEMENTATIONS
    ],
)
def test_crps_and_quantiles_are_those_of_the_mixture(name):
    (likelihood, arrays), targets = predicted(name), IMPLEMENTATIONS[name][0]
    its, mixture = judge(name, arrays), likelihood.distribution(arrays)
    if name in COUNTS:
        points, width = np.arange(0, 400.0), 1.0
    else:
        points = np.linspace(1e-6 if name == "log_normal" else -150, 160, 100_001)
        width = points[1] - points[0]
    at_points = IMPLEMENTATIONS[name][1](
        **{key: one[:, :1].astype(np.float64) for key, one in arrays.items()}
    )
    cdf = at_points.cdf(points).mean(axis=0)
    quadrature = width * np.sum((cdf - (points >= targets[0])) ** 2)
    tolerance = 1e-6 if name in COUNTS else 5e-3
    assert mixture.crps(targets)[0] == pytest.approx(quadrature, rel=tolerance)
    exported = jax.jit(likelihood.exported)(arrays, None)
    found = likelihood.prediction(arrays, None)
    for level, values in zip(LEVELS, found.quantiles.T, strict=True):
        at_value = its.cdf(values).mean(axis=0)
        if name in COUNTS:
            assert (at_value >= level - 1e-12).all()
            assert (its.cdf(values - 1).mean(axis=0) < level).all()
            assert (values == np.floor(values)).all()
        else:
            np.testing.assert_allclose(at_value, level, atol=1e-6)
    shared = ("mean", "standard_deviation", "aleatoric", "epistemic", "quantiles")
    for key in shared:
        np.testing.assert_allclose(exported[key], getattr(found, key), rtol=1e-3, atol=2e-3)
    assert found.first(5).quantiles.shape == (5, len(LEVELS))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_gradients_are_finite_far_from_the_targets_and_scales_stay_positive(name):
    likelihood, targets = make(name), IMPLEMENTATIONS[name][0]
    rng = np.random.default_rng(2)
    outputs = rng.choice([-60.0, 0, 60.0], (NUM_TARGETS, likelihood.num_outputs))
    outputs = jnp.asarray(outputs, jnp.float32)
    params = likelihood.init(jax.random.key(0))

    def total(params, outputs):
        return likelihood.log_prob(params, outputs, targets).sum()

    @jax.jit
    def all_of(params, outputs):
        parts = likelihood.predict(params, outputs)
        variance = likelihood.variance(parts, jnp, likelihood.units[1])
        of_total = jax.value_and_grad(total, argnums=(0, 1))(params, outputs)
        return of_total, parts, variance

    of_total, parts, variance = all_of(params, outputs)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(of_total))
    likelihood.check_predictions({key: np.asarray(one)[None] for key, one in parts.items()})
    assert np.isfinite(variance).all()
    scale = parts["scale"] / likelihood.scale if "scale" in parts else np.sqrt(variance)
    assert (scale > 0.99 * MIN_SCALE).all()


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
