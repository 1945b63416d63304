"""Arrays on disk by parts: small pieces, one checksum, real processes that share a folder."""

import itertools
import json
import math
import os
import re
import sys
import zlib

import jax
import numpy as np
import pytest
from conftest import ROOT, free_port, run_all
from etils import epath
from object_store import emulated

from ensemble.sharding.parts import Parts, whole_parts
from ensemble.storage import part_files
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.checksum import checksum, checksum_of_shares, share, share_of
from ensemble.storage.part_files import PIECE_BYTES, chunk_shape

FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("shape", "grid", "expected"),
    [
        ((), (), ()),
        ((8, 10), (8, 10), (8, 10)),
        ((8, 1024, 1024), (2, 1024, 1024), (1, 1024, 1024)),
        ((8, 1031, 1031), (8, 1031, 1031), (1, 1017, 1031)),  # A prime that no process splits.
        ((5, 3 * 2**20), (2, 3 * 2**18), (1, 3 * 2**18)),
        ((1, 5 * 2**20), (1, 5 * 2**18), (1, 5 * 2**17)),
        ((0, 3), (0, 3), (1, 3)),
    ],
)
def test_pieces_are_small_and_of_one_process(shape, grid, expected):
    found = chunk_shape(Parts(shape, FLOAT, grid, ()))
    assert found == expected
    assert math.prod(found) * FLOAT.itemsize <= PIECE_BYTES
    for piece, own, whole in zip(found, grid, shape, strict=True):
        assert own == whole or own % piece == 0


def test_what_is_written_in_pieces_is_read_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(part_files, "PIECE_BYTES", 100)
    monkeypatch.setattr(part_files, "_AT_ONCE_BYTES", 300)
    rng = np.random.default_rng(0)
    arrays = {
        "a": {"b": rng.normal(size=(5, 7, 11)), "c": np.array(3)},
        "d": np.arange(60, dtype=np.int8),
        "e": {},
        "f": None,
    }
    directory = epath.Path(tmp_path) / "checkpoints"
    checkpointer = Checkpointer(directory)
    checkpointer.save(1, arrays, {})
    checkpointer.wait()
    found, _ = checkpointer.restore_latest()
    checkpointer.close()
    read = part_files.distant(directory / "1")
    for tree in (found, jax.tree.map(np.asarray, read)):
        assert jax.tree.structure(tree) == jax.tree.structure(arrays)
        jax.tree.map(np.testing.assert_array_equal, tree, arrays)
    np.testing.assert_array_equal(read["a"]["b"][1:4, 2:3], arrays["a"]["b"][1:4, 2:3])
    assert math.prod(read["a"]["b"].grid) * 8 <= 100
    one = whole_parts(arrays["a"]["b"], writes=True)
    assert share_of(read["a"]["b"]) == share_of(one)


# The checksum: any division of the arrays gives that of the whole.

RNG = np.random.default_rng(0)
TREE = {
    "a": RNG.standard_normal((5, 7, 12)).astype(np.float32),
    "b": {"c": np.arange(6, dtype=np.int8), "d": np.array(3), "e": np.zeros((0, 3))},
    "f": RNG.integers(0, 9, (3, 4, 5, 6)),
    "g": None,
}


def of_bytes(arrays, meta=None):
    """As versions before it, which had all bytes in one place."""
    total = 0
    if meta is not None:
        total = zlib.crc32(json.dumps(meta, sort_keys=True).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        description = f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}"
        total = zlib.crc32(leaf.tobytes(), zlib.crc32(description.encode(), total))
    return total


@pytest.mark.parametrize("meta", [None, {"step": 3, "rate": 0.1}])
def test_it_is_that_of_all_bytes_one_after_the_other(meta):
    assert checksum(TREE, meta) == of_bytes(TREE, meta)


