"""What ensembles predict: members, temperatures, abstention, counts in float32, several targets."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from sklearn.metrics import mean_pinball_loss

from ensemble import InputError
from ensemble.likelihoods import families, from_data, from_dict
from ensemble.likelihoods.classes import Categorical, Classes, entropy
from ensemble.likelihoods.counts import Counts
from ensemble.likelihoods.numbers import Numbers
from ensemble.likelihoods.quantiles import Quantiles

NAMES = ("cat", "dog", "newt")
NUM = 60
LABELS = np.random.default_rng(0).integers(0, 3, NUM)
TARGETS = np.random.default_rng(0).normal([0, 50, -3], [1, 20, 0.1], (30, 3)).astype(np.float32)


def log_probs(num_members=4, scale=3.0):
    logits = np.random.default_rng(1).normal(0, scale, (num_members, NUM, 3))
    return scipy.special.log_softmax(logits + 3 * np.eye(3)[LABELS], axis=-1).astype(np.float32)


def classes(**fields):
    return Classes({"log_probs": log_probs()}, class_names=NAMES, **fields)


def numbers(num_members=5, family=families.Normal, **fields):
    rng = np.random.default_rng(2)
    arrays = {"loc": rng.normal(10, 3, (num_members, NUM))}
    arrays["scale"] = rng.uniform(1, 4, (num_members, NUM))
    return Numbers(arrays, family=family, **fields)


# Members.


def test_probabilities_are_the_mean_of_the_members():
    p = classes()
    mean = np.exp(log_probs().astype(np.float64)).mean(axis=0)
    np.testing.assert_allclose(p.probs, mean, rtol=1e-9)
    np.testing.assert_allclose(np.exp(p.log_prob(LABELS)), mean[np.arange(NUM), LABELS], rtol=1e-9)
    np.testing.assert_array_equal(p.labels, mean.argmax(axis=1))
    np.testing.assert_array_equal(p.label_names, np.array(NAMES)[mean.argmax(axis=1)])
    np.testing.assert_array_equal(p.votes, log_probs().argmax(axis=2))
    each = -(np.exp(log_probs()) * log_probs()).sum(axis=2)
    np.testing.assert_allclose(p.aleatoric_uncertainty, each.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(p.total_uncertainty, scipy.stats.entropy(mean, axis=1), rtol=1e-7)
    parts = p.aleatoric_uncertainty + p.epistemic_uncertainty
    np.testing.assert_allclose(parts, p.total_uncertainty, atol=1e-12)
    np.testing.assert_allclose(p.doubt(), 1 - mean.max(axis=1), atol=1e-12)


def test_samples_of_a_member_share_its_weight():
    p = classes(member_of=np.array([0, 0, 0, 1]), weights=np.array([0.25, 0.75]))
    np.testing.assert_allclose(p.shares, [1 / 12, 1 / 12, 1 / 12, 3 / 4])
    probs = np.exp(log_probs().astype(np.float64))
    first, second = p.members
    np.testing.assert_allclose(first.probs, probs[:3].mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(p.probs, 0.25 * first.probs + 0.75 * second.probs, rtol=1e-9)
    assert p.of([1]).shape == (1, NUM)
    np.testing.assert_array_equal(p.votes, [first.labels, second.labels])


def test_rows_and_pieces_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr("ensemble.likelihoods.predictive._PIECE", 100)
    p = numbers().abstaining(0.9)
    monkeypatch.undo()
    some = numbers().abstaining(0.9).rows(slice(7, 20))
    np.testing.assert_allclose(p.quantiles()[7:20], some.quantiles(), rtol=1e-9)
    np.testing.assert_allclose(p.crps(np.arange(NUM))[7:20], some.crps(np.arange(7, 20)))
    np.testing.assert_array_equal(p.accepted[7:20], some.accepted)


def test_what_is_impossible_by_all_members_stays_so():
    with np.errstate(divide="ignore"):
        logs = np.log(np.array([[[0.5, 0.5, 0.0]], [[0.2, 0.8, 0.0]]]))
    p = Classes({"log_probs": logs})
    np.testing.assert_allclose(p.probs, [[0.35, 0.65, 0]])
    np.testing.assert_allclose(entropy(logs)[0, 0], np.log(2))
    assert np.isfinite(p.total_uncertainty).all()


def test_draws_are_pooled_to_their_mean_and_mean_entropy():
    likelihood = Categorical(NAMES)
    found, counts = likelihood.pooled({"log_probs": log_probs()[None]}, np.ones(4, int))
    assert counts.tolist() == [4]
    pooled = Classes({name: one[:, 0] for name, one in found.items()})
    for name, values in classes().uncertainty.items():
        np.testing.assert_allclose(pooled.uncertainty[name], values, rtol=1e-6, atol=1e-9)


# Calibration and abstention.


def test_a_temperature_changes_the_mean_and_leaves_members_and_uncertainty():
    p = classes()
    hot = classes().scaled(2).scaled(1.5)
    expected = scipy.special.softmax(p.log_probs / 3, axis=1)
    np.testing.assert_allclose(hot.probs, expected, rtol=1e-9)
    np.testing.assert_array_equal(hot.labels, p.labels)
    np.testing.assert_array_equal(hot.total_uncertainty, p.total_uncertainty)
    np.testing.assert_array_equal(hot.members[0].mixture, p.members[0].mixture)
    np.testing.assert_allclose(hot.rows([3]).probs, expected[[3]], rtol=1e-9)


def test_numbers_are_wider_about_their_mean():
    p = numbers()
    wide = p.scaled(2)
    np.testing.assert_allclose(wide.mean, p.mean)
    np.testing.assert_allclose(wide.std, 2 * p.std)
    away = p.quantiles() - p.mean[:, None]
    np.testing.assert_allclose(wide.quantiles() - p.mean[:, None], 2 * away, rtol=1e-6)


@pytest.mark.parametrize("p", [classes(), numbers()])
def test_it_abstains_where_it_doubts(p):
    assert p.accepted.all()
    assert "accepted" not in p.columns()
    threshold = np.median(p.doubt())
    some = p.abstaining(threshold)
    np.testing.assert_array_equal(some.accepted, p.doubt() < threshold)
    np.testing.assert_array_equal(some.columns()["accepted"], some.flat_columns()["accepted"])


# Numbers.


@pytest.mark.parametrize("family", [families.Normal, families.LaplaceNoise])
def test_the_crps_of_many_samples_is_an_integral(family):
    targets = np.random.default_rng(3).normal(10, 4, NUM)
    p = numbers(150, family, weights=np.random.default_rng(4).dirichlet(np.ones(150)))
    rng = np.random.default_rng(5)
    member = rng.choice(150, (40_000, 1), p=p.shares)
    draw = rng.normal if family is families.Normal else rng.laplace
    rows = np.arange(NUM)
    draws = draw(p.arrays["loc"][member, rows], p.arrays["scale"][member, rows])
    halves = np.abs(draws[:20_000] - draws[20_000:]).mean(axis=0) / 2
    simulated = np.abs(draws - targets).mean(axis=0) - halves
    np.testing.assert_allclose(p.crps(targets), simulated, rtol=0.03, atol=0.03)
    if family is families.Normal:
        part = p.of(np.arange(100))
        np.testing.assert_allclose(part._integral(targets), part.crps(targets), rtol=1e-4)


@pytest.mark.parametrize("on_device", [False, True])
def test_the_median_between_two_far_modes_is_the_middle(on_device):
    arrays = {"loc": np.array([[0.0], [100.0]]), "scale": np.ones((2, 1))}
    if on_device:
        arrays = jax.tree.map(jnp.float32, arrays)
    np.testing.assert_allclose(Numbers(arrays).quantiles([0.5]), [[50.0]], atol=0.2)


def test_flat_columns_name_classes_and_levels():
    assert list(classes().flat_columns())[:3] == ["label", "class", "prob_cat"]
    columns = numbers().flat_columns()
    assert {"mean", "aleatoric_std", "quantile_0.05"} <= columns.keys()
    assert {one.shape for one in columns.values()} == {(NUM,)}


# Counts.


@pytest.mark.check
def test_float32_has_the_cdf_and_probabilities_of_a_million():
    k = np.arange(995_000, 1_005_000, 250)
    its = scipy.stats.poisson(1e6)
    found = families.Poisson({"rate": jnp.full(len(k), 1e6)}).cdf(jnp.float32(k))
    np.testing.assert_allclose(found, its.cdf(k), atol=2e-5)
    found = families.Poisson({"rate": jnp.float32(1e6)}).log_density(jnp.float32(k))
    np.testing.assert_allclose(found, its.logpmf(k), atol=2e-3)
    counts = np.arange(28_000, 32_000, 37)
    parts = {"rate": jnp.float32(30_000), "dispersion": jnp.float32(1e-4)}
    found = families.NegativeBinomial(parts).log_density(jnp.float32(counts))
    expected = scipy.stats.nbinom(1e4, 1 / 4).logpmf(counts)
    np.testing.assert_allclose(found, expected, atol=2e-3)  # Of some -1e5.


@pytest.mark.parametrize("dispersion", [1e-3, 0.05, 1.0, 3.0])
def test_float32_has_the_cdf_of_counts_of_any_dispersion(dispersion):
    for rate in (10.0, 200.0, 3000.0):
        its = scipy.stats.nbinom(1 / dispersion, 1 / (1 + dispersion * rate))
        k = its.ppf([0.025, 0.25, 0.5, 0.975])
        of_all = jnp.full((2, len(k)), jnp.float32([[rate], [dispersion]]))
        found = families.NegativeBinomial(dict(zip(("rate", "dispersion"), of_all, strict=True)))
        np.testing.assert_allclose(found.cdf(jnp.float32(k)), its.cdf(k), atol=6e-3)


def test_intervals_of_counts_hold_what_they_say_and_their_pit_is_uniform():
    rng = np.random.default_rng(1)
    rate = rng.uniform(0.5, 6, (2, 4000))
    p = Counts(
        {"rate": rate, "dispersion": np.full_like(rate, 0.4)}, family=families.NegativeBinomial
    )
    drawn = rng.poisson(
        rate[rng.integers(2, size=4000), np.arange(4000)] * rng.gamma(2.5, 0.4, 4000)
    )
    assert scipy.stats.kstest(p.pit(drawn), "uniform").pvalue > 0.01
    for level in (0.5, 0.9, 0.95):
        low, high = p.central(level)
        assert np.mean((low <= drawn) & (drawn <= high)) > level - 0.01
        np.testing.assert_array_equal(low, np.round(low))


def test_the_crps_of_counts_is_the_whole_sum_or_near_it():
    rate = np.array([[9000.0, 2.0], [9600.0, 3.0]])
    targets = np.array([9000, 90])
    k = np.arange(20_000.0)[:, None]
    cdf = scipy.stats.poisson(rate[:, None]).cdf(k).mean(axis=0)
    expected = np.sum((cdf - (k >= targets)) ** 2, axis=0)
    np.testing.assert_allclose(Counts({"rate": rate}).crps(targets), expected, rtol=1e-4)


# Quantiles.


def test_an_ensemble_of_quantiles_is_their_mean_and_no_worse_than_its_average_member():
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    y = np.random.default_rng(1).normal(size=NUM)
    found = np.sort(np.random.default_rng(2).normal(size=(3, NUM, 5)), axis=-1)
    p = Quantiles({"quantile": found}, levels=levels)
    mean = found.mean(axis=0)
    each = [mean_pinball_loss(y, mean[:, q], alpha=level) for q, level in enumerate(levels)]
    assert p.scores(y)["pinball"].mean() == pytest.approx(np.mean(each))
    members = np.mean([one.scores(y)["pinball"] for one in p.members])
    assert p.scores(y)["pinball"].mean() < members
    assert p.bands == (0.9, 0.5)
    np.testing.assert_allclose(p.central(0.5), mean[:, [1, 3]].T)
    np.testing.assert_allclose(p.quantiles([0.5, 0.95]), mean[:, [2, 4]])
    assert list(p.flat_columns()) == ["median", "epistemic_std", *(f"quantile_{q}" for q in levels)]
    with pytest.raises(InputError, match=r"0\.2 was not learned"):
        p.quantiles([0.2])


# Several targets.


@pytest.fixture(scope="module", params=["gaussian_homoscedastic", "student_t"])
def several(request):
    """A likelihood, predictions by three members of several targets, and of each alone."""
    whole = from_data(request.param, TARGETS, ())
    outputs = np.random.default_rng(1).normal(size=(3, 30, whole.num_outputs))
    steps = jnp.array([0.0, 0.3, 0.6])
    own = jax.tree.map(lambda leaf: leaf + steps, whole.init(jax.random.key(0)))
    arrays = jax.jit(jax.vmap(whole.predict, in_axes=(None, 0)))(own, jnp.asarray(outputs))
    p = whole.predictive({name: np.asarray(one) for name, one in arrays.items()})
    return whole, own, outputs, p


def test_several_targets_are_as_each_alone_and_their_nll_is_of_the_product(several):
    whole, own, outputs, p = several
    joint = jax.vmap(whole.log_prob, in_axes=(None, 0, None))(own, outputs, TARGETS)
    np.testing.assert_allclose(p.each_log_prob(TARGETS), joint, rtol=1e-4, atol=1e-4)
    mixed = scipy.special.logsumexp(np.asarray(joint, np.float64), axis=0) - np.log(3)
    np.testing.assert_allclose(p.log_prob(TARGETS), mixed, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(p.scores(TARGETS)["nll"], -mixed, rtol=1e-4, atol=1e-4)
    size = whole.num_outputs // 3
    for d, column in enumerate(TARGETS.T):
        alone = from_data(whole.name, column, ())
        mine = jax.tree.map(lambda leaf, d=d: leaf[d], own)
        arrays = jax.vmap(alone.predict, in_axes=(None, 0))(
            mine, jnp.asarray(outputs[..., size * d : size * (d + 1)])
        )
        its = alone.predictive({name: np.asarray(one) for name, one in arrays.items()})
        np.testing.assert_allclose(p.of_target(d).quantiles(), its.quantiles(), rtol=1e-5)
        np.testing.assert_allclose(p.quantiles()[:, d], its.quantiles(), rtol=1e-5)
        np.testing.assert_allclose(p.mean[:, d], its.mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(p.flat_columns()[f"target_{d}_std"], its.std, rtol=1e-5)
    assert p.columns()["quantiles"].shape == (30, 3, 7)
    chain = whole.predictive(p.arrays, np.zeros(3, int))  # Three draws of one.
    np.testing.assert_allclose(chain.members[0].log_prob(TARGETS), p.log_prob(TARGETS))
    again = json.loads(json.dumps(whole.to_dict()))
    assert from_dict(whole.name, again).to_dict() == whole.to_dict()
