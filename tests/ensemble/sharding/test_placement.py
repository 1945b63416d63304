"""Members on devices: every layout, padding included."""

import itertools

import jax
import numpy as np
import pytest

from ensemble.sharding.mesh import spec
from ensemble.sharding.placement import EXAMPLES, MEMBERS, Placement


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
    assert placement.padding.sum() == places - members


def test_a_line_of_programs_can_stall_where_there_are_several_devices():
    assert Placement.create(1, jax.devices()[:2]).may_stall
    assert Placement.create(2, jax.devices()[:2]).may_stall
    assert not Placement.create(1, jax.devices()[:1]).may_stall


def test_members_that_cannot_be_split_leave_devices_idle():
    placement = Placement.create(3, jax.devices(), splittable=False)
    assert (placement.mesh.size, placement.slots, placement.slices) == (3, 1, 1)


def parts(array):
    """What each device has of an array, in the order of the devices."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    return [np.asarray(shard.data) for shard in shards]


@pytest.mark.parametrize("splittable", [True, False])
@pytest.mark.parametrize("devices", range(1, 9))
def test_every_layout_of_few_members(devices, splittable):
    """What arrives on which device, and what comes back."""
    for members in range(1, 21):
        case = f"{members} members on {devices} devices"
        placement = Placement.create(members, jax.devices()[:devices], splittable)
        slots, slices, places = placement.slots, placement.slices, placement.num_places
        used = placement.mesh.size
        assert list(placement.mesh.devices.flat) == jax.devices()[:used], case
        # As few places as there can be, of whole devices.
        if members < devices and splittable:
            groups = min(g for g in range(members, devices + 1) if devices % g == 0)
            assert (used, slots, slices) == (devices, 1, devices // groups), case
        else:
            assert (used, slots, slices) == (min(members, devices), -(-members // used), 1), case
        assert places == used // slices * slots >= members, case
        np.testing.assert_array_equal(placement.padding, np.arange(places) >= members, case)

        # Place p is slot p % slots of group p // slots, a group is neighbouring devices.
        numbers = np.arange(members)
        placed = placement.place_members({"number": numbers, "twice": np.stack([numbers] * 2, 1)})
        for device, part in enumerate(parts(placed["number"])):
            first = device // slices * slots
            expected = np.minimum(np.arange(first, first + slots), members - 1)
            np.testing.assert_array_equal(part, expected, case)
        back = placement.gather_members(placed)
        np.testing.assert_array_equal(back["number"], numbers, case)
        np.testing.assert_array_equal(back["twice"], np.stack([numbers] * 2, 1), case)

        # The slices of a member's batch are the batch, and zeros, whatever divides it.
        batch = np.arange(1, 12)
        padded = np.pad(batch, (0, -len(batch) % slices)).reshape(slices, -1)
        shared = parts(placement.place_shared(batch))
        separate = parts(placement.place_separate_steps(100 * numbers[:, None, None] + batch))
        for device, slot in itertools.product(range(used), range(slots)):
            member = min(device // slices * slots + slot, members - 1)
            part = padded[device % slices]
            np.testing.assert_array_equal(shared[device], part, case)
            expected = np.where(part > 0, 100 * member + part, 0)
            np.testing.assert_array_equal(separate[device][slot][0], expected, case)


@pytest.mark.parametrize(("members", "devices"), [(13, 8), (3, 8), (5, 1)])
def test_members_come_back_as_they_went(members, devices):
    placement = Placement.create(members, jax.devices()[:devices])
    tree = {"a": np.arange(members * 3.0).reshape(members, 3), "b": np.arange(members)}
    placed = placement.place_members(tree)
    assert placed["a"].shape == (placement.num_places, 3)
    back = placement.gather_members(placed)
    np.testing.assert_array_equal(back["a"], tree["a"])
    np.testing.assert_array_equal(back["b"], tree["b"])


@pytest.mark.parametrize(("members", "devices"), [(2, 8), (3, 8), (8, 2), (5, 2), (35, 2)])
def test_every_member_sees_every_example_once(members, devices):
    placement = Placement.create(members, jax.devices()[:devices])
    batch = np.arange(1.0, 12.0, dtype=np.float32)  # 11 examples; padding adds zeros.

    def total(numbers, shared, separate):
        per_member = placement.map_slots(
            lambda k, x, y: (k, x.sum(), y.sum()), in_axes=(0, None, 0)
        )(numbers, shared, separate)
        return per_member[0], placement.sum_over_slices(per_member[1:])

    numbers = np.arange(members)
    separate = np.outer(numbers, batch).astype(np.float32)
    mapped = placement.map_devices(
        total, (MEMBERS, EXAMPLES, spec("member", None, "example")), (MEMBERS, MEMBERS)
    )
    k, (shared_sum, separate_sum) = mapped(
        placement.place_members(numbers),
        placement.place_shared(batch),
        placement.place_separate_steps(separate[:, None]),
    )
    np.testing.assert_array_equal(placement.gather_members(k), numbers)
    np.testing.assert_array_equal(placement.gather_members(shared_sum), batch.sum())
    np.testing.assert_array_equal(placement.gather_members(separate_sum), numbers * batch.sum())


@pytest.mark.parametrize(("members", "devices"), [(5, 2), (2, 2)])
def test_accelerators_loop_over_the_members_of_a_device_where_memory_is_short(
    members, devices, monkeypatch
):
    monkeypatch.setattr(Placement, "platform", "gpu")
    placement = Placement.create(members, jax.devices()[:devices])
    results = []

    def double(k, x):
        return {"y": 2 * k + x}

    for one_by_one in (False, True):
        mapped = placement.map_devices(
            placement.map_slots(double, (0, None), one_by_one), (MEMBERS, EXAMPLES), MEMBERS
        )
        numbers = placement.place_members(np.arange(members))
        text = mapped.lower(numbers, placement.place_shared(np.ones(4))).as_text()
        assert ("while" in text) == (one_by_one and placement.slots > 1)
        results.append(mapped(numbers, placement.place_shared(np.ones(4)))["y"])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("members", "devices"), [(2, 8), (4, 2), (8, 8)])
def test_sums_over_groups_run_over_members_slice_by_slice(members, devices):
    placement = Placement.create(members, jax.devices()[:devices])

    def across(numbers, shared):
        mine = jax.numpy.sum(numbers) * shared
        return placement.sum_over_groups(mine), placement.max_over_groups(mine)

    batch = np.arange(8.0, dtype=np.float32)
    sums, tops = placement.map_devices(across, (MEMBERS, EXAMPLES), EXAMPLES)(
        placement.place_members(np.arange(members, dtype=np.float32)),
        placement.place_shared(batch),
    )
    np.testing.assert_array_equal(sums, batch * sum(range(members)))
    np.testing.assert_array_equal(tops, batch * sum(range(members)[-placement.slots :]))


def test_gathered_members_outlive_a_donated_buffer():
    placement = Placement.create(1, jax.devices()[:1])
    placed = placement.place_members(np.ones((1, 1000)))
    gathered = placement.gather_members(placed)
    step = placement.map_devices(lambda x: x * 2, MEMBERS, MEMBERS, donate=(0,))
    for _ in range(3):
        placed = step(placed)
    np.testing.assert_array_equal(gathered, 1)
