"""The pages under docs/ run as they stand, and what they name exists."""

import contextlib
import functools
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from conftest import ROOT, make_blobs
from markdown_pages import (
    DOCS,
    PAGES,
    blocks,
    broken_links,
    check_training_command,
    images_of_a_reader,
    names_of_a_reader,
    prose,
    python_blocks,
    training_commands,
)
from run_parts import validated

import ensemble
from ensemble import networks
from ensemble.config.pieces import path_of
from ensemble.data import load_dataset
from ensemble.export import export, table_json

INFERENCE = ROOT / "docs" / "distributed_inference.md"
COMMANDS = [(page.name, command) for page in PAGES for command in training_commands(page)]


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Reads the Python blocks of a page, which run in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    return lambda name: python_blocks(ROOT / "docs" / f"{name}.md")


@pytest.mark.check
def test_predicting(page):
    predicting, abstaining, exported, alone, tabular, _ = page("prediction")
    namespace = images_of_a_reader()
    config = {"model": "mlp", "num_epochs": 1, "ensemble_size": 2, "train_on_all": True}
    data = {"inputs": namespace["images"], "labels": namespace["labels"]}
    predictor = ensemble.train(config, data=data, workdir="runs/digits").predictor
    pathlib.Path("model.bin").write_bytes(export(predictor))
    exec(predicting, namespace)
    assert namespace["p"].member_log_probs.shape == (2, 16, 10)
    probs = namespace["p"].probs
    exported = exported.replace("from read_model", "from ensemble.read_model")
    for block in (exported, alone):
        exec(block, namespace)
        np.testing.assert_allclose(namespace["p"]["probs"], probs, atol=1e-5)

    shutil.rmtree("runs/digits")
    config = {"model": "mlp", "num_epochs": 5, "ensemble_size": 2, "dataset": "digits"}
    ensemble.train(config, workdir="runs/digits")
    namespace = {"ensemble": ensemble, "images": load_dataset("digits").splits["test"].inputs}
    exec(abstaining, namespace)
    assert 0.3 < namespace["p"].accepted.mean() < 1

    namespace = names_of_a_reader()
    exec(tabular, namespace)
    assert namespace["classifier"].score(namespace["X_test"], namespace["y_test"]) > 0.5


@pytest.mark.check
def test_decisions_by_costs_or_by_a_recall(page, monkeypatch):
    quick = functools.partial(
        ensemble.EnsembleClassifier,
        ensemble_size=2,
        num_epochs=10,
        method="deep_ensemble",
        random_state=0,
    )
    monkeypatch.setattr(ensemble, "EnsembleClassifier", quick)
    rng = np.random.default_rng(0)
    is_yes = rng.random(500) < 0.3
    inputs = is_yes[:, None] + rng.normal(size=(500, 3))
    y = np.where(is_yes, "yes", "no")
    namespace = {"X_train": inputs[:300], "y_train": y[:300]}
    exec(page("prediction")[-1], namespace)
    new = inputs[300:]
    truth = is_yes[300:]
    by_cost = namespace["by_cost"]
    costs = np.array([[0, 1], [5, 0]])  # Of the truth "no" and "yes", by decision.
    expected = by_cost.estimator_.predict_proba(new) @ costs
    np.testing.assert_array_equal(by_cost.predict(new) == "yes", expected.argmin(axis=1) == 1)
    said = [one.predict(new) == "yes" for one in (by_cost, by_cost.estimator_)]
    paid = [costs[truth.astype(int), one.astype(int)].mean() for one in said]
    assert paid[0] < 0.9 * paid[1]
    recalls = [
        (one == truth)[truth].mean()
        for one in (namespace["by_recall"].predict(new) == "yes", said[1])
    ]
    assert recalls[0] > 0.85 > recalls[1]


