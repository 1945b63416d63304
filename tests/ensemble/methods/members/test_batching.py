"""Batches of records: those of the same data in memory, to the bit, and so are the members."""

import dataclasses

import jax
import numpy as np
import pytest

import ensemble
from ensemble.config import default_config
from ensemble.methods.members.batching import Batches
from ensemble.sharding.placement import Placement
from ensemble.source import Request
from ensemble.sources import load_dataset
from ensemble.sources.catalogue import given_examples
from ensemble.sources.records.conversion import write_records


@pytest.fixture
def names(tmp_path):
    """The same data in memory and as records."""
    rng = np.random.default_rng(0)
    arrays = {"inputs": rng.integers(0, 200, (75, 4, 4), np.uint8), "labels": np.arange(75) % 3}
    np.savez(tmp_path / "all.npz", **arrays)
    npz = f"npz:{tmp_path / 'all.npz'}"
    write_records(given_examples(npz, Request()), tmp_path / "records")
    return npz, f"records:{tmp_path / 'records'}"


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


@pytest.mark.check
def test_members_are_those_of_data_in_memory_also_when_resumed(names, tmp_path):
    config = {"model": "mlp", "mlp.widths": "8", "ensemble_size": 2, "batch_size": 16}
    config |= {"batching": "independent", "schedule": "constant", "num_steps": 9}
    straight = ensemble.train(config | {"dataset": names[0]}, show_progress=False)
    for steps in (4, 9):
        again = config | {"dataset": names[1], "num_steps": steps}
        resumed = ensemble.train(again, workdir=str(tmp_path / "run"), show_progress=False)
    jax.tree.map(
        np.testing.assert_array_equal, straight.predictor.variables, resumed.predictor.variables
    )
    assert straight.report["test"] == resumed.report["test"]
