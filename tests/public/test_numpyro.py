"""Models of NumPyro: conjugate cases, shards, reference draws, and the command."""

import json

import jax
import jax.numpy as jnp
import names
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.sharding import PartitionSpec as P
from numpyro_models import posteriordb_models
from small import files_in, refused, refused_command, run_command

FEW = {"num_chains": 2, "num_devices": 2, "sampler.num_warmup": 200, "sampler.num_samples": 300}
Y = np.array([2.1, 1.2, 3.3, 2.4], np.float32)


def mean_of(y, plate=numpyro.plate):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    numpyro.deterministic("twice", 2 * mu)
    with plate("row", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def masked(y, ok):
    """Rows that are missing are NaN."""
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("row", len(y)), numpyro.handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def sharded(y):
    mean_of(y, lambda name, size: names.sharding().sharded_plate(name, size, "data"))


WITH_GAPS = np.array([2.1, np.nan, 1.2, 3.3, np.nan, 2.4], np.float32)
MODELS = {
    "nuts": (mean_of, {"y": Y}, "nuts"),
    "hmc": (mean_of, {"y": Y}, "hmc"),
    "parallel_tempering": (mean_of, {"y": Y}, "parallel_tempering"),
    "masked": (masked, {"y": WITH_GAPS, "ok": ~np.isnan(WITH_GAPS)}, "nuts"),
    "sharded": (sharded, {"y": Y}, "nuts"),
}
"""Model, data and method, of one posterior."""


@pytest.mark.parametrize(
    "case",
    [one if one == "hmc" else pytest.param(one, marks=pytest.mark.check) for one in MODELS],
)
def test_draws_are_those_of_the_conjugate_posterior(case, tmp_path):
    model, data, method = MODELS[case]
    values = names.config(FEW, method=method)
    method = values.pop("method")
    found = names.sample(
        model, data, method=method, config=values, workdir=tmp_path, show_progress=False
    )
    precision = 1 / 4 + len(Y)
    row = found.summary["mu"]
    assert abs(row["mean"] - Y.sum() / precision) < 5 * row["mcse"]
    assert row["sd"] == pytest.approx(precision**-0.5, rel=0.25)
    assert found.draws["mu"].shape == (2, 300)
    np.testing.assert_array_equal(found.data.posterior["mu"], found.draws["mu"])
    if case != "masked":
        np.testing.assert_allclose(found.draws["twice"], 2 * found.draws["mu"], rtol=1e-6)
    assert (tmp_path / "posterior.nc").exists()


@pytest.mark.check
def test_more_draws_go_on_from_those_there_are(tmp_path):
    for num_samples in (200, 300):
        values = names.config({**FEW, "sampler.num_samples": num_samples})
        found = names.sample(
            mean_of, {"y": Y}, config=values, workdir=tmp_path / "parts", show_progress=False
        )
    whole = names.sample(mean_of, {"y": Y}, config=names.config(FEW), show_progress=False)
    np.testing.assert_array_equal(found.draws["mu"], whole.draws["mu"])


@pytest.mark.check
def test_more_draws_of_other_data_are_refused(tmp_path):
    def shifted(y, by):
        mean_of(y - by)

    def sample(by, num_samples):
        values = names.config({**FEW, "sampler.num_samples": num_samples})
        data = {"y": Y, "by": by}
        names.sample(shifted, data, config=values, workdir=tmp_path / "a", show_progress=False)

    sample(0.0, 20)
    with pytest.raises(names.InputError, match="data"):
        sample(1e-4, 40)


@pytest.mark.check
def test_a_discrete_variable_is_summed_over():
    def mixture(y):
        weight = numpyro.sample("weight", dist.Beta(1, 1))
        with numpyro.plate("row", len(y)):
            which = numpyro.sample("which", dist.Bernoulli(weight), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(10.0 * which, 1), obs=y)

    y = np.array([0.1, -0.2, 10.3, 9.8, 10.1], np.float32)
    found = names.sample(mixture, {"y": y}, config=names.config(FEW), show_progress=False)
    row = found.summary["weight"]
    assert abs(row["mean"] - 4 / 7) < 5 * row["mcse"]


POSTERIORS = (
    "eight_schools-eight_schools_noncentered",
    "garch-garch11",
    "kidiq_with_mom_work-kidscore_mom_work",
    "low_dim_gauss_mix-low_dim_gauss_mix",
    "mesquite-logmesquite_logvas",
)


@pytest.mark.check
@pytest.mark.parametrize("name", POSTERIORS)
def test_posteriors_agree_with_reference_draws(name):
    if not posteriordb_models.FOLDER.exists():
        pytest.skip(f"there is no {posteriordb_models.FOLDER}: reference draws were NOT compared")
    data, reference = posteriordb_models.read(name)
    values = names.config({"num_chains": 4, "num_devices": 2, "sampler.num_samples": 800})
    model = posteriordb_models.MODELS[name]
    found = names.sample(model, data, config=values, show_progress=False)
    assert found.report["posterior"]["rhat_max"] < 1.03
    largest, of = posteriordb_models.largest_z(found.draws, reference)
    assert largest < 4.5, of


def test_variables_over_devices_are_drawn_and_scored_as_one():
    parts = names.sharding()
    mesh = parts.create_mesh(num_chain_groups=1, num_shards=8, devices=jax.devices())
    assert dict(mesh.shape)["data"] == 8
    normal = parts.Sharded(dist.Normal(0, 1), "data")
    draw = jax.shard_map(
        lambda key: normal.sample(key, (1,)), mesh=mesh, in_specs=P(), out_specs=P("data")
    )
    values = jax.jit(draw)(jax.random.key(0))
    assert len(np.unique(values)) == 8
    score = jax.shard_map(
        lambda x: normal.log_prob(x[0]), mesh=mesh, in_specs=P("data"), out_specs=P()
    )
    value, gradient = jax.jit(jax.value_and_grad(score))(values)
    expected = float(dist.Normal(0, 1).log_prob(values).sum())
    assert float(value) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient, -values, rtol=1e-5)
    keys = jax.random.split(jax.random.key(0), 8)
    with pytest.raises(ValueError, match="shard_map"):  # Gradients would be wrong.
        jax.pmap(normal.sample, axis_name="data")(keys)


