"""Simple predictors that an ensemble should beat: a constant, linear regression, the last value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ensemble.data.source import Source, blocks, in_memory
from ensemble.likelihoods.classes import Classes

MAX_PRODUCTS = 1e10
"""Rows times the square of columns that linear regression may multiply."""

Normals = tuple[NDArray, NDArray] | None
"""Means [N, D] and deviations [D]; None if they are not known."""


def baselines(p: Any, source: Source, split: str) -> list[Any]:
    """Predicts a split by simple means.

    Args:
        p: predictive of the ensemble; baselines are of its kind where they can.
        source: of the run.
        split: to predict.

    Returns:
        Predictives by title for each target, the simplest first: a constant; of numbers, linear
        regression with normal noise, unless there are too many columns; of rows split by time, the
        value of the row before. None where one class alone was learned.
    """
    number = source.sizes[split]
    learned = source.targets("train")
    if p.kind == "classes":
        counts = np.bincount(learned, minlength=p.log_probs.shape[-1])
        if np.count_nonzero(counts) == 1:  # Watches are learned without what was not watched.
            return []
        shares = (counts + 1) / (counts + 1).sum()
        log_probs = np.broadcast_to(np.log(shares), (1, number, len(counts)))
        constant = Classes({"log_probs": log_probs}, class_names=p.class_names)
        return [{"the class frequencies": constant}]
    y = _columns(learned)
    found: Any = {"the training mean": (np.tile(y.mean(axis=0), (number, 1)), y.std(axis=0))}
    if len(y) * math.prod(source.input_shape) ** 2 <= MAX_PRODUCTS:
        found["linear regression"] = linear_regression(source, split)
    strata = source.strata(split)
    if strata is not None and strata.kind == "time":
        found["the last value"] = last_value(source, split)
    each: list[Any] = []
    for d, one in enumerate(p.targets):
        each.append({k: _normal(one, law[0][:, d], law[1][d]) for k, law in found.items() if law})
        if one.kind == "quantiles":
            quantiles = each[d]["the training mean"].arrays["quantile"]
            quantiles[:] = np.quantile(y[:, d], one.levels)
    return each


def _columns(targets: NDArray) -> NDArray:
    """Targets [N] or [N, D] as [N, D]."""
    return targets.reshape(len(targets), -1).astype(np.float64)


def _normal(p, mean: NDArray, deviation: float):
    from ensemble.likelihoods.numbers import Numbers  # Not of classes.
    from ensemble.likelihoods.quantiles import Quantiles

    if p.kind == "quantiles":
        at = mean[None, :, None] + deviation * ndtri(p.levels)
        return Quantiles({"quantile": at}, levels=p.levels, unit=p.unit)
    scale = np.full((1, len(mean)), deviation or 1.0)
    return Numbers({"loc": mean[None], "scale": scale}, unit=p.unit)


def linear_regression(source: Source, split: str) -> Normals:
    """Least squares with an intercept; the residuals' variance is without bias.

    Returns None of too few rows for the columns.
    """
    rows = _columns(in_memory(source, "train").inputs)
    centre = rows.mean(axis=0)
    scale = rows.std(axis=0)
    scale[scale == 0] = 1

    def design(inputs: NDArray) -> NDArray:
        return np.insert((_columns(inputs) - centre) / scale, 0, 1, axis=1)

    y = _columns(source.targets("train"))
    weights, _, rank, _ = np.linalg.lstsq(design(rows), y, rcond=None)
    means = np.concatenate([design(block.inputs) @ weights for block in blocks(source, split)])
    return _normals(means, y, y - design(rows) @ weights, len(y) - int(rank))


def last_value(source: Any, split: str) -> Normals:
    """The target of the row before in time, which may be of the same split: a one-step forecast.

    Returns None if rows share a time, or a row has none before it.
    """
    times = np.concatenate([source.strata(name).values for name in source.sizes])
    y = _columns(np.concatenate([source.targets(name) for name in source.sizes]))
    names = np.repeat([*source.sizes], [*source.sizes.values()])
    if len(np.unique(times)) < len(times):
        return None
    order = np.argsort(times)
    means = np.full_like(y, np.nan)
    means[order[1:]] = y[order[:-1]]
    is_learned = names[order] == "train"
    both = order[1:][is_learned[1:] & is_learned[:-1]]
    return _normals(means[names == split], y, (y - means)[both], len(both))


def _normals(means: NDArray, y: NDArray, misses: NDArray, freedom: int) -> Normals:
    """Means [N, D] with the deviation of misses [K, D] of targets; None if it is not known."""
    deviation = np.sqrt((misses**2).sum(axis=0) / max(freedom, 1))
    is_known = np.isfinite(means).all() and (deviation > 1e-9 * y.std(axis=0)).all()
    return (means, deviation) if freedom > 0 and is_known else None