@pytest.mark.check
def test_numpyro(page):
    sampling, splitting, *_ = page("numpyro")
    # As many draws as a test can wait for.
    quick = '"runs/schools", config={"sampler.num_warmup": 100, "sampler.num_samples": 50}'
    namespace = {}
    exec(compile(sampling.replace('"runs/schools"', quick), "numpyro.md", "exec"), namespace)
    assert namespace["found"].draws["theta"].shape == (4, 50, 8)
    assert pathlib.Path("runs/schools/posterior.nc").exists()
    exec(
        splitting.replace(
            '"num_chains": 2', '"num_chains": 2, "sampler.num_warmup": 20, "sampler.num_samples": 9'
        ),
        namespace,
    )
    assert namespace["found"].draws["w"].shape == (2, 9, 3)


@pytest.mark.check
def test_discrete_latents(page):
    *_, sampling, drawing = page("numpyro")
    quick = 'rows, config={"sampler.num_warmup": 100, "sampler.num_samples": 50})'
    namespace = {"np": np, "numpyro": numpyro, "dist": dist, "ensemble": ensemble}
    exec(compile(sampling.replace("rows)", quick), "numpyro.md", "exec"), namespace)
    exec(drawing, namespace)
    shares = namespace["z"].mean((0, 1))  # The rows of the second mode come last.
    assert namespace["z"].shape == (4, 50, 50)
    assert shares[25:].mean() - shares[:25].mean() > 0.5


@pytest.mark.check
def test_posteriors(page):
    tempering, *_ = page("posteriors")
    quick = '"parallel_tempering", config={"sampler.num_warmup": 200, "sampler.num_samples": 200}'
    namespace = {}
    exec(tempering.replace('"parallel_tempering"', quick), namespace)
    assert abs(namespace["found"].report["ladder"]["log_evidence"]) < 1


@pytest.mark.check
def test_a_posterior_of_a_network_and_arrays_of_ones_own(page):
    _, sampling, adding, reading = page("posteriors")
    for long, short in (
        ('"num_epochs": 60', '"num_epochs": 1'),
        ('"sampler.num_leapfrog_steps": 200', '"sampler.num_leapfrog_steps": 3'),
        ('"num_chains": 4', '"num_chains": 4, "sampler.num_warmup": 20, "sampler.num_samples": 40'),
    ):
        assert long in sampling
        sampling = sampling.replace(long, short)
    namespace = {}
    for block in (sampling, adding.replace("= 2000", "= 80"), reading):
        exec(compile(block, "posteriors.md", "exec"), namespace)
    assert namespace["result"].data is None
    assert namespace["result"].report["posterior"]["num_samples"] == 80
    assert namespace["kernels"].shape == (4, 8, 2, 8)


@pytest.mark.check
def test_worked_models(page):
    namespace = {}
    for block in page("worked_models"):
        # As many draws as a test can wait for.
        quick = re.sub(
            r'(workdir="[^"]+")',
            r'\1, config={"sampler.num_warmup": 60, "sampler.num_samples": 20}',
            block,
        )
        quick = quick.replace(', config={"num_chains": 2}', "")
        exec(compile(quick, "worked_models.md", "exec"), namespace)
    assert namespace["predicted"].shape == (4, 20, 2)
    assert namespace["forecast"].shape == (4, 20, 10)
    inside = namespace["inside"].values
    assert inside[47] > max(inside[38], inside[56])  # The gap is in doubt.
    assert namespace["found"].data.posterior["level"].shape == (4, 20, 100)


@pytest.mark.check
def test_your_data(page):
    training, mapping = page("your_data")
    namespace = names_of_a_reader()
    exec(training, namespace)
    exec(mapping, namespace)
    assert load_dataset("npy:big").sizes["train"] == 140
    assert set(namespace["result"].report["metrics"]["test"]) >= {"accuracy", "nll", "ece"}


