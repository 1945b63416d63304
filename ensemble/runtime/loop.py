"""The one loop: members of any method start or are restored, advance, are recorded and saved."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ensemble import pytrees
from ensemble.errors import InputError
from ensemble.pytrees import ByName
from ensemble.runtime.algorithm import WEIGHTS, Algorithm, Start, Status
from ensemble.runtime.devices import Devices, fetch
from ensemble.runtime.programs import Members, Programs
from ensemble.sharding import processes

MAX_IN_FLIGHT = 8
"""Programs that are dispatched before the first is waited for: lines of XLA:CPU may stall."""
_IN_FLIGHT_SECONDS = 4.0
"""What programs in flight may take together: a run that is asked to stop waits for them."""
_CHUNK_SECONDS = 8.0
"""What the steps between two looks at signals should take at most."""
SAVE_SECONDS = 60.0
"""After so long a run of slow steps is saved, though nothing else is due."""
_SAVE_RATIO = 10.0
"""Least ratio of the time between two checkpoints to that of writing one."""


class Period(NamedTuple):
    """What the steps `first` to `end` - 1 have said, on the host.

    Attributes:
        first: First step.
        end: Number after the last step.
        scalars: [steps, M] by name, or [steps, M, n].
        of_all: [steps] by name, of all members together.
        kept: Parameters [n, M, K, ...] that are to be kept; empty: none.
    """

    first: int
    end: int
    scalars: ByName
    of_all: ByName
    kept: Any


class Rows:
    """What steps have said and is not on disk yet: scalars, and parameters that are kept.

    They leave at the next line of metrics. A checkpoint between two lines holds them, so that a run
    that was interrupted writes the same lines.

    Args:
        first: Step of the first row that is to come.

    Attributes:
        first: Step of the first row that is here.
        end: Step of the next row.
    """

    def __init__(self, first: int = 0):
        self.first = self.end = first
        self._parts: list[ByName] = []

    def append(self, count: int, **kinds: Any) -> None:
        """Adds the rows of `count` steps: trees of arrays, by fields of `Period`."""
        self.end += count
        self._parts.append(kinds)

    def take(self) -> Period:
        """Joins all rows, and forgets them."""
        nothing: ByName = {"scalars": {}, "of_all": {}, "kept": {}}
        period = Period(self.first, self.end, **nothing | self.saved())
        self.first = self.end
        self._parts = []
        return period

    def saved(self) -> ByName:
        """Returns what a checkpoint holds of the rows: trees of arrays by kind."""
        found = {}
        for name in Period._fields[2:]:
            trees = [part[name] for part in self._parts if jax.tree.leaves(part.get(name))]
            if trees:
                found[name] = jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)
        return found


class Periods(NamedTuple):
    """When something happens, in steps; 0 is never.

    Attributes:
        log: Steps of a line of metrics; evaluations write one, too.
        evaluate: Steps between two evaluations.
        save: Steps between two checkpoints.
    """

    log: int
    evaluate: int
    save: int


class Loop:
    """Moves members to a goal.

    Args:
        algorithm: Method.
        devices: Placement of the members.
        numbers: Their numbers.
        seed: Seed of the run.
        periods: When something is due.
        observer: An `ensemble.runtime.run.Run`, or anything with the methods of an observer.

    Attributes:
        step: Steps that were taken.
        members: Members on the devices.
        shared: What they share.
        rows: Rows that are not written yet.
        status: [M] of the members, as far as is known.
    """

    members: Members
    shared: Any = None

    def __init__(
        self,
        algorithm: Algorithm,
        devices: Devices,
        numbers: Sequence[int],
        seed: int,
        periods: Periods,
        observer: Any,
    ):
        self.algorithm = algorithm
        self.devices = devices
        self._periods = periods
        self._observer = observer
        length = max(1, min(algorithm.steps_per_program, periods.log, algorithm.num_steps or 1))
        self.programs = algorithm.programs or Programs(algorithm, devices, numbers, seed, length)
        self.status = np.full(len(numbers), Status.ACTIVE, np.int8)
        self._in_flight: Any = deque()
        self._pace = Pace(self.programs.length, self.programs.stride)
        self.step = 0
        self.rows = Rows()

    def start(self, shared: Any = None) -> None:
        """Starts the members; those that were there before share `shared`.

        Raises:
            InputError: They have started from weights of another file or run.
        """
        found = self.algorithm.start() if self.algorithm.start else Start()
        if shared is None:
            shared = found.shared
        elif not np.array_equal(*(one.get(WEIGHTS, 0) for one in (shared, found.shared or {}))):
            raise InputError(
                "members that join a run start from the weights that the others have started from, "
                "and config.init_from has changed; put that back, or choose another --workdir"
            )
        self.shared = self.devices.put_everywhere(shared)
        self.members = self.programs.start(found._replace(shared=self.shared))
        self._between()

    def saved(self) -> ByName:
        """Returns arrays of a checkpoint: [num_places, ...] on the devices, rows on the host."""
        found = {
            "members": self.programs.saved(self.members),
            "shared": jax.tree.map(np.asarray, self.shared),
            "rows": self.rows.saved(),
        }
        return {name: one for name, one in found.items() if jax.tree.leaves(one)}

    def restore(self, step: int, first: int, arrays: ByName) -> None:
        """Goes on from a checkpoint.

        Args:
            step: Steps that were taken.
            first: Step of its first row.
            arrays: What `saved` has returned.
        """
        self.step = step
        self.shared = self.devices.put_everywhere(arrays.get("shared"))
        self.members = self.programs.restored(arrays["members"])
        self.status = self.devices.fetch_members(self.members.status)
        self.rows = Rows(first)
        self.rows.append(step - first, **jax.tree.map(np.asarray, arrays.get("rows", {})))

    def fail(self, has_failed: np.ndarray) -> None:
        """Freezes members [M] that have failed outside of their steps, when none is under way."""
        if has_failed.any():
            self.status = np.where(has_failed, np.int8(Status.NON_FINITE), self.status)
            self.members = self.members._replace(status=self.devices.put_members(self.status))

    def go(self, until: int | None = None) -> bool:
        """Takes the steps up to the goal.

        Args:
            until: Goal, at most that of the algorithm; None: that.

        Returns:
            Whether they were all taken, or the run may end; False: it was asked to stop, and has
            been saved.
        """
        observer = self._observer
        goal = self.algorithm.num_steps if until is None else until
        saved = time.monotonic()
        done = self.ended or self.step >= goal
        while not done:
            processes.at_step(self.step)
            # Process 0's pace: all fetch what steps have said at the same places.
            steps, in_flight = processes.tell([self._pace.steps, self._pace.programs])
            self._advance(min(self._next_due(), goal, self.step + steps), in_flight)
            self._between()
            done = self.ended or self.step >= goal
            evaluates = self._is_due(self._periods.evaluate)
            if evaluates or done:
                self._drain()
                if (evaluates or self.ended) and self.rows.end > self.rows.first:
                    observer.period(self.rows.take())
                done = observer.evaluate() or done or self.ended
            stops = observer.stops(done)
            since = time.monotonic() - saved
            least = _SAVE_RATIO * observer.save_seconds
            late, can_save = processes.tell([since > SAVE_SECONDS, since > least])
            if stops or done or late or (can_save and self._is_due(self._periods.save)):
                self._drain()
                observer.save()
                saved = time.monotonic()
            if stops:
                return False
        processes.at_step(None)
        return True

    @property
    def finished(self) -> bool:
        """Whether all steps have been taken."""
        return self.step >= self.algorithm.num_steps

    def parameters(self) -> Any:
        """What predicts now, [num_places, K, ...], on the devices."""
        return self.programs.parameters(self.members, self.shared, np.int32(self.step))

    @property
    def ended(self) -> bool:
        """Whether no member is to take a step."""
        return self.finished or not np.any(self.status == Status.ACTIVE)

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _next_due(self) -> int:
        """The first step after this one at which the host has something to do."""
        ends = [(self.step // every + 1) * every for every in self._periods if every]
        end = min(self.algorithm.num_steps, *ends)
        keep = self.algorithm.keep
        due = [one.due for one in self.algorithm.between]
        if keep is not None and not self.programs.num_kept:
            due.append(lambda step: bool(keep.steps(step - 1, step)))
        steps = range(self.step + 1, end)
        return next((step for step in steps if any(one(step) for one in due)), end)

    def _advance(self, end: int, in_flight: int) -> None:
        """Takes steps; what they say is fetched when so many programs are in flight."""
        programs = self.programs
        keep = self.algorithm.keep
        if not self._in_flight:  # What the host did meanwhile is no time of the steps.
            self._pace.resume()
        while self.step < end:
            first = self.step
            count = min(programs.length, end - first)
            self.members, told = programs.advance(self.members, self.shared, first, count)
            self.step += count
            if keep and not programs.num_kept and keep.before(self.step) > keep.before(first):
                told = told._replace(kept=pytrees.at(self.parameters(), None))
            self._in_flight.append((first, count, told))
            self._drain(in_flight - 1)

    def _between(self) -> None:
        """Does what is due between two steps."""
        for one in self.algorithm.between:
            if one.due(self.step):
                self._drain()
                self.members = self.programs.change(one, self.members, self.shared, self.step)
                self.status = self.devices.fetch_members(self.members.status)

    def _drain(self, left: int = 0) -> None:
        """Notes what steps have said, in their order, until so few programs are in flight."""
        while len(self._in_flight) > left:
            first, count, told = self._in_flight.popleft()
            scalars, kept = self.devices.fetch_members((told.scalars, told.kept), axis=1)
            scalars, of_all = pytrees.at((scalars, fetch(told.of_all)), slice(count))
            self.status = self.devices.fetch_members(told.status)
            keep = self.algorithm.keep
            number = 0 if keep is None else int(keep.before(first + count) - keep.before(first))
            kept = pytrees.at(kept, slice(number)) if number else None
            seconds = self._pace.note(count)
            self.rows.append(count, scalars=scalars, of_all=of_all, kept=kept)
            self._observer.advanced(self.rows.end, seconds)
            if self.rows.end % self._periods.log == 0:
                self._observer.period(self.rows.take())


class Pace:
    """Finds from how long programs take how many may be in flight, and how many steps in a chunk.

    The first program compiles, and its time counts for nothing. The number of steps at most doubles
    with each program, so that a few quick steps do not vouch for many.

    Args:
        length: Steps of a program.
        stride: Steps of which only multiples are taken.

    Attributes:
        steps: Steps until the loop looks at signals again.
        programs: Programs that may be in flight.
    """

    def __init__(self, length: int, stride: int = 1):
        self._length = length
        self._stride = stride
        self._compiled = False
        self.steps = stride
        self.programs = 1
        self._since = time.monotonic()

    def resume(self) -> None:
        """Starts or restarts the measurement, with nothing left on the devices."""
        self._since = time.monotonic()

    def note(self, count: int) -> float | None:
        """Notes that a program of so many steps has ended.

        Returns:
            The seconds since the one before; None of the first, which compiles.
        """
        now = time.monotonic()
        seconds = now - self._since
        self._since = now
        if not self._compiled:
            self._compiled = True
            return None
        of_step = max(seconds, 1e-9) / count
        steps = min(2 * self.steps, int(_CHUNK_SECONDS / of_step))
        self.steps = max(1, steps // self._stride) * self._stride
        in_flight = int(_IN_FLIGHT_SECONDS / (of_step * min(self._length, self.steps)))
        self.programs = max(1, min(MAX_IN_FLIGHT, in_flight))
        return seconds
