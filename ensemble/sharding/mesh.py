"""The one mesh, members or chains by examples, and the platform that programs are traced for."""

import contextvars
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ensemble.errors import InputError
from ensemble.pytrees import Function

ENSEMBLE = "ensemble"
DATA = "data"
"""Axes of the mesh."""

RULES = {
    "member": ENSEMBLE,
    "chain": ENSEMBLE,
    "example": DATA,
    "row": DATA,  # Of a table of data whose parameters lie with it, a row's with the row.
}
"""Over which axis of the mesh the things that an axis of an array counts are spread."""
_traced = contextvars.ContextVar[str | None]("traced", default=None)


def create_mesh(num_chain_groups: int, num_shards: int, devices: Sequence[jax.Device]) -> Mesh:
    """Lays devices out for members and examples.

    Args:
        num_chain_groups: Devices over which members, or chains, are spread.
        num_shards: Neighbouring devices over which the examples of each member are spread.
        devices: Devices, at least the product of the numbers.

    Raises:
        InputError: There are fewer devices.
    """
    needed = num_chain_groups * num_shards
    if len(devices) < needed:
        raise InputError(
            f"{num_chain_groups} groups of chains x {num_shards} shards need {needed} devices, "
            f"there are {len(devices)}; use fewer"
        )
    # In their order: `jax.make_mesh` refuses a part of a TPU, and machines without a fast network.
    grid = np.array(devices[:needed], dtype=object).reshape(num_chain_groups, num_shards)
    return Mesh(grid, (ENSEMBLE, DATA), axis_types=(AxisType.Auto,) * 2)


def spec(*names: str | None) -> PartitionSpec:
    """Says how an array lies on the mesh.

    Args:
        *names: What its first axes count, keys of `RULES`; None and further axes are not spread.
    """
    return PartitionSpec(*[name and RULES[name] for name in names])


def by_rows(sharding: NamedSharding, num_axes: int = 2) -> Format:
    """Says where an array of so many axes lies, and that each of its rows is in one piece.

    TPUs else choose what takes the least, such as columns of 128 rows, and a program that would
    have rows begins with a copy of all.
    """
    return Format(Layout(tuple(range(num_axes))), sharding)


def named_sharding(mesh: Mesh, *names: str | None) -> NamedSharding:
    """Says where an array lies on the devices of a mesh; `names` as those of `spec`."""
    return NamedSharding(mesh, spec(*names))


def platform_of(mesh: Mesh) -> str:
    """Returns what the devices of a mesh are, also if they are only described: `cpu`, `gpu`, `tpu`.

    Some forms of programs are fast on CPUs alone.
    """
    return str(mesh.devices.flat[0].platform)


@contextmanager
def traced_for(mesh: Mesh) -> Iterator[None]:
    """What is traced within is for the devices of a mesh, which networks do not see."""
    token = _traced.set(platform_of(mesh))
    try:
        yield
    finally:
        _traced.reset(token)


def traced_platform() -> str:
    """The platform of what is traced; outside of `traced_for` that on which JAX computes."""
    return _traced.get() or jax.default_backend()


def compiled_soon(fn: Function, **options) -> Function:
    """`jax.jit` of a program that runs once, or whose time goes into XLA's libraries.

    On CPU LLVM optimises it little: it compiles in about half the time (decision 0046).

    Args:
        fn: Function.
        **options: Options of `jax.jit`.
    """
    if traced_platform() == "cpu":
        options["compiler_options"] = {"xla_backend_optimization_level": 1}
    return jax.jit(fn, **options)
