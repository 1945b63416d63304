"""The one distribution of a family that fits targets best, whatever the inputs are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special
from jax.flatten_util import ravel_pytree

_MOST = 20_000  # Targets that it is fitted to, evenly spaced among all.
_STEP = 1e-3  # Of a difference that stands for a derivative: outputs are float32.


class Family(Protocol):
    """What must be known of a likelihood."""

    @property
    def num_outputs(self) -> int:
        """K."""

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """Starts the likelihood's own parameters."""

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """The distribution's parameters [B, ...] of outputs [B, K]."""

    def log_density(self, parts: Mapping[str, Any], y: Any, xp: Any, special: Any) -> Any:
        """Log density at y."""


def best_constant(family: Family, targets: np.ndarray) -> dict[str, np.ndarray]:
    """Fits outputs that are the same for all inputs, and the likelihood's own parameters.

    Args:
        family: of distributions.
        targets: [N] numbers.

    Returns:
        What `predict` says of the outputs that have the largest likelihood, [1, 1, ...] float64.
    """
    some = np.asarray(targets[:: -(-len(targets) // _MOST)], np.float64)
    start = {"params": family.init(jax.random.key(0)), "outputs": jnp.zeros(family.num_outputs)}
    raveled, nested = ravel_pytree(start)
    flat = np.asarray(raveled)

    def parts(flat: np.ndarray) -> dict[str, np.ndarray]:
        found = nested(jnp.asarray(flat, jnp.float32))
        predicted = family.predict(found["params"], found["outputs"][None])
        return {name: np.asarray(one, np.float64) for name, one in predicted.items()}

    def loss(flat: np.ndarray) -> float:
        return -float(np.mean(family.log_density(parts(flat), some, np, scipy.special)))

    options = {"eps": _STEP, "ftol": 1e-6, "maxiter": 20}
    best = scipy.optimize.minimize(loss, flat, method="L-BFGS-B", options=options)
    found = parts(best.x if best.fun < loss(flat) else flat)
    return {name: one[None] for name, one in found.items()}
