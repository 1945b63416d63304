"""Chunks that are cut by time, or where a run is interrupted, change no bit and no file."""

import contextlib
import time

import numpy as np
import pytest
from applications import examples
from conftest import make_blobs, small_config
from kills import assert_same, result_of

import ensemble
from ensemble import Interrupted
from ensemble.run import monitor, opened, resume
from ensemble.run.monitor import Pace

SAMPLER = {
    "model": "logistic_regression",
    "prior": "normal(1)",
    "num_chains": 2,
    "num_devices": 2,
    "log_every_steps": 6,
    "sampler.num_leapfrog_steps": 3,
    "sampler.num_warmup": 8,
    "sampler.num_samples": 12,
    "sampler.thin": 2,
}
RUNS = {
    "sgd": small_config(num_epochs=4, log_every_steps=4, early_stopping_epochs=2),
    "shared_member": small_config(num_epochs=2, log_every_steps=5, ensemble_size=1),
    "hmc": {**SAMPLER, "method": "hmc"},
    "nuts": {**SAMPLER, "method": "nuts"},
    "mclmc": {**SAMPLER, "method": "mclmc"},
    **{
        name: {"num_devices": 2} | run(1, SAMPLER | {"method": "hmc"})
        for name, run in examples("RUNS_BY_PART").items()
    },
}


class Steady:
    """A pace whose limit stays."""

    def __init__(self, limit):
        self.limit = limit

    def resume(self):
        pass

    def chunk_done(self, num_steps, compiles):
        pass


class Impatient:
    """Asks a run to stop after so many chunks."""

    def __init__(self, num_chunks):
        self.left = num_chunks

    def asked(self):
        self.left -= 1
        return self.left <= 0

    def settle(self):
        pass


def train(name, workdir, limit, monkeypatch):
    data = None if name in examples("RUNS_BY_PART") else make_blobs()
    monkeypatch.setattr(monitor, "Pace", lambda: Steady(limit))
    ensemble.train(RUNS[name], data, workdir=str(workdir), show_progress=False)


def files_of(workdir):
    """Contents of the files that hold draws, by name, but for which run they are of."""
    found = {path.name: dict(np.load(path)) for path in (workdir / "draws").glob("*")}
    return {name: one | {"identity": None} for name, one in found.items()}


MARKS = {
    "shared_member": pytest.mark.check,
    "mclmc": pytest.mark.check,
    "nuts": pytest.mark.soak,
    "watches": pytest.mark.soak,
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=MARKS.get(name, ())) for name in RUNS],
)
def whole(request, tmp_path_factory):
    """A run that nothing has cut: its name, its result and its files of draws."""
    workdir = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        train(request.param, workdir, 10**9, patch)
    return request.param, result_of(workdir), files_of(workdir)


@pytest.mark.check
def test_cut_after_every_step_a_run_is_the_same(whole, tmp_path, monkeypatch):
    name, expected, files = whole
    train(name, tmp_path, 1, monkeypatch)
    assert_same(tmp_path, expected)
    np.testing.assert_equal(files_of(tmp_path), files)


@pytest.mark.soak
def test_interrupted_between_two_lines_of_metrics_it_ends_the_same(whole, tmp_path, monkeypatch):
    name, expected, files = whole
    monkeypatch.setattr(opened, "stop_signals", lambda: contextlib.nullcontext(Impatient(9)))
    with pytest.raises(Interrupted):
        train(name, tmp_path, 1, monkeypatch)
    while not (tmp_path / "report.json").exists():
        with contextlib.suppress(Interrupted):
            train(name, tmp_path, 2, monkeypatch)
    assert_same(tmp_path, expected)
    np.testing.assert_equal(files_of(tmp_path), files)


@pytest.mark.check
def test_cut_within_an_epoch_a_run_goes_on_on_other_devices(tmp_path, monkeypatch):
    """And again on others: the members are the same but for rounding."""
    config = {**RUNS["shared_member"], "ensemble_size": 3}
    monkeypatch.setitem(RUNS, "moving", {**config, "num_devices": 1})
    train("moving", tmp_path / "stayed", 10**9, monkeypatch)
    monkeypatch.setattr(opened, "stop_signals", lambda: contextlib.nullcontext(Impatient(4)))
    for num_devices in (1, 4, 2, 8, 1, 3, 6):
        monkeypatch.setitem(RUNS, "moving", {**config, "num_devices": num_devices})
        with contextlib.suppress(Interrupted):
            train("moving", tmp_path / "moved", 1, monkeypatch)
    monkeypatch.undo()
    ensemble.train(config, make_blobs(), str(tmp_path / "moved"), show_progress=False)
    found, expected = (result_of(tmp_path / name) for name in ("moved", "stayed"))
    np.testing.assert_allclose(found["log_probs"], expected["log_probs"], rtol=1e-3, atol=1e-4)


@pytest.mark.soak
def test_a_clock_that_jumps_back_changes_nothing(tmp_path, monkeypatch):
    train("shared_member", tmp_path / "whole", 10**9, monkeypatch)
    monkeypatch.setattr(opened, "stop_signals", lambda: contextlib.nullcontext(Impatient(3)))
    with pytest.raises(Interrupted):
        train("shared_member", tmp_path / "broken", 1, monkeypatch)
    monkeypatch.undo()
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() - 86_400)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 86_400 * 10**9)
    train("shared_member", tmp_path / "broken", 10**9, monkeypatch)
    assert_same(tmp_path / "broken", result_of(tmp_path / "whole"))


@pytest.mark.soak
def test_slow_steps_are_saved_before_a_line_of_metrics_is_due(tmp_path, monkeypatch):
    monkeypatch.setitem(RUNS, "hmc", {**RUNS["hmc"], "keep_checkpoints": 100})
    train("hmc", tmp_path / "quick", 1, monkeypatch)
    monkeypatch.setattr(resume, "SAVE_SECONDS", 0)
    train("hmc", tmp_path / "slow", 1, monkeypatch)
    saved = [
        sorted(int(path.name) for path in (tmp_path / name / "checkpoints").glob("[0-9]*"))
        for name in ("quick", "slow")
    ]
    # The chunk that ends with the warm-up, at 8, was not cut.
    assert saved == [[6, 12, 18, 20], [step for step in range(1, 21) if step != 8]]
    assert_same(tmp_path / "slow", result_of(tmp_path / "quick"))


def test_the_limit_follows_the_time_that_steps_take(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    found = Pace()

    def take(num_steps, seconds_each, compiles=False):
        now[0] += num_steps * seconds_each
        found.chunk_done(num_steps, compiles)
        return found.limit

    assert take(1, 1000, compiles=True) == 1
    assert take(0, 1000) == 1  # Members that join need no step.
    quick = [take(found.limit, 0.001) for _ in range(10)]
    assert quick == [2**k for k in range(1, 11)]  # A few quick steps do not vouch for many.
    assert take(100, 0.5) == monitor.CHUNK_SECONDS / 0.5
    assert take(16, 1) == monitor.CHUNK_SECONDS
    assert take(2, 1000) == 1
    now[0] += 1000
    found.resume()
    assert take(1, 1) == 2
