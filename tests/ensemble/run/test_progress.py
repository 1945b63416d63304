"""The clock of a run over several processes, and the log line."""

import time
from typing import ClassVar

import pytest

from ensemble.run.display import Display
from ensemble.run.progress import Clock, Progress, duration


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


def test_the_time_left_counts_from_where_this_process_began(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with caplog.at_level("INFO", logger="ensemble"), Progress(done=50, total=100) as progress:
        now[0] += 30
        progress.log(60, 1.5, {"validation accuracy": 0.5})
    assert "step 60/100, epoch 1.5: validation accuracy 0.5000; 2:00 left" in caplog.text


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
