"""What holds for every program: it is one density, whenever it is traced, and varies."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan

from ensemble import UserError
from ensemble.notes import collected
from ensemble.numpyro_models import model_task
from ensemble.numpyro_models.density_program import DensityProgram
from ensemble.numpyro_models.model_task import ModelTask
from ensemble.numpyro_models.numpyro_program import NumPyroProgram
from ensemble.numpyro_models.program import depends_on_tracing

Y = np.linspace(0, 1, 9, dtype=np.float32)


def fixed(y):
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))

    def step(carry, one):
        z = numpyro.sample("z", dist.Normal(carry, 1))
        return z, numpyro.sample("y", dist.Normal(z, scale), obs=one)

    scan(step, np.random.default_rng(0).normal(), y)


def of_mean(y, mean=0.0):
    mu = numpyro.sample("mu", dist.Normal(mean, 1))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (fixed, False),
        (of_mean, False),
        (lambda y: of_mean(y, np.random.normal()), True),  # noqa: NPY002
        (lambda y: of_mean(y, random.random()), True),
        (lambda y: of_mean(y + np.random.default_rng().normal(size=9).astype(np.float32)), True),
    ],
)
def test_random_numbers_of_others_are_noted(model, expected):
    program = NumPyroProgram(model, (Y,))
    assert depends_on_tracing(program) == expected
    with collected() as lines:
        model_task.create(None, program)
    assert ["is another density whenever it is traced" in line for line in lines] == [
        True
    ] * expected


def test_random_numbers_of_a_log_density_are_noted():
    start = np.zeros(2)
    fine = DensityProgram(lambda x: -jnp.sum(x**2), start, "fine")
    assert not depends_on_tracing(fine)
    rng = np.random.default_rng()
    noisy = DensityProgram(lambda x: -jnp.sum((x - rng.normal()) ** 2), start, "noisy")
    assert depends_on_tracing(noisy)


def starts(logdensity_fn):
    task = ModelTask(DensityProgram(logdensity_fn, np.zeros(2), "the density"))
    return task.starts(jax.random.split(jax.random.key(0), 3), from_prior=False)


def test_a_density_that_is_constant_is_called_so():
    with pytest.raises(UserError, match="7 nats, wherever"):
        starts(lambda x: 7.0 + 0.0 * x.sum())


def test_a_density_that_is_flat_about_its_start_is_sampled():
    assert starts(lambda x: -jnp.sum(jnp.maximum(jnp.abs(x) - 4, 0)))["x"].shape == (3, 2)
