"""The exported file: it says what the ensemble says, where this project is not."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from etils import epath
from programs import run_here
from run_parts import of_classes

import ensemble
from ensemble import UserError, export, metrics, networks
from ensemble.commands.export import write
from ensemble.fitted import Fitted
from ensemble.predictor import Predictor
from ensemble.priors import parse_prior
from ensemble.sources import dataset_from_arrays
from ensemble.tasks.supervised import classification

RUN_ELSEWHERE = """
import os, sys
sys.modules["ensemble"] = None  # Whoever imports it fails, though `make` installs it.
assert not any(name in os.listdir() for name in ("ensemble", "models", "train.py"))

import numpy as np
import jax.export
sys.path.append(os.getcwd())
from read_model import Model
for folder in FOLDERS:
    padding = Model(f"{folder}/model.bin")
    model = jax.export.deserialize(open(f"{folder}/model.bin", "rb").read())
    assert model.platforms == ("cpu", "cuda", "tpu"), model.platforms
    with np.load(f"{folder}/inputs.npz") as batches:
        for name in batches.files:
            np.savez(f"{folder}/{name}.out.npz", **model.call(batches[name]))
            np.savez(f"{folder}/{name}.padded.npz", **padding(batches[name]))
"""


def make_images(channels: int = 1, num_examples: int = 61) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(num_examples) % 3
    images = rng.integers(0, 80, (num_examples, 8, 8, channels)) + 80 * labels[:, None, None, None]
    return {"inputs": images.astype(np.uint8), "labels": labels}


@pytest.fixture(scope="module")
def trained(blobs, tmp_path_factory):
    """(workdir, predictor, inputs) of a run."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    config = small_config(model="mlp", num_epochs=1, ensemble_size=3)  # Other programs know it.
    result = ensemble.train(config, data=blobs, workdir=str(workdir))
    return workdir, result.predictor, blobs["inputs"]


@pytest.fixture(scope="module")
def members(trained):
    """(predictor, inputs) by model; those of images are as they start, for want of time."""
    results = {"mlp": trained[1:]}
    for model, data in {"cnn": make_images(), "lenet5": make_images(3)}.items():
        network = networks.create(model, 3)
        task = classification(dataset_from_arrays(data), network, parse_prior("none"))
        inputs = jnp.zeros((1, *data["inputs"].shape[1:]))
        keys = jax.random.split(jax.random.key(0), 3)
        variables = jax.jit(jax.vmap(network.init, in_axes=(0, None)))(keys, inputs)
        predictor = Predictor(task, Fitted.one_each(jax.tree.map(np.asarray, variables)), range(3))
        results[model] = predictor, data["inputs"]
    return results


def assert_same(outputs, prediction):
    for name in ("probs", "total", "aleatoric", "epistemic", "member_log_probs"):
        expected = getattr(prediction, name)
        assert outputs[name].shape == expected.shape, name
        np.testing.assert_allclose(outputs[name], expected, atol=2e-5, err_msg=name)
    assert (outputs["epistemic"] >= 0).all()


@pytest.mark.check
def test_it_runs_without_the_project(members, tmp_path):
    check_elsewhere({"mlp": members["mlp"]}, tmp_path)


@pytest.mark.check
def test_networks_of_images_run_without_the_project(members, tmp_path):
    check_elsewhere({model: members[model] for model in ("cnn", "lenet5")}, tmp_path)


def check_elsewhere(members, tmp_path):
    sizes = (1, 2, 7, 61)
    (tmp_path / "read_model.py").write_bytes(export.MODEL_READER.read_bytes())
    for model, (predictor, inputs) in members.items():
        (tmp_path / model).mkdir()
        (tmp_path / model / "model.bin").write_bytes(export.export(predictor))
        batches = {f"n{n}": inputs[:n] for n in sizes}
        np.savez(tmp_path / model / "inputs.npz", **batches)
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUN_ELSEWHERE.replace("FOLDERS", repr([*members]))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for model, (predictor, inputs) in members.items():
        for n in sizes:
            for way in ("out", "padded"):
                with np.load(tmp_path / model / f"n{n}.{way}.npz") as outputs:
                    assert_same(outputs, predictor(inputs[:n]))


@pytest.mark.check
def test_it_takes_inputs_of_the_training_data_only(members):
    for model, dtype, other in (("mlp", np.float32, np.uint8), ("cnn", np.uint8, np.float32)):
        predictor, inputs = members[model]
        exported = jax.export.deserialize(bytearray(export.export(predictor)))
        assert exported.in_avals[0].dtype == dtype
        assert exported.in_avals[0].shape[1:] == inputs.shape[1:]
        with pytest.raises(ValueError, match="Dtype mismatch"):
            exported.call(inputs[:2].astype(other))


