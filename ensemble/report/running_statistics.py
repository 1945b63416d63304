"""Statistics of training that networks keep for predictions, such as BatchNorm's."""

import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import target_rows
from ensemble.fitted import LINEAR, WIDTH, Fitted
from ensemble.task import Learned

_NUM_EXAMPLES = 256
_WORSE = 0.1
"""Nats. Digits with momentum 0.9 to 0.999 and 10 to 3,000 steps: from here on accuracy falls."""


def stale_statistics(
    task: Learned, fitted: Fitted, config: Mapping[str, Any], num_steps: int
) -> list[str]:
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
    if not kept or fitted.member_devices > 1:  # One device would have to hold a member.
        return []

    @jax.jit
    def losses(variables: Any, inputs: Any, targets: Any, rng_key: jax.Array) -> jax.Array:
        inputs = task.prepare(inputs)
        predicted, _ = task.log_likelihood(variables, inputs, targets)
        learned, _ = task.log_likelihood(variables, inputs, targets, True, rng_key)
        return -jnp.stack([predicted.mean(), learned.mean()])

    num_examples, num_sets = task.dataset.sizes["train"], fitted.num_sets
    batch_size = min(config["batch_size"], num_examples)
    rng, found = np.random.default_rng(0), []
    for i in range(max(1, _NUM_EXAMPLES // batch_size)):
        batch = task.dataset.read("train", rng.choice(num_examples, batch_size, replace=False))
        targets, rng_key = target_rows.on_devices(batch.targets), jax.random.key(i)
        for k in range(num_sets):
            member = jax.tree.map(operator.itemgetter(k), variables)
            found.append(losses(member, batch.inputs, targets, rng_key))
    predicted, learned = np.mean(found, axis=0)
    if not predicted > learned + _WORSE:
        return []
    return [
        f"Training examples have a loss of {predicted:.3g} by the statistics that the members keep "
        f"for predictions ({', '.join(kept)}), and of {learned:.3g} by those of their batches: "
        f"after {num_steps} steps the former are still far off. Give BatchNorm, or what keeps "
        "them, a lower momentum (Flax's default is 0.99; try 0.9), or train for more steps."
    ]
