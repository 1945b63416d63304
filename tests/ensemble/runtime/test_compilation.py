"""Members' programs are compiled soon on CPUs, samplers' in full."""

import jax
import numpy as np
import pytest

import ensemble

DRAWS = {"sampler.num_samples": 20, "sampler.num_leapfrog_steps": 1, "num_chains": 2}


@pytest.mark.parametrize(
    ("method", "level"),
    [({"num_epochs": 1}, 1), ({"method": "hmc", "sampler.num_warmup": 4, **DRAWS}, None)],
)
def test_llvm_optimises_programs_of_members_little(method, level, monkeypatch):
    levels = {}
    jit = jax.jit

    def noted(fn, **options):
        name = getattr(fn, "__name__", "")
        levels[name] = options.get("compiler_options", {}).get("xla_backend_optimization_level")
        return jit(fn, **options)

    monkeypatch.setattr(jax, "jit", noted)
    config = {"model": "mlp", "mlp.widths": "4", "num_devices": 1, **method}
    data = {"inputs": np.eye(40, 3), "labels": np.arange(40) % 2}
    ensemble.train(config, data, show_progress=False)
    assert {levels["_started"], levels["_take_steps"]} == {level}
