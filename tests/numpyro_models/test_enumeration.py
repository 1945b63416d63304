"""Discrete latents are summed out as by hand, or the model is refused in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import potential_energy

from ensemble import InputError
from ensemble.numpyro_models.model import Model
from ensemble.numpyro_models.results import groups_of
from ensemble.numpyro_models.sharded_distributions import sharded_plate

Y = np.linspace(-2, 3, 9).astype(np.float32)
KEYS = jax.random.split(jax.random.key(3), 2)


def shared():
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    mean = numpyro.sample("mean", dist.Normal(0, 3).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1))
    numpyro.deterministic("gap", mean[1] - mean[0])
    return weights, mean, sd


def mixture(y):
    weights, mean, sd = shared()
    with numpyro.plate("row", len(y)):
        z = numpyro.sample("z", dist.Categorical(weights))
        numpyro.deterministic("center", mean[z])
        numpyro.sample("y", dist.Normal(mean[z], sd), obs=y)


def by_hand(y):
    weights, mean, sd = shared()
    with numpyro.plate("row", len(y)):
        parts = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(mean, sd))
        numpyro.sample("y", parts, obs=y)


@pytest.mark.check
def test_a_mixture_is_the_one_that_is_summed_by_hand():
    program = Model(mixture, (Y,))
    params = program.starts(KEYS, from_prior=False)
    one = {name: leaf[1] for name, leaf in params.items()}
    assert program.latent == ["weights", "mean", "sd"]
    expected = jax.value_and_grad(lambda at: -potential_energy(by_hand, (Y,), {}, at))
    for found, wanted in zip(
        jax.tree.leaves(jax.jit(jax.value_and_grad(program.log_density))(one, program.arrays)),
        jax.tree.leaves(jax.jit(expected)(one)),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    draws = groups_of(program, {name: leaf[:, None] for name, leaf in params.items()})
    assert list(draws["posterior"]) == [
        "weights",
        "mean",
        "sd",
        "gap",
    ]  # What depends on z is left out.
    assert draws["log_likelihood"] == {}
    assert draws["posterior_predictive"]["y"].shape == (2, 1, 9)
    with sharded_plate("row", 3):  # NumPyro's enumeration has changed what makes plates.
        pass


@pytest.mark.check
def test_a_series_of_states_is_the_one_that_is_summed_by_hand():
    def chain(y):
        stay = numpyro.sample("stay", dist.Uniform(0, 1))

        def step(state, y):
            state = numpyro.sample("state", dist.Bernoulli(jnp.where(state == 1, stay, 1 - stay)))
            numpyro.sample("y", dist.Normal(2.0 * state, 1), obs=y)
            return state, None

        scan(step, 0, y)

    def forward(stay, y):
        moves = jnp.log(jnp.array([[stay, 1 - stay], [1 - stay, stay]]))

        def step(log_probs, y):
            log_probs = jax.nn.logsumexp(log_probs[:, None] + moves, axis=0)
            return log_probs + dist.Normal(jnp.array([0.0, 2.0]), 1).log_prob(y), None

        return jax.nn.logsumexp(jax.lax.scan(step, jnp.array([0.0, -jnp.inf]), y)[0])

    program = Model(chain, (Y,))
    at = jnp.float32(0.4)  # Its logistic function is `stay`.
    found = jax.jit(program.log_density)({"stay": at}, program.arrays)
    stay = jax.nn.sigmoid(at)
    expected = jax.jit(forward)(stay, Y) + jnp.log(stay * (1 - stay))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert program.check_starts({"stay": np.array([0.4])}) is None


def volatile(positive):
    def series(y):
        mean = numpyro.sample("mean", dist.Normal(0, 2))

        def step(carry, y):
            state, level = carry
            state = numpyro.sample("state", dist.Bernoulli(jnp.where(state == 1, 0.8, 0.3)))
            if positive:
                numpyro.sample("shock", dist.HalfNormal(1))
            level = numpyro.sample("level", dist.Normal(0.9 * level, 0.5))
            numpyro.sample("y", dist.Normal(mean * state, jnp.exp(level)), obs=y)
            return (state, level), None

        scan(step, (0, 0.0), y)

    return series


@pytest.mark.check
def test_the_first_step_of_a_series_has_latents_and_is_no_part_of_the_prior():
    program = Model(volatile(positive=False), (Y,))
    params = program.starts(KEYS, from_prior=False)
    one = {name: jnp.asarray(leaf[0]) for name, leaf in params.items()}
    before = jnp.append(0, one["level"][:-1])
    expected = dist.Normal(0.9 * before, 0.5).log_prob(one["level"]).sum()
    expected += dist.Normal(0, 2).log_prob(one["mean"])
    found = program.log_reference(one, program.arrays, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.check
def test_a_value_that_some_state_forbids_is_no_fault():
    def all_or_nothing(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("row", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.001))
            numpyro.factor("rule", jnp.where((z == 0) & (y > 0), -jnp.inf, mean))

    assert Model(all_or_nothing, (Y,)).starts(KEYS, False)


def counted(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("row", len(y)):
        count = numpyro.sample("count", dist.Poisson(2))
        numpyro.sample("y", dist.Normal(mean + count, 1), obs=y)


def bounded(y):
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    numpyro.sample("x", dist.Uniform(0, 1 + z))


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (counted, "'count'.*NumPyro"),
        (bounded, "'x'.*discrete.*'z'"),
    ],
)
def test_what_would_be_summed_wrongly_is_refused(model, line):
    with pytest.raises(InputError, match=line) as caught:
        Model(model, (Y,)).starts(KEYS, False)
    assert "\n" not in str(caught.value)