@pytest.mark.parametrize(
    "cuts",
    [
        ([0, 2, 5], [0, 7], [0, 12]),
        ([0, 5], [0, 3, 7], [0, 12]),
        ([0, 5], [0, 7], [0, 4, 8, 12]),
        ([0, 1, 4, 5], [0, 6, 7], [0, 5, 12]),
    ],
)
def test_parts_contribute_what_the_whole_does(cuts):
    shares = [share(leaf, None, leaf.shape) for leaf in jax.tree.leaves(TREE)]
    shares[0] = 0
    for index in itertools.product(*[map(slice, cut, cut[1:]) for cut in cuts]):
        shares[0] ^= share(TREE["a"][index], index, TREE["a"].shape)
    assert checksum_of_shares(TREE, shares) == of_bytes(TREE)


def test_a_part_that_lies_elsewhere_is_noticed():
    whole = TREE["a"]
    index = (slice(0, 5), slice(2, 3), slice(0, 12))
    other = (slice(0, 5), slice(3, 4), slice(0, 12))
    assert share(whole[index], index, whole.shape) != share(whole[index], other, whole.shape)


# Real processes that share a folder, or do not: who writes checkpoints, and who reads what.

BEGIN = """
import json, os, sys
import numpy as np
from ensemble.sharding import startup
port, rank, number, num_devices, folder = sys.argv[1:]
startup.configure_devices(int(num_devices))
import jax
from etils import epath
from ensemble.sharding import processes, transfer
from ensemble.sharding.placement import Placement
from ensemble.storage.checkpoint import Checkpointer, is_shared
from ensemble.storage.paths import user_path
processes.start(f"127.0.0.1:{port}", int(number), int(rank), {})
folder = user_path(folder, "--workdir")
def tell(value):
    print("TOLD", json.dumps(value), flush=True)
def members(rows):
    rng = np.random.default_rng(7)
    return {"a": {"w": rng.normal(size=(rows, 6, 40_000)).astype(np.float32)},
            "b": np.arange(rows, dtype=np.int8)}
placement = Placement.create(5, processes.devices(), member_devices=MEMBER_DEVICES)
"""
SAVE = """
tell([is_shared(folder), is_shared(folder / rank), is_shared(folder / "nowhere")])
read_only = folder if processes.is_main() else epath.Path("/proc")
tell(is_shared(read_only))
placed = placement.place_members(members(5))
parts = placement.own_members(placed)
tell(sum(one.nbytes for one in jax.tree.leaves(parts)))
with Checkpointer(folder / "checkpoints", keep=2, is_shared=True) as checkpointer:
    for step in (1, 2):
        checkpointer.save(step, {**parts, "c": np.array([step])}, {"step": step})
        checkpointer.wait()
"""
READ = """
with Checkpointer(folder / "checkpoints", keep=2, is_shared=True) as checkpointer:
    arrays, meta = checkpointer.restore_latest()
    placed = placement.place_members({"a": arrays["a"], "b": arrays["b"]})
    fetched = placement.gather_members(placed)
    jax.tree.map(np.testing.assert_array_equal, fetched, members(5))
    tell([meta["step"], np.asarray(arrays["c"]).tolist()])
    checkpointer.save(3, {**placement.own_members(placed), "c": np.array([3])}, {"step": 3})
"""


def run(code, folders, num_devices=1, member_devices=1, variables=None):
    """What each of some processes tells."""
    port = str(free_port())
    code = BEGIN.replace("MEMBER_DEVICES", str(member_devices)) + code
    number = str(len(folders))
    statuses, outputs = run_all(
        [
            [sys.executable, "-c", code, port, str(k), number, str(num_devices), str(folder)]
            for k, folder in enumerate(folders)
        ],
        [{"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", **(variables or {})}] * len(folders),
        seconds=240,
        cwd=ROOT,
    )
    assert statuses == [0] * len(folders)
    return [[json.loads(one) for one in re.findall("TOLD (.*)", text)] for text in outputs]


def read(folder):
    """The newest checkpoint, as one process reads it."""
    checkpointer = Checkpointer(epath.Path(folder) / "checkpoints")
    found = checkpointer.restore_latest(read_only=True)
    checkpointer.close()
    return found


