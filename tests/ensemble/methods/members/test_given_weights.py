"""Members that start from weights of a file or of another run."""

import json
import os

import jax
import ml_dtypes
import numpy as np
import pytest
from conftest import make_blobs, small_config
from flax import linen as nn
from programs import run_here
from run_parts import task_of, validated

import ensemble
from ensemble import UserError, networks, registry
from ensemble.methods.members.sgd import SGD

BODY = ("Dense_0/bias", "Dense_0/kernel")


@networks.register("test_normed")
class Normed(nn.Module):
    """A network with a state."""

    num_outputs: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
        return nn.Dense(self.num_outputs)(nn.tanh(x))


def body_of_tiny(seed=0):
    """Arrays of the network `tiny` for inputs of six features and five classes."""
    rng = np.random.default_rng(seed)
    shapes = {"Dense_0/kernel": (6, 8), "Dense_0/bias": (8,), "Dense_1/kernel": (8, 5)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_safetensors(path, arrays, **claims):
    """Writes a file of arrays in float32 or bfloat16; claims are of the header's entries."""
    header, data = {"__metadata__": {"format": "np"}}, b""
    for name, array in arrays.items():
        dtype = "BF16" if array.dtype == ml_dtypes.bfloat16 else "F32"
        end = len(data) + array.nbytes
        entry = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), end]}
        header[name] = entry | claims
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def started(blobs, **overrides):
    """Variables [M, ...] of members that have taken no step, by path."""
    config = validated(small_config(**overrides))
    method = SGD(config, task_of(config, blobs))
    members = method.engine.programs.placement.gather_members(
        method.init(jax.random.key(0)).members.variables
    )
    return {
        jax.tree_util.keystr(path, simple=True, separator="/").removeprefix("params/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(members)
    }


@pytest.mark.check
@pytest.mark.parametrize("num_devices", [1, 3, 8])
def test_every_member_starts_from_the_file_with_a_head_of_its_own(blobs, tmp_path, num_devices):
    arrays = body_of_tiny()
    np.savez(tmp_path / "w.npz", **arrays)
    found = started(blobs, init_from=str(tmp_path / "w.npz"), num_devices=num_devices)
    alone = started(blobs, num_devices=num_devices)
    for name in BODY:
        np.testing.assert_array_equal(found[name], np.stack([arrays[name]] * 4))
    head = found["Dense_1/kernel"]
    assert head.shape == (4, 8, 3)
    assert len(np.unique(head[:, 0, 0])) == 4
    np.testing.assert_array_equal(head, alone["Dense_1/kernel"])  # As without any weights.


def test_names_may_have_dots_and_a_prefix_and_numbers_may_be_half(blobs, tmp_path):
    arrays = {name: one.astype(ml_dtypes.bfloat16) for name, one in body_of_tiny().items()}
    dotted = {f"params.{name.replace('/', '.')}": one for name, one in arrays.items()}
    write_safetensors(tmp_path / "w.safetensors", dotted)
    found = started(blobs, init_from=str(tmp_path / "w.safetensors"))
    for name in BODY:
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name][1], arrays[name].astype(np.float32))


@pytest.mark.check
def test_members_of_a_run_are_started_from_in_turn_with_their_state(blobs, tmp_path):
    first = ensemble.train(
        small_config(model="test_normed", ensemble_size=2, num_epochs=1),
        data=blobs,
        workdir=str(tmp_path / "first"),
    )
    theirs = first.predictor.fitted.sets
    other = make_blobs(num_classes=4)
    found = started(other, model="test_normed", ensemble_size=3, init_from=str(tmp_path / "first"))
    for k in range(3):
        for name in ("mean", "var"):
            np.testing.assert_array_equal(
                found[f"batch_stats/BatchNorm_0/{name}"][k],
                theirs["batch_stats"]["BatchNorm_0"][name][k % 2],
            )
        np.testing.assert_array_equal(
            found["Dense_0/kernel"][k], theirs["params"]["Dense_0"]["kernel"][k % 2]
        )
    assert found["Dense_1/kernel"].shape == (3, 8, 4)