@pytest.mark.check
def test_tables(page):
    training, compared, exported = page("tables")
    rng = np.random.default_rng(0)
    columns = {"size": rng.normal(size=200), "town": rng.choice(["here", "there"], 200)}
    frame = pd.DataFrame(columns).assign(price=columns["size"] + (columns["town"] == "here"))
    namespace = {"frame": frame, "new_frame": frame.drop(columns="price")[::-1]}
    exec(training, namespace)
    predictor = namespace["predictor"]
    pathlib.Path("model.bin").write_bytes(export(predictor))
    pathlib.Path("model.bin.table.json").write_bytes(table_json(predictor.dataset.table))
    frame.to_csv("new.csv")
    exported = exported.replace("read_table import", "ensemble.data.tables.read_table import")
    exported = exported.replace("from read_model", "from ensemble.read_model")
    exec(f"{exported}\nmean = model(inputs)['mean']", namespace)
    np.testing.assert_allclose(namespace["mean"], predictor(frame).mean, rtol=1e-4)

    age = rng.normal(size=300)
    home = rng.choice(["owned", "rented"], 300)
    is_bad = age + (home == "rented") + rng.normal(size=300) > 1
    customers = {"customer_id": rng.integers(100, size=300), "age": age, "home": home}
    customers["status"] = np.where(is_bad, "bad", "good")
    pd.DataFrame(customers).to_csv("customers.csv", index=False)
    exec(compared, namespace)
    test = namespace["data"]["test"]
    assert "groups of test examples" in namespace["result"].report["intervals_over"]
    share = (test["status"] == "bad").mean()
    constant = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert namespace["nll"] < constant
    p = namespace["result"].predictor(test)
    bad = p.probs[np.arange(len(test)), [p.class_names.index(one) for one in test["status"]]]
    np.testing.assert_allclose(-np.log(bad).mean(), namespace["nll"], rtol=1e-4)
    assert 0 < namespace["nll_of_trees"] < 2


def test_forecasting(page):
    """No row has a lag that is not there, and tomorrow has the values of today."""
    (making,) = page("forecasting")
    namespace = {}
    exec(making, namespace)
    rows = pd.read_csv("sales.csv")
    tomorrow = pd.read_csv("tomorrow.csv")
    assert not rows.isna().any().any()
    np.testing.assert_array_equal(rows["sold_7_before"][7:], rows["sold"][:-7])
    assert tomorrow["date"][0] > rows["date"].max()
    assert tomorrow["sold_1_before"][0] == rows["sold"].iloc[-1]
    assert tomorrow["mean_of_week_before"][0] == pytest.approx(rows["sold"].iloc[-7:].mean())


@pytest.mark.check
def test_regression(page):
    training, tabular, *_, optimising = page("regression")
    namespace = names_of_a_reader()
    exec(training, namespace)
    p = namespace["p"]
    assert p.quantiles().shape == (3, len(p.levels))
    quick = optimising.replace("range(3)", "range(1)").replace("150", "2")
    exec(quick, namespace)
    assert len(namespace["tried"]) == 6 + 4
    exec(tabular, namespace)
    assert namespace["regressor"].score(namespace["x"], namespace["y"]) > 0.5


@pytest.mark.check
def test_conformal_intervals_of_new_rows_are_those_of_the_report(page):
    *_, conformal, _ = page("regression")
    rng = np.random.default_rng(0)
    data = {}
    for split, number in {"train": 200, "validation": 50, "calibration": 50, "test": 100}.items():
        x = rng.normal(size=(number, 2))
        data[f"{split}_inputs"] = x
        data[f"{split}_targets"] = x[:, 0] + np.exp(x[:, 1]) * rng.normal(size=number)
    config = {"likelihood": "gaussian", "model": "mlp", "num_epochs": 5, "ensemble_size": 2}
    ensemble.train(config, data=data, workdir="runs/flats")
    ensemble.evaluate("runs/flats", data=data, show_progress=False)
    report = json.loads(pathlib.Path("runs/flats/evaluation/report.json").read_text())
    namespace = {"new_rows": data["test_inputs"]}
    exec(conformal, namespace)
    low, high = namespace["intervals"]
    held = (low <= data["test_targets"]) & (data["test_targets"] <= high)
    width = np.maximum(high - low, 0).mean()  # Six are empty.
    np.testing.assert_allclose(width, report["conformal"]["size"], rtol=1e-4)
    assert held.mean() == pytest.approx(report["conformal"]["coverage"])


