"""Members on devices: every layout, padding included."""

import itertools
from typing import NamedTuple

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


class Device(NamedTuple):
    """What the algebra asks of a device."""

    id: int
    process_index: int = 0


@pytest.mark.parametrize("splittable", [True, False])
def test_every_layout_of_few_members_and_devices(splittable, monkeypatch):
    """All that is arithmetic, in NumPy: what arrives where, and what comes back."""
    monkeypatch.setattr(Placement, "put", lambda self, tree: tree)
    for members, devices in itertools.product(range(1, 41), range(1, 17)):
        case = f"{members} members on {devices} devices"
        all_devices = [Device(i) for i in range(devices)]
        placement = Placement.create(members, all_devices, splittable)
        slots, slices, places = placement.slots, placement.slices, placement.num_places
        used = len(placement.devices)
        assert list(placement.devices) == all_devices[:used], case
        # As few places as there can be, of whole devices.
        if members < devices and splittable:
            groups = min(g for g in range(members, devices + 1) if devices % g == 0)
            assert (used, slots, slices) == (devices, 1, devices // groups), case
        else:
            assert (used, slots, slices) == (min(members, devices), -(-members // used), 1), case
        assert placement.num_groups * slices == used, case
        assert places == placement.num_groups * slots >= members, case

        # Place p is slot p % slots of group p // slots, a group is neighbouring devices.
        numbers = np.arange(members)
        placed = placement.place_members({"number": numbers, "twice": np.stack([numbers] * 2, 1)})
        for device, slot in itertools.product(range(used), range(slots)):
            place = device // slices * slots + slot
            assert placed["number"][device, slot] == min(place, members - 1), case
            assert placement.padding[device, slot] == (place >= members), case
        assert placed["twice"].shape == (used, slots, 2), case
        back = placement.gather_members(placed)
        np.testing.assert_array_equal(back["number"], numbers, case)
        np.testing.assert_array_equal(back["twice"], np.stack([numbers] * 2, 1), case)

        # The slices of a member's batch are the batch, and zeros, whatever divides it.
        batch = np.arange(1, 12)
        padded = np.pad(batch, (0, -len(batch) % slices))
        shared = placement.place_shared(batch)
        separate = placement.place_separate(100 * numbers[:, None] + batch)
        assert shared.shape == (used, len(padded) // slices), case
        assert separate.shape == (used, slots, len(padded) // slices), case
        for group in range(placement.num_groups):
            of_group = slice(group * slices, (group + 1) * slices)
            np.testing.assert_array_equal(shared[of_group].ravel(), padded, case)
            for slot in range(slots):
                member = min(group * slots + slot, members - 1)
                found = separate[of_group, slot].ravel()
                np.testing.assert_array_equal(found[: len(batch)], 100 * member + batch, case)
                assert not found[len(batch) :].any(), case

        # Sums over slices are of one group, sums over groups of the same slice of each.
        grid = placement._device_grid()
        assert grid.shape == (placement.num_groups, slices), case
        np.testing.assert_array_equal(grid.ravel(), np.arange(used), case)


@pytest.mark.parametrize(("members", "devices"), [(13, 8), (3, 8), (5, 1)])
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