def test_a_sharded_plate_is_one_density_on_any_mesh():
    parts = names.sharding()

    def hospitals(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with parts.sharded_plate("hospital", len(y), "data"):
            effect = numpyro.sample("effect", dist.Normal(mean, 1))
            numpyro.sample("y", dist.Normal(effect, 0.5), obs=y)

    y = np.linspace(-1, 2, 13).astype(np.float32)
    found = []
    for num_shards in (1, 8):
        mesh = parts.create_mesh(1, num_shards, jax.devices()[:num_shards])
        model = parts.make_model(hospitals, mesh, y)
        params = model.init(jax.random.key(0))
        value, grads = jax.jit(jax.value_and_grad(model.bind(model.data)))(params)
        assert model.constrain(params)["effect"].shape == (13,)
        found.append((value, params["mean"], grads["mean"], grads["effect"][:13]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), *found)


FILE = """
import numpyro
import numpyro.distributions as dist


def mean_of(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "model.py").write_text(FILE)
    (tmp_path / "data.json").write_text(json.dumps({"y": Y.tolist()}))
    return [
        "--config=numpyro_nuts",
        f"--config.model=numpyro:{tmp_path}/model.py:mean_of",
        f"--config.data={tmp_path}/data.json",
        f"--workdir={tmp_path}/run",
        *names.flags(config=names.config(FEW)),
    ]


@pytest.mark.check
def test_a_model_of_a_file_is_sampled_by_the_command(file, tmp_path):
    done = run_command("train", *file)
    assert "mu" in done.stdout
    precision = 1 / 4 + len(Y)
    row = names.sites(tmp_path / "run")["mu"]
    assert abs(row["mean"] - Y.sum() / precision) < 5 * row["mcse"]
    # A workdir makes no code run.
    (tmp_path / "model.py").write_text("raise SystemExit('it ran')")
    refused(lambda: names.load(tmp_path / "run"), "run")
    refused_command("evaluate", [f"--workdir={tmp_path}/run"], ("run",))


BAD = {
    "no such file": (["--config.model=numpyro:/nowhere.py:f"], "/nowhere.py"),
    "no such function": (["--config.model=numpyro:{folder}/model.py:g"], "g"),
    "no such data": (["--config.data=/nowhere.json"], "/nowhere.json"),
    "an argument": (["--config.data={folder}/other.json"], "y"),
    "a method": (["--config.method=rwm"], "rwm"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_command_is_one_line(case, file, tmp_path):
    (tmp_path / "other.json").write_text('{"z": [1.0]}')
    flags, *words = BAD[case]
    before = files_in(tmp_path)
    flags = [flag.format(folder=tmp_path) for flag in flags]
    refused_command("train", [*file, *flags], tuple(words))
    assert files_in(tmp_path) == before


def test_a_bad_model_is_one_line():
    def impossible(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu, 1), obs=jnp.log(-jnp.abs(y) - 1))

    def failing(y):
        raise KeyError("weight")

    for model, data, word in (
        (failing, {"y": Y}, "weight"),
        (mean_of, {"z": Y}, "y"),
        (impossible, {"y": Y}, "y"),
    ):
        refused(lambda m=model, d=data: names.sample(m, d, config=names.config(FEW)), word)
