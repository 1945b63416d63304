"""A stranger's method on the engine, with an array of its own in its state."""

import gc
import json
import os
import subprocess
import sys
import time

import averaged_method
import jax
import jax.export
import numpy as np
import pytest
from conftest import ROOT, make_blobs, small_config, started
from kills import result_of
from run_parts import task_of, validated

import ensemble
from ensemble import UserError, registry
from ensemble.export import export

GOES_ON = {"num_epochs": 6, "checkpoint_every_epochs": 1, "log_every_steps": 2, "num_devices": 2}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(registry.METHODS.registered, "averaged", averaged_method.ENTRY)


def mean_of(workdir):
    return result_of(workdir)["state"][averaged_method.MEAN]


def assert_equal(found, expected, **tolerances):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerances), found, expected)


@pytest.mark.check
def test_killed_resumed_and_grown_its_own_array_is_right(tmp_path):
    whole = averaged_method.train(tmp_path / "whole", ensemble_size=4, **GOES_ON)
    killed = tmp_path / "killed"
    command = [sys.executable, str(ROOT / "tests" / "averaged_method.py"), str(killed)]
    command.append(json.dumps({"ensemble_size": 2, **GOES_ON}))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    with started(command, env=environment, stderr=subprocess.PIPE) as process:
        while not any(path.name.isdecimal() for path in killed.glob("checkpoints/*")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.001)
        process.kill()
    assert not (killed / "report.json").exists()
    averaged_method.train(killed, ensemble_size=2, **GOES_ON)
    first = mean_of(killed)
    grown = averaged_method.train(killed, ensemble_size=4, **GOES_ON)
    found, expected = mean_of(killed), mean_of(tmp_path / "whole")
    assert_equal(jax.tree.map(lambda leaf: leaf[:2], found), first, rtol=0)
    assert_equal(found, expected, rtol=1e-5, atol=1e-6)
    inputs = make_blobs()["inputs"]
    probs = grown.predictor(inputs).probs
    np.testing.assert_allclose(probs, whole.predictor(inputs).probs, rtol=1e-4, atol=1e-5)
    exported = jax.export.deserialize(export(ensemble.load(killed))).call(inputs)
    np.testing.assert_allclose(np.asarray(exported["probs"]), probs, rtol=1e-5, atol=1e-6)


def method_of(**overrides):
    config = validated(small_config(method="averaged", ensemble_size=2, **overrides))
    return averaged_method.Averaged(config, task_of(config, make_blobs()))


@pytest.mark.parametrize(
    "given",
    [
        {"Dense_0": {"kernel": np.zeros((1, 6, 8))}},
        {"params": {"Dense_0": {"kernal": np.zeros((1, 6, 8))}}},
        {"params": {"Dense_0": {"kernel": np.zeros((1, 5, 8))}}},
    ],
    ids=["no such group", "no such name", "another shape"],
)
def test_members_are_given_nothing_that_they_do_not_have(given):
    with pytest.raises(ValueError, match=r"Dense_0/kern.l of shape"):
        method_of().engine.init(jax.random.key(0), given)


def test_it_goes_no_further_back_and_starts_from_what_is_asked_for():
    method = method_of(num_epochs=1)
    _, counters = method.to_host(method.init(jax.random.key(0)))
    with pytest.raises(UserError, match="taken 1000 steps"):
        method.check_resumable(dict(counters, step=1000), "runs/averaged")
    with pytest.raises(UserError, match=r"nowhere\.npz"):
        method_of(init_from="nowhere.npz").init(jax.random.key(0))
    assert method_of(num_epochs=None, num_steps=7).num_steps == 7


def test_nothing_is_placed_before_members_start():
    gc.collect()  # What other tests have left could go meanwhile.
    before = len(jax.live_arrays())
    method = method_of()
    assert len(jax.live_arrays()) == before
    assert "programs" not in vars(method.engine)
    state = method.init(jax.random.key(0))
    assert len(jax.live_arrays()) > before
    assert state.step == 0
