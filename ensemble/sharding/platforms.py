"""For which platform programs are traced: some forms are fast on CPUs alone.

A mesh knows its platform, also where its devices are only described. Networks do not see the mesh;
so whoever traces a program for one says so here.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

_traced = contextvars.ContextVar[str | None]("traced", default=None)


def platform_of(mesh: Mesh) -> str:
    """What the devices of a mesh are: `cpu`, `gpu` or `tpu`."""
    return str(mesh.devices.flat[0].platform)


@contextlib.contextmanager
def traced_for(mesh: Mesh) -> Iterator[None]:
    """What is traced within is for the devices of a mesh."""
    token = _traced.set(platform_of(mesh))
    try:
        yield
    finally:
        _traced.reset(token)


def traced_platform() -> str:
    """The platform of what is traced; outside of `traced_for` that on which JAX computes."""
    return _traced.get() or jax.default_backend()
