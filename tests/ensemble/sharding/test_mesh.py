"""The mesh of devices, and what it refuses."""

from unittest import mock

import jax
import pytest

from ensemble import InputError
from ensemble.sharding import mesh


def devices(platform, slices):
    return [mock.Mock(platform=platform, slice_index=k) for k in slices]


@pytest.mark.parametrize(
    ("platform", "num_groups", "num_shards"), [("tpu", 1, 4), ("tpu", 1, 2), ("tpu", 2, 2)]
)
def test_a_group_in_two_slices_of_tpus_is_refused(platform, num_groups, num_shards):
    slices = [0, 1, 0, 1] if num_groups == 2 else [0, 1, 1, 1]
    with pytest.raises(InputError, match=f"over {num_shards} TPUs of 2 slices, which must be of"):
        mesh.create_mesh(num_groups, num_shards, devices(platform, slices))


def test_groups_of_their_own_slices_are_not_and_hosts_of_gpus_are_no_slices():
    mesh.create_mesh(2, 2, devices("tpu", [0, 0, 1, 1]))
    mesh.create_mesh(1, 2, devices("gpu", [0, 1]))
    mesh.create_mesh(1, 8, jax.devices())  # CPUs have no such attribute.
