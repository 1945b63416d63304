"""How the arrays of one member are split over the devices that hold it together.

A rule of size says it, whatever library the network is written in: an array of some size is split
along its largest axis that the devices divide. Where a network annotates its parameters with axes
of the mesh, that comes first, and the rule splits over the axes that are left.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax

from ensemble.errors import UserError
from ensemble.network import Annotations, Names
from ensemble.sharding.mesh import DATA, ENSEMBLE, MODEL

SMALL_BYTES = 2**16
"""Arrays of fewer bytes are whole on each device: they take little, and an exchange takes time."""


def split(
    shape: tuple[int, ...], itemsize: int, sizes: Mapping[str, int], named: Names = ()
) -> Names:
    """Says over which axes of the mesh each axis of an array is split.

    Args:
        shape: of the array of one member.
        itemsize: bytes of a number in it.
        sizes: of the mesh's axes `data` and `model`.
        named: what the network itself says; axes of the mesh of one device count for nothing.

    Returns:
        An entry for each axis of the array, up to the last that is split.
    """
    found: list[Any] = [_without_single(name, sizes) for name in named]
    found += [None] * (len(shape) - len(found))
    used = {axis for name in found for axis in _axes(name)}
    left = [axis for axis in (DATA, MODEL) if sizes.get(axis, 1) > 1 and axis not in used]
    if math.prod(shape) * itemsize >= SMALL_BYTES:
        together = [tuple(left)] if len(left) > 1 else []
        for names in (*together, *((axis,) for axis in sorted(left, key=lambda a: -sizes[a]))):
            number = math.prod(sizes[axis] for axis in names)
            free = [i for i, name in enumerate(found) if name is None and shape[i] % number == 0]
            if free:
                found[max(free, key=lambda i: shape[i])] = names if len(names) > 1 else names[0]
                break
    while found and found[-1] is None:
        found.pop()
    return tuple(found)


def _axes(name: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if name is None:
        return ()
    return (name,) if isinstance(name, str) else tuple(name)


def _without_single(name: Any, sizes: Mapping[str, int]) -> Any:
    kept = tuple(axis for axis in _axes(name) if sizes.get(axis, 1) > 1)
    return kept if len(kept) > 1 else (kept[0] if kept else None)


def annotated(path: tuple[str, ...], annotations: Annotations) -> Names:
    """What a network says of the array at a path; of the optimiser's moments, as of the parameter.

    Args:
        path: in a member's state, which ends in a path of `params`.
        annotations: of the network.
    """
    fitting = [(len(own), names) for own, names in annotations if own and path[-len(own) :] == own]
    return max(fitting, key=lambda one: one[0], default=(0, ()))[1]


def path_of(keys: Any) -> tuple[str, ...]:
    """A path of `jax.tree_util` as names."""
    return tuple(str(getattr(key, "key", getattr(key, "name", ""))) for key in keys)


def check_annotations(annotations: Annotations, shapes: Any, sizes: Mapping[str, int]) -> None:
    """Refuses annotations that the mesh, or the parameters, do not allow.

    Args:
        annotations: of the network.
        shapes: of the parameters of one member.
        sizes: of the mesh's axes `data` and `model`.

    Raises:
        UserError: they name another axis, or one twice, or an axis is not divisible.
    """
    leaves = {path_of(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(shapes)}
    for path, names in annotations:
        shape, name = leaves.get(path, ()), "/".join(path)
        if len(names) > len(shape):
            raise UserError(
                f"the parameter {name} is annotated with {names}, more than its {len(shape)} axes"
            )
        axes = [axis for entry in names for axis in _axes(entry)]
        unknown = [axis for axis in axes if axis not in sizes]
        if unknown or len(set(axes)) < len(axes):
            what = f"names the axis {unknown[0]!r}" if unknown else "names an axis twice"
            raise UserError(
                f"the parameter {name} is annotated with {names}, which {what}; a member is spread "
                f"over {' and '.join(map(repr, sizes))}: use each of them once at most"
            )
        for size, entry in zip(shape, names, strict=False):
            number = math.prod(sizes[axis] for axis in _axes(entry))
            if size % number:
                raise UserError(
                    f"the parameter {name} has the shape {shape} and is annotated with {names}: "
                    f"{size} is not divisible by the {number} devices of {entry!r}; use another "
                    "config.member_devices or another width"
                )


def mesh_shape(num_members: int, num_devices: int, member_devices: int) -> dict[str, int]:
    """How devices are laid out for members that are split.

    Args:
        num_members: M.
        num_devices: D.
        member_devices: K, which divides D.

    Returns:
        Devices along each axis of the mesh. What M * K devices leave over shares the examples.
    """
    units = num_devices // member_devices
    groups = next((g for g in range(num_members, units) if units % g == 0), units)
    return {ENSEMBLE: groups, DATA: units // groups, MODEL: member_devices}


def fewest_member_devices(
    shapes: Any, num_members: int, num_devices: int, memory: int, annotations: Annotations = ()
) -> int:
    """Over how few devices each member can be split, so that all fit.

    Args:
        shapes: of all arrays of one member's step that are no activations.
        num_members: M.
        num_devices: D.
        memory: bytes of a device that these arrays may take.
        annotations: of the network.

    Raises:
        UserError: they do not fit, however they are split.
    """
    needed = []
    for member_devices in range(1, num_devices + 1):
        if num_devices % member_devices:
            continue
        sizes = mesh_shape(num_members, num_devices, member_devices)
        parts = {DATA: sizes[DATA], MODEL: member_devices} if member_devices > 1 else {}
        slots = -(-num_members // sizes[ENSEMBLE])
        needed.append(slots * bytes_per_device(shapes, parts, annotations))
        if needed[-1] <= memory:
            return member_devices
    raise UserError(
        f"config.ensemble_size={num_members} members take {min(needed) / 2**30:.3g} GiB of each of "
        f"the {num_devices} devices, which have {memory / 2**30:.3g} GiB for parameters, gradients "
        "and the optimiser's state; use more devices, fewer members or a smaller network"
    )


def bytes_per_device(shapes: Any, sizes: Mapping[str, int], annotations: Annotations = ()) -> int:
    """What one device holds of some arrays of one member.

    Args:
        shapes: tree of what has `shape` and `dtype`: parameters, or all of a member's state.
        sizes: of the mesh's axes, such as `{"data": 1, "model": 4}`.
        annotations: of the network.
    """
    total = 0
    for path, leaf in jax.tree.leaves_with_path(shapes):
        itemsize = leaf.dtype.itemsize
        named = annotated(path_of(path), annotations)
        names = split(tuple(leaf.shape), itemsize, sizes, named)
        number = math.prod(sizes.get(axis, 1) for entry in names for axis in _axes(entry))
        total += math.prod(leaf.shape) * itemsize // number
    return total
