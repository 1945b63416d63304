"""Predictives and targets whose metrics are known: they are whole populations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from ensemble import likelihoods

Arrays = NDArray[Any]


class World(NamedTuple):
    """A population that test splits are drawn from.

    Attributes:
        ours: Predictive of all rows.
        theirs: Predictive of the same rows by another ensemble.
        y: Targets of the rows.
        groups: Labels of rows that are alike; None: rows are independent.
    """

    ours: Any
    theirs: Any
    y: Arrays
    groups: Arrays | None


def predictive(name: str, outputs: Arrays, **settings: Any) -> Any:
    """Returns the predictive of network outputs [M, N, K] by a likelihood.

    Args:
        name: Of the likelihood.
        outputs: Of M members.
        **settings: Of the likelihood.
    """
    is_classes = name == "categorical"
    count = outputs.shape[-1]
    targets = np.arange(max(60, count)) % (count if is_classes else 20)
    names = [f"class {c}" for c in range(count)] if is_classes else []
    targets = targets if is_classes else targets.astype(np.float64)
    likelihood = likelihoods.from_data(name, targets, names, **settings)
    params = likelihood.init(jax.random.key(0))
    arrays = [likelihood.predict(params, one) for one in outputs]
    stacked = {key: np.stack([np.asarray(one[key]) for one in arrays]) for key in arrays[0]}
    return likelihood.predictive(stacked)


def draw_labels(rng: np.random.Generator, probs: Arrays) -> Arrays:
    """Labels [N] of probabilities [N, C]."""
    below = np.cumsum(probs, axis=-1) < rng.random((len(probs), 1))
    return np.minimum(below.sum(axis=-1), probs.shape[1] - 1)


def group_labels(size: int, rng: np.random.Generator) -> Arrays:
    """Labels [N] of groups of 1 to 29 rows."""
    labels = np.repeat(np.arange(size), rng.integers(1, 30, size))
    return labels[:size]


def classes(
    num_classes: int, signal: float, *, has_groups: bool = False, size: int = 60_000
) -> World:
    """Two ensembles of four networks that see noisy logits; labels follow the clean ones."""
    rng = np.random.default_rng(0)
    groups = group_labels(size, rng) if has_groups else None
    logits = signal * rng.normal(size=(size, num_classes))
    noise = rng.normal(size=(2, 4, size, num_classes))
    shift = 0.0 if groups is None else rng.normal(size=(2, 1, size, num_classes))[:, :, groups]
    ours, theirs = (
        predictive("categorical", logits + scale * one)
        for scale, one in zip((0.8, 1.0), noise + shift, strict=True)
    )
    y = draw_labels(rng, np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))
    return World(ours, theirs, y, groups)


def numbers(
    name: str,
    noise: Callable[[np.random.Generator, int], Arrays],
    *,
    has_groups: bool = False,
    size: int = 60_000,
    **settings: Any,
) -> World:
    """Two ensembles of three networks.

    Args:
        name: Of a likelihood of numbers, counts or quantiles.
        noise: Function from a generator and N to errors [N] in standard deviations.
        has_groups: If True, rows of a group share an error.
        size: N.
        **settings: Of the likelihood.
    """
    rng = np.random.default_rng(0)
    groups = group_labels(size, rng) if has_groups else None
    width = {"gaussian": 2, "poisson": 1}.get(name, 5)
    clean = 0.5 * rng.normal(size=(size, width))
    if name == "quantiles":
        clean = np.sort(clean, axis=-1)
    members = 0.3 * rng.normal(size=(2, 3, size, width)) * np.array([1.0, 1.3])[:, None, None, None]
    ours, theirs = (predictive(name, clean + one, **settings) for one in members)
    if name == "poisson":
        return World(ours, theirs, rng.poisson(ours.mean).astype(np.float64), groups)
    if name == "quantiles":
        centre = ours.median
        spread = np.ptp(ours.median) / 6
    else:
        centre = ours.mean
        spread = ours.std
    errors = noise(rng, size)
    if groups is not None:
        errors = 0.9 * errors + 0.4 * rng.normal(size=size)[groups]
    return World(ours, theirs, centre + spread * errors, groups)