@pytest.mark.check
def test_a_run_fine_tunes_all_weights_and_goes_on_without_the_file(blobs, tmp_path):
    pretrained = ensemble.train(small_config(ensemble_size=1, num_epochs=20), data=blobs)
    params = pretrained.predictor.fitted.sets["params"]
    arrays = {f"params/{a}/{b}": x[0] for a, one in params.items() for b, x in one.items()}
    file = tmp_path / "w.npz"
    np.savez(file, **arrays)
    config = small_config(ensemble_size=3, num_epochs=2, init_from=str(file), learning_rate=0.02)
    straight = ensemble.train(config, data=blobs)
    ensemble.train(config | {"num_epochs": 1}, data=blobs, workdir=str(tmp_path / "run"))
    file.unlink()
    resumed = ensemble.train(config, data=blobs, workdir=str(tmp_path / "run"))
    ours, theirs = (one.predictor.fitted.sets["params"] for one in (resumed, straight))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    kernel = ours["Dense_0"]["kernel"]
    assert np.abs(kernel - arrays["params/Dense_0/kernel"]).max() > 1e-3  # It has moved,
    assert np.abs(kernel - arrays["params/Dense_0/kernel"]).max() < 0.5  # and not far.
    fresh = ensemble.train(config | {"init_from": ""}, data=blobs)
    nll = {
        name: one.report["test"]["scores"]["nll"]["value"]
        for name, one in {"tuned": straight, "fresh": fresh}.items()
    }
    assert nll["tuned"] < nll["fresh"]


@pytest.mark.check
def test_what_does_not_fit_is_named(blobs, tmp_path):
    file = tmp_path / "w.npz"

    def refused(line, arrays, **overrides):
        np.savez(file, **arrays)
        with pytest.raises(UserError, match=line) as error:
            started(blobs, init_from=str(file), **overrides)
        assert "\n" not in str(error.value)

    arrays = body_of_tiny()
    refused(
        r"does not fit config.model='tiny': Dense_0/bias \[8\] is missing there; Dense_0/kernel is "
        r"\[7, 8\] there and \[6, 8\] here \(it also has old/bias\); give weights of this network",
        {"Dense_0/kernel": np.zeros((7, 8)), "old/bias": np.zeros(8)},
    )
    refused("Dense_0/bias has NaN", arrays | {"Dense_0/bias": np.full(8, np.nan)})
    refused("two arrays of one name", arrays | {"Dense_0.bias": np.zeros(8)})
    refused("batch_stats/BatchNorm_0/mean .* is missing there", arrays, model="test_normed")
    refused("is nothing but a head", arrays, model="logistic_regression")
    refused("Dense_0/bias has dtype <U1, not real numbers", arrays | {"Dense_0/bias": ["a"] * 8})
    for path, line in (
        (tmp_path / "none.npz", "there is no such file"),
        (tmp_path, "is not a workdir.*; or give an npz or a safetensors file"),
    ):
        with pytest.raises(UserError, match=line):
            started(blobs, init_from=str(path))


def test_what_never_ends_is_not_read(tmp_path):
    """A pipe that nobody writes to, and a device, whose size is said to be 0."""
    os.mkfifo(tmp_path / "w.npz")
    (tmp_path / "w.safetensors").symlink_to("/dev/zero")
    for file in (tmp_path / "w.npz", tmp_path / "w.safetensors"):
        done = run_here(
            "train.py",
            "--config=digits_ensemble",
            f"--workdir={tmp_path}/run",
            f"--config.init_from={file}",
        )
        assert done.returncode == 2
        assert f"{file} cannot be read as weights" in done.stderr


@pytest.mark.parametrize(
    "claims",
    [
        {"shape": [6, 9]},
        {"shape": [2**40, 2**40]},
        {"data_offsets": [0, 10**12]},
        {"shape": [-6, -8]},
        {"dtype": "F8_E4M3", "shape": [4, 6, 8]},  # Of as many bytes.
        {"data_offsets": None},
    ],
)
def test_a_forged_file_is_refused(blobs, tmp_path, claims):
    file = tmp_path / "w.safetensors"
    write_safetensors(file, dict([next(iter(body_of_tiny().items()))]), **claims)
    with pytest.raises(UserError, match=r"cannot be read as weights: .*npz"):
        started(blobs, init_from=str(file))


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, (10).to_bytes(8, "little") + b"[" * 10])
def test_what_is_no_file_of_weights_is_refused(blobs, tmp_path, content):
    file = tmp_path / "w.safetensors"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot be read as weights: .*npz"):
        started(blobs, init_from=str(file))


def test_arrays_that_the_network_lacks_are_noted(blobs, tmp_path, caplog):
    np.savez(tmp_path / "w.npz", **body_of_tiny(), pre_logits=np.zeros(3))
    started(blobs, init_from=str(tmp_path / "w.npz"))
    assert "config.model='tiny' lacks: pre_logits." in caplog.text


