"""The clock of a run over several processes, the log line, and where progress is shown."""

import io
import logging
import sys
import time
import types
from typing import ClassVar

import pytest

from ensemble.run import progress as run_progress
from ensemble.run.progress import Clock, Display, Progress, duration, open_display

LOGGER = logging.getLogger("ensemble")


def test_a_clock_goes_on_where_the_one_before_stopped(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    first = Clock(started=90)
    first.compiled()
    first.resume()
    now[0] += 0.5
    assert first.chunk_done(1000) == pytest.approx(2000)
    second = Clock(95.5, **first.state())
    second.compiled()
    timing = second.timing()
    assert timing["seconds_total"] == pytest.approx(10.5 + 5)
    assert timing["seconds_to_first_step"] == pytest.approx(10)
    assert second.member_examples == 1000


def test_a_chunk_that_held_up_the_next_does_not_make_its_rate_absurd(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = Clock(started=now[0])
    clock.resume()
    rates = []
    for elapsed in (2.0, 0.001, 2.0, 0.001):
        now[0] += elapsed
        rates.append(clock.chunk_done(1000))
    assert rates[0] == pytest.approx(500)
    assert rates[1:] == pytest.approx([1000] * 3, rel=1e-2)


def test_the_time_left_counts_from_where_this_process_began(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with caplog.at_level("INFO", logger="ensemble"), Progress(done=50, total=100) as progress:
        now[0] += 30
        progress.log(60, 1.5, {"validation accuracy": 0.5})
    assert "step 60/100, epoch 1.5: validation accuracy 0.5000; 2:00 left" in caplog.text


def test_the_time_left_forgets_what_came_once(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with caplog.at_level("INFO", logger="ensemble"), Progress(done=0, total=1000) as progress:
        progress.compiled(1)
        now[0] += 3  # Of another program that compiles.
        progress.update(2)
        assert not caplog.messages  # It would say fifty minutes.
        for step in range(3, 102):
            now[0] += 0.1
            progress.update(step)
    assert caplog.messages[0].startswith("step 23/1000")
    assert progress.left(101) == "1:30"


def test_lines_of_what_is_quickly_done_are_few(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with caplog.at_level("INFO", logger="ensemble"), Progress(done=0, total=40) as progress:
        for step in range(1, 41):
            now[0] += 0.1
            progress.line(step, f"predicted {step}")
    found = [line.split(";")[0].rpartition("predicted ")[2] for line in caplog.text.splitlines()]
    assert found == ["21", "40"]


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65.4, "1:05"), (3725, "1:02:05")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_a_slow_run_tells_early_and_then_twice_a_minute_how_far_it_is(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with caplog.at_level("INFO", logger="ensemble"), Progress(done=0, total=100) as progress:
        now[0] += 60  # Of compiling, mostly.
        progress.compiled(1)
        progress.update(1)
        assert not caplog.messages
        now[0] += 10
        progress.update(2)
        assert caplog.messages == ["step 2/100; 16:20 left"]
        for step in range(3, 7):
            now[0] += 10
            progress.update(step)
        assert caplog.messages[1:] == ["step 6/100; 15:40 left"]
        progress.log(6, 0.1, {})
        now[0] += 10
        progress.update(7)
        assert len(caplog.messages) == 3
        now[0] += 1000
        progress.update(100)
        assert len(caplog.messages) == 3  # The end has lines of its own.


def test_a_quick_run_is_not_talked_about(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with caplog.at_level("INFO", logger="ensemble"), Progress(done=0, total=100) as progress:
        progress.compiled(1)
        for step in range(2, 101):
            now[0] += 0.1
            progress.update(step)
    assert not caplog.messages


@pytest.mark.parametrize(("epoch", "shown"), [(1.0, ", epoch 1.0"), (None, "")])
def test_a_line_has_an_epoch_where_there_are_some(caplog, epoch, shown):
    with caplog.at_level("INFO", logger="ensemble"), Progress(0, 9) as progress:
        progress.update(3, epoch)
        progress.log(3, epoch, {"NLL": 2.0})
    assert f"step 3/9{shown}: NLL 2.0000;" in caplog.text


def test_a_display_that_shows_the_log_is_not_told_twice(caplog):
    class Told(Display):
        has_log = True
        lines: ClassVar[list] = []

        def update(self, step, scores, left):
            self.lines.append((step, scores))

    with caplog.at_level("INFO", logger="ensemble"), Progress(0, 9, display=Told()) as progress:
        progress.log(3, 1.0, {"NLL": 2.0})
        progress.line(4, "predicted shift")
    assert Told.lines == [(3, "epoch 1.0, NLL 2.0000"), (4, "predicted shift")]
    assert caplog.messages == []


# A bar, a line in a notebook, plain lines, or nothing but the log.


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
            progress.update(2, 1.0, {"train [loss]": 0.5})
            progress.log(3, 1.5, {"NLL": 0.75})
            progress.update(4, 2.0, {"train [loss]": 0.25})
        LOGGER.info("scoring")
    text = terminal.getvalue()
    assert "epoch 1.5  NLL 0.7500  0:00 left" in text  # It stays, in place of the log's line.
    assert "step 3/4" not in text
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
        take_steps(now, shown, steps=(1, 2, 3, 4), seconds=run_progress.NOTEBOOK_SECONDS)
    assert [kind for kind, _ in said] == ["new", *["update"] * 4]
    assert said[0][1] == "training: step 0/4; starting"
    assert said[-1][1] == "training: step 4/4, epoch 2.0, train loss 0.2500; took 0:02"
    assert capsys.readouterr().err == ""
    shell.kernel = None  # IPython in a terminal.
    assert not run_progress._in_notebook()
