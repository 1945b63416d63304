"""Memory maps: the same data as in an npz file, more of it than memory holds, every refusal."""

import resource
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from conftest import ROOT
from run_parts import read_in_blocks_of

import ensemble
from ensemble import UserError
from ensemble.sources import dataset, in_memory, load_dataset, memory_map
from ensemble.sources.on_disk import OnDisk
from ensemble.storage import npz

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 3
FEATURES = RNG.normal(3, 2, (60, 4))
PICTURES = RNG.integers(0, 200, (60, 5, 4), np.uint8)

ARRAYS = {
    "features": {"inputs": FEATURES, "labels": LABELS},
    "whole numbers": {"inputs": PICTURES.astype(np.int16), "labels": LABELS.astype(np.float64)},
    "big endian": {"inputs": FEATURES.astype(">f4"), "labels": LABELS.astype(">i8")},
    "real targets": {"inputs": FEATURES, "targets": FEATURES[:, 0] ** 2},
    "pictures": {"train_inputs": PICTURES, "train_labels": LABELS},
    "splits": {
        **{f"{split}_inputs": PICTURES[:20] / 3 for split in ("train", "validation", "test")},
        **{f"{split}_labels": LABELS[:20] for split in ("train", "validation", "test")},
        "class_names": np.array(["a", "b", "c"]),
    },
}


def _write(folder, arrays):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "all.npz", **arrays)
    return f"npy:{folder}", f"npz:{folder / 'all.npz'}"


@pytest.mark.parametrize("hold_out", [True, False])
@pytest.mark.parametrize("case", ARRAYS)
def test_it_is_the_same_data_as_in_an_npz_file(tmp_path, case, hold_out):
    names = _write(tmp_path, ARRAYS[case])
    mapped, loaded = (load_dataset(name, seed=3, hold_out=hold_out) for name in names)
    assert isinstance(mapped, OnDisk)
    assert isinstance(loaded, dataset.Dataset)
    assert mapped.sizes == loaded.sizes
    assert mapped.class_names == loaded.class_names
    assert mapped.input_shape == loaded.input_shape
    assert mapped.fingerprint == loaded.fingerprint
    assert mapped.test_fingerprint == loaded.test_fingerprint
    np.testing.assert_array_equal(mapped.shift, loaded.shift)
    np.testing.assert_array_equal(mapped.scale, loaded.scale)
    for split, size in loaded.sizes.items():
        indices = np.random.default_rng(1).integers(0, size, (3, 5))
        for where in (indices, slice(1, 7), slice(None), indices[0]):
            for ours, theirs in zip(mapped.read(split, where), loaded.read(split, where), strict=1):
                assert ours.dtype == theirs.dtype
                np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(mapped.targets(split), loaded.targets(split))


def test_data_of_many_blocks_are_the_same_too(tmp_path, monkeypatch):
    names = _write(tmp_path, ARRAYS["features"])
    whole = load_dataset(names[1])
    read_in_blocks_of(monkeypatch, 4 * 7)
    mapped, loaded = (load_dataset(name) for name in names)
    assert [len(block) for block in mapped.hashed("train")] == [7] * 6
    assert mapped.fingerprint == loaded.fingerprint == whole.fingerprint
    for ours, theirs, exact in (
        (mapped.shift, loaded.shift, whole.shift),
        (mapped.scale, loaded.scale, whole.scale),
    ):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(ours, exact, rtol=1e-6)


@pytest.mark.check
@pytest.mark.parametrize(
    "batching", [pytest.param("shared", marks=pytest.mark.soak), "independent"]
)
def test_training_gives_the_same_parameters(tmp_path, batching):
    config = {"model": "mlp", "ensemble_size": 2, "batch_size": 16, "num_steps": 4}
    found = [
        ensemble.train(config | {"dataset": name, "batching": batching}, show_progress=False)
        for name in _write(tmp_path, ARRAYS["features"])
    ]
    ours, theirs = (
        {str(path): leaf for path, leaf in _leaves(result.predictor.fitted.sets)}
        for result in found
    )
    assert ours.keys() == theirs.keys()
    for path, leaf in ours.items():
        np.testing.assert_array_equal(leaf, theirs[path])
    assert found[0].report["test"] == found[1].report["test"]


def _leaves(tree):
    import jax  # Only here.

    return jax.tree_util.tree_leaves_with_path(tree)


def _truncated(folder):
    file = folder / "inputs.npy"
    file.write_bytes(file.read_bytes()[:-8])


def _forged(folder):
    file = folder / "inputs.npy"
    file.write_bytes(file.read_bytes().replace(b"(60, 4)", b"(10**9, 4)"[:7]))