@pytest.mark.check
def test_your_network(page):
    namespace = names_of_a_reader()
    for defining in page("your_network"):
        exec(defining, namespace)

    def create(name, **options):
        return networks.create(path_of(namespace[name]), 3, **options)

    assert validated(namespace["get_config"]()).model.endswith(":MyModule")
    for name in ("MyModule", "mine_nnx", "mine_functions"):
        network = create(name)
        variables = network.init(jax.random.key(0), namespace["inputs"])
        outputs, _ = network.apply(variables, namespace["inputs"])
        assert outputs.shape == (200, 3)
    packed = create("MinePacked", packing=networks.Packing(4, 2.0, 2))
    params = packed.init(jax.random.key(0), namespace["inputs"])["params"]
    assert params["PackedDense_0"]["kernel"].shape == (2, 16, 16)
    network = create("mine_on_features")
    variables = network.init(jax.random.key(0), namespace["inputs"])
    assert variables["params"]["Dense_0"]["kernel"].shape == (32, 256)

    arrays = namespace["of_torchvision"](state_of_torchvision())
    assert arrays.pop("bn1/num_batches_tracked").shape == ()
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32)
    variables = jax.eval_shape(networks.create("resnet50", 1000).init, jax.random.key(0), images)
    expected = {
        jax.tree_util.keystr(path, simple=True, separator="/").removeprefix("params/"): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables)
    }
    assert {name: array.shape for name, array in arrays.items()} == expected


def state_of_torchvision():
    """Empty arrays with the names and the shapes of torchvision's `resnet50().state_dict()`."""
    state = {"fc.weight": (1000, 2048), "fc.bias": (1000,), "bn1.num_batches_tracked": ()}

    def add(conv, norm, size_in, size_out, pixels):
        state[f"{conv}.weight"] = (size_out, size_in, pixels, pixels)
        for part in ("weight", "bias", "running_mean", "running_var"):
            state[f"{norm}.{part}"] = (size_out,)

    add("conv1", "bn1", 3, 64, 7)
    size_in = 64
    for stage, (planes, num_blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for i in range(num_blocks):
            block = f"layer{stage}.{i}"
            add(f"{block}.conv1", f"{block}.bn1", size_in, planes, 1)
            add(f"{block}.conv2", f"{block}.bn2", planes, planes, 3)
            add(f"{block}.conv3", f"{block}.bn3", planes, 4 * planes, 1)
            if i == 0:
                add(f"{block}.downsample.0", f"{block}.downsample.1", size_in, 4 * planes, 1)
            size_in = 4 * planes
    return {name: np.empty(shape, np.float32) for name, shape in state.items()}


@pytest.mark.check
def test_devices(page):
    (by_hand,) = page("devices")
    namespace = images_of_a_reader()
    exec(by_hand, namespace)
    assert namespace["accuracy"].shape == (8,)


@pytest.mark.check
def test_random_walks(page):
    (defining,) = page("random_walks")
    namespace = {}
    exec(defining, namespace)
    few = {"sampler.num_warmup": 400, "sampler.num_samples": 2000}
    config = {"method": "rwm", "density": namespace["mine"], "num_chains": 256, **few}
    ensemble.train(config, workdir="runs/mine")
    posterior = json.loads(pathlib.Path("runs/mine/results.json").read_text())["posterior"]
    np.testing.assert_allclose(posterior["variance"], 1, rtol=0.1)


@pytest.mark.check
def test_coming_from_another_library(page):
    of_seeds, of_numpyro = page("coming_from")
    namespace = names_of_a_reader()
    exec(of_seeds, namespace)
    assert namespace["probs"].shape == (7, 4)
    rng = np.random.default_rng(0)
    x = rng.normal(size=20).astype(np.float32)
    namespace |= {"model": line, "x": x, "y": 2 * x + rng.normal(size=20).astype(np.float32)}
    exec(of_numpyro, namespace)
    assert namespace["draws"]["slope"].shape == (4, 1000)


def line(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 10))
    numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)


