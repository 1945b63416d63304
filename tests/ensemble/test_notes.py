"""What is said of a run is kept once, logged once, and comes back where it is looked for."""

import logging

from ensemble import notes


def test_lines_are_said_once_and_collected(caplog):
    with caplog.at_level(logging.WARNING), notes.collected() as lines:
        notes.note("one")
        notes.note("two")
        notes.note("one")
        assert notes.said() == lines == ["one", "two"]
    assert [record.getMessage() for record in caplog.records] == ["one", "two"]
    notes.note("outside of a run")
    assert lines == ["one", "two"]


def test_lines_of_an_earlier_process_are_taken_over_once():
    with notes.collected() as lines:
        notes.note("one")
        notes.recall(["zero", "one"])
        assert lines == ["one", "zero"]


def test_what_is_found_at_the_end_is_said_unless_the_result_shows_it(caplog):
    with caplog.at_level(logging.WARNING), notes.collected() as outer:
        with notes.collected() as lines:
            notes.note("one")
            notes.conclude(["two", "one"])
            assert lines == ["one", "two"]
        notes.note("one")  # A run within a run: it is said of both, and kept once.
        assert outer == ["one", "two"]
        with notes.shown_with_the_result(), notes.collected() as lines:
            notes.conclude(["three"])
            assert lines == ["three"]
    assert caplog.messages == ["one", "two"]


def test_how_a_run_ended_is_no_note(caplog):
    with caplog.at_level(logging.INFO), notes.collected() as lines:
        notes.tell("one")
        with notes.shown_with_the_result():
            notes.tell("two")
        assert lines == []
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [(logging.INFO, "one")]


def test_of_two_runs_at_once_each_ends_its_own():
    first, second = notes.collected(), notes.collected()
    lines = first.__enter__()
    second.__enter__()
    notes.note("both have said it")
    second.__exit__(None, None, None)  # Of a thread, it may end in any order.
    notes.note("one goes on")
    first.__exit__(None, None, None)
    assert lines == ["both have said it", "one goes on"]
    second, first = notes.collected(), notes.collected()
    second.__enter__()
    lines = first.__enter__()
    second.__exit__(None, None, None)
    notes.note("again")
    assert lines == ["again"]
    first.__exit__(None, None, None)
    assert notes.said() == []
