"""A NumPyro model as functions: its density, its variables, and what is refused in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density

import ensemble
from ensemble import InputError
from ensemble.numpyro_models.model import Model
from ensemble.numpyro_models.results import groups_of

KEY = jax.random.key(3)
Y = np.linspace(0.1, 3, 9).astype(np.float32)


def varied(y):
    """Flat, dynamic and deterministic sites, and one that is written in its other form."""
    low = numpyro.sample("low", dist.ImproperUniform(constraints.real, (), ()))
    high = numpyro.sample("high", dist.ImproperUniform(constraints.greater_than(low), (), (2,)))
    with numpyro.handlers.reparam(config={"shift": LocScaleReparam(0.0)}):
        shift = numpyro.sample("shift", dist.Normal(low, 2.0))
    middle = numpyro.deterministic("middle", (low + high) / 2)
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(shift + middle.sum(), 1.0), obs=y)


@pytest.mark.check
def test_the_density_is_numpyros_and_draws_have_all_sites():
    program = Model(varied, (Y,))
    for from_prior in (False, True):  # Of flat sites nothing can be drawn.
        params = program.starts(jax.random.split(KEY, 3), from_prior)
        one = {name: leaf[1] for name, leaf in params.items()}
        assert program.latent == ["low", "high", "shift_decentered"]
        values = program.values(one, program.arrays)
        assert list(values) == ["low", "high", "shift_decentered", "shift", "middle"]
        assert (values["high"] > values["low"]).all()
        latents = {name: values[name] for name in program.latent}
        expected, _ = log_density(varied, (Y,), {}, latents)
        jacobian = one["high"].sum()  # high is low + exp(.)
        found = jax.jit(program.log_density)(one, program.arrays)
        np.testing.assert_allclose(found, expected + jacobian, rtol=1e-5)
    assert program.tracked == ("low", "high[0]", "high[1]", "shift_decentered")
    np.testing.assert_array_equal(program.track(one)[1:3], one["high"])


def test_the_reference_is_the_prior_with_the_jacobians():
    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(2).expand([2]).to_event(1))
        numpyro.factor("extra", -3 * scale.sum())
        numpyro.sample("y", dist.Normal(scale.sum(), 1), obs=y)

    program = Model(model, (Y,))
    at = jnp.array([0.3, -1.2])
    found = program.log_reference({"scale": at}, program.arrays, 1.0)
    expected = dist.HalfNormal(2).log_prob(jnp.exp(at)).sum() + at.sum()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    flat = Model(varied, (Y,))
    with pytest.raises(InputError, match=r"'low'"):
        flat.log_reference(flat.shapes, flat.arrays, 1.0)


@pytest.mark.check
def test_log_likelihoods_and_predictions_are_of_every_observation():
    model = Model(varied, (Y,))
    params = {k: v[:, None] for k, v in model.starts(jax.random.split(KEY, 2), False).items()}
    found = groups_of(model, params)
    mean = found["posterior"]["shift"] + found["posterior"]["middle"].sum(-1)
    expected = dist.Normal(mean[..., None], 1).log_prob(Y)
    np.testing.assert_allclose(found["log_likelihood"]["y"], expected, rtol=1e-4)
    assert found["posterior_predictive"]["y"].shape == (2, 1, 9)
    assert np.std(found["posterior_predictive"]["y"] - mean[..., None]) == pytest.approx(1, abs=0.5)
    np.testing.assert_array_equal(found["observed_data"]["y"], Y)


def series(y, seen):
    """A scan over conditioned values, one of which is masked, for two units."""

    def step(level, seen):
        with numpyro.plate("unit", 2):
            level = numpyro.sample("level", dist.Normal(level, 1))
            with numpyro.handlers.mask(mask=seen):
                numpyro.sample("y", dist.Normal(level, 1))
        return level, None

    with numpyro.handlers.condition(data={"y": y}):
        scan(step, jnp.zeros(2), seen)


@pytest.mark.check
def test_a_scan_takes_arrays_of_numpy():
    y = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    model = Model(series, (y, np.array([True, False, True, True])))
    params = {"level": jnp.full((1, 1, 4, 2), 0.5)}
    assert model.track({"level": params["level"][0, 0]}).shape == (8,)
    found = groups_of(model, params)
    expected = np.array(dist.Normal(0.5, 1).log_prob(y))
    expected[1] = 0
    np.testing.assert_allclose(found["log_likelihood"]["y"][0, 0], expected, rtol=1e-5)
    assert np.all(found["posterior_predictive"]["y"] != y)
    np.testing.assert_array_equal(found["observed_data"]["y"], y)


def no_latent(y):
    numpyro.sample("y", dist.Normal(0, 1), obs=y)


def nan_density(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(jnp.log(-jnp.exp(mu)), 1), obs=y)


def missing(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y * np.nan)


def discrete(y):
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(z, 1), obs=y)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (no_latent, "no latent site"),
        (nan_density, "density.*'y'.*NaN"),
        (missing, "'y'.*NaN.*observations"),
        (discrete, r"discrete.*\('z'\).*'y'.*9"),
    ],
)
def test_a_model_that_cannot_be_sampled_is_refused(model, line):
    with pytest.raises(InputError, match=line) as caught:
        Model(model, (Y,)).starts(jax.random.split(KEY, 2), False)
    assert "\n" not in str(caught.value)


def test_imputed_latents_have_a_density_in_observed_rows():
    def imputing(y, ok):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("row", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y, obs_mask=ok)

    y = np.array([1, np.nan, 2], np.float32)
    model = Model(imputing, (y, ~np.isnan(y)))
    params = {"mu": jnp.float32(0.5), "y_unobserved": jnp.arange(3.0)}
    expected = dist.Normal(0, 1).log_prob(0.5) + dist.Normal(0.5, 1).log_prob(y[[0, 2]]).sum()
    expected += dist.Normal(0.5, 1).log_prob(jnp.arange(3.0)).sum()
    np.testing.assert_allclose(model.log_density(params, model.arrays), expected, rtol=1e-5)
    values = model.values(params, model.arrays)
    assert list(values) == ["mu", "y"]
    np.testing.assert_array_equal(values["y"], [1, 1, 2])


@pytest.mark.check
def test_a_range_that_moves_is_refused_with_advice_that_works():
    def top(y):
        theta = numpyro.sample("theta", dist.Pareto(1.0, 1.0))
        with numpyro.plate("row", len(y)):
            numpyro.sample("y", dist.Uniform(0, theta), obs=y)

    model = Model(top, (np.array([31.0, 90.0, 44.0]),))
    keys = jax.random.split(KEY, 4)
    with pytest.raises(InputError, match=r"observation 90 .*'y'.*init_from='prior'"):
        model.starts(keys, from_prior=False)
    assert np.all(np.isfinite(model.starts(keys, from_prior=True)["theta"]))


def test_draws_larger_than_the_memory_are_refused_before_sampling():
    def outer():
        a = numpyro.sample("a", dist.Normal().expand([300]))
        numpyro.deterministic("square", a[:, None] * a)

    config = {"sampler.num_samples": 10**7}
    with pytest.raises(InputError, match=r"'square' takes .* GiB.*sampler.thinning"):
        ensemble.sample(outer, config=config, show_progress=False)
