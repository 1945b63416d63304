"""Where chains of a model start: away from its MAP on every scale, by keys of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from run_parts import mesh_of, validated

from ensemble import UserError
from ensemble.methods.mcmc import start
from ensemble.methods.mcmc.log_density import log_density_of_model
from ensemble.numpyro_models import model_task
from ensemble.numpyro_models.density_program import DensityProgram
from ensemble.numpyro_models.model_task import ModelTask
from ensemble.numpyro_models.numpyro_program import NumPyroProgram

SCALES = np.array([1e-3, 1.0, 20.0], np.float32)
CENTRE = np.array([1.0, -2.0, 50.0], np.float32)
CHAINS = 8


def narrow(x):
    return -0.5 * jnp.sum(jnp.square((x - CENTRE) / SCALES))


def starts(program, init_from, num_chains=CHAINS):
    model = ModelTask(program)
    config = validated(
        {"method": "nuts", "model": "numpyro:m", "init_from": init_from, "num_chains": num_chains}
    )
    density = log_density_of_model(model, mesh_of(1), False)
    return start.starts_of_model(
        config, model, density, jax.random.split(jax.random.key(2), num_chains)
    )


@pytest.mark.check
@pytest.mark.parametrize("init_from", ["map", "pathfinder"])
def test_starts_are_several_deviations_away_whatever_the_scales(init_from):
    found = starts(DensityProgram(narrow, np.zeros(3), "narrow"), init_from)["x"]
    away = (found - CENTRE) / SCALES
    np.testing.assert_allclose(np.sqrt(np.mean(away**2, axis=0)), start.SPREAD, rtol=0.5)
    assert len(np.unique(away[:, 1])) == CHAINS


def test_the_key_of_the_way_from_the_start_is_none_of_the_attempts_at_it(monkeypatch):
    used = []

    def kept(density, value_and_grad, evenly, keys):
        used.extend(keys)
        return list(evenly["x"])

    monkeypatch.setattr(start, "_along_paths", kept)
    starts(DensityProgram(narrow, np.zeros(3), "narrow"), "pathfinder")
    of_chains = jax.random.split(jax.random.key(2), CHAINS)
    numbers = np.arange(model_task._NUM_TRIES)
    tried = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(of_chains, numbers)
    used, tried = jax.random.key_data(jnp.stack(used)), jax.random.key_data(tried)
    assert len(used) == CHAINS
    assert not (used[:, None] == tried).all(-1).any()


def centred(y):
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    theta = numpyro.sample("theta", dist.Normal(0, tau).expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, 15).to_event(1), obs=y)


@pytest.mark.check
def test_a_spike_is_no_maximum():
    program = NumPyroProgram(centred, (np.linspace(-3, 28, 8, dtype=np.float32),))
    with pytest.raises(UserError, match=r"'pathfinder'.*'uniform'"):
        starts(program, "map", 1)


@pytest.mark.check
def test_chains_without_a_path_start_evenly_and_are_named(caplog):
    """The gradient is the same everywhere: no curvature, and no end."""
    program = DensityProgram(lambda x: jnp.sum(x) * 1e30, np.zeros(2), "slope")
    found = starts(program, "pathfinder", 2)["x"]
    assert np.abs(found).max() <= 2
    assert "from the starts of chains 0, 1, which" in caplog.text
