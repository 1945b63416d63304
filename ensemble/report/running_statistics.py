"""Statistics of training that networks keep for predictions, such as BatchNorm's."""

import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.fitted import LINEAR, WIDTH, Fitted
from ensemble.report.findings import Finding

_NUM_EXAMPLES = 256
_WORSE = 0.1
"""Nats. Digits with momentum 0.9 to 0.999 and 10 to 3,000 steps: from here on accuracy falls."""


def stale_statistics(
    task: Any, fitted: Fitted, config: Mapping[str, Any], num_steps: int
) -> list[Finding]:
    """Compares the loss of training examples as they are predicted with that which was learned.

    Predictions normalise by what members have kept of all steps, training by the batch. After few
    steps the former are still near their start, and predictions far from what was learned.

    Args:
        task: that was learned.
        fitted: the live fitted.
        config: of the run.
        num_steps: that the members have learned.

    Returns:
        A line, if the members lose more by what they have kept; none of networks that keep nothing.
    """
    variables = fitted.variables
    kept = sorted(variables.keys() - {"params", LINEAR, WIDTH})
    if not kept or fitted.is_split:  # One device would have to hold a member.
        return []
    number = task.dataset.sizes["train"]
    size = min(max(config["batch_size"], _NUM_EXAMPLES), number)
    rows = np.random.default_rng(0).choice(number, size, replace=False)
    batch = task.dataset.read("train", rows)

    @jax.jit
    def losses(variables: Any, inputs: Any, targets: Any) -> jax.Array:
        inputs = task.prepare(inputs)
        rng_key = jax.random.key(0)
        predicted, _ = task.log_likelihood(variables, inputs, targets)
        learned, _ = task.log_likelihood(variables, inputs, targets, True, rng_key)
        return -jnp.stack([predicted.mean(), learned.mean()])

    members = [jax.tree.map(operator.itemgetter(k), variables) for k in range(fitted.num_sets)]
    each = [losses(one, batch.inputs, batch.targets) for one in members]
    predicted, learned = np.mean(each, axis=0)
    if not predicted > learned + _WORSE:
        return []
    text = (
        f"Kept statistics ({', '.join(kept)}) are still far off after {num_steps} steps: loss "
        f"{predicted:.3g}, versus {learned:.3g} by batches. Lower the momentum of BatchNorm to "
        "0.9, or train longer."
    )
    numbers = {"kept": float(predicted), "batch": float(learned)}
    return [Finding("stale_statistics", "warning", text, numbers)]
