"""Where members live on the mesh.

M members meet D devices in one of two ways, and both fit one layout:

* M >= D: every device holds `slots` = M/D members, and sees whole batches;
* M < D: `slices` = D/M neighbouring devices share one member, and each sees a slice of its batch.

Where the counts do not divide, the members are padded up to `num_places`; what fills the last
places is computed and never counted. A member tree on the devices is [num_places, ...], spread over
the axis of members; a device sees its slots of it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ensemble.sharding import transfer
from ensemble.sharding.mesh import DATA, ENSEMBLE, create_mesh, named_sharding, spec

_MAX_UNROLLED = 16


@dataclasses.dataclass(frozen=True)
class Placement:
    """A layout of `num_members` members on the devices of a mesh; see the module's docstring."""

    num_members: int
    mesh: Mesh

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
        num_devices = len(devices)
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

    @property
    def may_stall(self) -> bool:
        """Whether many programs in line could wait for each other for ever.

        XLA:CPU takes 32 of them for each device. Where they sum over devices and the line of one is
        full when another's is not, the two can stall on a busy machine.
        """
        return self.slices > 1 and self.mesh.devices.flat[0].platform == "cpu"

    # Inside a mapped function.

    def map_slots(self, fn: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """Maps `fn` over the members of one device: the one place that chooses how.

        Accelerators take `jax.vmap`. On CPU it would turn convolutions into grouped ones, for
        which XLA has no fast kernel, so the members are unrolled; many are looped over, for every
        copy takes its time to compile.
        """
        if self.mesh.devices.flat[0].platform != "cpu":
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
        return jax.lax.psum(tree, DATA) if self.slices > 1 else tree

    def sum_over_groups(self, tree: Any) -> Any:
        """Sums over the groups of devices, so over different members, slice by slice."""
        return jax.lax.psum(tree, ENSEMBLE)

    def max_over_groups(self, tree: Any) -> Any:
        """The largest over the groups of devices, slice by slice."""
        return jax.lax.pmax(tree, ENSEMBLE)

    # On the host.

    def map_devices(
        self,
        fn: Callable[..., Any],
        in_specs: Any,
        out_specs: Any,
        donate: Sequence[int] = (),
        *,
        runs_once: bool = False,
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
        """
        options = {"xla_backend_optimization_level": 1} if runs_once else None
        # What users' networks do within loops is not annotated for check_vma.
        mapped = jax.shard_map(
            fn, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=tuple(donate), compiler_options=options)

    def place_members(self, tree: Any) -> Any:
        """Puts a host tree [M, ...] on the devices, [num_places, ...]; the last member pads."""
        padded = jax.tree.map(lambda leaf: transfer.pad(leaf, self.num_places, fill=None), tree)
        return transfer.put(padded, named_sharding(self.mesh, "member"))

    def gather_members(self, tree: Any) -> Any:
        """The inverse of `place_members`."""
        whole = transfer.fetch(tree)
        return jax.tree.map(lambda leaf: transfer.strip(leaf, self.num_members), whole)

    def place_shared(self, batch: Any) -> Any:
        """Gives every member the same host batch [B, ...], spread over the slices.

        Zeros pad it; a weight among the arrays thus masks the padding.
        """
        return self._place_examples(batch, "example")

    def place_separate(self, batch: Any) -> Any:
        """Gives each member its own host batch [M, B, ...], spread over the slices."""
        return self._place_examples(batch, "member", "example")

    def place_shared_steps(self, batches: Any) -> Any:
        """`place_shared` of the batches of several steps, [K, B, ...]."""
        return self._place_examples(batches, None, "example")

    def place_separate_steps(self, batches: Any) -> Any:
        """`place_separate` of the batches of several steps, [M, K, B, ...]."""
        return self._place_examples(batches, "member", None, "example")

    def _place_examples(self, batch: Any, *axes: str | None) -> Any:
        examples = axes.index("example")

        def padded(leaf: Any) -> np.ndarray:
            leaf = np.asarray(leaf)
            if axes[0] == "member":
                leaf = transfer.pad(leaf, self.num_places, fill=None)
            size = transfer.padded_size(leaf.shape[examples], self.mesh, DATA)
            return transfer.pad(leaf, size, axis=examples)

        return transfer.put(jax.tree.map(padded, batch), named_sharding(self.mesh, *axes))

    def place_everywhere(self, tree: Any) -> Any:
        """Puts a host tree whole on every device."""
        return transfer.put(tree, named_sharding(self.mesh))


MEMBERS, EXAMPLES, EVERYWHERE = spec("member"), spec("example"), spec()
"""How arrays of members, of a batch, and of neither lie on the mesh."""
