"""What a draw of all chains leaves: predictions in running sums, scalars and parameters."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from ensemble import target_rows
from ensemble.draws.running_sums import PredictiveSums, add_draws, evaluate_draws, zero_sums
from ensemble.draws.store import LOG_PROB, Draws, tracked_examples
from ensemble.likelihood import Likelihood
from ensemble.sharding.transfer import PlacedSplit
from ensemble.storage.checkpoint import check_shapes


class Draw(NamedTuple):
    """One draw of every chain, on the host.

    Attributes:
        scalars: [C] each, by name.
        params: tree [C, ...].
    """

    scalars: dict[str, np.ndarray]
    params: Any


class SplitSums:
    """The sums of what draws predict of a split; they are the host's, and every process has them.

    Args:
        likelihood: of the targets.
        targets: [N], of the split.
        num_chains: C.
    """

    def __init__(self, likelihood: Likelihood, targets: np.ndarray, num_chains: int):
        no_inputs, rows = jnp.zeros(0), target_rows.on_devices(targets)
        self._split = PlacedSplit(no_inputs, rows, jnp.ones(len(targets), bool))
        self._likelihood = likelihood
        self._num_chains = num_chains
        self._tracked = tracked_examples(len(targets))
        self._add = jax.jit(functools.partial(_add, likelihood))

    def zero(self) -> PredictiveSums:
        """The sums over no draws."""
        sums = zero_sums(self._likelihood, self._num_chains, self._split)
        return jax.tree.map(np.asarray, sums)

    def add(
        self, sums: PredictiveSums, predicted: Mapping[str, np.ndarray]
    ) -> tuple[PredictiveSums, dict[str, np.ndarray]]:
        """Adds a draw.

        Args:
            sums: over those before.
            predicted: by every chain, [C, N, ...] by name.

        Returns:
            The new sums, and the draw's own mean scores [C] by name.
        """
        sums, terms = self._add(sums, dict(predicted), self._split)
        scores = {name: terms[name] for name in self._likelihood.draw_scores}
        return jax.tree.map(np.asarray, (sums, scores))

    def log_probs(self, predicted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Log-probabilities [C] of the targets of fixed examples, by the names of scalars."""
        some = {name: one[:, self._tracked] for name, one in predicted.items()}
        targets = jax.tree.map(lambda one: np.asarray(one)[self._tracked], self._split.targets)
        log_probs = -np.asarray(self._likelihood.example_scores(some, targets)["nll"])
        return {f"{LOG_PROB}{i:02d}": column for i, column in enumerate(log_probs.T)}


def _add(
    likelihood: Likelihood,
    sums: PredictiveSums,
    predicted: Mapping[str, jax.Array],
    split: PlacedSplit,
) -> tuple[PredictiveSums, dict[str, jax.Array]]:
    terms = evaluate_draws(likelihood, predicted, split)
    return add_draws(likelihood, sums, terms), terms


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


def to_host(sums: Mapping[str, PredictiveSums], pending: Sequence[Draw]) -> dict[str, Any]:
    """Sums and draws as a checkpoint has them, a nested dict of arrays."""
    arrays: dict[str, Any] = {}
    if sums:
        arrays["sums"] = serialization.to_state_dict(dict(sums))
    if pending:
        arrays["pending"] = jax.tree.map(
            lambda *leaves: np.stack(leaves), *map(Draw._asdict, pending)
        )
    return arrays


def from_host(
    arrays: Mapping[str, Any], splits: Mapping[str, SplitSums], num_pending: int
) -> tuple[dict[str, PredictiveSums], tuple[Draw, ...]]:
    """The inverse of `to_host`.

    Raises:
        ValueError: the arrays are of other shapes, or of other draws.
    """
    template = {name: split.zero() for name, split in splits.items()}
    sums = serialization.from_state_dict(template, arrays.get("sums", {}))
    check_shapes(sums, template)
    pending = arrays.get("pending")
    leaves = jax.tree.leaves(pending)
    if any(len(leaf) != num_pending for leaf in leaves) or bool(leaves) != bool(num_pending):
        raise ValueError(f"it must have {num_pending} draws that are not on disk yet")
    taken = [jax.tree.map(lambda leaf, i=i: leaf[i], pending) for i in range(num_pending)]
    return sums, tuple(Draw(**one) for one in taken)
