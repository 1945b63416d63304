"""Batches of members: the same for data in memory and on disk, read ahead, weighted by class."""

import dataclasses
import threading

import jax
import numpy as np
import pytest
from run_parts import records_of

import ensemble
from ensemble import UserError
from ensemble.config import default_config
from ensemble.methods.members.batching import Batches, Part, ReadAhead
from ensemble.sharding import transfer
from ensemble.sharding.placement import Placement
from ensemble.sources import load_dataset


@pytest.fixture
def names(tmp_path):
    """The same data in memory and as records, with classes of 15, 15 and 45 examples."""
    rng = np.random.default_rng(0)
    labels = np.minimum(np.arange(75) % 5, 2)
    arrays = {"inputs": rng.integers(0, 200, (75, 4, 4), np.uint8), "labels": labels}
    np.savez(tmp_path / "all.npz", **arrays)
    npz = f"npz:{tmp_path / 'all.npz'}"
    return npz, records_of(npz)


@pytest.mark.parametrize("num_devices", [1, 2, 4])
@pytest.mark.parametrize("batching", ["shared", "independent"])
def test_batches_are_those_of_data_in_memory(names, batching, num_devices):
    config = default_config()
    config.update({"batching": batching, "class_weights": "balanced"})
    placement = Placement.create(3, jax.devices()[:num_devices])
    ours, theirs = (
        Batches(config, load_dataset(name, hold_out=False), 16, num_steps=20)
        for name in names[::-1]
    )
    # Over the ends of epochs, fewer steps than places, and back as after a restart.
    for step, count in ((0, 4), (4, 2), (6, 4), (3, 4), (17, 3)):
        batches = (one.place(placement, (0, 1, 2), step, count, 4) for one in (ours, theirs))
        jax.tree.map(np.testing.assert_array_equal, *map(dataclasses.asdict, batches))


@pytest.mark.parametrize("batching", ["shared", "independent"])
@pytest.mark.parametrize("class_weights", ["none", "balanced"])
def test_batches_of_rows_on_the_devices_are_those_that_are_sent(names, batching, class_weights):
    config = default_config()
    config.update({"batching": batching, "class_weights": class_weights})
    placement = Placement.create(3, jax.devices()[:4])
    batches = Batches(config, load_dataset(names[0], hold_out=False), 16, num_steps=20)
    rows = batches.place_rows(placement)
    placed = sum(leaf.nbytes for leaf in jax.tree.leaves(rows))
    assert placed in (batches.rows_bytes(placement), batches.rows_bytes(placement) - 4 * 75)
    for step, count in ((0, 4), (4, 2), (17, 3)):
        sent = batches.place(placement, (0, 1, 2), step, count, 4)
        chosen = batches.place(placement, (0, 1, 2), step, count, 4, of_rows=True)
        assert chosen.inputs is chosen.targets is None
        found = jax.jit(lambda rows, batch: rows.batch(batch))(rows, chosen)
        jax.tree.map(np.testing.assert_array_equal, *map(dataclasses.asdict, (found, sent)))


def test_a_process_builds_the_batches_of_its_own_members_alone(names, monkeypatch):
    """Of five members on devices of two processes, the second has those from 3 on."""
    config = default_config()
    config.update({"batching": "independent"})
    numbers = (10, 11, 12, 13, 14)
    batches = Batches(config, load_dataset(names[0], hold_out=False), 16, num_steps=20)
    whole = batches.place(Placement.create(5, jax.devices()[:4]), numbers, 3, 2, 2).inputs
    monkeypatch.setattr(Placement, "_places_here", range(4, 8))
    placement = Placement.create(5, jax.devices()[:4])
    assert list(placement.members_here) == [4]
    monkeypatch.setattr(Placement, "_places_here", range(2, 4))
    built, build = [], Batches._build_epoch

    def note(self, epoch, indices):
        built.append(indices)
        return build(self, epoch, indices)

    monkeypatch.setattr(Batches, "_build_epoch", note)
    parts = {}

    def put_parts(shape, dtype, sharding, part):
        for index in {
            str(one): one for one in sharding.devices_indices_map(shape).values()
        }.values():
            if index[0].start in (2, 3):
                parts.setdefault(shape, []).append(part(index))
        return np.zeros(shape, dtype)

    monkeypatch.setattr(transfer, "put_parts", put_parts)
    batches = Batches(config, load_dataset(names[0], hold_out=False), 16, num_steps=20)
    batches.place(placement, numbers, 3, 2, 2)
    assert set(built) == {(12, 13)}
    np.testing.assert_array_equal(np.concatenate(parts[whole.shape]), whole[2:4])


@pytest.mark.check
def test_members_are_those_of_data_in_memory_also_when_resumed(names, tmp_path):
    config = {"model": "mlp", "mlp.widths": "8", "ensemble_size": 2, "batch_size": 16}
    config |= {"batching": "independent", "schedule": "constant", "num_steps": 9}
    straight = ensemble.train(config | {"dataset": names[0]}, show_progress=False)
    for steps in (4, 9):
        again = config | {"dataset": names[1], "num_steps": steps}
        resumed = ensemble.train(again, workdir=str(tmp_path / "run"), show_progress=False)
    jax.tree.map(
        np.testing.assert_array_equal, straight.predictor.fitted.sets, resumed.predictor.fitted.sets
    )
    assert straight.report["test"] == resumed.report["test"]


def _parts(step, count):
    return [Part(*(np.array([one]) for _ in range(4))) for one in range(step, step + count)]


def test_steps_come_in_order_and_are_read_once_before_they_are_asked_for():
    read, third = [], threading.Event()

    def note(step, count):
        read.append((step, count))
        if step == 7:
            third.set()
        return _parts(step, count)

    ahead = ReadAhead(note, depth=3, end=9)
    assert ahead.get(5).examples == 5
    assert third.wait(10)
    assert [ahead.get(step).examples.item() for step in (6, 7, 8)] == [6, 7, 8]
    assert read == [(5, 1), (6, 1), (7, 1), (8, 1)]


def test_several_steps_are_read_at_once_and_never_more_than_the_depth():
    read = []

    def note(step, count):
        read.append((step, count))
        return _parts(step, count)

    ahead, last = ReadAhead(note, depth=8, end=13), 0
    for step in range(2, 13):
        assert ahead.get(step).examples.item() == step
        last = sum(read[-1])
        assert last - step - 1 <= 8
    assert read == [(2, 2), (4, 2), (6, 2), (8, 2), (10, 2), (12, 1)]
    assert last == 13


def test_a_step_elsewhere_is_read_anew():
    ahead = ReadAhead(_parts, depth=2, end=100)
    assert [ahead.get(step).examples.item() for step in (0, 1, 40, 41, 3)] == [0, 1, 40, 41, 3]


def test_an_error_comes_where_the_step_is_asked_for():
    def read(step, count):
        if step == 1:
            raise UserError("record 7 is damaged")
        return _parts(step, count)

    ahead = ReadAhead(read, depth=4, end=4)
    ahead.get(0)
    with pytest.raises(UserError, match="record 7"):
        ahead.get(1)
