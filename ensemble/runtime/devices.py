"""Placement of members: the one module that knows of devices, meshes, padding and processes.

M members (or chains) are spread over the axis `ensemble` of a mesh, and the examples of each over
`data`. Programs are written in the global view, `jit(vmap(step))`: what lies where follows from
their arguments. Only a network on its examples is mapped by hand, by `over_examples`.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from ensemble import pytrees
from ensemble.pytrees import Function
from ensemble.sharding import transfer
from ensemble.sharding.mesh import DATA, ENSEMBLE, create_mesh, platform_of
from ensemble.sharding.transfer import fetch, pad, padded_size

_MAX_UNROLLED = 16
SMALL_BYTES = 2**16
"""Arrays of fewer bytes are whole on each device of a member that is split."""


class Devices:
    """The placement of M members on D devices.

    With M >= D every device holds members, which see whole batches. With fewer members neighbouring
    devices share each of them, and see a slice of its batch each. Where the counts do not divide,
    members are padded to `num_places`; what fills the last places is computed, and never counted.

    Args:
        num_members: M.
        devices: D devices, those of a process side by side.
        splits_batches: Whether the examples of a batch may lie on several devices: not where they
            meet (batch statistics) or draw noise. Surplus devices then hold padding.
        splits_members: Whether the arrays of a member are split over `data`.
        groups: Groups of devices; None: as many as suit. Chains, of which each device of a group
            computes the same, are never padded.

    Attributes:
        mesh: Mesh of the axes `ensemble` and `data`.
        platform: What the devices are: `cpu`, `gpu` or `tpu`.
    """

    def __init__(
        self,
        num_members: int,
        devices: Sequence[jax.Device],
        splits_batches: bool = True,
        splits_members: bool = False,
        groups: int | None = None,
    ):
        devices, size = list(devices), len(devices)
        if groups is None:
            groups = size
            if num_members < size and (splits_batches or splits_members):
                groups = next(g for g in range(num_members, size + 1) if size % g == 0)
            elif len({device.process_index for device in devices}) == 1:
                groups = min(size, num_members)  # Else every process must have its part.
                devices = devices[:groups]
        self.mesh = create_mesh(groups, len(devices) // groups, devices)
        self.platform = platform_of(self.mesh)
        self.num_members = num_members
        self.splits_members = splits_members
        self.num_places = groups * -(-num_members // groups)
        self._rows = np.minimum(np.arange(self.num_places), num_members - 1)
        self.is_split: Function = lambda path: False
        """Returns whether the rows of an array of a member, by its path, lie with their data."""

    @property
    def num_slices(self) -> int:
        """Devices that share the examples of a member."""
        return int(self.mesh.shape[DATA])

    @property
    def slices_batches(self) -> bool:
        """Whether a network sees the examples of one device alone, not all of a batch."""
        return self.num_slices > 1 and not self.splits_members

    @property
    def is_padding(self) -> np.ndarray:
        """[num_places] bool, true where a place holds no member."""
        return np.arange(self.num_places) >= self.num_members

    # In programs.

    def map_members(self, fn: Function, in_axes: Any = 0) -> Function:
        """Maps a function of one member over all of them."""
        return jax.vmap(fn, in_axes=in_axes, spmd_axis_name=ENSEMBLE)

    def over_examples(self, fn: Function, unrolls: bool = False) -> Function:
        """Maps a function of one member and examples over the devices that share them.

        The function may differentiate: it sees one device's examples. Nothing may differentiate
        through the sum over devices, whose gradient would be wrong without an error.

        Args:
            fn: `(member, examples [B, ...]) -> (sums, rows [B, ...])`; the sums are added up over
                the slices of the examples, and the rows stay where the examples are.
            unrolls: Whether the members of a device follow each other on CPU, where a convolution
                that is vmapped over kernels has no fast form, and dense layers have. Large
                activations of all members at once would fill the memory.
        """
        if self.splits_members:  # The compiler sees whole members, and divides the work.
            return fn
        one = unrolled(fn) if unrolls and self.platform == "cpu" else fn

        def on_slice(member, examples):
            sums, rows = one(member, examples)
            return (lax.psum(sums, DATA) if self.slices_batches else sums), rows

        specs = PartitionSpec(), PartitionSpec(DATA)
        # What users' networks do within loops is not annotated for check_vma.
        return jax.shard_map(
            on_slice,
            mesh=self.mesh,
            in_specs=specs,
            out_specs=specs,
            check_vma=False,
        )

    # Where arrays lie.

    def sharding(self, *axes: str | None) -> NamedSharding:
        """Says where an array lies whose first axes are those of the mesh; None: not spread."""
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def of_members(self, tree: Any, whole: bool = False) -> Any:
        """Says where arrays [num_places, ...] of members lie, a tree of shardings.

        Args:
            tree: Arrays, or their shapes.
            whole: If True, no row lies with its data.
        """

        def one(path, leaf) -> NamedSharding:
            sizes = np.shape(leaf)[1:]
            if self.is_split(path) and not whole:
                return self.sharding(ENSEMBLE, DATA)
            axes: Any = [None] * len(sizes)
            if self.splits_members and math.prod(sizes) * leaf.dtype.itemsize >= SMALL_BYTES:
                fit = [i for i, size in enumerate(sizes) if size % self.num_slices == 0]
                if fit:
                    axes[max(fit, key=sizes.__getitem__)] = DATA
            return self.sharding(ENSEMBLE, *axes)

        return jax.tree.map_with_path(one, tree)

    # Between host and devices.

    def put_members(self, tree: Any, whole: bool = False) -> Any:
        """Puts host arrays [M, ...] on the devices, [num_places, ...]; the last member pads.

        Args:
            tree: Of the arrays.
            whole: As of `of_members`.
        """

        return jax.tree.map(
            lambda leaf, where: transfer.put(np.asarray(leaf)[self._rows], where),
            tree,
            self.of_members(tree, whole),
        )

    def put_examples(self, tree: Any, axis: int = 0, per_member: bool = False) -> Any:
        """Puts host arrays on the devices, examples along an axis over the slices.

        Where the examples do not divide, zeros pad them: a weight among the arrays masks these.

        Args:
            tree: Arrays [..., B, ...], or [..., M, B, ...] where `per_member`.
            axis: Axis of the examples.
            per_member: Whether the axis before counts members.
        """
        axes: Any = [None] * axis + [DATA]
        if per_member:
            axes[axis - 1] = ENSEMBLE

        def padded(leaf):
            leaf = np.asarray(leaf)
            if per_member:
                leaf = np.take(leaf, self._rows, axis - 1)
            return pad(leaf, padded_size(leaf.shape[axis], self.mesh, DATA), axis)

        return transfer.put(jax.tree.map(padded, tree), self.sharding(*axes))

    def put_everywhere(self, tree: Any) -> Any:
        """Puts host arrays whole on every device."""
        return transfer.put(jax.tree.map(np.asarray, tree), self.sharding())

    def fetch_members(self, tree: Any, axis: int = 0) -> Any:
        """Fetches arrays of members to every host, without padding: M along an axis."""
        cut = (slice(None),) * axis + (slice(self.num_members),)
        return pytrees.at(fetch(tree), cut)


def unrolled(fn: Function) -> Function:
    """Returns the same function, whose `vmap` calls it for one row after the other.

    Many rows are a loop: every copy of a program takes its time to compile.
    """
    fn = jax.jit(fn)  # Traced and lowered once, not once a row.

    @jax.custom_batching.custom_vmap
    def one(*args):
        return fn(*args)

    @one.def_vmap
    def rows(size: int, in_batched, *args):
        def of_row(i):
            return one(*jax.tree.map(lambda x, b: x[i] if b else x, args, tuple(in_batched)))

        if size > _MAX_UNROLLED:
            found = lax.map(of_row, jnp.arange(size))
        else:
            found = jax.tree.map(lambda *parts: jnp.stack(parts), *map(of_row, range(size)))
        return found, jax.tree.map(lambda _: True, found)

    return one
