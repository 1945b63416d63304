"""`ensemble.sample` of a model whose rows, and their latents, lie over devices."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from run_parts import mesh_of, validated

import ensemble
from ensemble.methods.mcmc.sampling import Sampling
from ensemble.numpyro_models import model_task
from ensemble.numpyro_models.model_task import ModelTask
from ensemble.numpyro_models.numpyro_program import NumPyroProgram
from ensemble.numpyro_models.sharded_distributions import sharded_plate

Y = np.linspace(-1, 2, 13).astype(np.float32)


def hospitals(y):
    centre = numpyro.sample("centre", dist.Normal(0, 1))
    with sharded_plate("hospital", len(y)):  # A state of chains has a `mean` of its own.
        effect = numpyro.sample("mean", dist.Normal(centre, 1))
        numpyro.sample("y", dist.Normal(effect, 0.5), obs=y)


def sample(mass, num_devices, num_samples, workdir):
    config = {
        "num_chains": 1,
        "num_devices": num_devices,
        "log_every_steps": 10,
        "sampler.mass": mass,
        "sampler.step_size": 0.2,
        "sampler.num_leapfrog_steps": 5,
        "sampler.num_warmup": 0 if mass == "identity" else 20,
        "sampler.num_samples": num_samples,
    }
    return ensemble.sample(
        hospitals, {"y": Y}, method="hmc", config=config, workdir=workdir, show_progress=False
    )


@pytest.mark.soak
def test_tempering_finds_both_modes_of_a_model_with_sharded_rows():
    def mirrored(y):
        mean = numpyro.sample("mean", dist.Normal(0, 2))
        with sharded_plate("row", len(y)):
            numpyro.sample("y", dist.Normal(jnp.abs(mean), 0.5), obs=y)

    config = {"num_chains": 2, "num_devices": 4}
    found = ensemble.sample(
        mirrored, {"y": Y + 1.5}, method="tempering", config=config, show_progress=False
    )
    assert found.report["posterior"]["converged"]
    draws = found.draws["mean"]
    assert (draws > 0).mean() == pytest.approx(0.5, abs=0.1)
    assert np.abs(draws).mean() == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("mass", ["diagonal", pytest.param("identity", marks=pytest.mark.soak)])
@pytest.mark.check
def test_a_run_on_four_devices_goes_on_on_one_with_the_same_draws(mass, tmp_path):
    sample(mass, 4, 10, tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "stayed")
    found = sample(mass, 1, 20, tmp_path / "moved")
    whole = sample(mass, 4, 20, tmp_path / "stayed")
    assert found.draws["mean"].shape == (1, 20, 13)
    assert (np.diff(whole.draws["centre"]) != 0).mean() > 0.5
    for name, draws in whole.draws.items():
        np.testing.assert_allclose(found.draws[name], draws, atol=1e-4)


@pytest.mark.parametrize(
    ("plate", "what"), [(sharded_plate, "split the rows"), (numpyro.plate, "same")]
)
def test_what_devices_that_share_chains_do_is_logged(plate, what, caplog):
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with plate("row", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    caplog.set_level("INFO", logger="ensemble")
    config = {"method": "nuts", "model": "numpyro:model", "num_chains": 3, "num_devices": 4}
    Sampling(validated(config), ModelTask(NumPyroProgram(model, (Y,))))
    [line] = caplog.messages
    assert line.startswith("3 chains in 1 group of 4 devices, which")
    assert what in line


@pytest.mark.check
def test_latents_lie_beside_their_rows_if_they_may(monkeypatch):
    task, mesh = ModelTask(NumPyroProgram(hospitals, (Y,))), mesh_of(1, 4)
    split = task.own_log_density(mesh, may_split=True)
    assert split.layout.names == ("mean",)
    monkeypatch.setattr(model_task, "check_rows", lambda *_: None)  # Once is enough.
    whole = task.own_log_density(mesh, may_split=False)
    assert not whole.layout.names
    params = {"centre": jnp.float32(0.3), "mean": jnp.asarray(Y[::-1])}
    prior = jax.jit(lambda at, data: whole.bind_reference(data, 1.0)(at))(params, whole.place())
    expected = task.program.log_reference(params, task.program.arrays, 1.0)
    assert float(prior) == pytest.approx(float(expected))
    padded = split.layout.pad(params)
    assert padded["mean"].shape == (16,)
    expected = pytest.approx(float(task.program.log_density(params, task.program.arrays)))
    for density, position in ((split, padded), (whole, params)):
        value = jax.jit(lambda position, data, density=density: density.bind(data)(position))
        assert float(value(position, density.place())) == expected
