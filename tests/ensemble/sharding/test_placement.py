"""Members on devices: every layout, padding included."""

import itertools

import jax
import numpy as np
import pytest

from ensemble.sharding.placement import Placement, pad_to_multiple


@pytest.mark.parametrize(
    ("members", "devices", "slots", "slices", "places"),
    [
        (8, 2, 4, 1, 8),  # M > D
        (8, 8, 1, 1, 8),  # M = D
        (2, 8, 1, 4, 2),  # M < D
        (1, 8, 1, 8, 1),
        (5, 2, 3, 1, 6),  # Not divisible.
        (3, 8, 1, 2, 4),
        (7, 4, 2, 1, 8),
        (5, 8, 1, 1, 8),
    ],
)
def test_layout(members, devices, slots, slices, places):
    placement = Placement.create(members, jax.devices()[:devices])
    assert (placement.slots, placement.slices, placement.num_places) == (slots, slices, places)
    assert placement.padding.sum() == (places - members) * slices


def test_members_that_cannot_be_split_leave_devices_idle():
    placement = Placement.create(3, jax.devices(), splittable=False)
    assert (len(placement.devices), placement.slots, placement.slices) == (3, 1, 1)


@pytest.mark.parametrize(
    ("members", "devices"), [*itertools.product([1, 2, 3, 5, 8, 13], [1, 3, 8])]
)
def test_members_come_back_as_they_went(members, devices):
    placement = Placement.create(members, jax.devices()[:devices])
    tree = {"a": np.arange(members * 3.0).reshape(members, 3), "b": np.arange(members)}
    placed = placement.place_members(tree)
    assert placed["a"].shape == (len(placement.devices), placement.slots, 3)
    back = placement.gather_members(placed)
    np.testing.assert_array_equal(back["a"], tree["a"])
    np.testing.assert_array_equal(back["b"], tree["b"])


@pytest.mark.parametrize(("members", "devices"), [(2, 8), (3, 8), (8, 2), (5, 2), (35, 2)])
def test_every_member_sees_every_example_once(members, devices):
    placement = Placement.create(members, jax.devices()[:devices])
    batch = np.arange(1.0, 12.0, dtype=np.float32)  # 11 examples; padding adds zeros.

    @placement.pmap
    def total(numbers, shared, separate):
        per_member = placement.map_slots(
            lambda k, x, y: (k, x.sum(), y.sum()), in_axes=(0, None, 0)
        )(numbers, shared, separate)
        return per_member[0], placement.sum_over_slices(per_member[1:])

    numbers = np.arange(members)
    separate = np.outer(numbers, batch).astype(np.float32)
    k, (shared_sum, separate_sum) = total(
        placement.place_members(numbers),
        placement.place_shared(batch),
        placement.place_separate(separate),
    )
    np.testing.assert_array_equal(placement.gather_members(k), numbers)
    np.testing.assert_array_equal(placement.gather_members(shared_sum), batch.sum())
    np.testing.assert_array_equal(placement.gather_members(separate_sum), numbers * batch.sum())


@pytest.mark.parametrize(("members", "devices"), [(2, 8), (4, 2), (8, 8)])
def test_sums_over_groups_run_over_members_slice_by_slice(members, devices):
    placement = Placement.create(members, jax.devices()[:devices])

    @placement.pmap
    def across(numbers, shared):
        mine = jax.numpy.sum(numbers) * shared
        return placement.sum_over_groups(mine), placement.max_over_groups(mine)

    batch = np.arange(8.0, dtype=np.float32)
    sums, tops = across(
        placement.place_members(np.arange(members, dtype=np.float32)),
        placement.place_shared(batch),
    )
    whole = np.asarray(sums).reshape(placement.num_groups, -1)
    np.testing.assert_array_equal(whole, np.tile(batch * sum(range(members)), (len(whole), 1)))
    last_group = sum(range(members)[-placement.slots :])
    np.testing.assert_array_equal(
        np.asarray(tops).reshape(placement.num_groups, -1)[0], batch * last_group
    )


def test_gathered_members_outlive_a_donated_buffer():
    placement = Placement.create(1, jax.devices()[:1])
    placed = placement.place_members(np.ones((1, 1000)))
    gathered = placement.gather_members(placed)
    step = placement.pmap(lambda x: x * 2, donate_argnums=0)
    for _ in range(3):
        placed = step(placed)
    np.testing.assert_array_equal(gathered, 1)


def test_pad_to_multiple():
    padded = pad_to_multiple(np.ones((2, 5)), 4, axis=1)
    np.testing.assert_array_equal(padded.sum(axis=1), 5)
    assert padded.shape == (2, 8)
    assert pad_to_multiple(padded, 4, axis=1) is padded
