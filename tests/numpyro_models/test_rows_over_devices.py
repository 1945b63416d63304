"""`ensemble.sample` of a model whose rows, and their latents, lie over devices."""

import shutil

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import ensemble
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
        "sampler.mass_matrix": mass,
        "sampler.step_size": 0.2,
        "sampler.num_leapfrog_steps": 5,
        "sampler.num_warmup": 0 if mass == "identity" else 20,
        "sampler.num_samples": num_samples,
    }
    return ensemble.sample(
        hospitals, {"y": Y}, method="hmc", config=config, workdir=workdir, show_progress=False
    )


@pytest.mark.parametrize("mass", ["diagonal"])
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
