"""Signals to real processes: heeded in time, whatever they are at, and nothing is lost."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import ROOT, make_blobs, started
from run_parts import mesh_of, validated

from ensemble import Interrupted
from ensemble.data.data_forms import recognise
from ensemble.methods import start
from ensemble.methods.log_density import make_log_density
from ensemble.run.loop import create_task
from ensemble.sharding import signals

CONFIG = """
from ensemble import default_config
from ensemble.sharding import signals
from ensemble.data.data_forms import recognise

signals.GUARD_SECONDS = {guard}


def get_config():
    config = default_config()
    config.dataset = "npz:{npz}"
    config.method = "hmc"
    config.model = "logistic_regression"
    config.prior = "normal(1)"
    config.num_devices = 1
    config.num_chains = 1
    config.sampler.num_warmup = 0
    config.sampler.num_samples = 8
    config.sampler.step_size = 0.0001
    config.sampler.thinning = 1
    return config
"""


def command(folder, workdir, num_leapfrog_steps, guard):
    """A run whose draws take so many gradients; all of them make one line of metrics."""
    np.savez(folder / "blobs.npz", **make_blobs())
    file = folder / "config.py"
    file.write_text(CONFIG.format(npz=folder / "blobs.npz", guard=guard))
    leapfrogs = f"--config.sampler.num_leapfrog_steps={num_leapfrog_steps}"
    flags = [f"--config={file}", f"--workdir={workdir}", leapfrogs]
    return [sys.executable, str(ROOT / "train.py"), *flags]


def signalled(process, lines, wanted):
    """Sends SIGTERM once a line is logged; returns the seconds until the end, and the last line."""
    for line in process.stderr:
        lines.append(line)
        if wanted in line:
            break
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    lines += process.communicate(timeout=120)[1].splitlines(keepends=True)
    return time.monotonic() - sent, lines[-1]


@pytest.mark.check
def test_compilation_and_a_draw_that_lasts_are_ended_in_time(tmp_path):
    endless = command(tmp_path, tmp_path / "run", 10**6, guard=2)
    lines = []
    with started(endless, stderr=subprocess.PIPE) as process:
        # The first draw is compiled next, and then lasts for a minute.
        seconds, last = signalled(process, lines, "Parameters of a chain")
    assert process.returncode == 75, lines
    assert seconds < 10
    assert "SIGTERM: " in "".join(lines)
    assert last.startswith("train.py: interrupted; resume with: ")
    assert "Traceback" not in "".join(lines)


def test_the_search_for_the_map_stops_between_two_iterations(blobs, monkeypatch):
    config = validated({"method": "hmc", "model": "small_runs:Tiny", "prior": "normal(1)"})
    task = create_task(config, recognise(blobs))
    train = task.dataset.splits["train"]
    density = make_log_density(task, train, mesh_of(1), config.posterior_temperature)
    calls = []
    with signals.stop_signals() as stop:

        def asked():
            calls.append(0)
            return len(calls) > 2

        monkeypatch.setattr(stop, "asked", asked)
        with pytest.raises(Interrupted, match="interrupted; resume with: "):
            start.find_map(task, density)
    assert len(calls) == 3
    signals.check()  # Nobody asks any more.


@pytest.fixture
def ends(monkeypatch):
    """Seconds after which a process would have been ended."""
    found = []
    began = time.monotonic()

    def end(line):
        found.append(time.monotonic() - began)

    monkeypatch.setattr(signals, "_end", end)
    monkeypatch.setattr(signals, "program", "train.py")
    monkeypatch.setattr(signals, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(signals, "GUARD_SECONDS", 0.3)
    return found


def test_a_program_that_does_not_answer_is_ended(ends):
    with signals.stop_signals() as stop:
        assert not stop.asked()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.6)
        assert stop.asked()
    assert ends[0] >= 0.3


def test_one_that_is_about_to_save_is_left_alone(ends):
    with signals.stop_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.is_settled = True
        time.sleep(0.6)
    assert not ends


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)  # Another thread may get it, and tell this one.


def test_a_notebook_is_never_ended(ends, monkeypatch):
    monkeypatch.setattr(signals, "program", None)
    with signals.stop_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.6)
        assert stop.asked()
        with pytest.raises(KeyboardInterrupt):  # The second one is Python's again.
            interrupt()
    assert not ends


def test_handlers_are_as_before_when_a_run_has_ended():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    num_threads = threading.active_count()
    with signals.stop_signals(), contextlib.suppress(Interrupted):
        assert signal.getsignal(signal.SIGTERM) not in before
        raise Interrupted
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert threading.active_count() == num_threads
