"""What members say of a split on the devices: forward passes only, batched, padded and masked."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import pytrees
from ensemble.data.source import Inputs
from ensemble.draws.store import LOG_PROB
from ensemble.fitted import Predict, all_estimators, predict_plainly
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.likelihoods.predictive import Arrays
from ensemble.runtime.devices import Devices
from ensemble.sharding.mesh import traced_for
from ensemble.sharding.transfer import pad

MAX_BATCH_SIZE = 256
"""Examples of one forward pass; fewer are padded to a power of two, so few shapes compile."""
_LARGE = 4096
"""The same where there are many, each of few numbers, as a pass costs a fixed time, too."""


class Predictions:
    """The program of what sets of parameters say of inputs.

    Args:
        task: What is learned.
        devices: Placement of the members.
        predict: What one pass of one set says.
        num_passes: Passes of a set.

    Attributes:
        program: `(sets [num_places, K, ...], inputs [B, ...]) -> arrays [num_places, B, K, ...]`.
    """

    def __init__(
        self, task: Any, devices: Devices, predict: Predict = predict_plainly, num_passes: int = 1
    ):
        self._devices = devices
        self._likelihood = task.likelihood
        self._num_values = math.prod(task.dataset.input_shape)
        self._num_each = max(num_passes, task.num_estimators)  # One of both is 1.

        def of_member(sets, inputs):
            """[B, E, ...] by name, of all estimators."""
            found = all_estimators(predict, task, num_passes, sets, inputs)
            return (), jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), found)

        spread = devices.over_examples(of_member, unrolls=task.traits.unrolls)

        def program(sets, inputs):
            with traced_for(devices.mesh):
                return devices.map_members(spread, (0, None))(sets, inputs)[1]

        self.program = jax.jit(program)

    def _batches(self, sets, inputs: Inputs) -> Iterator[Arrays]:
        """Predicts a batch of inputs after the other; yields arrays [M * K, n, ...] by name."""
        size = min(MAX_BATCH_SIZE, 1 << max(len(inputs) - 1, 0).bit_length())
        if len(inputs) >= 4 * _LARGE and jax.tree.leaves(sets)[0].shape[1] * self._num_values <= 16:
            size = _LARGE
        predicted = None
        for start in range(0, len(inputs), size):
            batch = np.asarray(inputs[start : start + size])
            # While the devices predict the one before.
            placed = self._devices.put_examples(pad(batch, size))
            if start:
                yield self._fetched(predicted, size)
            # Only now: CPUs would run two programs at once, in twice the memory.
            predicted = self.program(sets, placed)
        yield self._fetched(predicted, len(batch))

    def _fetched(self, predicted, number: int) -> Arrays:
        """Fetches what some inputs are predicted as; what pads is left out."""
        fetched = self._devices.fetch_members(predicted)
        return {k: pytrees.merged(np.moveaxis(v, 2, 1))[:, :number] for k, v in fetched.items()}

    def __call__(self, sets: Any, inputs: Inputs) -> Arrays:
        """Predicts.

        Args:
            sets: [num_places, K, ...] on the devices.
            inputs: Raw inputs [N, ...], N > 0, of which one batch is read at a time.

        Returns:
            dict[str, np.ndarray] [M * K, N, ...] by name, of all sets and passes, member by member.
        """
        parts = [*self._batches(sets, inputs)]
        return {name: np.concatenate([one[name] for one in parts], axis=1) for name in parts[0]}

    def pooled(self, sets: Any, inputs: Inputs, num_members: int) -> Any:
        """Predicts by the estimators of members, pooled batch by batch.

        Args:
            sets: As of a call.
            inputs: Inputs [N, ...].
            num_members: M, which have as many estimators each.
        """
        likelihood = self._likelihood
        num_sets = self._devices.num_members * jax.tree.leaves(sets)[0].shape[1]
        number = num_sets * self._num_each // num_members
        if number == 1:
            return likelihood.predictive(self(sets, inputs))
        parts = []
        for arrays in self._batches(sets, inputs):
            single = {k: v.reshape(num_members, number, *v.shape[1:]) for k, v in arrays.items()}
            parts.append(likelihood.pooled(single, np.ones(number, int))[0])
        whole = jax.tree.map(lambda *each: np.concatenate(each, axis=2), *parts)
        return of_estimators(likelihood, whole)


def of_estimators(likelihood: Likelihood, arrays: Arrays) -> Any:
    """Makes the predictive of arrays [M, K, N, ...], of K estimators of each member."""
    num_members, number = next(iter(arrays.values())).shape[:2]
    merged = {k: v.astype(np.float32, copy=False) for k, v in pytrees.merged(arrays).items()}
    member_of = None if number == 1 else np.repeat(np.arange(num_members), number)
    return likelihood.predictive(merged, member_of)


def draw_scores(likelihood: Likelihood, predicted: Arrays, targets: Any, mask: Any) -> Arrays:
    """Computes means [C] over N examples of the scores of one draw of every chain.

    Args:
        likelihood: Likelihood of the task.
        predicted: Predictions [C, N, ...].
        targets: Targets [N].
        mask: Mask [N], false for padding.

    Returns:
        `Predictive.scores`, by name.
    """
    return {
        name: jnp.sum(jnp.where(mask, one, 0), axis=-1) / jnp.sum(mask)
        for name, one in likelihood.each_score(predicted, targets).items()
    }


def draw_scalars(
    likelihood: Likelihood, examples: np.ndarray, predicted: Arrays, targets: Any, mask: Any
) -> Arrays:
    """Computes what is recorded of the predictions of a draw of every chain.

    Args:
        likelihood: Likelihood of the task.
        examples: Numbers [n] of some examples.
        predicted: Predictions [C, N, ...].
        targets: Targets [N].
        mask: Mask [N], false for padding.

    Returns:
        Scores [C], and log-probabilities [C, n] of the targets of these examples, by a name with a
        place for their numbers.
    """
    scores = draw_scores(likelihood, predicted, targets, mask)
    some = pytrees.at(predicted, np.s_[:, examples])
    nll = likelihood.each_score(some, pytrees.at(targets, examples))["nll"]
    return {
        **{name: scores[name] for name in likelihood.traced},
        LOG_PROB + "{:02d}": -nll,
    }