REFUSED = {
    "no inputs": (lambda f: (f / "inputs.npy").unlink(), "has the arrays labels; expected are"),
    "empty": (lambda f: (f / "inputs.npy").write_bytes(b""), "inputs.npy is damaged"),
    "text": (lambda f: (f / "inputs.npy").write_text("1, 2"), "is damaged .*not an array"),
    "truncated": (_truncated, "is damaged .*claims 1,920 bytes where there are 1,912"),
    "forged": (_forged, "inputs.npy is damaged"),
    "folder": (lambda f: (f / "x.npy").mkdir(), "x.npy is no file"),
    "pickled": (
        lambda f: np.save(f / "labels.npy", np.array([{}], object), allow_pickle=True),
        "labels.npy: it holds pickled Python objects, which are never loaded",
    ),
    "order": (
        lambda f: np.save(f / "inputs.npy", np.asfortranarray(FEATURES)),
        "in Fortran's order.*ascontiguousarray",
    ),
    "not finite": (
        lambda f: np.save(
            f / "inputs.npy", np.where(np.arange(60)[:, None] == 7, np.nan, FEATURES)
        ),
        "inputs holds nan in example 7",
    ),
    "label": (lambda f: np.save(f / "labels.npy", LABELS - 1), "labels holds -1 in example 0"),
    "lengths": (lambda f: np.save(f / "labels.npy", LABELS[1:]), "60 examples but labels has 59"),
    "nothing": (lambda f: np.save(f / "inputs.npy", FEATURES[:0]), "which is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_said_in_a_line(tmp_path, case):
    name, _ = _write(tmp_path, ARRAYS["features"])
    spoil, message = REFUSED[case]
    spoil(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        load_dataset(name)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_an_absent_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no folder .*none"):
        load_dataset(f"npy:{tmp_path / 'none'}")


def test_only_inputs_may_be_larger_than_the_memory(tmp_path, monkeypatch):
    name, _ = _write(tmp_path, ARRAYS["features"])
    monkeypatch.setattr(memory_map, "max_data_bytes", lambda: 400)
    with pytest.raises(UserError, match=r"labels.npy.*480 bytes.*400 allowed"):
        load_dataset(name)


def test_what_needs_a_whole_split_is_refused_in_a_line(tmp_path, monkeypatch):
    source = load_dataset(_write(tmp_path, ARRAYS["features"])[0])
    in_memory(source, "train")
    monkeypatch.setattr("ensemble.storage.memory.memory_bytes", lambda: 600)
    with pytest.raises(UserError, match=r"'train' of npy:"):
        in_memory(source, "train")


def test_a_limit_of_the_process_is_a_limit_of_its_memory(monkeypatch):
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: (2**20 if kind == resource.RLIMIT_DATA else -1, -1)
    )
    assert npz.memory_bytes() == 2**20


LIMIT = 2**30
"""Bytes. RLIMIT_DATA limits what a process may write to and shares with none: heap, stacks of
threads, anonymous maps. It does not limit a file that is mapped to be read, whose pages the system
takes back whenever it needs them; RLIMIT_AS would count addresses, and refuse any large map."""

TRAIN = """
import resource, sys
import numpy as np
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones(limit, np.uint8)
except MemoryError:
    print("limited")
import ensemble
config = {"dataset": sys.argv[2], "model": "mlp", "ensemble_size": 2, "num_steps": 5,
          "batch_size": 64, "num_devices": 1}
try:
    result = ensemble.train(config, show_progress=False)
except ensemble.UserError as error:
    print("refused", error)
else:
    print("trained", result.report["num_train_examples"], result.report["live_members"])
"""


def _header(shape):
    return {"descr": "|u1", "fortran_order": False, "shape": shape}


def _sparse(file, shape):
    """An npy file of zeros, uint8, which takes no room on the disk."""
    with file.open("wb") as content:
        np.lib.format.write_array_header_1_0(content, _header(shape))
        content.truncate(content.tell() + int(np.prod(shape, dtype=np.int64)))


SMALL = ("validation", "calibration", "test")


@pytest.mark.soak
def test_it_trains_from_a_file_larger_than_the_memory_that_it_may_take(tmp_path):
    small = {f"{split}_inputs": np.zeros((20, 32, 32), np.uint8) for split in SMALL}
    small |= {f"{split}_labels": np.arange(20) % 2 for split in SMALL}
    num_examples = LIMIT * 5 // 4 // 2**10
    labels = (np.arange(num_examples) % 2).astype(np.uint8)
    for name, array in (small | {"train_labels": labels}).items():
        np.save(tmp_path / f"{name}.npy", array)
    large = tmp_path / "train_inputs.npy"
    _sparse(large, (num_examples, 32, 32))
    assert large.stat().st_size > LIMIT

    mapped = _train_under_limit(f"npy:{tmp_path}")
    assert mapped == ["limited", f"trained {num_examples} [0, 1]"]


@pytest.mark.check
def test_the_same_limit_refuses_an_npz_file_of_that_size(tmp_path):
    file = tmp_path / "all.npz"
    num_examples = LIMIT * 5 // 4 // 2**10
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("inputs.npy", "w", force_zip64=True) as content,
    ):
        np.lib.format.write_array_header_1_0(content, _header((num_examples, 32, 32)))
        for _ in range(num_examples // 2**10):
            content.write(bytes(2**20))
    limited, refused = _train_under_limit(f"npz:{file}")
    assert limited == "limited"
    assert "its arrays take 1,342,177" in refused
    assert "more than the 268,435,456 allowed here" in refused


def _train_under_limit(name):
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(LIMIT), name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
