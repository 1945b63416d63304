"""What a draw of all chains leaves: scalars and parameters."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ensemble import target_rows
from ensemble.draws.predictions import draw_scores
from ensemble.draws.store import LOG_PROB, Draws, tracked_examples
from ensemble.likelihood import Arrays, Likelihood


class Draw(NamedTuple):
    """One draw of every chain, on the host.

    Attributes:
        scalars: [C] each, by name.
        params: tree [C, ...].
    """

    scalars: dict[str, np.ndarray]
    params: Any


class TrackedSplit:
    """What is recorded of the predictions of a split at every draw.

    Args:
        likelihood: of the targets.
        targets: [N], of the split.
    """

    def __init__(self, likelihood: Likelihood, targets: np.ndarray):
        self._targets = target_rows.on_devices(targets)
        self._mask = np.ones(len(targets), bool)
        self._likelihood = likelihood
        self._examples = tracked_examples(len(targets))
        self._scores = jax.jit(functools.partial(draw_scores, likelihood))

    def scalars(self, predicted: Arrays) -> dict[str, np.ndarray]:
        """Scores of a draw, and log-probabilities of the targets of fixed examples, [C] each.

        Args:
            predicted: by every chain, [C, N, ...] by name.
        """
        scores = self._scores(dict(predicted), self._targets, self._mask)
        some = {name: one[:, self._examples] for name, one in predicted.items()}
        targets = jax.tree.map(lambda one: np.asarray(one)[self._examples], self._targets)
        log_probs = -np.asarray(self._likelihood.example_scores(some, targets)["nll"])
        return {
            **{name: np.asarray(scores[name]) for name in self._likelihood.traced},
            **{f"{LOG_PROB}{i:02d}": column for i, column in enumerate(log_probs.T)},
        }


def append(draws: Draws, first: int, taken: Sequence[Draw]) -> None:
    """Appends draws to those on disk; all of them are kept.

    Args:
        draws: on disk.
        first: number of the first.
        taken: at least one.
    """
    joined = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *taken)
    numbers = np.arange(first, first + len(taken))
    draws.append(first, first + len(taken), joined.scalars, joined.params, numbers)


def to_host(pending: Sequence[Draw]) -> dict[str, Any]:
    """Draws as a checkpoint has them, a nested dict of arrays."""
    if not pending:
        return {}
    joined = jax.tree.map(lambda *leaves: np.stack(leaves), *map(Draw._asdict, pending))
    return {"pending": joined}


def from_host(arrays: Mapping[str, Any], num_pending: int) -> tuple[Draw, ...]:
    """The inverse of `to_host`.

    Raises:
        ValueError: the arrays are of other draws.
    """
    pending = arrays.get("pending")
    leaves = jax.tree.leaves(pending)
    if any(len(leaf) != num_pending for leaf in leaves) or bool(leaves) != bool(num_pending):
        raise ValueError(f"it must have {num_pending} draws that are not on disk yet")
    taken = [jax.tree.map(lambda leaf, i=i: leaf[i], pending) for i in range(num_pending)]
    return tuple(Draw(**one) for one in taken)
