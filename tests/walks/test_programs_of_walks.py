"""The programs of this application, as a user has them."""

import json

import pytest
from public.test_commands import train


@pytest.mark.soak
def test_a_density_is_sampled(tmp_path):
    few = ["num_chains=2048", "rwm.num_warmup=480", "rwm.num_samples=2048", "log_every_steps=1024"]
    train("mixture_rwm.py", tmp_path, *few)
    posterior = json.loads((tmp_path / "report.json").read_text())["posterior"]
    assert abs(posterior["mean"][0] - 0.92) < 5 * posterior["mcse_mean"][0]