@pytest.mark.check
def test_its_size_is_that_of_the_variables(members):
    """And does not hold the members' program once a member."""
    predictor, _ = members["cnn"]
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(predictor.fitted.sets))
    assert num_bytes < len(export.export(predictor)) < num_bytes + 30_000


@pytest.mark.check
def test_a_temperature_tempers_the_probabilities_alone(trained):
    _, plain, inputs = trained
    predictor = Predictor(plain.task, plain.fitted, plain.members, temperature=2.5)
    exported = jax.export.deserialize(bytearray(export.export(predictor)))
    outputs = exported.call(inputs)
    assert_same(outputs, predictor(inputs))
    assert abs(outputs["probs"] - plain(inputs).probs).max() > 0.01
    np.testing.assert_allclose(outputs["total"], plain(inputs).total, atol=2e-5)


@pytest.mark.check
def test_a_threshold_is_in_the_file(trained):
    _, plain, inputs = trained
    doubts = np.sort(1 - plain(inputs).probs.max(axis=1))
    fitted = metrics.fit_abstention(metrics.Rule("coverage", 0.7), doubts, doubts > 1)
    predictor = Predictor(plain.task, plain.fitted, plain.members, 1, 2.5, abstention=fitted)
    accepted = jax.export.deserialize(bytearray(export.export(predictor))).call(inputs)["accepted"]
    assert accepted.dtype == bool
    np.testing.assert_array_equal(accepted, predictor(inputs).accepted)
    assert 0.69 < accepted.mean() < 0.72
    assert jax.export.deserialize(bytearray(export.export(plain))).call(inputs)["accepted"].all()


@pytest.mark.check
def test_certain_members_have_no_nan():
    """0 log 0 = 0, as in `metrics`: members that are certain, and of different classes."""
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array([[[1, 0, 0], [1, 0, 0]], [[0, 1, 0], [1, 0, 0]]], np.float32))
    for temperature in (None, 3.0):
        outputs = of_classes("abc").exported({"log_probs": jnp.asarray(log_probs)}, temperature)
        for name, expected in metrics.uncertainty(log_probs).items():
            np.testing.assert_allclose(outputs[name], expected, atol=1e-6)
        assert np.isfinite(outputs["probs"]).all()
        np.testing.assert_allclose(outputs["probs"].sum(axis=-1), 1, atol=1e-6)


@pytest.mark.check
def test_a_missing_package_and_too_large_an_ensemble_are_said(trained, monkeypatch):
    _, predictor, _ = trained
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "flatbuffers", None)
        with pytest.raises(UserError, match="pip install flatbuffers"):
            export.export(predictor)
    monkeypatch.setattr(export, "_MAX_BYTES", 100)
    with pytest.raises(UserError, match="3 members take"):
        export.export(predictor)


@pytest.mark.check
def test_the_program_writes_the_file(trained, tmp_path):
    workdir, predictor, inputs = trained
    out = tmp_path / "model.bin"
    done = run_here("ensemble.__main__", "export", f"--workdir={workdir}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{out}: 3 members, ")
    exported = jax.export.deserialize(bytearray(out.read_bytes()))
    assert_same(exported.call(inputs), predictor(inputs))
    reader = tmp_path / "read_model.py"
    assert sorted(tmp_path.iterdir()) == [out, reader]
    assert reader.read_bytes() == export.MODEL_READER.read_bytes()


def test_a_file_is_whole_or_not_there(tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", epath.Path("/proc/model.bin")):
        with pytest.raises(UserError, match=f"--out={path} cannot be written: "):
            write(epath.Path(path), {epath.Path(path): b"content"})
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


@pytest.mark.check
def test_bad_input_is_one_line_and_leaves_no_file(trained, tmp_path):
    workdir, _, _ = trained
    out, config = tmp_path / "model.bin", workdir / "config.json"
    before = config.read_bytes()
    cases = {
        "is not a workdir": (f"--workdir={tmp_path}", f"--out={out}"),
        "in a folder that exists": (f"--workdir={workdir}", f"--out={tmp_path}/none/model.bin"),
        "--out=x://y/z begins with no known kind": (f"--workdir={workdir}", "--out=x://y/z"),
        "--out is missing; try --workdir=": (f"--workdir={workdir}",),
        "config.json is there already; choose": (f"--workdir={workdir}", f"--out={config}"),
    }
    for line, arguments in cases.items():
        done = run_here("ensemble.__main__", "export", *arguments)
        assert done.returncode == 2, done.stderr
        assert not done.stdout
        errors = done.stderr.splitlines()
        lines = [text for text in errors if text.startswith("ensemble export: ")]
        assert lines == errors[-1:], errors
        assert line in lines[0]
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert config.read_bytes() == before
