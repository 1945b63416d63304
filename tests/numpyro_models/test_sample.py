"""`ensemble.sample`: draws by site, what they are worth, and runs that go on elsewhere."""

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import posteriordb_models
import pytest
from conftest import ROOT
from run_parts import config_of, mesh_of, task_of, validated

import ensemble
from ensemble import UserError
from ensemble.methods.mcmc.log_density import log_density_of_model
from ensemble.methods.mcmc.start import starts_of_model
from ensemble.numpyro_models.density_program import DensityProgram
from ensemble.numpyro_models.model_task import ModelTask
from ensemble.numpyro_models.numpyro_program import NumPyroProgram
from ensemble.numpyro_models.results import SiteResults
from ensemble.storage.checkpoint import Checkpointer

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


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("sampled")
    return workdir, sample(workdir)


@pytest.mark.check
def test_draws_are_those_of_the_posterior(finished):
    workdir, found = finished
    precision = 1 / 4 + len(Y)
    row = found.summary["mu"]
    assert abs(row["mean"] - Y.sum() / precision) < 5 * row["mcse"]
    assert row["sd"] == pytest.approx(precision**-0.5, rel=0.3)
    assert found.draws["mu"].shape == (2, 100)
    np.testing.assert_allclose(found.draws["twice"], 2 * found.draws["mu"], rtol=1e-6)
    assert row["rhat"] < 1.2
    groups = {"posterior", "sample_stats", "log_likelihood", "posterior_predictive"}
    stored = arviz.from_netcdf(workdir / "posterior.nc")
    assert {*groups, "observed_data"} == set(stored.groups())
    np.testing.assert_array_equal(stored.posterior["mu"], found.draws["mu"])
    loo = found.report["information_criteria"]["y"]
    assert loo["elpd_loo"] == pytest.approx(arviz.loo(stored, scale="log").elpd_loo)
    assert {"traces.png", "sites.png", "ranks.png", "pairs.png"} <= {
        p.name for p in (workdir / "plots").iterdir()
    }
    assert "twice" in str(found)
    assert f"LOO of y: {loo['elpd_loo']:.1f} nats" in str(found)


@pytest.mark.check
def test_without_a_workdir_nothing_is_written(finished, monkeypatch, caplog):
    def refuse(*_):
        raise AssertionError("nobody keeps it")

    monkeypatch.setattr(SiteResults, "write", refuse)
    monkeypatch.setattr(Checkpointer, "save", refuse)
    _, kept = finished
    with caplog.at_level("INFO", logger="ensemble"):
        found = sample()
    assert "step 200/200: acceptance" in caplog.text  # No epochs: there are no examples.
    assert found.workdir is None
    assert found.data.groups() == kept.data.groups()
    np.testing.assert_array_equal(found.draws["mu"], kept.draws["mu"])


@pytest.mark.soak
def test_a_run_goes_on_with_more_draws_on_other_devices(finished, tmp_path):
    """The first half on two devices, the second on one: the same bits as in one go."""
    _, whole = finished
    first = sample(tmp_path, **{"sampler.num_samples": 50})
    assert first.draws["mu"].shape == (2, 50)
    found = sample(tmp_path, num_devices=1)
    np.testing.assert_array_equal(found.draws["mu"], whole.draws["mu"])


@pytest.mark.check
def test_names_of_a_scope_are_dotted_in_the_file(tmp_path):
    def rows(y):
        with numpyro.plate("row", len(Y)):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    scoped = numpyro.handlers.scope(rows, prefix="a")
    short = {**QUICK, "sampler.num_warmup": 20, "sampler.num_samples": 4}
    found = ensemble.sample(
        scoped, {"y": Y}, method="hmc", config=short, workdir=tmp_path, show_progress=False
    )
    assert found.draws["a/mu"].shape == (2, 4, len(Y))
    stored = arviz.from_netcdf(tmp_path / "posterior.nc")
    for group in (stored.posterior["a.mu"], stored.log_likelihood["a.y"]):
        assert group.dims == ("chain", "draw", "a.row")
    assert stored.observed_data["a.y"].dims == ("a.row",)