def expected_of(step):
    rng = np.random.default_rng(7)
    weights = rng.normal(size=(5, 6, 40_000)).astype(np.float32)
    return {"a": {"w": weights}, "b": np.arange(5, dtype=np.int8), "c": np.array([step])}


@pytest.mark.parametrize(
    "member_devices",
    [pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.check)],
)
def test_parts_of_four_processes_are_read_by_one_and_by_two(tmp_path, member_devices):
    for k in range(4):
        (tmp_path / str(k)).mkdir()
    told = run(SAVE, [tmp_path] * 4, member_devices=member_devices)
    # A folder of each, and one that is not there, are not shared.
    assert [one[0] for one in told] == [[True, False, False]] * 4
    assert [one[1] for one in told] == [False] * 4
    assert not list(tmp_path.glob(".seen_by_all_*"))
    own = [one[2] for one in told]
    assert sum(own) == 5 * (6 * 40_000 * 4 + 1)
    assert max(own) <= 2 * (6 * 40_000 * 4 + 1)  # Of two places, if one may pad.
    arrays, meta = read(tmp_path)
    assert meta["step"] == 2
    jax.tree.map(np.testing.assert_array_equal, arrays, expected_of(2))
    told = run(READ, [tmp_path] * 2, num_devices=2)
    assert told == [[[2, [2]]]] * 2
    arrays, again = read(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, arrays, expected_of(3))
    alone = Checkpointer(epath.Path(tmp_path) / "alone" / "checkpoints")
    (tmp_path / "alone").mkdir()
    alone.save(3, arrays, {"step": 3})
    alone.close()
    for key in ("checksum", "whole_checksum"):  # Whoever has written it.
        assert read(tmp_path / "alone")[1][key] == again[key]


@pytest.mark.check
def test_where_the_newest_is_damaged_all_read_the_one_before(tmp_path):
    run(SAVE, [tmp_path] * 2)
    state = tmp_path / "checkpoints" / "2" / "state"
    largest = max(state.glob("ocdbt.process_1/d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert run(READ, [tmp_path] * 2) == [[[1, [1]]]] * 2
    assert (tmp_path / "unreadable_checkpoints" / "2").exists()
    assert read(tmp_path)[1]["step"] == 3


@pytest.mark.check
def test_a_bucket_is_shared(tmp_path):
    with emulated(tmp_path) as store:
        told = run(SAVE, ["gs://bucket/run"] * 2, variables=store.env)
        assert [one[0][0] for one in told] == [True] * 2
        assert [one[1] for one in told] == [False] * 2
        assert run(READ, ["gs://bucket/run"] * 2, variables=store.env) == [[[2, [2]]]] * 2
        store.download("run", tmp_path / "copy")
    arrays, meta = read(tmp_path / "copy")
    assert meta["step"] == 3
    jax.tree.map(np.testing.assert_array_equal, arrays, expected_of(3))
    names = [path.name for path in (tmp_path / "copy").glob("checkpoints/3/state/ocdbt.*")]
    assert sorted(names) == ["ocdbt.process_0", "ocdbt.process_1"]


RUN = """
import ensemble
from small_runs import make_blobs, small_config
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
config = {**small_config(num_devices=None, num_epochs=None, num_steps=12), "ensemble_size": 5}
result = ensemble.train(config, make_blobs(), str(folder), show_progress=False)
"""


@pytest.mark.soak
def test_without_a_common_folder_process_0_writes_for_all(tmp_path):
    own = [tmp_path / "own" / str(k) for k in range(2)]
    os.makedirs(own[0].parent)
    for folders in (own, [tmp_path / "common"] * 2):
        run(RUN, folders)
    assert not own[1].exists()
    (arrays, meta), (others, other) = read(own[0]), read(tmp_path / "common")
    jax.tree.map(np.testing.assert_array_equal, arrays, others)
    assert meta["checksum"] == other["checksum"]
    processes = {
        folder: [path.name for path in folder.glob("checkpoints/*/state/ocdbt.process_1")]
        for folder in (own[0], tmp_path / "common")
    }
    assert not processes[own[0]]
    assert processes[tmp_path / "common"]
