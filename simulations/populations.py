"""Large populations of predicted classes, whose scores are the truth that samples estimate."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax


@functools.lru_cache(maxsize=1)
def population(
    num_members: int = 1,
    num_classes: int = 3,
    signal: float = 2.0,
    sharpness: float = 1.0,
    prior: Sequence[float] | None = None,
    size: int = 30_000,
) -> MeanOfSoftmax:
    """Predictions of members that err each in its own way, and labels.

    Args:
        num_members: M.
        num_classes: C.
        signal: how far an input of a class lies from those of others, in standard deviations.
        sharpness: by what the right logits of an input are multiplied; 1 is about calibrated.
        prior: probabilities of the classes; equal ones unless they are given.
        size: of the population.
    """
    rng = np.random.default_rng(0)
    labels = rng.choice(num_classes, size, p=prior)
    inputs = rng.normal(size=(size, num_classes))
    inputs[np.arange(size), labels] += signal
    noise = 0.5 * rng.normal(size=(num_members, size, num_classes))
    logits = signal * (inputs + noise) + (0.0 if prior is None else np.log(prior))
    log_probs = log_softmax(sharpness * logits, axis=-1)
    return MeanOfSoftmax(arrays={LOG_PROBS: log_probs}, targets=labels)


@functools.lru_cache(maxsize=1)
def mean_log_probs(**setting: Any) -> NDArray:
    """What the ensemble of a `population` predicts, `[N, C]`."""
    return population(**setting).log_probs


def draw_labels(rng: np.random.Generator, log_probs: NDArray, gap: float) -> NDArray:
    """Labels [N] as probable as is predicted, but for the most probable class.

    Args:
        rng: of the draws.
        log_probs: of the prediction, `[N, C]`.
        gap: by how much less probable the most probable class is.
    """
    probs, rows = np.exp(log_probs), np.arange(len(log_probs))
    top = log_probs.argmax(axis=-1)
    wanted = np.clip(probs[rows, top] - gap, 0.0, 1.0)
    others = probs.copy()
    others[rows, top] = 1e-300
    others /= others.sum(axis=-1, keepdims=True)
    other = (np.cumsum(others, axis=-1) < rng.random(len(rows))[:, None]).sum(axis=-1)
    return np.where(rng.random(len(rows)) < wanted, top, np.minimum(other, probs.shape[1] - 1))


def sample(
    rng: np.random.Generator, of: MeanOfSoftmax, num_examples: int, gap: float | None = None
) -> MeanOfSoftmax:
    """So many examples, drawn with replacement.

    Args:
        rng: of the draws.
        of: what is drawn from.
        num_examples: N.
        gap: where given, labels are drawn from the ensemble's prediction, with a mean confidence
            that is above the accuracy by so much.
    """
    chosen = rng.integers(len(of.targets), size=num_examples)
    drawn = of.rows(chosen)
    if gap is None:
        return drawn
    return replace(drawn, targets=draw_labels(rng, drawn.log_probs, gap))
