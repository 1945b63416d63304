"""Placement: padding, what is shared by whom, and the same numbers on any devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.runtime.devices import Devices, unrolled
from ensemble.sharding.mesh import DATA, ENSEMBLE

ALL = jax.devices()


@pytest.mark.parametrize(
    ("members", "devices", "splits", "places", "slices"),
    [(3, 2, True, 4, 1), (2, 8, True, 2, 4), (3, 8, True, 4, 2), (3, 8, False, 3, 1)],
)
def test_members_are_padded_and_devices_shared(members, devices, splits, places, slices):
    place = Devices(members, ALL[:devices], splits)
    assert (place.num_places, place.num_slices) == (places, slices)
    assert place.is_padding.tolist() == [False] * members + [True] * (places - members)
    leaf = np.arange(members * 2).reshape(members, 2)
    placed = place.put_members(leaf)
    assert placed.shape == (places, 2)
    np.testing.assert_array_equal(
        np.asarray(placed)[members:], leaf[-1:].repeat(places - members, 0)
    )
    np.testing.assert_array_equal(place.fetch_members(placed), leaf)


def test_large_arrays_of_a_member_are_split_along_the_largest_axis_that_divides():
    place = Devices(4, ALL, splits_members=True, groups=2)
    shapes = {"wide": (4, 128, 256), "odd": (4, 301, 64), "small": (4, 8)}
    tree = {name: jax.ShapeDtypeStruct(one, jnp.float32) for name, one in shapes.items()}
    found = {name: tuple(one.spec) for name, one in place.of_members(tree).items()}
    assert found == {
        "wide": (ENSEMBLE, None, DATA),
        "odd": (ENSEMBLE, None, DATA),
        "small": (ENSEMBLE, None),
    }
    leaf = np.random.default_rng(0).normal(size=shapes["wide"])
    placed = place.put_members(leaf)
    assert placed.addressable_shards[0].data.shape == (2, 128, 64)
    np.testing.assert_array_equal(place.fetch_members(placed), np.float32(leaf))


@pytest.mark.parametrize("size", [3, 20])
def test_members_one_after_the_other_are_those_of_vmap(size):
    def fn(tree, y):
        return tree["a"] @ y, tree["b"]

    a = np.random.default_rng(0).normal(size=(size, 2, 3)).astype(np.float32)
    given = {"a": a, "b": np.arange(size)}, np.ones(3, np.float32)
    found, expected = (jax.jit(jax.vmap(one, (0, None)))(*given) for one in (unrolled(fn), fn))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, expected)
