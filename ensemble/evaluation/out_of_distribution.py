"""Inputs unlike the training data: other sets, noise, constants, and how well they are told."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.evaluation.class_predictions import ClassPredictions
from ensemble.evaluation.strata import OVER_BOTH

UNIFORM, CONSTANT = "uniform", "constant"
_STREAM = 3  # Of random numbers; ensemble.sources has others.
_NUM_LEVELS = 256
SCORES = ("entropy", "one_minus_max", "mutual_information")


def uniform_noise(
    shape: Sequence[int], value_range: tuple[float, float], dtype: Any, seed: int = 0
) -> np.ndarray:
    """Draws every value evenly from the range.

    Args:
        shape: [N, ...].
        value_range: the lowest and the highest value of the training data.
        dtype: of the training data.
        seed: of the draws.
    """
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([_STREAM, seed])))
    low, high = value_range
    if np.issubdtype(dtype, np.integer):
        return rng.integers(int(low), int(high), shape, dtype, endpoint=True)
    return rng.uniform(low, high, shape).astype(dtype)


def constant_inputs(
    example_shape: Sequence[int], value_range: tuple[float, float], dtype: Any
) -> np.ndarray:
    """Inputs [K, ...] all values of which are equal: one for each whole number, else 256 levels."""
    low, high = value_range
    if np.issubdtype(dtype, np.integer):
        levels = np.arange(int(low), int(high) + 1, dtype=dtype)
    else:
        levels = np.linspace(low, high, _NUM_LEVELS, dtype=dtype)
    levels = levels.reshape(-1, *(1 for _ in example_shape))
    return np.broadcast_to(levels, (len(levels), *example_shape)).copy()


def check_same_shape(name: str, shape: Sequence[int], input_shape: Sequence[int]) -> None:
    """Refuses a set whose images have another shape.

    Raises:
        UserError: as said.
    """
    if tuple(shape) != tuple(input_shape):
        raise UserError(
            f"--datasets={name} has examples of shape {tuple(shape)}, the ensemble "
            f"takes {tuple(input_shape)}; leave it out"
        )


def uncertainty_scores(predictions: ClassPredictions) -> dict[str, NDArray]:
    """Scores [N] that should be high out of distribution, by name.

    Args:
        predictions: of the members.

    Returns:
        `entropy` of the mean prediction, nats; `one_minus_max` of its probabilities, 0..1;
        `mutual_information` of label and member, nats.
    """
    parts = metrics.uncertainty(predictions.log_probs, predictions.entropies)
    mean = metrics.ensemble_log_probs(predictions.log_probs)
    return {
        "entropy": parts["total"],
        # The sum of the others: 1 - p would round confident predictions to ties.
        "one_minus_max": np.sort(np.exp(mean), axis=-1)[:, :-1].sum(axis=-1),
        "mutual_information": parts["epistemic"],
    }


def score_detection(inside: Mapping[str, NDArray], predictions: ClassPredictions) -> dict[str, Any]:
    """Tells a set from the test split by every score.

    Args:
        inside: `uncertainty_scores` of the test split.
        predictions: of the members, on the K examples of the other set.

    Returns:
        `num_examples`; by score `auroc`, `aupr` and `fpr95`, and the `interval` of each;
        `mean_entropy` of the other set, nats.
    """
    outside = uncertainty_scores(predictions)
    section: dict[str, Any] = {
        "num_examples": len(outside["entropy"]),
        "interval_over": OVER_BOTH,
        "mean_entropy": float(outside["entropy"].mean()),
    }
    for name in SCORES:
        ranked = metrics.rank(inside[name], outside[name])
        section[name] = {**ranked.scores(), "interval": ranked.intervals()}
    return section
