"""The rows that members are held to: each predicts those of its own fold, and no others."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import target_rows
from ensemble.likelihood import HERE, is_corrected
from ensemble.methods.members.batching import Batches
from ensemble.methods.members.folds import Folds
from ensemble.network import Variables
from ensemble.sharding.mesh import spec
from ensemble.sharding.placement import MEMBERS, Placement
from ensemble.task import Learned

_AT_ONCE = 1024
"""Rows of one forward pass."""
_ROWS_OF_ALL = 50
"""Rows of its own from which on a member's loss counts more than that of all members."""
_STEPS = spec("member", None, "example")


class HeldOut:
    """The folds of some members on the devices.

    Args:
        task: what they learn.
        folds: of the training rows.
        indices: numbers of the members.
        batches: which say how much a row counts.
        placement: of the members.
    """

    def __init__(
        self,
        task: Learned,
        folds: Folds,
        indices: Sequence[int],
        batches: Batches,
        placement: Placement,
    ):
        self._task, self._placement = task, placement
        self.rows = [folds.held_out(k) for k in indices]
        """Numbers of the rows of each member, ascending."""
        self._decides = np.array([folds.decides(k) for k in indices])
        self._batches = batches
        most = max(map(len, self.rows))
        self._num_parts = math.ceil(most / _AT_ONCE)
        self._size = math.ceil(most / self._num_parts)  # Of a part, before devices share it.

    def weights(self, examples: np.ndarray, targets: np.ndarray) -> np.ndarray | None:
        """How much examples count in what is said of them, as of `Batches.weights`.

        Classes count as they come where predictions are corrected for their weights.
        """
        of_classes = not is_corrected(self._task.likelihood)
        return self._batches.weights(examples, targets, of_classes)

    @functools.cached_property
    def _placed(self) -> dict[str, Any]:
        """Inputs, targets and weights [num_places, K, B, ...] of the rows, which zeros fill up."""
        num_parts, size = self._num_parts, self._size
        own = [self.rows[k] for k in self._placement.members_here]
        filled = np.stack([np.resize(rows, num_parts * size) for rows in own])
        inputs, targets = self._task.dataset.read("train", filled)
        weights = self.weights(filled, targets)
        counts = np.stack([np.arange(num_parts * size) < len(rows) for rows in own])
        weights = counts.astype(np.float32) * (1 if weights is None else weights)
        arrays = {
            "inputs": inputs,
            "targets": target_rows.on_devices(targets),
            "weights": weights.astype(np.float32),
        }
        parts = jax.tree.map(
            lambda one: one.reshape(len(one), num_parts, size, *one.shape[2:]), arrays
        )
        return self._placement.place_separate_steps(parts)

    @functools.cached_property
    def _losses(self) -> Any:
        likelihood = self._task.likelihood

        def of_member(variables: Variables, rows: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
            def of_part(part: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
                inputs = self._task.prepare(part["inputs"])
                nats, aux = self._task.log_likelihood(variables, inputs, part["targets"])
                losses = -nats
                if self._task.num_estimators > 1:
                    losses = self._mixed_losses(aux.predicted, part["targets"])
                elif is_corrected(likelihood):  # And the log likelihood is not.
                    losses = likelihood.example_scores(aux.predicted, part["targets"])["nll"]
                counted = part["weights"] > 0  # Zeros that fill up may be no inputs at all.
                lost = jnp.where(counted, losses, 0) * part["weights"]
                return jnp.sum(lost), jnp.sum(part["weights"])

            lost, weights = jax.lax.map(of_part, rows)
            return jnp.sum(lost), jnp.sum(weights)

        def of_slots(variables: Variables, rows: dict[str, Any]) -> jax.Array:
            sums = self._placement.map_slots(of_member)(variables, rows)
            lost, weights = self._placement.sum_over_slices(sums)
            return lost / weights

        return self._placement.map_devices(of_slots, (MEMBERS, _STEPS), MEMBERS)

    def _mixed_losses(self, predicted: dict[str, jax.Array], targets: Any) -> jax.Array:
        """The losses [B] of a member whose estimators predict [B, K, ...]."""
        each = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), predicted)
        all_live = jnp.ones(self._task.num_estimators, bool)
        likelihood = self._task.likelihood
        return likelihood.mixture_scores(each, targets, all_live, HERE)[likelihood.loss]

    @functools.cached_property
    def _predict(self) -> Any:
        def of_member(variables: Variables, inputs: jax.Array) -> dict[str, jax.Array]:
            return jax.lax.map(lambda part: self._task.predict(variables, part), inputs)

        of_slots = self._placement.map_slots(of_member)
        return self._placement.map_devices(of_slots, (MEMBERS, _STEPS), _STEPS, runs_once=True)

    def losses(self, variables: Any) -> np.ndarray:
        """The mean negative log likelihood [M] of each member's rows, nats; all processes call it.

        Args:
            variables: of the members, [num_places, ...].
        """
        found: np.ndarray = self._placement.gather_members(self._losses(variables, self._placed))
        return found

    def criteria(self, variables: Any) -> np.ndarray:
        """What members stop by, [M] nats: in part their own loss, in part all members' median.

        Few rows of its own alone flatter a member, of whose many epochs one is the best by chance;
        and no member that diverges decides for the others. Where the latest period decides, all
        stop by the median of those who hold it out.
        """
        losses = self.losses(variables)
        is_finite = np.isfinite(losses)
        if not is_finite.any():
            return losses
        counts = np.array([len(rows) for rows in self.rows])
        own = counts / (counts + _ROWS_OF_ALL)
        counted = is_finite & self._decides
        if self._decides.all() or not counted.any():
            counted = is_finite
        else:
            own = np.where(is_finite, 0.0, 1.0)
        return (own * losses + (1 - own) * np.median(losses[counted])).astype(np.float32)

    def predictions(self, variables: Any) -> list[dict[str, np.ndarray]]:
        """What each member's estimators predict of its rows, arrays [K, n, ...] by name."""
        placed = self._predict(variables, self._placed["inputs"])
        found = self._placement.gather_members(placed)
        whole = {
            name: one[:, :, : self._size].reshape(len(one), -1, *one.shape[3:])
            for name, one in found.items()
        }
        is_alone = self._task.num_estimators == 1
        return [
            {
                name: one[i, None, : len(rows)] if is_alone else one[i, : len(rows)].swapaxes(0, 1)
                for name, one in whole.items()
            }
            for i, rows in enumerate(self.rows)
        ]
