"""Batches: their order is of (seed, epoch, member), whatever sends them."""

import functools

import jax
import numpy as np
import pytest
from conftest import make_blobs

from ensemble.data.batches import epoch_batches
from ensemble.data.dataset import dataset_from_arrays
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batches

SEED = 3
SIZE = 32
NUMBERS = (4, 5, 6)


@pytest.mark.parametrize("per_member", [False, True])
@pytest.mark.parametrize("on_devices", [False, True])
def test_the_order_follows_from_seed_epoch_and_member(per_member, on_devices):
    source = dataset_from_arrays(make_blobs())
    inputs, targets = source.read("train", slice(None))
    steps = -(-len(inputs) // SIZE)
    devices = Devices(len(NUMBERS), jax.devices()[:2])
    feed = Batches(
        devices,
        NUMBERS,
        source,
        functools.partial(epoch_batches, len(inputs), SIZE, SEED),
        weights=None,
        prepare=lambda inputs: inputs,
        augment=None,
        seed=SEED,
        num_steps=3 * steps,
        per_member=per_member,
        on_devices=on_devices,
    )
    first = 2 * steps - 1  # The last of an epoch, and the first of the next.
    sent = feed.send(first, 2, 3)
    for i, (epoch, step) in enumerate([(1, steps - 1), (2, 0), (2, 0)]):
        at_step = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], sent)
        for place, member in enumerate(NUMBERS if per_member else (None,)):
            own = at_step
            if per_member:
                own = jax.tree.map(lambda leaf, place=place: leaf[place], at_step)
            examples, masks = epoch_batches(len(inputs), SIZE, SEED, epoch, member)
            batch = feed.read(feed.fixed, own, np.int32(first + i))
            np.testing.assert_array_equal(batch.inputs, inputs[examples[step]])
            np.testing.assert_array_equal(batch.targets, targets[examples[step]])
            np.testing.assert_array_equal(batch.weights, masks[step])
