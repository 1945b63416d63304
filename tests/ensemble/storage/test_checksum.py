"""The checksum of a checkpoint: any division of the arrays gives that of the whole."""

import itertools
import json
import zlib

import jax
import numpy as np
import pytest

from ensemble.storage.checksum import checksum, checksum_of_shares, share

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
