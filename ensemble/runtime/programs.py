"""The compiled functions of a method on its devices: the only `jit` of training."""

from collections.abc import Sequence
from functools import cached_property, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from ensemble import pytrees
from ensemble.network import path_name
from ensemble.pytrees import ByName, Function
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Start, Status
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Fixed
from ensemble.sharding.mesh import compiled_soon, traced_for


class Members(NamedTuple):
    """All that the next step needs, [num_places, ...]: what a checkpoint holds.

    Attributes:
        number: Numbers of the members.
        status: `Status` of each.
        taken: Steps that each has taken.
        state: Their states.
    """

    number: Array
    status: Array
    taken: Array
    state: Any


class Told(NamedTuple):
    """What a program says of its steps, still on the devices.

    Attributes:
        scalars: [steps, num_places] by name, or [steps, num_places, n].
        of_all: Scalars of all members together, [steps] by name.
        kept: Parameters [n, num_places, K, ...] that are to be kept; None: none.
        status: [num_places] after the last step.
    """

    scalars: ByName
    of_all: ByName
    kept: Any
    status: Array


class Programs:
    """The functions of an algorithm, mapped over its members.

    Args:
        algorithm: Method.
        devices: Placement of the members.
        numbers: Their numbers.
        seed: Seed of the run.
        length: Steps of a program, at most.

    Attributes:
        stride: Steps of which only multiples are taken.
        num_kept: Sets of parameters that a program keeps; 0: a program ends where some are kept.
        take_steps: Program that takes steps.
        parameters: Program of what predicts now, `(members, shared, step) -> [num_places, K, ...]`.
    """

    stride = 1

    def __init__(
        self,
        algorithm: Algorithm,
        devices: Devices,
        numbers: Sequence[int],
        seed: int,
        length: int,
    ):
        self.algorithm = algorithm
        self.devices = devices
        self.length = length
        self._numbers = np.asarray(numbers, np.int32)
        self._seed = seed
        keep = algorithm.keep
        self.num_kept = 0
        if keep is not None and (algorithm.run or keep.every < length > 1):
            self.num_kept = length // keep.every + 1
        self.take_steps = self._compiled(self._take_steps, donate_argnums=0)
        self._change = self._compiled(self._change_members, static_argnums=0, donate_argnums=1)
        self.parameters = self._compiled(self._parameters_of)

    def _compiled(self, fn: Function, **options):
        """Compiles a function, in which networks see that it is traced for these devices."""

        @wraps(fn)
        def traced(*args):
            with traced_for(self.devices.mesh):
                return fn(*args)

        # Samplers take their time in loops of their own.
        if isinstance(self.algorithm.feed, Fixed):
            return jax.jit(traced, **options)
        with traced_for(self.devices.mesh):
            return compiled_soon(traced, **options)

    # What the loop calls.

    @cached_property
    def shapes(self) -> Any:
        """The shapes of the members, [num_places, ...]."""
        return jax.eval_shape(self._started, *self._arguments(Start()))

    @cached_property
    def set_shapes(self) -> Any:
        """The shapes of one set of parameters of one member."""
        zero = np.int32(0)
        return jax.eval_shape(
            lambda members: pytrees.at(self._parameters_of(members, None, zero), (0, 0)),
            self.shapes,
        )

    @cached_property
    def _start(self) -> Function:
        """The program that starts members."""
        return self._compiled(self._started, out_shardings=self.devices.of_members(self.shapes))

    def start(self, found: Start) -> Any:
        """Starts the members."""
        return self._start(*self._arguments(found))

    def _arguments(self, found: Start) -> tuple[Any, ...]:
        """The arguments of the program that starts members."""
        given = jax.tree.map(lambda leaf: np.asarray(leaf)[self._numbers % len(leaf)], found.given)
        placed = self.devices.put_members((self._numbers, given))
        return *placed, found.shared, self.algorithm.feed.fixed

    def advance(self, members: Members, shared: Any, first: int, count: int) -> Any:
        """Takes `count` steps from `first`; nothing is waited for.

        Returns:
            The members, and what is `Told`.
        """
        feed = self.algorithm.feed
        sent = feed.send(first, count, self.length)
        return self.take_steps(members, shared, feed.fixed, sent, np.int32(first), np.int32(count))

    def change(self, which: Between, members: Members, shared: Any, step: int) -> Any:
        """Does what is due after a step."""
        if which.on_host:
            state = self.devices.fetch_members(members.state)
            return members._replace(state=self.devices.put_members(which.change(step, state)))
        data = which.data and which.data.fixed
        return self._change(which, members, shared, data, np.int32(step))

    def saved(self, members: Members) -> ByName:
        """Returns members by the paths of their leaves, [num_places, ...]; without empty ones."""
        leaves = jax.tree.leaves_with_path(members)
        return {path_name(path): leaf for path, leaf in leaves if leaf.size}

    def restored(self, arrays: ByName) -> Any:
        """The inverse of `saved`, on any devices, which may pad other axes, too.

        Raises:
            ValueError: The arrays are of other members.
        """

        def one(path, leaf):
            found = arrays[path_name(path)] if leaf.size else np.zeros(leaf.shape, leaf.dtype)
            if found.dtype != leaf.dtype:
                raise ValueError(f"{path_name(path)} is {found.dtype}, not {leaf.dtype}")
            if found.shape[1:] == leaf.shape[1:]:
                return found
            whole = np.zeros((self.devices.num_members, *leaf.shape[1:]), leaf.dtype)
            common = tuple(map(slice, np.minimum(found.shape, whole.shape)))
            whole[common] = np.asarray(found)[common]
            return whole

        return self.devices.put_members(jax.tree.map_with_path(one, self.shapes))

    # Programs.

    def _now(self, member: Members, step, shared) -> Now:
        return Now(member.number, step, self._key(member.number), shared)

    def _key(self, number: Array) -> Array:
        return random.fold_in(random.key(self._seed), number)

    def _started(self, numbers, given, shared, fixed):
        zero, active = jnp.int32(0), jnp.int8(Status.ACTIVE)
        init = self.algorithm.init
        return self.devices.map_members(
            lambda number, given: Members(
                number,
                active,
                zero,
                init(Now(number, zero, self._key(number), shared, given), fixed),
            )
        )(numbers, given)

    def _step(self, members: Members, shared, fixed, sent, i, step):
        """One step of all members: they, and scalars of each and of all together."""
        algorithm = self.algorithm
        feed = algorithm.feed
        sent = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, i, 0, False), sent)
        batch = sent if feed.per_member else feed.read(fixed, sent, step)

        def of_member(member: Members, batch) -> tuple[Members, Info]:
            now = self._now(member, step, shared)
            if feed.per_member:
                batch = feed.read(fixed, batch, step, now.key)
            state, info = algorithm.step(now, member.state, batch)
            takes = active = member.status == Status.ACTIVE
            status = member.status
            if info.ok is not None:
                takes = active & info.ok
                status = jnp.where(active & ~info.ok, jnp.int8(Status.NON_FINITE), status)
                state = pytrees.where(takes, state, member.state)
                scalars = {k: jnp.where(active, v, jnp.nan) for k, v in info.scalars.items()}
                info = info._replace(scalars=scalars)
            return Members(member.number, status, member.taken + takes, state), info

        axes = 0, 0 if feed.per_member else None
        members, info = self.devices.map_members(of_member, axes)(members, batch)
        of_all = {}
        if algorithm.together is not None:
            live = (members.status != Status.NON_FINITE) & ~self.devices.is_padding
            of_all = algorithm.together(info.rows, live, batch)
        return members, (info.scalars, of_all)

    def _take_steps(
        self, members: Members, shared, fixed, sent, first, count
    ) -> tuple[Members, Told]:
        """Takes `count` steps, of which the scalars are [length, ...]."""
        keep: Any = self.algorithm.keep
        run = self.algorithm.run
        if self.length == 1 and run is None:  # Without a loop, in which XLA:CPU convolves slowly.
            members, said = self._step(members, shared, fixed, sent, 0, first)
            scalars, of_all = pytrees.at(said, None)
            return self._placed(members), Told(scalars, of_all, None, members.status)

        # Traced once, for its shapes and in the loop.
        take_step = jax.jit(self._step, inline=True)

        def one(i, carry):
            members, said, kept = carry
            members, new = take_step(members, shared, fixed, sent, i, first + i)
            said = jax.tree.map(
                lambda all_, leaf: lax.dynamic_update_index_in_dim(all_, leaf, i, 0), said, new
            )
            if kept is not None:
                before = keep.before(first + i)
                place = before - keep.before(first)
                kept = lax.cond(
                    keep.before(first + i + 1) > before,
                    lambda kept: jax.tree.map(
                        lambda all_, leaf: all_.at[place].set(leaf),
                        kept,
                        self._parameters_of(members, shared, first + i + 1),
                    ),
                    lambda kept: kept,
                    kept,
                )
            return members, said, kept

        def zeros(number: int, of_one: Function):
            shapes = jax.eval_shape(of_one, members)
            return jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape), leaf.dtype), shapes)

        start = jnp.zeros_like(first)
        said = zeros(self.length, lambda m: take_step(m, shared, fixed, sent, start, first)[1])
        kept = None
        if self.num_kept:
            kept = zeros(self.num_kept, lambda m: self._parameters_of(m, shared, first))
        if run is None:
            members, said, kept = lax.fori_loop(start, count, one, (members, said, kept))
        else:
            keys = jax.vmap(self._key)(members.number)
            span = first, first + count
            state, scalars, kept = run(
                members.number, keys, members.state, shared, fixed, said[0], kept, *span
            )
            members, said = members._replace(state=state), (scalars, said[1])
        return self._placed(members), Told(said[0], said[1], kept, members.status)

    def _placed(self, members: Members):
        """Members where they lie: the compiler might choose otherwise for what comes out."""
        return lax.with_sharding_constraint(members, self.devices.of_members(members))

    def _parameters_of(self, members: Members, shared, step):
        parameters = self.algorithm.parameters or _variables
        return self.devices.map_members(
            lambda member: parameters(self._now(member, step, shared), member.state)
        )(members)

    def _change_members(self, which: Between, members: Members, shared, data, step):
        def of_member(member: Members, data):
            changed = which.change(self._now(member, step, shared), member.state, data)
            active = member.status == Status.ACTIVE
            return pytrees.where(active, changed, (member.state, member.status))

        if which.of_all:
            now = Now(members.number, step, jax.vmap(self._key)(members.number), shared)
            state, status = which.change(now, members.state, members.status, data)
        else:
            state, status = self.devices.map_members(of_member, (0, None))(members, data)
        status = jnp.asarray(status, jnp.int8)
        return self._placed(members._replace(state=state, status=status))


def _variables(now: Now, state):
    """The parameters of members whose variables predict."""
    return pytrees.at(state.variables, None)