@pytest.mark.check
def test_distillation(page):
    (learning,) = page("distillation")
    config = {"dataset": "digits", "model": "mlp", "num_epochs": 1, "ensemble_size": 2}
    ensemble.train(config, workdir="runs/digits")
    namespace = {"images": load_dataset("digits").splits["test"].inputs}
    exec(learning.replace("160", "2"), namespace)
    assert namespace["p"].total_uncertainty.mean() > 0


@pytest.mark.check
def test_recommending(page):
    (recommending,) = page("recommendation")
    rows = [(user, item, (user + item) % 5) for user in range(20) for item in range(user % 7, 9)]
    frame = pd.DataFrame(rows, columns=["user", "item", "rating"])
    frame.to_csv("ratings.csv", index=False)
    few = {f"sampler.{key}": 2 for key in ("num_warmup", "num_samples", "num_leapfrog_steps")}
    config = {"model": "matrix_factorisation", "method": "hmc", "num_factors": 2, **few}
    config |= {"likelihood": "gaussian_homoscedastic", "num_chains": 2, "num_devices": 1}
    config |= {"dataset": "ratings:ratings.csv", "sampler.thinning": 1, "log_every_steps": 2}
    ensemble.train(config, workdir="runs/stars", show_progress=False)
    namespace = {"ensemble": ensemble}
    exec(compile(recommending, "recommendation.md", "exec"), namespace)
    assert len(namespace["answer"].items) == 17 % 7
    assert namespace["answer"].from_prior == ()


EACH = """
import json, sys
from ensemble.cli import main
for one in json.loads(sys.argv[1]):
    assert main(one) == 0, one
"""


