"""Predictions of members on devices: every example once, in its place."""

import jax
import numpy as np
import pytest

from ensemble.batched_prediction import MAX_BATCH_SIZE, make_predict, predict_pooled
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


def test_a_batch_is_with_the_devices_while_the_one_before_is_fetched(monkeypatch):
    """Only one program is, as it takes its memory: the next one starts after the fetch."""
    events, programs = [], []
    map_devices, gather_members = Placement.map_devices, Placement.gather_members

    def mapped(*args, **kwargs):
        program = map_devices(*args, **kwargs)
        return lambda *operands: programs.append("started") or program(*operands)

    def gather(*args):
        programs.append("fetched")
        return gather_members(*args)

    monkeypatch.setattr(Placement, "map_devices", mapped)
    monkeypatch.setattr(Placement, "gather_members", gather)

    class Read(np.ndarray):
        def __getitem__(self, where):
            events.append(f"read {where.start}")
            return np.asarray(self)[where]

    def keep(name, shape, dtype):
        events.append("fetched 0")
        return np.empty(shape, dtype)

    placement = Placement.create(2, jax.devices()[:2])
    predict = make_predict(lambda factor, inputs: {"product": factor * inputs}, placement)
    factors = placement.place_members(np.ones(2, np.float32))
    predict(factors, np.arange(3.0 * MAX_BATCH_SIZE, dtype=np.float32).view(Read), keep)
    assert events == ["read 0", "read 256", "fetched 0", "read 512"]
    assert programs == ["started", "fetched"] * 3


def test_chains_are_pooled_in_pieces(monkeypatch, tmp_path):
    """Whatever the pieces are, and wherever predictions are kept."""
    draws = np.random.default_rng(0).normal(size=(6, 1)).astype(np.float32)
    inputs, sizes = np.arange(3 * MAX_BATCH_SIZE - 5, dtype=np.float32), []

    def predict(some):
        sizes.append(len(some))
        return {"product": draws * some[:]}

    def keep(name, shape, dtype):
        return np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", dtype, shape)

    def found(**where):
        return predict_pooled(
            predict,
            inputs,
            (2, 3),
            lambda arrays: {"mean": arrays["product"].mean(axis=1, keepdims=True)},
            **where,
        )["mean"]

    whole = found()
    np.testing.assert_allclose(whole, draws.reshape(2, 3).mean(axis=1)[:, None] * inputs, rtol=1e-5)
    assert sizes == [MAX_BATCH_SIZE, len(inputs) - MAX_BATCH_SIZE]  # Of the first, sizes are told.
    monkeypatch.setattr("ensemble.batched_prediction._DRAWS_BYTES", 1)
    np.testing.assert_array_equal(found(keep=keep), whole)
    assert sizes[2:] == [MAX_BATCH_SIZE, MAX_BATCH_SIZE, MAX_BATCH_SIZE - 5]
    np.testing.assert_array_equal(np.load(tmp_path / "mean.npy"), whole)
