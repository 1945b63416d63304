"""Reading ahead: the steps in order, none behind the last, errors where the step is asked for."""

import threading

import numpy as np
import pytest

from ensemble.errors import UserError
from ensemble.methods.members.read_ahead import Part, ReadAhead


def _part(step):
    return Part(*(np.array([step]) for _ in range(4)))


def test_steps_come_in_order_and_are_read_once_before_they_are_asked_for():
    read, third = [], threading.Event()

    def note(step):
        read.append(step)
        if step == 7:
            third.set()
        return _part(step)

    ahead = ReadAhead(note, depth=3, end=9)
    assert ahead.get(5).examples == 5
    assert third.wait(10)
    assert [ahead.get(step).examples.item() for step in (6, 7, 8)] == [6, 7, 8]
    assert read == [5, 6, 7, 8]


def test_a_step_elsewhere_is_read_anew():
    ahead = ReadAhead(_part, depth=2, end=100)
    assert [ahead.get(step).examples.item() for step in (0, 1, 40, 41, 3)] == [0, 1, 40, 41, 3]


def test_an_error_comes_where_the_step_is_asked_for():
    def read(step):
        if step == 1:
            raise UserError("record 7 is damaged")
        return _part(step)

    ahead = ReadAhead(read, depth=4, end=4)
    ahead.get(0)
    with pytest.raises(UserError, match="record 7"):
        ahead.get(1)
