"""The rule of size: which arrays of a member are split, along which axis, over which devices."""

import math

import jax
import jax.numpy as jnp
import pytest

from ensemble import UserError
from ensemble.sharding.member_parts import (
    SMALL_BYTES,
    annotated,
    bytes_per_device,
    check_annotations,
    fewest_member_devices,
    split,
)

BOTH = ("data", "model")


@pytest.mark.parametrize(
    ("shape", "sizes", "expected"),
    [
        ((256, 512), {"data": 1, "model": 4}, (None, "model")),  # The largest axis.
        ((512, 256), {"data": 1, "model": 4}, ("model",)),
        ((256, 514), {"data": 1, "model": 4}, ("model",)),  # That they divide.
        ((256, 512), {"data": 2, "model": 4}, (None, BOTH)),  # Of all devices of the member.
        ((257, 516), {"data": 2, "model": 4}, (None, "model")),  # Of as many as divide it.
        ((257, 514), {"data": 2, "model": 4}, (None, "data")),
        ((257, 513), {"data": 2, "model": 4}, ()),
        ((256, 512), {"data": 1, "model": 1}, ()),
        ((SMALL_BYTES // 4,), {"data": 1, "model": 2}, ("model",)),
        ((SMALL_BYTES // 4 - 2,), {"data": 1, "model": 2}, ()),  # Small arrays are whole.
        ((), {"data": 1, "model": 2}, ()),
        ((3, 3, 128, 256), {"data": 1, "model": 2}, (None, None, None, "model")),
    ],
)
def test_the_largest_axis_that_the_devices_divide_is_split(shape, sizes, expected):
    assert split(shape, 4, sizes) == expected


@pytest.mark.parametrize(
    ("named", "sizes", "expected"),
    [
        (("model", None), {"data": 1, "model": 2}, ("model",)),
        (("model", None), {"data": 2, "model": 2}, ("model", "data")),  # The rule has the rest.
        ((None, "model"), {"data": 2, "model": 1}, (None, "data")),
        (((*BOTH,), None), {"data": 2, "model": 2}, (BOTH,)),
    ],
)
def test_what_a_network_says_comes_first(named, sizes, expected):
    assert split((256, 512), 4, sizes, named) == expected


def test_the_moments_of_an_optimiser_lie_as_their_parameters():
    said = ((("Dense_0", "kernel"), ("model", None)),)
    assert annotated(("opt_state", "0", "mu", "Dense_0", "kernel"), said) == ("model", None)
    assert annotated(("opt_state", "0", "mu", "Dense_1", "kernel"), said) == ()
    assert annotated(("kernel",), said) == ()
    both = (*said, (("block", "Dense_0", "kernel"), ()))
    assert annotated(("mu", "block", "Dense_0", "kernel"), both) == ()
    assert annotated(("mu", "Dense_0", "kernel"), both) == ("model", None)


def test_bytes_of_a_device_are_those_that_lie_there():
    """Against shards that JAX makes."""
    shapes = {"kernel": (256, 512), "bias": (512,), "odd": (129, 255), "norm": (64,)}
    tree = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    mesh = jax.make_mesh((2, 2), BOTH, axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sizes = dict(mesh.shape)

    def shard(leaf):
        place = jax.sharding.NamedSharding(mesh, jax.P(*split(leaf.shape, 4, sizes)))
        return 4 * math.prod(place.shard_shape(leaf.shape))

    expected = sum(map(shard, jax.tree.leaves(tree)))
    assert bytes_per_device(tree, sizes) == expected < 4 * sum(map(math.prod, shapes.values())) / 2
    whole = bytes_per_device(tree, {"data": 1, "model": 1})
    assert whole == 4 * sum(map(math.prod, shapes.values()))


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ((None, "tensor"), "names the axis 'tensor'"),
        (("model", "model"), "names an axis twice"),
        ((None, "model"), "514 is not divisible by the 4 devices"),
    ],
)
def test_annotations_that_do_not_suit_are_refused(names, line):
    shapes = {"Dense_0": {"kernel": jax.ShapeDtypeStruct((256, 514), jnp.float32)}}
    with pytest.raises(UserError, match=line):
        check_annotations(((("Dense_0", "kernel"), names),), shapes, {"data": 2, "model": 4})


KERNEL = {"kernel": jax.ShapeDtypeStruct((1024, 256), jnp.float32)}  # A MiB.


@pytest.mark.parametrize(
    ("num_members", "num_devices", "memory", "expected"),
    [
        (8, 8, 2**20, 1),
        (8, 4, 2**21, 1),
        (8, 4, 2**21 - 1, None),  # Two members of each device have two MiB, however split.
        (2, 8, 2**18, 2),  # The other half of the devices share examples, and hold parts, too.
        (2, 8, 2**18 - 1, None),
        (1, 8, 2**17, 2),
        (3, 12, 2**20 - 1, 2),
        (5, 6, 2**20 - 1, None),  # Two members of three pairs have as much as one of a device.
    ],
)
def test_members_are_split_over_as_few_devices_as_their_memory_allows(
    num_members, num_devices, memory, expected
):
    def fewest():
        return fewest_member_devices(KERNEL, num_members, num_devices, memory)

    if expected is None:
        with pytest.raises(UserError, match="fewer members"):
            fewest()
    else:
        assert fewest() == expected
