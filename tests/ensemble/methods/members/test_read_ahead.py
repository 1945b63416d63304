"""Reading ahead: the steps in order, none behind the last, errors where the step is asked for."""

import threading

import numpy as np
import pytest

from ensemble.errors import UserError
from ensemble.methods.members.read_ahead import Part, ReadAhead


def _parts(step, count):
    return [Part(*(np.array([one]) for _ in range(4))) for one in range(step, step + count)]


def test_steps_come_in_order_and_are_read_once_before_they_are_asked_for():
    read, third = [], threading.Event()

    def note(step, count):
        read.append((step, count))
        if step == 7:
            third.set()
        return _parts(step, count)

    ahead = ReadAhead(note, depth=3, end=9)
    assert ahead.get(5).examples == 5
    assert third.wait(10)
    assert [ahead.get(step).examples.item() for step in (6, 7, 8)] == [6, 7, 8]
    assert read == [(5, 1), (6, 1), (7, 1), (8, 1)]


def test_several_steps_are_read_at_once_and_never_more_than_the_depth():
    read = []

    def note(step, count):
        read.append((step, count))
        return _parts(step, count)

    ahead, last = ReadAhead(note, depth=8, end=13), 0
    for step in range(2, 13):
        assert ahead.get(step).examples.item() == step
        last = sum(read[-1])
        assert last - step - 1 <= 8
    assert read == [(2, 2), (4, 2), (6, 2), (8, 2), (10, 2), (12, 1)]
    assert last == 13


def test_a_step_elsewhere_is_read_anew():
    ahead = ReadAhead(_parts, depth=2, end=100)
    assert [ahead.get(step).examples.item() for step in (0, 1, 40, 41, 3)] == [0, 1, 40, 41, 3]


def test_an_error_comes_where_the_step_is_asked_for():
    def read(step, count):
        if step == 1:
            raise UserError("record 7 is damaged")
        return _parts(step, count)

    ahead = ReadAhead(read, depth=4, end=4)
    ahead.get(0)
    with pytest.raises(UserError, match="record 7"):
        ahead.get(1)
