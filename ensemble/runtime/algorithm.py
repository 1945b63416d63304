"""Contract of a method: pure functions of one member, and when they are called.

The runtime maps them over members, devices and processes. It saves, restores, enlarges, stops and
masks whatever state they return. A method sees no device, no file and no other member.
"""

import enum
from typing import Any, NamedTuple

from jax import Array

from ensemble.pytrees import ByName, Function


class Status(enum.IntEnum):
    """Why a member moves, or why not: the one mask, with its reasons."""

    ACTIVE = 0
    STOPPED_EARLY = 2
    NON_FINITE = 3
    STUCK = 4


FAILURES: Any = {Status.NON_FINITE: "non-finite", Status.STUCK: "stuck"}
"""The statuses of members that are left out of every mean, and what they have become."""


class Stream(enum.IntEnum):
    """One kind of random numbers of a member: its key is folded with it, and then with a step."""

    DROPOUT = 1
    AUGMENT = 2
    DESCENT = 3
    PASSES = 4
    DRAWS = 5
    SETTINGS = 6


class Now(NamedTuple):
    """Position of a member. It is not saved: it follows from the seed, the member and the step.

    Attributes:
        number: Number of the member, [] int32.
        step: Steps that have been taken before this one, [] int32, the same for all members.
        key: Key of the member. Methods fold it with a stream and with the step.
        shared: What all members share, of `Start`.
        given: What this member starts with, of `Start`; only `init` has it.
    """

    number: Array
    step: Array
    key: Array
    shared: Any = None
    given: Any = None


class Info(NamedTuple):
    """Result of a step besides the state.

    Attributes:
        scalars: Metrics of this member at every step, [] each, or [n].
        ok: Whether the step is finite, [] bool. If False, the step is not taken, and the member is
            left out from then on. None: every step is taken.
        rows: Input of `Algorithm.together`, such as predictions [B, C].
    """

    scalars: ByName
    ok: Array | None = None
    rows: Any = None


WEIGHTS = "weights"
"""In what members share, the digest of the weights that they start from."""


class Start(NamedTuple):
    """Arrays found by the host before members start, such as a maximum. Checkpoints keep `shared`.

    Attributes:
        shared: Arrays that all members share.
        given: Arrays [L, ...] of which member k starts with row k modulo L.
    """

    shared: Any = None
    given: Any = None


class Keep(NamedTuple):
    """Steps after which parameters are kept on disk: draws, snapshots.

    Attributes:
        before: Number of sets kept in the first n steps, a function of n, traced or not.
        every: Least number of steps from one set to the next.
        only_rows: Whether scalars are recorded at these steps alone, and not at every step.
    """

    before: Function
    every: int
    only_rows: bool = False

    def steps(self, first: int, end: int) -> list[int]:
        """Returns the numbers of the steps, from `first` to `end` - 1, after which some are."""
        return [s for s in range(first, end) if self.before(s + 1) > self.before(s)]


def every(number: int, first: int) -> Keep:
    """Keeps parameters after the steps `first`, `first + number`, ..."""

    def before(step):
        return (step >= first) * ((step - first) // number + 1)

    return Keep(before, number)


class Between(NamedTuple):
    """Change of members after some steps: early stopping, tuning, a Hessian at the end.

    Attributes:
        due: Whether the change happens after n steps, a function of n; 0 is before the first step.
        change: `(now, state, data) -> (state, Status)` of one member, or where `on_host` is set,
            `(step, states [M, ...] as NumPy arrays) -> states`.
        data: Data for `change`: an object with `fixed`, arrays on the devices that all members
            share. None: no data.
        of_all: Whether `change` is of all members together: `(now, states, status, data) ->
            (states, status)`, all [num_places, ...], and so are number and key of `now`.
        on_host: Whether the host computes the change.
    """

    due: Function
    change: Function
    data: Any = None
    of_all: bool = False
    on_host: bool = False


class Algorithm(NamedTuple):
    """Pure functions of one member, and when they are called.

    Attributes:
        init: `(now, fixed) -> state` of one member, by what the feed keeps on the devices: a tree
            of arrays, such as parameters, the state of an optimiser, warm-up or best variables.
        step: `(now, state, batch) -> (state, Info)`.
        parameters: `(now, state) -> tree [K, ...]`, the parameter samples that predict, which
            checkpoints then hold beside states; None: the field `variables` of the state predicts.
        num_steps: Steps of the run.
        feed: Feed of the batches, as those of `ensemble.runtime.feed`.
        steps_per_program: Most steps of one program; 1 for convolutions on CPU.
        keep: When parameters are kept on disk; None: the last state predicts.
        between: Changes after some steps, in this order.
        together: `(rows [M, ...], live [M], batch) -> scalars` of all members; None: nothing.
        start: Makes the arrays found before members start; None: no arrays.
        passes: Passes with noise of each prediction.
        run: Takes steps of all members, which need not keep step, in place of `step`, whose
            scalars it has: `(numbers, keys, states, shared, fixed, scalars, kept, first, end) ->
            (states, scalars, kept)`. Scalars [length, num_places, ...] and kept parameters
            [n, num_places, K, ...] have places for what it fills in.
        programs: Programs of its own, in place of `ensemble.runtime.programs.Programs`.
    """

    init: Function
    step: Function
    parameters: Function | None
    num_steps: int
    feed: Any
    steps_per_program: int = 64
    keep: Keep | None = None
    between: tuple[Between, ...] = ()
    together: Function | None = None
    start: Function | None = None
    passes: int = 1
    run: Function | None = None
    programs: Any = None