@pytest.mark.check
def test_extending(page, tmp_path):
    """Its files train and evaluate by their paths, in a process that has imported none of them."""
    for text in page("extending"):
        name = re.match(r"# (mine\w*\.py)\n", text)[1]
        (tmp_path / name).write_text(text)
    calls = []
    for command in commands_of("extending"):
        _, name, *arguments = shlex.split(command)
        few = FEW_DRAWS if "runs/logistic" in command else FEW_STEPS
        few = {"train": few, "evaluate": ["--extra_datasets=none"]}[name]
        calls.append(["ensemble", name, *arguments, *few])
    program = [sys.executable, "-c", EACH, json.dumps(calls)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for run in ("sines", "pools", "logistic", "averaged", "power", "mine"):
        workdir = tmp_path / "runs" / run
        with pytest.raises(ensemble.InputError, match="unless you trust"):
            ensemble.load(workdir)
        assert ensemble.load(workdir, trust=True).members
    results = json.loads((tmp_path / "runs/sines/evaluation/report.json").read_text())
    assert 0 <= results["metrics"]["mine_metric.py:ranked_probability"]["value"] < 2
    assert pathlib.Path("metrics.csv").exists()


def commands_of(page):
    """The shell commands of a page, each on one line."""
    texts = [text for _, text in blocks(ROOT / "docs" / f"{page}.md", "bash")]
    return "".join(texts).replace("\\\n", " ").splitlines()


FEW_STEPS = ["--config.num_epochs=1", "--config.ensemble_size=2"]
FEW_DRAWS = [
    *("--config.num_chains=2", "--config.sampler.num_warmup=4", "--config.sampler.num_samples=4"),
    *("--config.sampler.num_leapfrog_steps=2", "--config.sampler.thinning=1"),
]


def test_every_page_with_python_is_tested():
    with_python = {one.stem for one in DOCS if python_blocks(one)}
    tested = {"prediction", "your_data", "your_network", "devices", "random_walks", "regression"}
    tested |= {"distillation", "forecasting", "tables", "numpyro", "posteriors", "worked_models"}
    tested |= {"coming_from", "recommendation", "extending"}
    others = {f"{name}_tutorial" for name in ("pictures", "posterior", "table")}
    assert with_python == tested | {INFERENCE.stem} | others


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_the_training_commands_are_valid(name, command):
    check_training_command(command)


def test_the_pages_have_training_commands():
    assert len({name for name, _ in COMMANDS}) > 4


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_every_link_into_the_repository_leads_somewhere(one):
    assert broken_links(one) == []


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_lines_are_at_most_120_columns_but_in_tables(one):
    lines = [line for line in prose(one) if not line.startswith(("|", "!["))]
    assert [line for line in lines if len(line) > 120] == []


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [one.name for one in DOCS if one.name not in ("README.md", "index.md")]
    assert [name for name in pages if f"]({name})" not in index] == []


@pytest.fixture(scope="module")
def cells():
    """Python blocks of the walk through distributed inference with what they are said to print."""
    cells = []
    for language, text in blocks(INFERENCE):
        if language == "python":
            cells.append([text, ""])
        elif language == "text":
            cells[-1][1] = text
    return cells


@pytest.mark.check
def test_the_blocks_run_in_order_and_print_what_follows_them(cells):
    namespace = {}
    assert len(cells) > 10
    for source, expected in cells:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(source, namespace)
        assert printed.getvalue() == expected, source


def test_the_files_it_names_exist():
    named = re.findall(r"`((?:configs/)?\w+\.py)`", INFERENCE.read_text())
    assert len(named) > 1
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.check
@pytest.mark.parametrize("method", ["deep_ensemble", "hmc"])
def test_the_files_of_a_workdir_and_the_keys_of_metrics_are_described(method, tmp_path):
    page = (ROOT / "docs" / "workdirs.md").read_text()
    own = {"num_epochs": 1}
    if method == "hmc":
        own = {"prior": "normal(1)", "num_chains": 2, "log_every_steps": 2}
        own |= {"sampler.num_warmup": 4, "sampler.num_samples": 20, "sampler.num_leapfrog_steps": 2}
    config = {"model": "logistic_regression", "method": method, "num_devices": 2, **own}
    ensemble.train(config, make_blobs(), str(tmp_path), show_progress=False)
    names = {path.name for path in tmp_path.iterdir()}
    names |= set(json.loads((tmp_path / "results.json").read_text()))
    names |= set(json.loads((tmp_path / "config.json").read_text()))
    with np.load(tmp_path / "predictions" / "test.npz") as arrays:
        names |= set(arrays)
    for draws in (tmp_path / "draws").glob("*.npz"):
        with np.load(draws) as arrays:
            names |= {f"{name.partition('/')[0]}/" if "/" in name else name for name in arrays}
    assert [name for name in names if f"`{name}" not in page] == []

    rows = "".join(line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `"))
    stands_for = {"MM": r"\d\d", "CC": r"\d\d", "DD": r"\d\d", "SPLIT": "validation|test"}
    stands_for |= {"NAME": r"\w+", "LEVEL": r"[\d.]+", "SHARE": r"[\d.]+"}
    described = [
        re.sub("[A-Z]{2,}", lambda word: f"(?:{stands_for[word[0]]})", key)
        for key in re.findall("`([^`]+/[^`]+)`", rows)
        if key.startswith(("train/", "SPLIT/", "posterior/"))
    ]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    keys = set().union(*map(json.loads, lines)) - {"step", "epoch"}
    assert len(keys) > 10
    assert [key for key in keys if not any(re.fullmatch(one, key) for one in described)] == []
