"""The placement of members on the mesh.

M members meet D devices in one of two ways, and both fit one layout:

* M >= D: every device holds `slots` = M/D members, and sees whole batches;
* M < D: `slices` = D/M neighbouring devices share one member, and each sees a slice of its batch.

A member that is larger than a device is held by `member_devices` neighbouring devices together: its
arrays are split over them, and over its slices, by `ensemble.sharding.member_parts`. The compiler
then sees whole members and whole batches, and decides what the devices exchange.

Where the counts do not divide, the members are padded up to `num_places`; what fills the last
places is computed and never counted. A member tree on the devices is [num_places, ...], spread over
the axis of members; a device sees its slots of it.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ensemble.errors import UserError
from ensemble.network import Annotations, Names
from ensemble.sharding import transfer
from ensemble.sharding.member_parts import (
    annotated,
    mesh_shape,
    path_of,
    split,
)
from ensemble.sharding.mesh import DATA, ENSEMBLE, MODEL, by_rows, create_mesh, named_sharding, spec
from ensemble.sharding.parts import own_parts
from ensemble.sharding.platforms import platform_of, traced_for

_MAX_UNROLLED = 16


@dataclasses.dataclass(frozen=True)
class Placement:
    """A layout of `num_members` members on the devices of a mesh; see the module's docstring."""

    num_members: int
    mesh: Mesh
    annotations: Annotations = ()

    @classmethod
    def create(
        cls,
        num_members: int,
        devices: Sequence[jax.Device],
        splittable: bool = True,
        member_devices: int = 1,
        annotations: Annotations = (),
    ) -> "Placement":
        """Lays members over devices.

        Args:
            num_members: M, at least 1.
            devices: D, those of a process side by side, as many of each.
            splittable: whether a member's batch may be split over devices. A model whose
                examples meet (batch statistics) or draw noise (dropout) would then depend on
                the device count, so its members stay whole and surplus devices idle.
            member_devices: K devices that hold one member together.
            annotations: what the network says of how its parameters are split.

        Raises:
            UserError: `member_devices` does not divide the devices.
        """
        num_devices = len(devices)
        if member_devices > 1:
            _check_divides(member_devices, num_devices)
            shape = mesh_shape(num_members, num_devices, member_devices)
            mesh = create_mesh(shape[ENSEMBLE], shape[DATA], devices, shape[MODEL])
            return cls(num_members, mesh, annotations)
        if num_members < num_devices and splittable:
            groups = next(g for g in range(num_members, num_devices + 1) if num_devices % g == 0)
            return cls(num_members, create_mesh(groups, num_devices // groups, devices))
        if len({device.process_index for device in devices}) == 1:
            num_devices = min(num_members, num_devices)
        # Else every process must have its part: the surplus devices hold padding.
        return cls(num_members, create_mesh(num_devices, 1, devices))

    @property
    def slices(self) -> int:
        """Devices that share a member."""
        return self.mesh.shape[DATA]

    @property
    def member_devices(self) -> int:
        """Devices that hold a member together, or one of its slices."""
        return self.mesh.shape[MODEL]

    @property
    def splits_members(self) -> bool:
        """Whether a member's arrays are split over devices; the compiler then sees it whole."""
        return self.member_devices > 1

    @property
    def _is_one_group(self) -> bool:
        """Whether all devices hold the same split members, and nothing is mapped over groups."""
        return self.splits_members and self.mesh.shape[ENSEMBLE] == 1

    @property
    def slots(self) -> int:
        """Members of a device, padding included."""
        return -(-self.num_members // self.mesh.shape[ENSEMBLE])

    @property
    def num_places(self) -> int:
        """Members, padding included."""
        return self.mesh.shape[ENSEMBLE] * self.slots

    @property
    def padding(self) -> np.ndarray:
        """[num_places] bool, true where a place holds no member."""
        return np.arange(self.num_places) >= self.num_members

    @functools.cached_property
    def _places_here(self) -> range:
        """The places that the devices of this process hold, which are side by side."""
        groups = self.mesh.devices.reshape(self.mesh.shape[ENSEMBLE], -1)
        here = [
            group
            for group, devices in enumerate(groups)
            if any(one.process_index == jax.process_index() for one in devices)
        ]
        return range(here[0] * self.slots, (here[-1] + 1) * self.slots) if here else range(0)

    @property
    def members_here(self) -> Sequence[int]:
        """Which of the M members lie on devices of this process, from 0, ascending."""
        places = self._places_here
        last = self.num_members - 1
        return range(min(places.start, last), min(places.stop - 1, last) + 1)

    @property
    def platform(self) -> str:
        """What the devices are: `cpu`, `gpu` or `tpu`."""
        return platform_of(self.mesh)

    @property
    def may_stall(self) -> bool:
        """Whether many programs in line could wait for each other for ever.

        XLA:CPU takes 32 of them for each device. They sum over devices, if only the ensemble's
        training scores. Where the line of one device is full when another's is not, the two can
        stall on a busy machine.
        """
        return self.mesh.size > 1 and self.platform == "cpu"

    # Inside a mapped function.

    def map_slots(
        self, fn: Callable[..., Any], in_axes: Any = 0, one_by_one: bool = False
    ) -> Callable[..., Any]:
        """Maps `fn` over the members of one device: the one place that chooses how.

        Accelerators take `jax.vmap`. On CPU it would turn convolutions into grouped ones, for
        which XLA has no fast kernel, so the members are unrolled; many are looped over, for every
        copy takes its time to compile.

        Args:
            fn: of one member.
            in_axes: of its arguments.
            one_by_one: whether accelerators loop over members too, for less memory.
        """
        is_cpu = self.platform == "cpu"
        if not is_cpu and (not one_by_one or self.slots == 1):
            return jax.vmap(fn, in_axes=in_axes)

        fn = jax.jit(fn)  # Traced and lowered once, not once a member.

        def unrolled(*args: Any) -> Any:
            axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
            if not is_cpu or self.slots > _MAX_UNROLLED:
                mapped = [arg for arg, axis in zip(args, axes, strict=True) if axis is not None]

                def one(parts: list[Any]) -> Any:
                    rest = iter(parts)
                    pairs = zip(args, axes, strict=True)
                    return fn(*(arg if axis is None else next(rest) for arg, axis in pairs))

                return jax.lax.map(one, mapped)
            outputs = [
                fn(
                    *(
                        arg if axis is None else jax.tree.map(lambda x, i=i: x[i], arg)
                        for arg, axis in zip(args, axes, strict=True)
                    )
                )
                for i in range(self.slots)
            ]
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)

        return unrolled

    def sum_over_slices(self, tree: Any) -> Any:
        """Sums over the devices that share a member; the identity where none do."""
        by_hand = self.slices > 1 and not self.splits_members
        return jax.lax.psum(tree, DATA) if by_hand else tree

    def sum_over_groups(self, tree: Any) -> Any:
        """Sums over the groups of devices, so over different members, slice by slice."""
        return tree if self._is_one_group else jax.lax.psum(tree, ENSEMBLE)

    def max_over_groups(self, tree: Any) -> Any:
        """The largest over the groups of devices, slice by slice."""
        return tree if self._is_one_group else jax.lax.pmax(tree, ENSEMBLE)

    # On the host.

    def map_devices(
        self,
        fn: Callable[..., Any],
        in_specs: Any,
        out_specs: Any,
        donate: Sequence[int] = (),
        *,
        runs_once: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> Callable[..., Any]:
        """Compiles a function that every device computes of its part.

        Nothing that is differentiated in it may sum over devices: `fn` differentiates the loss of
        one device's examples, and sums the gradients.

        Args:
            fn: of the parts, with the methods above.
            in_specs: how the arguments lie on the mesh, of `ensemble.sharding.mesh.spec`.
            out_specs: how the results do.
            donate: numbers of the arguments whose buffers are given to the results.
            runs_once: whether the program had better be compiled soon than run fast.
            options: of the compiler.
        """
        chosen: dict[str, Any] = dict(options or {})
        if runs_once:
            chosen["xla_backend_optimization_level"] = 1
        traced = self._traced(fn)
        if self.splits_members:
            program = self._map_groups(traced, in_specs, out_specs)
        else:
            # What users' networks do within loops is not annotated for check_vma.
            program = jax.shard_map(
                traced, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
            )
        return jax.jit(program, donate_argnums=tuple(donate), compiler_options=chosen or None)

    def _traced(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which networks see that it is traced for these devices."""

        @functools.wraps(fn)
        def traced(*args: Any) -> Any:
            with traced_for(self.mesh):
                return fn(*args)

        return traced

    def _map_groups(
        self, fn: Callable[..., Any], in_specs: Any, out_specs: Any
    ) -> Callable[..., Any]:
        """Maps a function over groups of devices, in each of which the compiler splits the work."""
        mapped = fn
        if not self._is_one_group:
            of_groups = jax.tree.map(_of_members, (in_specs, out_specs), is_leaf=_is_spec)
            mapped = jax.shard_map(
                fn,
                mesh=self.mesh,
                in_specs=of_groups[0],
                out_specs=of_groups[1],
                axis_names={ENSEMBLE},
                check_vma=False,
            )

        def program(*args: Any) -> Any:
            def place(of: PartitionSpec, tree: Any) -> Any:
                if of == MEMBERS:
                    return jax.lax.with_sharding_constraint(tree, self.member_shardings(tree))
                return jax.lax.with_sharding_constraint(tree, NamedSharding(self.mesh, of))

            return jax.tree.map(place, out_specs, mapped(*args), is_leaf=_is_spec)

        return program

    def member_shardings(self, tree: Any) -> Any:
        """Says where the arrays [num_places, ...] of members lie on the devices, a tree of
        shardings."""
        if not self.splits_members:
            return named_sharding(self.mesh, "member")

        def one(path: Any, leaf: Any) -> NamedSharding:
            names: Names = ()
            if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                said = annotated(path_of(path), self.annotations)
                names = split(leaf.shape[1:], leaf.dtype.itemsize, self.mesh.shape, said)
            return NamedSharding(self.mesh, PartitionSpec(ENSEMBLE, *names))

        return jax.tree.map_with_path(one, tree)

    def place_members(self, tree: Any) -> Any:
        """Puts a host tree [M, ...] on the devices, [num_places, ...]; the last member pads."""
        padded = jax.tree.map(lambda leaf: transfer.pad(leaf, self.num_places, fill=None), tree)
        return transfer.put(padded, self.member_shardings(padded))

    def place_rows(self, tree: Any, rows: np.ndarray) -> Any:
        """Puts rows of a host tree [L, ...] on the devices, [num_places, ...], as members lie.

        Args:
            tree: of which the host makes no copy but of what its devices hold.
            rows: [M], member k is row `rows[k]` modulo L; the last member pads.
        """
        rows = transfer.pad(rows, self.num_places, fill=None)

        def one(leaf: np.ndarray, sharding: Sharding) -> jax.Array:
            def part(index: Any) -> np.ndarray:
                return np.stack([leaf[k % len(leaf)][index[1:]] for k in rows[index[0]]])

            return transfer.put_parts((len(rows), *leaf.shape[1:]), leaf.dtype, sharding, part)

        def shape(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((len(rows), *leaf.shape[1:]), leaf.dtype)

        shardings = self.member_shardings(jax.tree.map(shape, tree))
        if isinstance(shardings, Sharding):
            return jax.tree.map(lambda leaf: one(leaf, shardings), tree)
        return jax.tree.map(one, tree, shardings)

    def gather_members(self, tree: Any) -> Any:
        """The inverse of `place_members`."""
        whole = transfer.fetch(tree)
        return jax.tree.map(lambda leaf: transfer.strip(leaf, self.num_members), whole)

    def own_members(self, tree: Any) -> Any:
        """Does what `gather_members` does, for what this process writes of each array: `Parts`."""
        return jax.tree.map(lambda leaf: own_parts(leaf, self.num_members), tree)

    def place_shared(self, batch: Any) -> Any:
        """Gives every member the same host batch [B, ...], spread over the slices.

        Zeros pad it; a weight among the arrays thus masks the padding.
        """
        return self._place_examples(batch, "example")

    def place_shared_steps(self, batches: Any) -> Any:
        """`place_shared` of the batches of several steps, [K, B, ...]."""
        return self._place_examples(batches, None, "example")

    def place_separate_steps(self, batches: Any) -> Any:
        """Gives each member its own host batches of several steps, likewise.

        Args:
            batches: [m, K, B, ...], of `members_here`.
        """
        return self._place_examples(batches, "member", None, "example")

    def _place_examples(self, batch: Any, *axes: str | None) -> Any:
        examples = axes.index("example")

        def padded(leaf: Any) -> np.ndarray:
            leaf = np.asarray(leaf)
            if axes[0] == "member":
                leaf = transfer.pad(leaf, len(self._places_here), fill=None)
            if self.splits_members:  # Its batch is whole to a member, whose examples may meet.
                return leaf
            size = transfer.padded_size(leaf.shape[examples], self.mesh, DATA)
            return transfer.pad(leaf, size, axis=examples)

        arrays = jax.tree.map(padded, batch)
        if not self.splits_members:
            return self._put(arrays, named_sharding(self.mesh, *axes), axes[0])
        first = axes[:examples]
        spread = {
            size: NamedSharding(self.mesh, PartitionSpec(*spec(*first), self.example_axes(size)))
            for size in {leaf.shape[examples] for leaf in jax.tree.leaves(arrays)}
        }
        places = jax.tree.map(lambda leaf: spread[leaf.shape[examples]], arrays)
        return self._put(arrays, places, axes[0])

    def _put(self, arrays: Any, shardings: Any, first: str | None) -> Any:
        """Puts arrays, of which a process has only its own members' rows if these come first."""
        places = self._places_here
        if first != "member" or len(places) == self.num_places:
            return transfer.put(arrays, shardings)

        def one(leaf: np.ndarray, sharding: Sharding) -> Any:
            def part(index: Any) -> np.ndarray:
                start, stop, _ = index[0].indices(self.num_places)
                return leaf[(slice(start - places.start, stop - places.start), *index[1:])]

            shape = (self.num_places, *leaf.shape[1:])
            return transfer.put_parts(shape, leaf.dtype, sharding, part)

        if isinstance(shardings, Sharding):
            return jax.tree.map(lambda leaf: one(leaf, shardings), arrays)
        return jax.tree.map(one, arrays, shardings)

    def example_axes(self, batch_size: int) -> tuple[str, ...]:
        """The axes of the mesh over which a batch of a member that is split is spread.

        Those of its slices and, unless the network itself says what is computed where, of its
        parts: as many of both as divide the batch.
        """
        axes = (DATA,) if self.annotations else (DATA, MODEL)
        found: tuple[str, ...] = ()
        for axis in axes:
            number = math.prod(self.mesh.shape[one] for one in (*found, axis))
            found += (axis,) if batch_size % number == 0 else ()
        return found

    def place_everywhere(self, tree: Any) -> Any:
        """Puts a host tree whole on every device."""
        return transfer.put(tree, named_sharding(self.mesh))

    def place_by_rows(self, array: np.ndarray) -> Any:
        """Puts a host array [N, F] whole on every device, each row in one piece."""
        return transfer.put(array, by_rows(named_sharding(self.mesh)))


def _is_spec(value: Any) -> bool:
    return isinstance(value, PartitionSpec)


def _of_members(one: PartitionSpec) -> PartitionSpec:
    """What of a spec is about members."""
    return PartitionSpec(*(axis if axis == ENSEMBLE else None for axis in one))


def _check_divides(member_devices: int, num_devices: int) -> None:
    if num_devices % member_devices:
        fit = [k for k in range(1, num_devices + 1) if num_devices % k == 0]
        raise UserError(
            f"config.member_devices={member_devices} must divide the {num_devices} devices; use "
            f"{', '.join(map(str, fit))}, or another config.num_devices"
        )


MEMBERS, EXAMPLES, EVERYWHERE = spec("member"), spec("example"), spec()
"""How arrays of members, of a batch, and of neither lie on the mesh."""
