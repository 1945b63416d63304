"""The compiled functions of a method on its devices: the only `jit` of training."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import pytrees
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Start, Status
from ensemble.runtime.devices import Devices
from ensemble.sharding.mesh import traced_for


class Members(NamedTuple):
    """All that the next step needs, [num_places, ...]: what a checkpoint holds.

    Attributes:
        number: Numbers of the members.
        status: `Status` of each.
        taken: Steps that each has taken.
        state: Their states.
    """

    number: jax.Array
    status: jax.Array
    taken: jax.Array
    state: Any


class Told(NamedTuple):
    """What a program says of its steps, still on the devices.

    Attributes:
        scalars: [steps, num_places] by name, or [steps, num_places, n].
        of_all: Scalars of all members together, [steps] by name.
        kept: Parameters [n, num_places, K, ...] that are to be kept; None: none.
        status: [num_places] after the last step.
    """

    scalars: dict[str, jax.Array]
    of_all: dict[str, jax.Array]
    kept: Any
    status: jax.Array


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
        """Sets of parameters that a program keeps; 0: a program ends where some are kept."""
        if keep is not None and (algorithm.run or keep.every < length > 1):
            self.num_kept = length // keep.every + 1
        self.take_steps = jax.jit(self._traced(self._take_steps), donate_argnums=0)
        self._change = jax.jit(
            self._traced(self._change_members), static_argnums=0, donate_argnums=1
        )
        self._parameters = jax.jit(self._traced(self._parameters_of))

    def _traced(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which networks see that it is traced for these devices."""

        @functools.wraps(fn)
        def traced(*args: Any) -> Any:
            with traced_for(self.devices.mesh):
                return fn(*args)

        return traced

    # What the loop calls.

    @functools.cached_property
    def shapes(self) -> Members:
        """The shapes of the members, [num_places, ...]."""
        members: Members = jax.eval_shape(self._started, *self._arguments(Start()))
        return members

    @functools.cached_property
    def set_shapes(self) -> Any:
        """The shapes of one set of parameters of one member."""
        sets = jax.eval_shape(self._parameters_of, self.shapes, None, np.int32(0))
        return jax.eval_shape(lambda sets: pytrees.at(sets, (0, 0)), sets)

    def start(self, found: Start) -> Members:
        """Starts the members."""
        where = self.devices.of_members(self.shapes)
        program = jax.jit(self._traced(self._started), out_shardings=where)
        members: Members = program(*self._arguments(found))
        return members

    def _arguments(self, found: Start) -> tuple[Any, ...]:
        """The arguments of the program that starts members."""
        given = jax.tree.map(lambda leaf: leaf[self._numbers % len(leaf)], found.given)
        numbers, given = self.devices.put_members((self._numbers, given))
        return numbers, given, found.shared, self.algorithm.feed.fixed

    def advance(
        self, members: Members, shared: Any, first: int, count: int
    ) -> tuple[Members, Told]:
        """Takes `count` steps from `first`; nothing is waited for."""
        feed = self.algorithm.feed
        sent = feed.send(first, count, self.length)
        return self.take_steps(members, shared, feed.fixed, sent, np.int32(first), np.int32(count))

    def change(self, which: Between, members: Members, shared: Any, step: int) -> Members:
        """Does what is due after a step."""
        if which.on_host:
            state = self.devices.fetch_members(members.state)
            state = self.devices.put_members(which.change(step, state))
            return members._replace(state=state)
        data = which.data and which.data.fixed
        return self._change(which, members, shared, data, np.int32(step))

    def parameters(self, members: Members, shared: Any, step: int) -> Any:
        """What predicts now, [num_places, K, ...], on the devices."""
        return self._parameters(members, shared, np.int32(step))

    def saved(self, members: Members) -> dict[str, Any]:
        """Returns members by the paths of their leaves, [num_places, ...]; without empty ones."""
        leaves = jax.tree.leaves_with_path(members)
        return {_name(path): leaf for path, leaf in leaves if leaf.size}

    def restored(self, arrays: Mapping[str, Any]) -> Members:
        """The inverse of `saved`, on any devices, which may pad other axes, too.

        Raises:
            ValueError: The arrays are of other members.
        """

        def one(path: Any, leaf: Any) -> np.ndarray:
            sizes = leaf.shape[1:]
            found = arrays[_name(path)] if leaf.size else np.zeros((1, *sizes), leaf.dtype)
            if len(found.shape) != leaf.ndim or found.dtype != leaf.dtype:
                raise ValueError(f"{_name(path)} has the shape {found.shape}, not {leaf.shape}")
            if leaf.size and found.shape[1:] == sizes:
                return found
            padded = np.zeros((self.devices.num_members, *sizes), leaf.dtype)
            common = (slice(None), *map(slice, np.minimum(found.shape[1:], sizes)))
            padded[common] = np.asarray(found)[common]
            return padded

        return self.devices.put_members(jax.tree.map_with_path(one, self.shapes))

    # Programs.

    def _now(self, member: Members, step: Any, shared: Any) -> Now:
        return Now(member.number, step, self._key(member.number), shared)

    def _key(self, number: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.key(self._seed), number)

    def _batch(
        self, fixed: Any, sent: Any, i: Any, step: Any
    ) -> tuple[Any, int | None, Callable[..., Any]]:
        """What is mapped of a step's batch, over which axis, and how a member reads it."""
        feed = self.algorithm.feed
        sent = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, 0, False), sent)
        if feed.per_member:
            axis = 0 if feed.per_member else None
            return sent, axis, lambda one, key: feed.read(fixed, one, step, key)
        return feed.read(fixed, sent, step), None, lambda one, key: one

    def _started(self, numbers: jax.Array, given: Any, shared: Any, fixed: Any) -> Members:
        def of_member(number: jax.Array, given: Any) -> Members:
            now = Now(number, jnp.int32(0), self._key(number), shared, given)
            state = self.algorithm.init(now, fixed)
            return Members(number, jnp.int8(Status.ACTIVE), jnp.int32(0), state)

        return self.devices.map_members(of_member)(numbers, given)

    def _step(
        self, members: Members, shared: Any, fixed: Any, sent: Any, i: Any, step: Any
    ) -> tuple[Members, dict[str, jax.Array], dict[str, jax.Array]]:
        """One step of all members: they, their scalars, and those of all together."""
        algorithm = self.algorithm
        batch, axis, read = self._batch(fixed, sent, i, step)

        def of_member(member: Members, batch: Any) -> tuple[Members, Info]:
            now = self._now(member, step, shared)
            state, info = algorithm.step(now, member.state, read(batch, now.key))
            takes = active = member.status == Status.ACTIVE
            status = member.status
            if info.ok is not None:
                takes = active & info.ok
                status = jnp.where(active & ~info.ok, jnp.int8(Status.NON_FINITE), status)
                state = pytrees.where(takes, state, member.state)
                scalars = {k: jnp.where(active, v, jnp.nan) for k, v in info.scalars.items()}
                info = info._replace(scalars=scalars)
            return Members(member.number, status, member.taken + takes, state), info

        members, info = self.devices.map_members(of_member, (0, axis))(members, batch)
        of_all = {}
        if algorithm.together is not None:
            live = (members.status != Status.NON_FINITE) & ~self.devices.is_padding
            of_all = algorithm.together(info.rows, live, batch)
        return members, info.scalars, of_all

    def _take_steps(
        self, members: Members, shared: Any, fixed: Any, sent: Any, first: Any, count: Any
    ) -> tuple[Members, Told]:
        """Takes `count` steps, of which the scalars are [length, ...]."""
        keep = self.algorithm.keep
        run = self.algorithm.run
        if self.length == 1 and run is None:  # Without a loop, in which XLA:CPU convolves slowly.
            members, *said = self._step(members, shared, fixed, sent, 0, first)
            scalars, of_all = pytrees.at(said, None)
            return self._placed(members), Told(scalars, of_all, None, members.status)

        # Traced once, for its shapes and in the loop.
        take_step = jax.jit(self._step, inline=True)

        def one(i: Any, carry: Any) -> Any:
            members, said, kept = carry
            members, *new = take_step(members, shared, fixed, sent, i, first + i)
            said = jax.tree.map(
                lambda all_, leaf: jax.lax.dynamic_update_index_in_dim(all_, leaf, i, 0), said, new
            )
            if keep is not None and kept is not None:
                before = keep.before(first + i)
                place = before - keep.before(first)

                def put(kept: Any) -> Any:
                    sets = self._parameters_of(members, shared, first + i + 1)
                    return jax.tree.map(lambda all_, leaf: all_.at[place].set(leaf), kept, sets)

                kept = jax.lax.cond(keep.before(first + i + 1) > before, put, lambda k: k, kept)
            return members, said, kept

        def zeros(number: int, of_one: Callable[[Members], Any]) -> Any:
            shapes = jax.eval_shape(of_one, members)
            return jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape), leaf.dtype), shapes)

        start = jnp.zeros_like(first)
        said = zeros(self.length, lambda m: [*take_step(m, shared, fixed, sent, start, first)[1:]])
        kept = None
        if self.num_kept:
            kept = zeros(self.num_kept, lambda m: self._parameters_of(m, shared, first))
        if run is None:
            members, said, kept = jax.lax.fori_loop(start, count, one, (members, said, kept))
        else:
            keys = jax.vmap(self._key)(members.number)
            end = first + count
            state, said[0], kept = run(
                members.number, keys, members.state, shared, fixed, said[0], kept, first, end
            )
            members = members._replace(state=state)
        return self._placed(members), Told(said[0], said[1], kept, members.status)

    def _placed(self, members: Members) -> Members:
        """Members where they lie: the compiler might choose otherwise for what comes out."""
        return jax.lax.with_sharding_constraint(members, self.devices.of_members(members))

    def _parameters_of(self, members: Members, shared: Any, step: Any) -> Any:
        def of_member(member: Members) -> Any:
            if self.algorithm.parameters is None:
                return pytrees.at(member.state.variables, None)
            return self.algorithm.parameters(self._now(member, step, shared), member.state)

        return self.devices.map_members(of_member)(members)

    def _change_members(
        self, which: Between, members: Members, shared: Any, data: Any, step: Any
    ) -> Members:
        if which.of_all:
            keys = jax.vmap(self._key)(members.number)
            now = Now(members.number, step, keys, shared)
            state, status = which.change(now, members.state, members.status, data)
            return self._placed(members._replace(state=state, status=jnp.asarray(status, jnp.int8)))

        def of_member(member: Members, data: Any) -> Members:
            changed = which.change(self._now(member, step, shared), member.state, data)
            active = member.status == Status.ACTIVE
            before = member.state, member.status
            state, status = pytrees.where(active, changed, before)
            return member._replace(state=state, status=status.astype(jnp.int8))

        axis = 0 if which.data is not None and which.data.per_member else None
        return self._placed(self.devices.map_members(of_member, (0, axis))(members, data))


def _name(path: Any) -> str:
    """The name of a leaf in a checkpoint."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
