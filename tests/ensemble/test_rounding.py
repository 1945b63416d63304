"""Data that float32 cannot tell apart are noted; all others are not."""

import re

import numpy as np
import pytest

from ensemble import rounding
from ensemble.data import dataset_from_arrays
from ensemble.notes import collected
from ensemble.rounding import note_rounding

RNG = np.random.default_rng(0)
SECONDS = 1.7e9 + np.sort(RNG.uniform(0, 3600, 50))
FINE = RNG.normal(size=(50, 2))


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (SECONDS, "to 1700003.*, which float32 rounds by up to 6"),
        (SECONDS.astype(np.int64), "which float32 rounds by up to 64: subtract a constant"),
        (np.column_stack([FINE, SECONDS]), " in column 2, which"),
        (SECONDS.astype(np.float32), ""),
        (SECONDS - 1.7e9, ""),
        (np.arange(1e6, 1e6 + 9), ""),  # Whole numbers that float32 has.
        (np.full(9, 1e9 + 1), ""),  # Nothing tells them apart anyway.
        (np.array([1e-8, 1.0, 1e30]), ""),
        (FINE, ""),
    ],
)
def test_what_rounding_takes_away_is_noted(array, says, monkeypatch):
    for size in (1 << 16, 7):  # In blocks too.
        monkeypatch.setattr(rounding, "_BLOCK_ROWS", size)
        with collected() as lines:
            note_rounding(array, "the array")
        assert len(lines) == bool(says)
        if says:
            assert re.search(f"^the array holds numbers from .*{says}", lines[0])


def test_inputs_and_targets_are_looked_at():
    with collected() as lines:
        inputs = np.column_stack([FINE, SECONDS])
        dataset_from_arrays({"inputs": inputs, "targets": SECONDS}, "mine")
    assert {line.split(" holds")[0] for line in lines} == {"mine: inputs", "mine: targets"}