@pytest.mark.check
def test_another_model_in_the_workdir_is_refused(finished):
    workdir, _ = finished

    def mean_of(y):
        mu = numpyro.sample("mu", dist.Normal(0, 3))
        numpyro.deterministic("twice", 2 * mu)
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    with pytest.raises(UserError, match="holds a run on other data than model 'mean_of'"):
        ensemble.sample(mean_of, {"y": Y}, method="hmc", config=QUICK, workdir=workdir)


@pytest.mark.check
def test_chains_start_from_the_last_draws_of_another_run(finished, tmp_path):
    workdir, found = finished
    model = ModelTask(NumPyroProgram(mean_of, (Y,)))
    density = log_density_of_model(model, mesh_of(1), False)

    def starts(where, num_chains=2, model=model):
        config = {"method": "hmc", "model": "numpyro:m", "init_from": str(where)}
        config = validated({**config, "num_chains": num_chains})
        keys = jax.random.split(jax.random.key(0), num_chains)
        return starts_of_model(config, model, density, keys)

    np.testing.assert_allclose(starts(workdir)["mu"], found.draws["mu"][:, -1], rtol=1e-6)
    other = ModelTask(DensityProgram(lambda x: -jnp.sum(x**2), np.zeros(2), "other"))
    for arguments, line in [
        ((workdir, 3), "has 2 chains for 3; lower config.num_chains"),
        ((tmp_path,), "is not a workdir; use a workdir of a model"),
        ((workdir, 2, other), "has draws of the parameters"),
    ]:
        with pytest.raises(UserError, match=line):
            starts(*arguments)


@pytest.mark.check
def test_nothing_that_a_workdir_names_runs(finished):
    workdir, _ = finished
    config = config_of(workdir)
    assert config["model"] == "numpyro:mean_of"
    for use in (ensemble.load, ensemble.evaluate):
        with pytest.raises(UserError, match="has sampled a"):
            use(workdir)
    with pytest.raises(UserError, match="names no file"):
        task_of(config)


def test_data_that_are_no_arguments_are_refused():
    config = {"method": "nuts", "model": "numpyro:mine.py:model"}
    with pytest.raises(UserError, match=r"numpyro:mine\.py:model.*config\.data.*ensemble\.sample"):
        ensemble.train(config, data=(np.zeros((20, 3)), np.arange(20) % 2))


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
        ({"data": {"x": Y}}, r"data does not suit the model mean_of\(y\)"),
        ({"data": 3}, "data are a int, must be a mapping"),
        (
            {"method": "sgd"},
            "method='sgd' must be one of hmc, nuts, mclmc, adjusted",
        ),
        ({"config": {"temperature": 2.0}}, "numpyro.handlers.scale"),
        ({"config": {"init_from": "nowhere"}}, "init_from='nowhere' is not a workdir; use a"),
        ({"config": {"prior": "normal(1)"}}, "the model has its priors"),
        ({"start": 0.0}, "a log density, which has a start, closes over its data"),
    ],
)
def test_what_cannot_be_sampled_is_said_in_a_line(arguments, line):
    given = {"data": {"y": Y}, **arguments}
    given["config"] = {**QUICK, **given.get("config", {})}
    with pytest.raises(UserError, match=line) as caught:
        ensemble.sample(mean_of, show_progress=False, **given)
    assert "\n" not in str(caught.value)


def test_posteriors_lie_beside_the_clone():
    assert ROOT.parent / "shared" / "posteriordb" == posteriordb_models.FOLDER


@pytest.mark.soak
@pytest.mark.parametrize("method", ["nuts", "hmc", "adjusted_mclmc"])
@pytest.mark.parametrize("name", posteriordb_models.MODELS)
def test_posteriors_agree_with_stans_or_are_said_not_to_have_converged(name, method):
    if not posteriordb_models.FOLDER.is_dir():
        pytest.skip(f"{posteriordb_models.FOLDER} is not there: posteriors were NOT sampled")
    arguments, reference = posteriordb_models.read(name)
    model = posteriordb_models.MODELS[name]
    found = ensemble.sample(
        model, arguments, method=method, config={"num_devices": 1}, show_progress=False
    )
    worst = posteriordb_models.largest_z(found.draws, reference)
    assert worst[0] < 4 or not found.report["posterior"]["converged"], worst
