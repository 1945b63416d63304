"""Random walks through `ensemble.train`: what a run leaves, how it goes on, what it refuses."""

import jax.numpy as jnp
import pytest
import scipy

import ensemble
from ensemble import InputError, TrainingError
from ensemble.random_walk import densities, method


def plane(positions):
    """A normal in the plane, with means 1 and 2 and variances 1 and 4."""
    return -0.5 * ((positions - jnp.array([1.0, 2.0])) ** 2 / jnp.array([1.0, 4.0])).sum(-1)


PLANE = densities.Density(plane, num_dims=2)


def walk_config(**overrides):
    walk = {"num_warmup": 192, "num_samples": 1024} | overrides.pop("sampler", {})
    return {
        "method": "rwm",
        "density": "test_walk_runs:PLANE",
        "num_chains": 60,
        "num_devices": 2,
        "log_every_steps": 256,
        "sampler": walk,
        **overrides,
    }


def test_it_ends_when_it_is_worth_what_was_asked():
    config = walk_config(stop_when={"r_hat": 1.2, "ess": 200.0}, sampler={"num_samples": 10_240})
    posterior = ensemble.train(config).report["posterior"]
    assert posterior["num_samples"] < 10_240
    assert posterior["ess_min"] > 200
    assert posterior["rhat_max"] < 1.2


def nowhere(positions):
    """A log density that is zero nowhere."""
    return jnp.full(len(positions), -jnp.inf)


NOWHERE = densities.Density(nowhere, 2)


def test_chains_that_accept_nothing_end_the_run():
    with pytest.raises(TrainingError, match="no proposal of the 60 chains was accepted"):
        ensemble.train(walk_config(density="test_walk_runs:NOWHERE"))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"sampler": {"step_size": 0.0}}, "config.sampler.step_size=0.0 must be a positive"),
        ({"sampler": {"num_samples": 3}}, "config.sampler.num_samples=3.*even"),
        ({"sampler": {"num_samples": 2**31}}, "num_samples=2147483648.*even"),
        ({"sampler": {"num_warmup": -2}}, "config.sampler.num_warmup=-2"),
        ({"sampler": {"mass_matrix": "round"}}, "config.sampler.mass_matrix='round'"),
        (
            {"posterior_temperature": 0.5},
            "config.posterior_temperature=0.5 is for config.method='hmc', 'nuts', 'mclmc', 'adj",
        ),
        ({"num_steps": 10}, "config.num_steps=10 is for .*: remove it"),
        ({"num_chains": 8, "stop_when": {"ess": 9.0}}, "config.stop_when needs 16 chains with"),
        (
            {"dataset": "mnist"},
            "config.dataset='mnist' is for .*: remove it",
        ),
        ({"num_chains": 2**31 - 1}, r"num_chains=2147483647.*[0-9.]+ GiB"),
        ({"log_every_steps": 7}, "config.log_every_steps=7.*config.method='rwm'"),
    ],
)
def test_bad_input_is_one_line(change, line):
    with pytest.raises(InputError, match=line) as caught:
        ensemble.train(walk_config(**change))
    assert "\n" not in str(caught.value)


def test_intervals_are_student_s_while_chains_agree():
    """Of four groups the error is itself uncertain; of chains that disagree it says nothing."""
    posterior = {
        **{name: [0.5] for name in ("mean", "variance")},
        **{f"mcse_{name}": [0.1] for name in ("mean", "variance")},
        **{"ess": [25.0], "ess_min": 25.0, "rhat_max": 1.0, "nested_rhat_max": 1.05},
        **{"num_superchains": 4, "num_total_samples": 400, "num_chains": 4, "accept": 0.3},
        "num_invalid": 0,
    }
    margin = 0.1 * scipy.stats.t.ppf(0.975, 3)
    table = method.SECTION.contents({"posterior": posterior})[0]
    assert f"[{0.5 - margin:.6g}, {0.5 + margin:.6g}]" in table
    table = method.SECTION.contents({"posterior": {**posterior, "nested_rhat_max": 1.2}})[0]
    assert "not known" in table
    assert "[" not in table
