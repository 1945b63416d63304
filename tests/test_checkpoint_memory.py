"""What a checkpoint takes of a host's memory, by `benchmarks/checkpoint_memory.py`."""

import sys

import pytest
from conftest import ROOT


@pytest.mark.soak
@pytest.mark.parametrize("members", [8, 1])
def test_a_checkpoint_takes_little_more_than_a_host_s_own_part(members, monkeypatch):
    """Of four processes; one member lies on all of them."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import checkpoint_memory  # It lies where programs do, and is found now.

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (setting,) = (
        one
        for one in checkpoint_memory.SETTINGS.values()
        if one["members"] == members and one["shared"]
    )
    found = checkpoint_memory.run(**setting)
    assert min(found["own_part_bytes"]) > 2e8  # Below 1.7e8 what does not grow counts.
    assert found["checkpoint"]["largest_rise_by_own_part"] < 1.3
