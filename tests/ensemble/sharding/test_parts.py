"""Parts of arrays: each is written once, without padding, and read where it is needed."""

import math

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ensemble.sharding.mesh import DATA, ENSEMBLE, MODEL, create_mesh
from ensemble.sharding.parts import Distant, blocks, own_parts
from ensemble.sharding.transfer import pad


@pytest.mark.parametrize("spec", [(ENSEMBLE,), (ENSEMBLE, None, (DATA, MODEL)), (None, DATA), ()])
def test_each_number_is_written_once_and_no_padding(spec):
    mesh = create_mesh(2, 2, jax.devices(), 2)
    whole = np.arange(6 * 4 * 8.0).reshape(6, 4, 8)
    placed = jax.device_put(whole, jax.sharding.NamedSharding(mesh, PartitionSpec(*spec)))
    parts = own_parts(placed, 5)
    found, times = np.zeros((5, 4, 8)), np.zeros((5, 4, 8), int)
    for index, part in parts.parts:
        found[index] = part
        times[index] += 1
        assert all(one.start % size == 0 for one, size in zip(index, parts.grid, strict=True))
    np.testing.assert_array_equal(found, whole[:5])
    assert (times == 1).all()
    assert parts.nbytes == found.size * placed.dtype.itemsize


def distant(whole, grid, read):
    """An array that notes what is read of it."""

    def copy(index, found):
        read.append(index)
        found[...] = whole[index]

    return Distant(whole.shape, whole.dtype, grid, copy)


def test_a_process_reads_its_part_and_what_pads_is_the_last_row():
    whole, read = np.arange(15.0).reshape(5, 3), []
    one = pad(distant(whole, (2, 3), read), 8, fill=None)
    expected = np.pad(whole, [(0, 3), (0, 0)], mode="edge")
    for rows in (slice(2, 4), slice(4, 6), slice(6, 8)):
        np.testing.assert_array_equal(one[rows, 0:2], expected[rows, 0:2])
    assert read == [
        (slice(2, 4), slice(0, 2)),
        (slice(4, 5), slice(0, 2)),
        (slice(4, 5), slice(0, 2)),
    ]
    np.testing.assert_array_equal(np.asarray(one), expected)
    np.testing.assert_array_equal(one[:2], expected[:2])


def test_blocks_are_cut_at_the_multiples_of_a_grid():
    index = (slice(1, 5), slice(0, 3))
    found = list(blocks(index, (2, 2)))
    assert [one[0] for one in found[::2]] == [slice(1, 2), slice(2, 4), slice(4, 5)]
    sizes = [math.prod(one.stop - one.start for one in block) for block in found]
    assert sum(sizes) == 4 * 3
    assert list(blocks((), ())) == [()]


def test_pieces_are_all_of_it():
    whole = np.arange(35.0).reshape(5, 7)
    found = np.zeros_like(whole)
    for index, piece in distant(whole, (2, 3), []).pieces():
        found[index] = piece
    np.testing.assert_array_equal(found, whole)
