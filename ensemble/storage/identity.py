"""Settings of JAX that change a run's numbers."""

from collections.abc import Mapping
from typing import Any

import jax

from ensemble.errors import InputError

_FLAGS = (
    "jax_default_dtype_bits",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_random_seed_offset",
    "jax_threefry_partitionable",
)


def flags() -> dict[str, Any]:
    """What JAX is set to here, of that which changes numbers."""
    return {name: getattr(jax.config, name) for name in _FLAGS if hasattr(jax.config, name)}


def check_flags(path: Any, then: Mapping[str, Any]) -> None:
    """Refuses to go on with a run where JAX computes other numbers than when it began.

    Args:
        path: of the workdir.
        then: `flags` when it began.

    Raises:
        InputError: a setting differs.
    """
    now = flags()
    changed = [
        f"{name.upper()}={value} (now {now[name]})"
        for name, value in then.items()
        if name in now and now[name] != value
    ]
    if changed:
        raise InputError(
            f"{path} holds a run that began with {', '.join(changed)}, which changes its numbers; "
            "set that as it was, or choose another --workdir"
        )