@pytest.mark.check
def test_other_weights_are_refused_by_a_run_that_goes_on_and_by_new_members(blobs, tmp_path):
    file, workdir = tmp_path / "w.npz", str(tmp_path / "run")
    np.savez(file, **body_of_tiny())
    config = small_config(ensemble_size=2, num_epochs=1, init_from=str(file))
    ensemble.train(config, data=blobs, workdir=workdir)
    np.savez(file, **body_of_tiny(seed=1))
    line = r"started from other weights than config.init_from='.*w.npz' has now; put those back"
    for more in ({"num_epochs": 2}, {"ensemble_size": 3}):
        with pytest.raises(UserError, match=line):
            ensemble.train(config | more, data=blobs, workdir=workdir)
    others = {"num_members": 1, "step": 1, "pretrained": 1}
    method = SGD(validated(config), task_of(validated(config), blobs), others)
    with pytest.raises(UserError, match="other weights than the run's first members"):
        method.init(jax.random.key(0))
    np.savez(file, **{name.replace("/", "."): one for name, one in body_of_tiny().items()})
    larger = ensemble.train(config | {"ensemble_size": 3}, data=blobs, workdir=workdir)
    assert len(larger.predictor.members) == 3  # The same weights, in another file.


@networks.register("test_wide")
class Wide(nn.Module):
    """Kernels that are large enough to be split."""

    num_outputs: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        for width in (64, 256):
            x = nn.tanh(nn.Dense(width)(x))
        return nn.Dense(self.num_outputs)(x)


@pytest.mark.check
def test_weights_lie_on_the_devices_as_the_members_do(blobs, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "Dense_0/kernel": rng.normal(size=(6, 64)),
        "Dense_0/bias": rng.normal(size=64),
        "Dense_1/kernel": rng.normal(size=(64, 256)),
        "Dense_1/bias": rng.normal(size=256),
    }
    np.savez(tmp_path / "w.npz", **arrays)
    config = {"model": "test_wide", "init_from": str(tmp_path / "w.npz"), "ensemble_size": 2}
    config = validated(small_config(**config, member_devices=4, num_devices=8))
    method = SGD(config, task_of(config, blobs))
    placed = []
    create_members = method.engine.programs.create
    spied = method.engine.programs._replace(
        create=lambda numbers, key, given: (
            placed.append(
                {name: (x.shape, x.sharding) for name, x in given["params"]["Dense_1"].items()}
            ),
            create_members(numbers, key, given),
        )[1]
    )
    method.engine.__dict__["programs"] = spied
    members = method.init(jax.random.key(0)).members
    kernel = members.params["Dense_1"]["kernel"]
    shape, sharding = placed[0]["kernel"]
    assert sharding.is_equivalent_to(kernel.sharding, 3)
    assert sharding.shard_shape(shape) == (1, 64, 64)  # A quarter of one member's.
    found = method.engine.programs.placement.gather_members(members.params)
    for k in range(2):
        np.testing.assert_array_equal(
            found["Dense_1"]["kernel"][k], arrays["Dense_1/kernel"].astype(np.float32)
        )


@pytest.mark.check
def test_members_that_would_all_be_the_same_are_refused(blobs, tmp_path, monkeypatch):
    monkeypatch.setattr(registry.NETWORKS, "registered", dict(registry.NETWORKS.registered))

    class Zero(nn.Module):
        num_outputs: int

        @nn.compact
        def __call__(self, x):
            x = nn.tanh(nn.Dense(8)(x))
            return nn.Dense(self.num_outputs, kernel_init=nn.initializers.zeros)(x)

    networks.register("zero", Zero)
    np.savez(tmp_path / "w.npz", **body_of_tiny())
    config = {"model": "zero", "init_from": str(tmp_path / "w.npz")}
    with pytest.raises(UserError, match="members 0 and 1,"):
        started(blobs, **config)
    assert started(blobs, **config, batching="independent")["Dense_1/kernel"].shape == (4, 8, 3)
    two = {"ensemble_size": 2}
    ensemble.train(small_config(num_epochs=1, **two), data=blobs, workdir=str(tmp_path / "two"))
    config["init_from"] = str(tmp_path / "two")  # Of two networks, which differ.
    assert started(blobs, **config, **two)["Dense_1/kernel"].shape == (2, 8, 3)
    with pytest.raises(UserError, match="members 0 and 2,"):
        started(blobs, **config, ensemble_size=3)
