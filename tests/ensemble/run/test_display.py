"""Where progress is shown: a bar, a line in a notebook, plain lines, or nothing but the log."""

import io
import logging
import sys
import time
import types

import pytest

from ensemble.run import display
from ensemble.run.display import Display, open_display
from ensemble.run.progress import Progress

LOGGER = logging.getLogger("ensemble")


@pytest.fixture
def now(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


class Terminal(io.StringIO):
    """What a terminal is sent."""

    def isatty(self):
        return True


def take_steps(now, shown, steps=(1, 2, 3, 4), seconds=6):
    with Progress(0, 4, display=shown) as progress:
        progress.compiled(0)
        for step in steps:
            now[0] += seconds
            progress.update(step, step / 2, {"train loss": 1 / step})


def test_plain_lines_come_every_ten_seconds_at_most(now, capsys):
    with open_display() as shown:
        take_steps(now, shown)
    assert capsys.readouterr().err.splitlines() == [
        "training: step 0/4; starting",
        "training: step 2/4, epoch 1.0, train loss 0.5000; 0:12 left",
        "training: step 4/4, epoch 2.0, train loss 0.2500; took 0:24",
    ]


def test_work_that_fails_has_no_last_line(now, capsys):
    with pytest.raises(KeyError), open_display() as shown, Progress(0, 4, display=shown):
        raise KeyError
    assert capsys.readouterr().err == "training: step 0/4; starting\n"


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


def test_whoever_reads_the_log_gets_no_plain_lines(now, capsys, caplog):
    caplog.set_level("INFO", logger="ensemble")
    with open_display() as shown, Progress(0, 9, display=shown) as progress:
        progress.log(3, 1.0, {"NLL": 2.0})
    assert capsys.readouterr().err == ""
    assert caplog.messages == ["step 3/9, epoch 1.0: NLL 2.0000; 0:00 left"]


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
        assert type(shown) is Display


def test_a_terminal_has_a_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with open_display() as shown:
        with Progress(0, 4, display=shown) as progress:
            progress.update(4, 2.0, {"train [loss]": 0.25})
        LOGGER.info("scoring")
    text = terminal.getvalue()
    assert "4/4" in text
    assert "epoch 2.0, train [loss] 0.2500" in text
    assert "scoring" in text
    assert text.endswith("\x1b[?25h")  # The cursor is back.


def test_a_notebook_has_one_line_that_changes(now, monkeypatch, capsys):
    said = []

    class Handle:
        def update(self, content, raw):
            said.append(("update", content["text/plain"]))

    def show(content, raw, display_id):
        said.append(("new", content["text/plain"]))
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = show
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    with open_display() as shown:
        take_steps(now, shown, steps=(1, 2, 3, 4), seconds=display.NOTEBOOK_SECONDS)
    assert [kind for kind, _ in said] == ["new", *["update"] * 4]
    assert said[0][1] == "training: step 0/4; starting"
    assert said[-1][1] == "training: step 4/4, epoch 2.0, train loss 0.2500; took 0:02"
    assert capsys.readouterr().err == ""
    shell.kernel = None  # IPython in a terminal.
    assert not display._in_notebook()
