"""`ensemble.sample`: draws by site, what they are worth, and runs that go on elsewhere."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import ensemble
from ensemble import InputError

Y = np.array([2.1, 1.2, 3.3, 2.4], np.float32)
QUICK = {
    "num_chains": 2,
    "num_devices": 2,
    "log_every_steps": 50,
    "sampler.num_warmup": 100,
    "sampler.num_samples": 100,
    "sampler.num_leapfrog_steps": 4,
}


def mean_of(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    numpyro.deterministic("twice", 2 * mu)
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def sample(workdir=None, **config):
    config = {**QUICK, **config}
    given = {"config": config, "workdir": workdir, "show_progress": False}
    return ensemble.sample(mean_of, {"y": Y}, method="hmc", **given)


@pytest.mark.check
def test_a_log_density_has_a_start_of_any_form():
    def density(position):
        return -0.5 * jnp.sum((position["a"] - 3) ** 2) - 2 * position["b"] ** 2

    start = {"a": np.full(2, 3.0), "b": 0.0}
    found = ensemble.sample(density, start=start, method="hmc", config=QUICK, show_progress=False)
    assert found.draws["a"].shape == (2, 100, 2)
    assert abs(found.summary["a[0]"]["mean"] - 3) < 1
    assert found.report["notes"] == [] or "chains" in found.report["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"data": {"x": Y}}, r"model 'mean_of' failed \(TypeError: mean_of\(\) got .*'x'"),
        ({"data": 3}, "data are a int, must be the arguments of a NumPyro model, a mapping"),
        ({"config": {"posterior_temperature": 2.0}}, "numpyro.handlers.scale"),
        ({"config": {"init_from": "nowhere"}}, "nowhere' is not a workdir with draws"),
        ({"config": {"prior": "normal(1)"}}, "this run has config.task='numpyro': remove it"),
        ({"start": 0.0}, "a log density, which has a start, closes over its data"),
    ],
)
def test_what_cannot_be_sampled_is_said_in_a_line(arguments, line):
    given = {"data": {"y": Y}, **arguments}
    given["config"] = {**QUICK, **given.get("config", {})}
    with pytest.raises(InputError, match=line) as caught:
        ensemble.sample(mean_of, show_progress=False, **given)
    assert "\n" not in str(caught.value)
