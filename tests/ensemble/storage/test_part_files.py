"""Arrays on disk by parts: no two processes share a piece, and pieces are small."""

import math

import jax
import numpy as np
import pytest
from etils import epath

from ensemble.sharding.parts import Parts, whole_parts
from ensemble.storage import part_files
from ensemble.storage.checkpoint import Checkpointer
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
    read = part_files.distant(directory / "1" / "state")
    for tree in (found, jax.tree.map(np.asarray, read)):
        assert jax.tree.structure(tree) == jax.tree.structure(arrays)
        jax.tree.map(np.testing.assert_array_equal, tree, arrays)
    np.testing.assert_array_equal(read["a"]["b"][1:4, 2:3], arrays["a"]["b"][1:4, 2:3])
    assert math.prod(read["a"]["b"].grid) * 8 <= 100
    one = whole_parts(arrays["a"]["b"], writes=True)
    assert part_files.share_of(read["a"]["b"]) == part_files.share_of(one)
