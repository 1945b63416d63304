"""Where members live: all device plumbing, on the named axis `ensemble`.

M members meet D devices in one of two ways, and both fit one layout:

* M >= D: every device holds `slots` = M/D members, and sees whole batches;
* M < D: `slices` = D/M devices share one member, and each sees a slice of its batch.

Where the counts do not divide, the members are padded up to `num_places`; what fills the last
places is computed and never counted. A member tree on the devices has leading axes [D, slots]:
place p is slot `p % slots` of group `p // slots`, and a group is `slices` neighbouring devices.

Of several processes each has the rows of its own devices: there, D on the devices is their number.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ensemble.sharding import processes

AXIS = "ensemble"
_MAX_UNROLLED = 16


@dataclasses.dataclass(frozen=True)
class Placement:
    """A layout of `num_members` members on `devices`; see the module's docstring."""

    num_members: int
    devices: tuple[jax.Device, ...]
    slots: int
    slices: int

    @classmethod
    def create(
        cls, num_members: int, devices: Sequence[jax.Device], splittable: bool = True
    ) -> "Placement":
        """Lays members over devices.

        Args:
            num_members: M, at least 1.
            devices: D, those of a process side by side, as many of each.
            splittable: whether a member's batch may be split over devices. A model whose
                examples meet (batch statistics) or draw noise (dropout) would then depend on
                the device count, so its members stay whole and surplus devices idle.
        """
        if num_members < len(devices) and splittable:
            groups = next(g for g in range(num_members, len(devices) + 1) if len(devices) % g == 0)
            return cls(num_members, tuple(devices), slots=1, slices=len(devices) // groups)
        if len({device.process_index for device in devices}) == 1:
            devices = devices[:num_members]
        # Else every process must have its part: the surplus devices hold padding.
        return cls(num_members, tuple(devices), slots=-(-num_members // len(devices)), slices=1)

    @property
    def num_groups(self) -> int:
        """Groups of devices that hold the same members."""
        return len(self.devices) // self.slices

    @property
    def num_places(self) -> int:
        """Members, padding included."""
        return self.num_groups * self.slots

    @property
    def padding(self) -> np.ndarray:
        """[D, slots] bool, true where a place of this process holds no member."""
        return self._spread(np.arange(self.num_places))[self._rows] >= self.num_members

    @property
    def _rows(self) -> list[int]:
        """Which devices are this process's."""
        own = jax.process_index()
        return [i for i, device in enumerate(self.devices) if device.process_index == own]

    def _spread(self, places: np.ndarray) -> np.ndarray:
        """[num_places, ...] to [D, slots, ...]."""
        places = places.reshape(self.num_groups, self.slots, *places.shape[1:])
        return np.repeat(places, self.slices, axis=0)

    # Inside a mapped function.

    def map_slots(self, fn: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """Maps `fn` over the members of one device: the one place that chooses how.

        Accelerators take `jax.vmap`. On CPU it would turn convolutions into grouped ones, for
        which XLA has no fast kernel, so the members are unrolled; many are looped over, for every
        copy takes its time to compile.
        """
        if self.devices[0].platform != "cpu":
            return jax.vmap(fn, in_axes=in_axes)

        fn = jax.jit(fn)  # Traced and lowered once, not once a member.

        def unrolled(*args: Any) -> Any:
            axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
            if self.slots > _MAX_UNROLLED:
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
        if self.slices == 1:
            return tree
        return jax.lax.psum(tree, AXIS, axis_index_groups=self._device_grid().tolist())

    def sum_over_groups(self, tree: Any) -> Any:
        """Sums over the groups of devices, so over different members, slice by slice."""
        return jax.lax.psum(tree, AXIS, axis_index_groups=self._device_grid().T.tolist())

    def max_over_groups(self, tree: Any) -> Any:
        """The largest over the groups of devices, slice by slice."""
        return jax.lax.pmax(tree, AXIS, axis_index_groups=self._device_grid().T.tolist())

    def _device_grid(self) -> np.ndarray:
        return np.arange(len(self.devices)).reshape(self.num_groups, self.slices)

    # On the host.

    def pmap(self, fn: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
        """`jax.pmap` of `fn` over these devices and the axis `ensemble`."""
        return jax.pmap(fn, axis_name=AXIS, devices=self.devices, **kwargs)

    def place_members(self, tree: Any) -> Any:
        """Puts a host tree [M, ...] on the devices, [D, slots, ...]; the last member pads."""
        index = self._spread(np.minimum(np.arange(self.num_places), self.num_members - 1))
        return self.put(jax.tree.map(lambda leaf: leaf[index], tree))

    def gather_members(self, tree: Any) -> Any:
        """Fetches a device tree [D, slots, ...] as a host tree [M, ...]."""

        def gather(leaf: jax.Array) -> np.ndarray:
            whole = self.fetch(leaf)[:: self.slices]
            return whole.reshape(self.num_places, *whole.shape[2:])[: self.num_members]

        return jax.tree.map(gather, tree)

    def fetch(self, leaf: jax.Array) -> np.ndarray:
        """Fetches the rows [D, ...] of all processes; a copy: a device may reuse its buffer."""
        rows = np.array(leaf)
        return rows if len(rows) == len(self.devices) else processes.join_rows(rows)

    def place_shared(self, batch: Any) -> Any:
        """Gives every member the same host batch [B, ...]: [D, B/slices, ...] on the devices."""

        def share(leaf: np.ndarray) -> np.ndarray:
            leaf = pad_to_multiple(np.asarray(leaf), self.slices)
            leaf = leaf.reshape(1, self.slices, -1, *leaf.shape[1:])
            leaf = np.broadcast_to(leaf, (self.num_groups, *leaf.shape[1:]))
            return leaf.reshape(len(self.devices), *leaf.shape[2:])

        return self.put(jax.tree.map(share, batch))

    def place_separate(self, batch: Any) -> Any:
        """Gives each member its own host batch [M, B, ...]: [D, slots, B/slices, ...]."""

        def separate(leaf: np.ndarray) -> np.ndarray:
            leaf = pad_to_multiple(np.asarray(leaf), self.slices, axis=1)
            index = np.minimum(np.arange(self.num_places), self.num_members - 1)
            leaf = leaf[index].reshape(
                self.num_groups, self.slots, self.slices, -1, *leaf.shape[2:]
            )
            return leaf.swapaxes(1, 2).reshape(len(self.devices), self.slots, -1, *leaf.shape[4:])

        return self.put(jax.tree.map(separate, batch))

    def put(self, tree: Any) -> Any:
        """Puts a host tree [D, ...] on the devices, a row on each."""
        rows = self._rows
        own = np.array([self.devices[i] for i in rows])
        sharding = NamedSharding(Mesh(own, (AXIS,)), PartitionSpec(AXIS))
        if len(rows) < len(self.devices):
            tree = jax.tree.map(lambda leaf: leaf[rows], tree)
        return jax.device_put(tree, sharding)

    def put_own(self, tree: Any) -> Any:
        """Puts this process's rows of a host tree on its devices."""
        own = np.array([self.devices[i] for i in self._rows])
        return jax.device_put(tree, NamedSharding(Mesh(own, (AXIS,)), PartitionSpec(AXIS)))


def pad_to_multiple(array: np.ndarray, multiple: int, axis: int = 0) -> np.ndarray:
    """Pads `axis` with zeros up to a multiple; a weight among the arrays thus masks the padding."""
    missing = -array.shape[axis] % multiple
    widths = [(0, missing if i == axis else 0) for i in range(array.ndim)]
    return np.pad(array, widths) if missing else array
