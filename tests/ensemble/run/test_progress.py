"""The clock of a run over several processes, the log line, and where progress is shown."""

import io
import logging
import sys
import time
import types

import pytest

from ensemble.run.progress import Clock, Display, Progress, open_display

LOGGER = logging.getLogger("ensemble")


def test_a_clock_goes_on_where_the_one_before_stopped(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    first = Clock(started=90)
    first.member_examples = 1000
    first.seconds_training = 0.5
    now[0] += 0.5
    second = Clock(**{**first.state(), "started": 95.5})
    timing = second.timing()
    assert timing["seconds_total"] == pytest.approx(10.5 + 5)
    assert timing["member_examples_per_second"] == 2000


@pytest.fixture
def now(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def log(caplog):
    """Progress in the log."""
    caplog.set_level("INFO", logger="ensemble")
    return lambda done, total: Progress(done, total, Display())


def test_the_time_left_counts_from_where_this_process_began(now, log, caplog):
    with log(50, 100) as progress:
        now[0] += 30
        progress.update(60, {"epoch": "1.5", "validation accuracy": 0.5}, stays=True)
    assert caplog.messages == [
        "training: step 60/100, 0:02:00 left, 0.333 steps/s; epoch 1.5, validation accuracy 0.5"
    ]


def test_the_time_left_is_right_after_the_first_minute(now, log, caplog):
    with log(0, 1000) as progress:
        now[0] += 40
        progress.compiled(1)
        for step in range(2, 502):
            now[0] += 30 if step == 50 else 0.1  # It is evaluated for the first time.
            progress.update(step)
    assert caplog.messages == [
        "training: step 50/1000, 0:01:35 left, 10 steps/s",
        "training: step 351/1000, 0:01:05 left, 10 steps/s",
    ]


def test_a_slow_run_tells_early_and_then_twice_a_minute_how_far_it_is(now, log, caplog):
    with log(0, 100) as progress:
        now[0] += 60  # Of compiling, mostly.
        progress.compiled(1)
        progress.update(1)
        assert not caplog.messages
        for step in range(2, 7):
            now[0] += 10
            progress.update(step)
    assert caplog.messages == [
        "training: step 2/100, 0:16:20 left, 0.1 steps/s",
        "training: step 5/100, 0:15:50 left, 0.1 steps/s",
    ]


# A line in a terminal or a notebook, plain lines, or the log.


class Terminal(io.StringIO):
    """What a terminal is sent."""

    def isatty(self):
        return True


def take_steps(now, shown, steps=(1, 2, 3, 4), seconds=6):
    with Progress(0, 4, shown) as progress:
        progress.compiled(0)
        for step in steps:
            now[0] += seconds
            progress.update(step, {"epoch": f"{step / 2}", "train loss": 1 / step})


def test_plain_lines_come_every_ten_seconds_at_most(now, capsys):
    with open_display() as shown:
        take_steps(now, shown)
    assert capsys.readouterr().err.splitlines() == [
        "training: step 0/4, starting",
        "training: step 1/4, 0:00:18 left, 0.167 steps/s; epoch 0.5, train loss 1",
        "training: step 3/4, 0:00:06 left, 0.167 steps/s; epoch 1.5, train loss 0.3333",
        "training: step 4/4, took 0:00:24; epoch 2.0, train loss 0.25",
    ]


def test_lines_of_the_log_are_shown_and_its_warnings_go_where_they_went(now, capsys, caplog):
    before = LOGGER.level
    with open_display():
        LOGGER.info("searching\x1b[2J")
        LOGGER.info("too soon")
        now[0] += 11
        LOGGER.info("a table\nof lines")
        LOGGER.warning("a member failed")
    assert capsys.readouterr().err == "'searching\\x1b[2J'\n"
    assert caplog.messages == ["a member failed"]
    LOGGER.info("afterwards")
    assert caplog.messages == ["a member failed"]
    assert LOGGER.level == before
    assert LOGGER.filters == []


def test_it_can_be_quiet(now, capsys, caplog):
    with open_display(show=False) as shown:
        LOGGER.info("unheard")
        take_steps(now, shown)
        LOGGER.warning("heard")
    assert capsys.readouterr().err == ""
    assert caplog.messages == ["heard"]


def test_a_process_without_stderr_shows_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with open_display() as shown:
        assert shown.kind == "log"


def test_a_terminal_has_a_line_that_changes(monkeypatch, now):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    with open_display() as shown:
        with Progress(0, 4, shown) as progress:
            now[0] += 2
            progress.update(2, {"loss": 0.5})
            progress.update(2, {"NLL": 0.75}, stays=True)
        LOGGER.info("scoring\x1b[2J")
        now[0] += 2
        LOGGER.info("writing\x1b[2J")
    lines = [
        *("training: step 0/4, starting", "training: step 2/4, 0:00:02 left, 1 steps/s; loss 0.5"),
        "training: step 2/4, 0:00:02 left, 1 steps/s; loss 0.5, NLL 0.75\n",
        "training: step 2/4, took 0:00:02; loss 0.5, NLL 0.75",
        "'writing\\x1b[2J'\n",
    ]
    assert terminal.getvalue().removeprefix("\r\x1b[K").split("\r\x1b[K") == lines


def test_a_notebook_has_one_line_that_changes(now, monkeypatch, capsys):
    said = []

    class Handle:
        def update(self, content, raw):
            said.append(("update", content["text/plain"]))

    def show(content, raw, display_id):
        said.append(("new", content["text/plain"]))
        return Handle()

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = show
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    with open_display() as shown:
        take_steps(now, shown, seconds=0.5)
    assert [kind for kind, _ in said] == ["new", *["update"] * 5]
    assert said[0][1] == "training: step 0/4, starting"
    assert capsys.readouterr().err == ""
    ipython.get_ipython = types.SimpleNamespace  # IPython in a terminal has no kernel.
    with open_display() as shown:
        assert shown.kind == "plain"
