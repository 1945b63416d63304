"""Names of the axes of a model's variables: those of their plates."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp


def plate_dims(sites: Mapping[str, Any]) -> dict[str, tuple[str | None, ...]]:
    """The plate of each axis of a variable; None where another thing has its name already.

    Args:
        sites: NumPyro's, of the variables, by name.
    """
    sizes: dict[str, int] = {}
    found = {}
    for name, site in sites.items():
        shape = jnp.shape(site["value"])
        event_dim = site["fn"].event_dim if site["type"] == "sample" else 0
        dims: list[str | None] = [None] * len(shape)
        for plate in site.get("cond_indep_stack", ()):
            axis = len(shape) - event_dim + plate.dim
            is_taken = plate.name in ("chain", "draw") or plate.name in sites
            if axis < 0 or is_taken or shape[axis] != plate.size:
                continue
            if sizes.setdefault(plate.name, plate.size) == plate.size:
                dims[axis] = plate.name
        found[name] = tuple(dims)
    return found
