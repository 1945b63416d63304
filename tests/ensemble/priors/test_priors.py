"""Priors: what a specification says, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ensemble import InputError
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


def test_a_scale_may_be_over_the_root_of_the_fan_in():
    (prior,) = parse_prior("normal(1.5/sqrt(fan_in))")
    kernel = PARAMS["Conv_0"]["kernel"]
    expected = scipy.stats.norm(scale=1.5 / np.sqrt(3 * 3 * 2)).logpdf
    found = prior.log_density(kernel)
    assert float(found) == pytest.approx(np.sum(expected(kernel) - expected(0)), rel=1e-5)
    assert prior.standard_deviation(kernel.shape) == pytest.approx(1.5 / np.sqrt(18))


def test_the_first_group_that_fits_counts():
    assert parse_prior("Dense_0/*=laplace(2), *=normal(1)") == (
        Prior("Dense_0/*", "laplace", 2.0, False),
        Prior("*", "normal", 1.0, False),
    )
    both = {"Dense_0": {"bias": np.ones(1)}, "Dense_1": {"bias": np.ones(1)}}
    density = log_prior(parse_prior("Dense_0/*=laplace(2), *=normal(1)"), both)
    assert float(density) == pytest.approx(-0.5 - 0.5)


def test_a_parameter_without_a_group_is_refused():
    with pytest.raises(InputError, match=r"Conv_0/bias"):
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
        "normal(1e-30)",
    ],
)
def test_what_cannot_be_read_is_one_line(spec):
    with pytest.raises(InputError, match=r"'none'.*normal") as e:
        parse_prior(spec)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("normal(1, df=3)", "normal\\(1, df=3\\)"),
        ("student_t(1)", r"student_t\(1, df=4\)"),
        ("student_t(1, length=3)", "df=4"),
        ("student_t(1, df=2)", "df=2.*2.*4"),
        ("student_t(1, df=1e400)", "df above 2"),
    ],
)
def test_a_setting_that_is_none_is_one_line(spec, says):
    with pytest.raises(InputError, match=says):
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
