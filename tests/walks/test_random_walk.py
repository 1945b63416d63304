"""Random walks through `ensemble.train`: what a run leaves, how it goes on, what it refuses."""

import dataclasses
import json
import math
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import ensemble
from ensemble import UserError
from ensemble.report import text
from ensemble.walks import densities


@pytest.fixture(autouse=True, scope="module")
def plane():
    """A normal in the plane, with means 1 and 2 and variances 1 and 4."""

    def logdensity_fn(positions):
        return -0.5 * ((positions - jnp.array([1.0, 2.0])) ** 2 / jnp.array([1.0, 4.0])).sum(-1)

    densities.register("plane", densities.Density(logdensity_fn, num_dims=2))
    yield
    del densities._densities["plane"]


def walk_config(**overrides):
    rwm = {"num_warmup": 192, "num_samples": 1024} | overrides.pop("rwm", {})
    return {
        "method": "rwm",
        "density": "plane",
        "num_chains": 60,
        "num_devices": 2,
        "log_every_steps": 256,
        "rwm": rwm,
        **overrides,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("walk")
    ensemble.train(walk_config(), workdir=str(workdir))
    return workdir


def posterior_of(workdir):
    return json.loads((workdir / "report.json").read_text())["posterior"]


@pytest.mark.check
def test_the_report_has_the_moments_and_what_they_are_worth(finished):
    content = json.loads((finished / "report.json").read_text())
    assert "test" not in content
    posterior = content["posterior"]
    assert posterior["num_total_samples"] == 60 * 1024
    for name, exact in (("mean", [1, 2]), ("variance", [1, 4])):
        errors = (np.array(posterior[name]) - exact) / posterior[f"mcse_{name}"]
        assert (np.abs(errors) < 4).all()
        low, high = np.array(posterior[f"{name}_interval"]).T
        assert ((low < posterior[name]) & (posterior[name] < high)).all()
    assert "95% intervals are over chains" in text.format_table(content)
    assert "no scores" not in text.format_table(content)
    assert posterior["accept"] == pytest.approx(0.234, abs=0.06)
    assert posterior["rhat_max"] < 1.1
    assert posterior["ess_min"] == min(posterior["ess"])
    assert 100 < posterior["ess_min"] < 60 * 1024
    assert posterior["quantiles"]["0.5"] == pytest.approx([1, 2], abs=0.4)
    assert (finished / "plots" / "marginals.png").exists()
    rates = posterior["ess_per_second"] / posterior["samples_per_second"]
    assert rates == pytest.approx(posterior["ess_min"] / posterior["num_total_samples"])


@pytest.mark.check
def test_it_is_watched_while_it_runs(finished):
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    found = [record for record in records if "posterior/ess_min" in record]
    assert [record["step"] for record in found] == [256, 512, 768, 1024, 1216]
    assert found[-1]["posterior/mean_01"] == posterior_of(finished)["mean"][1]
    assert found[-1]["posterior/quantile_0.5_01"] == posterior_of(finished)["quantiles"]["0.5"][1]
    assert found[-1]["posterior/ess_min"] > found[0]["posterior/ess_min"]


@pytest.mark.check
@pytest.mark.parametrize("num_devices", [2, 1])
def test_a_resumption_and_other_devices_change_nothing(num_devices, finished, tmp_path):
    ensemble.train(walk_config(rwm={"num_samples": 400}), workdir=str(tmp_path))
    config = walk_config(num_devices=num_devices)
    ensemble.train(config, workdir=str(tmp_path))
    straight, resumed = posterior_of(finished), posterior_of(tmp_path)
    for name in ("accept", "quantiles", "scale"):
        assert resumed[name] == straight[name], name
    for name in ("mean", "variance", "mcse_mean", "rhat_max"):  # Summed on the host, in any order.
        assert resumed[name] == pytest.approx(straight[name], rel=1e-12), name


def test_it_ends_when_it_is_worth_what_was_asked():
    config = walk_config(stop_at={"rhat": 1.2, "ess": 200.0}, rwm={"num_samples": 10_240})
    posterior = ensemble.train(config).report["posterior"]
    assert posterior["num_samples"] < 10_240
    assert posterior["ess_min"] > 200
    assert posterior["rhat_max"] < 1.2


def test_chains_that_have_not_left_their_starts_do_not_end_it():
    """Each seems to be worth a draw, and they are worth nothing."""
    rwm = {"scale": 1e-2, "num_warmup": 0, "num_samples": 512}
    posterior = ensemble.train(walk_config(stop_at={"ess": 20.0}, rwm=rwm)).report["posterior"]
    assert posterior["num_samples"] == 512
    assert posterior["nested_rhat_max"] > 2


def test_one_chunk_after_a_long_warm_up_has_a_rate():
    rwm = {"num_warmup": 1536, "num_samples": 64}
    config = walk_config(rwm=rwm, log_every_steps=10_000)
    posterior = ensemble.train(config).report["posterior"]
    assert posterior["samples_per_second"] > 0
    assert posterior["ess_per_second"] > 0


@pytest.mark.check
def test_one_chain_says_that_it_can_say_nothing():
    result = ensemble.train(walk_config(num_chains=1, num_devices=1))
    assert math.isnan(result.report["posterior"]["ess_min"])
    assert "too few chains or samples" in text.summary_sentence(result.report)
    assert result.report["posterior"]["mean_interval"] == [None, None]
    assert text.format_table(result.report).count("not known") == 4


@pytest.mark.check
def test_another_density_of_the_same_name_is_refused(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    plane = densities.create("plane")
    densities.register("plane", dataclasses.replace(plane, logdensity_fn=lambda x: -(x[:, 0] ** 2)))
    try:
        with pytest.raises(UserError, match="other data than plane"):
            ensemble.train(walk_config(rwm={"num_samples": 2048}), workdir=str(tmp_path / "run"))
    finally:
        densities.register("plane", plane)


def test_data_are_refused(blobs):
    with pytest.raises(UserError, match=r"data .*config\.method='rwm'"):
        ensemble.train(walk_config(), data=blobs)


@pytest.mark.check
def test_nothing_can_be_predicted_or_evaluated(finished):
    with pytest.raises(UserError, match="predicts nothing"):
        ensemble.load(finished)
    with pytest.raises(UserError, match="predicts nothing"):
        ensemble.evaluate(finished)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"density": "plain"}, "density='plain'"),
        ({"num_chains": 0}, "config.num_chains=0 must be positive"),
        ({"rwm": {"scale": 0.0}}, "config.rwm.scale=0.0 must be positive"),
        ({"rwm": {"num_samples": 3}}, "config.rwm.num_samples=3.*2"),
        (
            {"rwm": {"num_samples": 2**31}},
            "2147483840 steps in all must be at most",
        ),
        ({"rwm": {"num_warmup": -2}}, "config.rwm.num_warmup=-2"),
        ({"rwm": {"shape": "round"}}, "config.rwm.shape='round'"),
        (
            {"temperature": 0.5},
            "config.temperature=0.5 is for config.method='hmc', 'nuts', 'mclmc', 'adj",
        ),
        ({"num_steps": 10}, "leave.*config.rwm.num_samples says"),
        ({"num_chains": 8, "stop_at": {"ess": 9.0}}, "config.stop_at needs 16 chains with"),
        (
            {"dataset": "mnist"},
            "config.dataset='mnist'.*config.density",
        ),
        ({"num_chains": 2**31 - 1}, r"num_chains=2147483647.*[0-9.]+ GiB"),
        ({"log_every_steps": 7}, "config.log_every_steps=7.*config.method='rwm'"),
    ],
)
def test_bad_input_is_one_line(change, line):
    with pytest.raises(UserError, match=line) as caught:
        ensemble.train(walk_config(**change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("density", "line"),
    [
        (densities.Density(lambda x: x, 2), r"has the shape \[5, 2\], must be \[5\]"),
        (densities.Density(jnp.sum, 2), r"has the shape \[\], must be \[5\]"),
        (densities.Density(lambda x: 1.0, 2), r"has the shape \[\], must be \[5\]"),
        (densities.Density(lambda x: 1 / 0, 2), "ZeroDivisionError"),
        (densities.Density(lambda x: x[:, 0] + 1j, 2), "is complex64, must be real"),
        (densities.Density(lambda x: x[:, 0] * np.nan, 2), "is nan at the start of chains 0, 1"),
        (
            densities.Density(lambda x: x[:, 0], 2, start_fn=lambda key, count: [][0]),
            "start_fn.*IndexError",
        ),
    ],
)
def test_densities_that_are_none_are_one_line(density, line):
    densities.register("bad", density)
    with pytest.raises(UserError, match=line) as caught:
        ensemble.train(walk_config(density="bad"))
    assert "\n" not in str(caught.value)


@pytest.mark.check
def test_a_run_of_more_steps_is_not_shortened(finished):
    with pytest.raises(UserError, match=r"1216 steps.* 592 "):
        ensemble.train(walk_config(rwm={"num_samples": 400}), workdir=str(finished))
