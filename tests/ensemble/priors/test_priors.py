"""Priors: what a specification says, against SciPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial
import scipy.stats

from ensemble import UserError
from ensemble.priors import Prior, log_prior, parse_prior, prior_of, sample_prior

PRIORS = parse_prior("*bias=laplace(2), *=normal(0.5)")
SHAPES = {
    "Dense_0": {
        "kernel": jax.ShapeDtypeStruct((6, 3), jnp.float32),
        "bias": jax.ShapeDtypeStruct((3,), jnp.float32),
    }
}

PARAMS = {
    "Conv_0": {"kernel": np.random.default_rng(0).normal(size=(3, 3, 2, 5)), "bias": np.ones(5)},
    "Dense_0": {"kernel": np.random.default_rng(1).normal(size=(20, 4)), "bias": np.arange(4.0)},
}


def difference(spec, family, scales):
    """log p(params) - log p(0), by us and by SciPy."""
    zeros = jax.tree.map(np.zeros_like, PARAMS)
    priors = parse_prior(spec)
    ours = float(log_prior(priors, PARAMS) - log_prior(priors, zeros))
    theirs = sum(
        (family(scale=scales[layer, name]).logpdf(values)
         - family(scale=scales[layer, name]).logpdf(0 * values)).sum()
        for layer, group in PARAMS.items()
        for name, values in group.items()
    )  # fmt: skip
    return ours, theirs


def scales_of(kernel, bias):
    return {
        (layer, name): kernel(values) if name == "kernel" else bias
        for layer, group in PARAMS.items()
        for name, values in group.items()
    }


@pytest.mark.parametrize(
    ("spec", "family", "scales"),
    [
        ("normal(0.5)", scipy.stats.norm, scales_of(lambda _: 0.5, 0.5)),
        ("laplace(2)", scipy.stats.laplace, scales_of(lambda _: 2, 2)),
        ("*bias=normal(3), *=normal(1e-1)", scipy.stats.norm, scales_of(lambda _: 0.1, 3)),
        ("student_t(2, df=3)", functools.partial(scipy.stats.t, 3), scales_of(lambda _: 2, 2)),
        (
            "normal(1.5/sqrt(fan_in))",
            scipy.stats.norm,
            scales_of(lambda w: 1.5 / np.sqrt(w[..., 0].size), 1.5),
        ),
    ],
)
def test_the_density_is_scipy_s(spec, family, scales):
    ours, theirs = difference(spec, family, scales)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_the_first_group_that_fits_counts():
    assert parse_prior("Dense_0/*=laplace(2), *=normal(1)") == (
        Prior("Dense_0/*", "laplace", 2.0, False),
        Prior("*", "normal", 1.0, False),
    )
    both = {"Dense_0": {"bias": np.ones(1)}, "Dense_1": {"bias": np.ones(1)}}
    density = log_prior(parse_prior("Dense_0/*=laplace(2), *=normal(1)"), both)
    assert float(density) == pytest.approx(-0.5 - 0.5)


def test_numbers_and_patterns_as_people_write_them():
    assert [parse_prior(f"normal({n})")[0].scale for n in ("1.", ".5", "2e-1")] == [1, 0.5, 0.2]
    assert parse_prior("[!D]*=normal(1)")[0].pattern == "[!D]*"


def test_none_is_flat():
    assert parse_prior("none") == ()
    assert float(log_prior((), PARAMS)) == 0


def test_a_parameter_without_a_group_is_refused():
    with pytest.raises(UserError, match=r"Conv_0/bias"):
        log_prior(parse_prior("*kernel=normal(1)"), PARAMS)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "normal",
        "normal(0)",
        "normal(-1)",
        "cauchy(1)",
        "student_t(0, df=4)",
        "student_t(1, 4)",
        "normal(1),",
        "normal(1/fan_in)",
        "normal(1e400)",
    ],
)
def test_what_cannot_be_read_is_one_line(spec):
    with pytest.raises(UserError, match=r"'none'.*normal") as e:
        parse_prior(spec)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("spec", "exact"),
    [
        ("normal(0.5)", scipy.stats.norm(scale=0.5)),
        ("laplace(2)", scipy.stats.laplace(scale=2)),
        ("normal(3/sqrt(fan_in))", scipy.stats.norm(scale=3 / 20**0.5)),
        ("laplace(3/sqrt(fan_in))", scipy.stats.laplace(scale=3 / 20**0.5)),
        ("student_t(3/sqrt(fan_in), df=4)", scipy.stats.t(4, scale=3 / 20**0.5)),
        ("correlated_normal(2, length=1)", scipy.stats.norm(scale=2)),
    ],
)
def test_draws_are_of_the_density(spec, exact):
    (prior,) = parse_prior(spec)
    draws = np.asarray(prior.sample(jax.random.key(0), (20, 500)))
    assert draws.shape == (20, 500)
    assert scipy.stats.kstest(draws.ravel(), exact.cdf).pvalue > 1e-3
    assert prior.standard_deviation((20, 500)) == pytest.approx(exact.std())


CORRELATED = "Conv_0/kernel=correlated_normal(0.5/sqrt(fan_in), length=2), *=student_t(1, df=3)"


def test_filters_are_a_gaussian_process_over_their_positions():
    (prior, _), shape = parse_prior(CORRELATED), (3, 2, 4, 500)
    positions = np.array([(row, column) for row in range(3) for column in range(2)])
    covariance = (0.5**2 / 24) * np.exp(-scipy.spatial.distance.cdist(positions, positions) / 2)
    exact = scipy.stats.multivariate_normal(np.zeros(6), covariance)
    draws = np.asarray(prior.sample(jax.random.key(0), shape))
    np.testing.assert_allclose(
        np.cov(draws.reshape(6, -1)), covariance, atol=0.1 * covariance[0, 0]
    )
    filters = draws[..., :5].reshape(6, -1).T
    theirs = exact.logpdf(filters).sum() - len(filters) * exact.logpdf(np.zeros(6))
    ours = prior.log_density(jnp.asarray(draws[..., :5]))
    assert float(ours) == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("size", [0.0, 1e-20, 1e8])
def test_gradients_are_finite(size):
    priors = parse_prior(CORRELATED)
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, size, np.float32), PARAMS)
    value, gradients = jax.value_and_grad(lambda tree: log_prior(priors, tree))(params)
    assert all(np.isfinite(leaf).all() for leaf in (value, *jax.tree.leaves(gradients)))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("normal(1, df=3)", "normal has no df; leave it out"),
        ("student_t(1)", r"student_t\(1, df=4\)"),
        ("student_t(1, length=3)", "must say df"),
        ("student_t(1, df=2)", "df=2.*2.*4"),
        ("correlated_normal(1, length=0)", "length=0 must be"),
        ("student_t(1, df=1e400)", "df=1e400 must be"),
    ],
)
def test_a_setting_that_is_none_is_one_line(spec, says):
    with pytest.raises(UserError, match=says):
        parse_prior(spec)


def test_a_parameter_finds_its_prior():
    priors = parse_prior("Dense_0/*=laplace(2), *=normal(1)")
    found = jax.tree_util.tree_map_with_path(lambda path, _: prior_of(priors, path).family, PARAMS)
    assert found["Dense_0"] == {"kernel": "laplace", "bias": "laplace"}
    assert found["Conv_0"] == {"kernel": "normal", "bias": "normal"}


@pytest.mark.check
def test_prior_draws_have_their_scales_and_keys():
    draws = jax.vmap(lambda key: sample_prior(key, PRIORS, SHAPES))(
        jax.random.split(jax.random.key(0), 4000)
    )["Dense_0"]
    assert draws["kernel"].shape == (4000, 6, 3)
    np.testing.assert_allclose(draws["kernel"].std(axis=0), 0.5, rtol=0.08)
    np.testing.assert_allclose(np.abs(draws["bias"]).mean(axis=0), 2, rtol=0.08)
    both = draws["kernel"].reshape(4000, -1)[:, :3], draws["bias"]
    assert abs(np.corrcoef(both[0][:, 0], both[1][:, 0])[0, 1]) < 0.06  # Keys of their own.
    one = [sample_prior(jax.random.key(k), PRIORS, SHAPES)["Dense_0"]["bias"] for k in (1, 1, 2)]
    np.testing.assert_array_equal(one[0], one[1])
    assert (one[0] != one[2]).all()


def test_without_a_prior_there_is_nothing_to_draw():
    with pytest.raises(UserError, match=r"config.prior='none'.*start"):
        sample_prior(jax.random.key(0), (), SHAPES)
