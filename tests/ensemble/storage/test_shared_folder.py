"""Real processes that share a folder, or do not: who writes checkpoints, and who reads what."""

import json
import os
import re
import sys

import jax
import numpy as np
import pytest
from conftest import ROOT, free_port, run_all
from etils import epath
from object_store import emulated

from ensemble.storage.checkpoint import Checkpointer

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
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.shared_folder import is_shared
from ensemble.storage.workdir import Workdir
processes.start(f"127.0.0.1:{port}", int(number), int(rank), {})
folder = Workdir(folder).path
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
from ensemble.errors import PeerLost
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
