"""Programs and the loop that calls them, of members that walk at random."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import Silent, stored

from ensemble.runtime.algorithm import Algorithm, Between, Info, Status, every
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Fixed
from ensemble.runtime.loop import Loop, Pace, Periods, Rows

MEMBERS = 3


class Noted(Silent):
    """An observer that notes rows."""

    def __init__(self):
        self.periods = []

    def period(self, period):
        self.periods.append(period)


def walk(**more):
    def init(now, batch):
        return {"x": now.number * jnp.ones(4), "nothing": jnp.zeros(0)}

    def step(now, state, batch):
        move = jax.random.normal(jax.random.fold_in(now.key, now.step), (4,))
        x = state["x"] + move
        return {**state, "x": x}, Info({"first": x[0]}, jnp.all(jnp.isfinite(x)))

    def parameters(now, state):
        return {"x": state["x"][None]}

    return Algorithm(init, step, parameters, 11, Fixed(), **{"steps_per_program": 4, **more})


def loop_on(num_devices, algorithm, observer=None, log=3):
    devices = Devices(MEMBERS, jax.devices()[:num_devices])
    observer = observer or Noted()
    return Loop(algorithm, devices, range(MEMBERS), 0, Periods(log, 0, 0), observer)


def gone(num_devices, algorithm, until=None, **how):
    loop = loop_on(num_devices, algorithm, **how)
    loop.start()
    loop.go(until)
    return loop


def positions(loop):
    return loop.devices.fetch_members(loop.members.state["x"])


def test_keep_says_the_same_inside_and_outside_of_programs():
    keep = every(3, 4)
    assert keep.steps(0, 12) == [3, 6, 9]
    steps = jnp.arange(12)
    assert np.flatnonzero(jax.jit(keep.before)(steps + 1) > keep.before(steps)).tolist() == [
        3,
        6,
        9,
    ]


def test_a_checkpoint_between_two_lines_holds_their_rows():
    def part(rows, first, count, kept):
        steps = np.arange(first, first + count)
        kept = {"x": steps} if kept else None
        rows.append(count, scalars={"a": steps[:, None]}, of_all={"b": steps}, kept=kept)

    straight = Rows(2)
    broken = Rows(2)
    for rows in (straight, broken):
        part(rows, 2, 2, kept=True)
        part(rows, 4, 1, kept=False)
    rows = Rows(broken.first)
    rows.append(broken.end - broken.first, **broken.saved())
    for one in (straight, rows):
        part(one, 5, 2, kept=True)
    found = rows.take()
    expected = straight.take()
    assert (found.first, found.end, rows.first) == (2, 7, 7)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert found.kept["x"].tolist() == [2, 3, 5, 6]


@pytest.mark.parametrize("number", [2, 5])
def test_what_is_kept_is_the_state_after_its_step(number):
    """Within a program, and where programs end for it."""
    noted = Noted()
    gone(2, walk(keep=every(number, number)), observer=noted, log=4)
    first = np.concatenate([one.scalars["first"] for one in noted.periods])
    assert first.shape == (11, MEMBERS)
    steps = [step for step in range(11) if (step + 1) % number == 0]
    kept = np.concatenate([one.kept["x"] for one in noted.periods if one.kept])
    np.testing.assert_array_equal(kept[:, :, 0, 0], first[steps])


@pytest.mark.parametrize("length", [1, 4])
def test_a_run_goes_on_from_a_checkpoint_on_other_devices(length):
    algorithm = walk(steps_per_program=length)
    straight = gone(1, algorithm)
    broken = gone(2, algorithm, until=5)
    saved = stored(broken)
    assert saved["state/x"].shape == (MEMBERS, 4)
    assert not any("nothing" in name for name in saved)
    again = loop_on(8, algorithm)
    again.restore(5, 5, {"members": saved})
    again.go()
    np.testing.assert_array_equal(positions(again), positions(straight))


def test_axes_may_be_padded_otherwise():
    loop = gone(2, walk(), until=1)
    saved = stored(loop)
    x = saved["state/x"]
    for size in (3, 5):
        other = np.pad(x, ((0, 0), (0, 1)))[:, :size]
        members = loop.programs.restored({**saved, "state/x": other})
        found = loop.devices.fetch_members(members.state["x"])
        np.testing.assert_array_equal(found[:, :3], x[:, :3])
        assert (found[:, 3] == (x[:, 3] if size == 5 else 0)).all()


def test_between_steps_all_members_or_the_host_may_change_them():
    def centre(now, states, status, data):
        real = (jnp.arange(len(status)) < MEMBERS)[:, None]
        mean = jnp.sum(jnp.where(real, states["x"], 0), 0) / MEMBERS
        status = jnp.where(now.number == 1, Status.STOPPED_EARLY, status)
        return {**states, "x": states["x"] - mean}, status

    def double(step, states):
        assert (step, states["x"].shape) == (4, (MEMBERS, 4))
        return {**states, "x": 2 * states["x"]}

    between = (
        Between(lambda step: step == 4, double, on_host=True),
        Between(lambda step: step == 4, centre, of_all=True),
    )
    before = positions(gone(2, walk(), until=4))
    loop = gone(2, walk(between=between), until=4)
    expected = 2 * (before - before.mean(axis=0))
    np.testing.assert_allclose(positions(loop), expected, rtol=1e-5, atol=1e-5)
    assert loop.status.tolist() == [Status.ACTIVE, Status.STOPPED_EARLY, Status.ACTIVE]


def test_the_pace_grows_by_two_at_most_and_keeps_to_the_stride(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = Pace(length=64, stride=2)
    now[0] += 30
    assert pace.note(2) is None
    assert (pace.steps, pace.programs) == (2, 1)
    for steps in (4, 8, 16):
        now[0] += 1e-4
        assert pace.note(2) == pytest.approx(1e-4)
        assert (pace.steps, pace.programs) == (steps, 8)
    now[0] += 6
    pace.note(2)  # 3 s a step: two of them are in flight at least.
    assert (pace.steps, pace.programs) == (2, 1)


@pytest.mark.parametrize(("seconds", "saved"), [(0.0, [3, 6, 9]), (1e6, [9])])
def test_saving_takes_a_small_part_of_the_time(seconds, saved):
    class Saving(Silent):
        save_seconds = seconds

        def save(self):
            steps.append(loop.step)

    steps = []
    saving = Saving()
    devices = Devices(MEMBERS, jax.devices()[:1])
    loop = Loop(walk(), devices, range(MEMBERS), 0, Periods(3, 0, 3), saving)
    loop.start()
    loop.go(9)
    assert steps == saved


def test_what_evaluations_take_is_no_time_of_steps():
    class Slow(Silent):
        seconds = 0.0

        def advanced(self, step, seconds):
            self.seconds += seconds or 0

        def evaluate(self):
            time.sleep(0.3)
            return False

    slow = Slow()
    devices = Devices(MEMBERS, jax.devices()[:1])
    loop = Loop(walk(), devices, range(MEMBERS), 0, Periods(3, 3, 0), slow)
    loop.start()
    loop.go(9)
    assert 0 < slow.seconds < 0.3
