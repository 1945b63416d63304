"""Arrays to the devices and back, and their padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.sharding import transfer
from ensemble.sharding.mesh import DATA, ENSEMBLE, create_mesh, named_sharding


@pytest.mark.parametrize("names", [(), ("member",), ("member", "example"), (None, "example")])
def test_what_is_put_is_fetched(names):
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    placed = transfer.put(array, named_sharding(create_mesh(2, 4, jax.devices()), *names))
    fetched = transfer.fetch(placed)
    np.testing.assert_array_equal(fetched, array)
    fetched += 1  # A copy, whatever a device does with its buffer.
    np.testing.assert_array_equal(placed, array)


@pytest.mark.parametrize("backend", [np, jnp])
def test_padding_is_stripped_again(backend):
    array = backend.ones((2, 5))
    padded = transfer.pad(array, 8, axis=1)
    assert padded.shape == (2, 8)
    assert isinstance(padded, type(array))
    np.testing.assert_array_equal(padded.sum(axis=1), 5)
    np.testing.assert_array_equal(transfer.strip(padded, 5, axis=1), array)
    assert transfer.pad(padded, 8, axis=1) is padded


def test_what_pads_is_a_value_or_the_last_row():
    rows = np.array([[1, 2], [3, 4]])
    assert transfer.pad(rows, 3, fill=-1).tolist() == [[1, 2], [3, 4], [-1, -1]]
    assert transfer.pad(rows, 4, fill=None).tolist() == [[1, 2], [3, 4], [3, 4], [3, 4]]


def test_a_padded_size_is_a_multiple_of_the_devices():
    mesh = create_mesh(2, 3, jax.devices())
    assert [transfer.padded_size(size, mesh, DATA) for size in (1, 3, 4)] == [3, 3, 6]
    assert transfer.padded_size(3, mesh, ENSEMBLE) == 4
