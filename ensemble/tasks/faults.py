"""Whether a network by itself gives numbers that are not finite, whatever training does."""

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import pytrees
from ensemble.data.source import block_size
from ensemble.errors import in_own_code
from ensemble.network import Variables
from ensemble.task import Learned

logger = logging.getLogger("ensemble")

_MAX_EXAMPLES = 4096
_MAX_GROWTH = 10
"""Parameters up to so many times the largest fresh one, or 1, have not diverged."""
_REMEDY = "look for a logarithm or root of a negative number, or a division by zero"


def fault(task: Learned, variables: Variables | None = None) -> str:
    """Looks for what is not finite, on training examples and on one device.

    Args:
        task: with training examples.
        variables: the last finite ones of a member that has failed, on the host; None: unknown.

    Returns:
        What the network does, and a remedy; empty where the fault is not known to be its own.
    """
    fresh = task.init_variables(jax.random.key(0))
    if found := _found(task, fresh):
        return f"this comes from the network, before any training: {found}; {_REMEDY}"
    if variables is None:
        return ""
    limit = _MAX_GROWTH * max(1.0, _largest(fresh["params"]))
    largest = _largest(variables["params"])
    if largest <= limit and (found := _found(task, variables)):
        return (
            f"this comes from the network, with parameters of {largest:.3g} at most: {found}; "
            f"{_REMEDY}"
        )
    return ""


def _found(task: Learned, variables: Variables) -> str:
    """What is not finite with these variables, and where; empty if all is."""
    state = pytrees.without(variables, "params")
    key = jax.random.key(0)

    @jax.jit
    def loss(params: Any, inputs: jax.Array, targets: jax.Array) -> Any:
        def mean(params: Any) -> tuple[jax.Array, jax.Array]:
            seen = task.prepare(inputs)
            log_prob, _ = task.log_likelihood({"params": params, **state}, seen, targets, True, key)
            return jnp.mean(log_prob), log_prob

        gradients, log_prob = jax.grad(mean, has_aux=True)(params)
        sums = [jnp.sum(leaf) for leaf in jax.tree.leaves(gradients)]
        return jnp.isfinite(log_prob), jnp.isfinite(sum(sums))

    size = min(256, block_size(task.dataset.input_shape))
    for start in range(0, min(task.num_train_examples, _MAX_EXAMPLES), size):
        inputs, targets = task.dataset.read("train", slice(start, start + size))
        are_finite, is_gradient_finite = map(np.asarray, loss(variables["params"], inputs, targets))
        if not are_finite.all():
            place = _place(task, variables, inputs, targets)
            bad = f"{np.sum(~are_finite)} of {len(targets)} training examples"
            return f"its outputs for {bad} are not finite{place}"
        if not is_gradient_finite:
            return "its outputs are finite, but their gradient is not"
    return ""


def _place(task: Learned, variables: Variables, inputs: np.ndarray, targets: np.ndarray) -> str:
    """Says where the first number arises that is not finite, as ', at FILE:LINE (...)'; or
    nothing."""
    seen = task.prepare(jnp.asarray(inputs))
    for looks in (jax.debug_nans, jax.debug_infs):  # Infinities may be meant, as in a mask.
        try:
            with jax.disable_jit(), looks(True):
                task.log_likelihood(variables, seen, jnp.asarray(targets), True, jax.random.key(0))
        except FloatingPointError as error:
            return f", {in_own_code(error)}"
        except Exception as error:  # A network is a program, and may need to be compiled.
            logger.debug("Where numbers are not finite is not known: %r", error)
    return ""


def _largest(params: Any) -> float:
    return max((float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(params)), default=0.0)
