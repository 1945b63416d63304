"""The configs: valid, documented, and what cannot run here whole takes a step on generated data."""

import importlib
import re

import numpy as np
import pytest
from conftest import ROOT
from run_parts import validated

import ensemble
from ensemble import config_rules
from ensemble.configs import mnist_logreg_hmc

NAMES = sorted(path.stem for path in (ROOT / "configs").glob("[a-z]*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_is_valid_and_every_docstring_is_a_lab_note(name):
    module = importlib.import_module(f"ensemble.configs.{name}")
    validated(module.get_config())
    documented = re.findall(rf"--config={name}(?::(\w+))?(?!\w)", module.__doc__)
    assert "" in documented
    for variant in documented:
        validated(module.get_config(variant))
    assert "cores" in module.__doc__ or "not measured" in module.__doc__
    assert "%" in module.__doc__ or "not measured" in module.__doc__
    with pytest.raises(ValueError, match="variant 'huge' is unknown"):
        module.get_config("huge")


@pytest.mark.parametrize("name", NAMES)
def test_a_method_that_a_command_line_swaps_takes_no_start_that_is_not_its_own(name, caplog):
    config = importlib.import_module(f"ensemble.configs.{name}").get_config()
    start = config.init_from
    for method in {"sgd", "hmc", "sghmc"} - {config.method}:
        caplog.clear()
        config.method = method
        found = config_rules.check(config, by_hand=["method"]).config
        if method == "sgd":
            assert found.init_from == ""
        elif start.endswith(".npz"):
            assert found.init_from == "prior"
        else:
            assert found.init_from == (start or "prior")


def test_the_notebook_s_protocol_is_as_published():
    config = mnist_logreg_hmc.get_config("notebook")
    assert (config.num_chains, config.init_from, config.prior) == (1, "prior", "normal(1)")
    assert (config.hold_out, config.temperature) == (False, 1.0)
    assert set(config.stop_at.to_dict().values()) == {0.0}
    assert config.sampler.to_dict() == {
        "step_size": 0.01,
        "num_leapfrog_steps": 100,
        "jitter": 0.0,
        "num_warmup": 500,
        "num_burn_in": 500,
        "num_samples": 1000,
        "thin": 4,
        "target_acceptance": 0.75,
        "mass": "identity",
    }


@pytest.mark.soak
def test_cifar10_takes_a_step_on_generated_data():
    from ensemble.configs import cifar10_ensemble

    config = cifar10_ensemble.get_config()
    config.ensemble_size = 2
    config.num_epochs = None
    config.num_steps = 1
    config.batch_size = 8
    rng = np.random.default_rng(0)
    data = {
        "inputs": rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8),
        "labels": np.arange(60) % 10,
    }
    report = ensemble.train(config, data=data).report
    assert report["live_members"] == [0, 1]
    assert np.isfinite(report["test"]["scores"]["nll"]["value"])
