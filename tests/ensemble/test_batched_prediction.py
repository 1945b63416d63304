"""Predictions of members on devices: every example once, in its place."""

import jax
import numpy as np
import pytest

from ensemble.batched_prediction import MAX_BATCH_SIZE, make_predict
from ensemble.sharding.placement import Placement


@pytest.mark.parametrize("num_examples", [1, 5, MAX_BATCH_SIZE, 2 * MAX_BATCH_SIZE + 88])
@pytest.mark.parametrize(("members", "devices"), [(1, 1), (1, 3), (1, 5), (2, 6), (3, 8), (5, 2)])
def test_predictions_stand_where_their_examples_do(members, devices, num_examples):
    """Also where the devices of a member do not divide a batch."""
    placement = Placement.create(members, jax.devices()[:devices])
    predict = make_predict(lambda factor, inputs: {"product": factor * inputs}, placement)
    factors = np.arange(1.0, members + 1, dtype=np.float32)
    inputs = np.arange(num_examples, dtype=np.float32)
    found = predict(placement.place_members(factors), inputs)
    np.testing.assert_array_equal(found["product"], factors[:, None] * inputs)
