"""Simple predictors that an ensemble should beat: a constant, linear regression, the last value."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ensemble.data.source import Source, blocks, in_memory
from ensemble.likelihoods.classes import Classes
from ensemble.likelihoods.predictive import Predictive

MAX_PRODUCTS = 1e10
"""Rows times the square of columns that linear regression may multiply after a training; an
evaluation takes ten times as long."""

Normals = tuple[NDArray, NDArray]
"""Means [D, N] and deviations [D]."""


def baselines(
    p: Any, source: Source, split: str, max_products: float = 10 * MAX_PRODUCTS
) -> list[dict[str, Predictive]]:
    """Predicts a split by simple means.

    Args:
        p: predictive of the ensemble; baselines are of its kind where they can.
        source: of the run.
        split: to predict.
        max_products: rows times the square of columns above which there is no linear regression.

    Returns:
        Predictives by title for each target, the simplest first: a constant; of numbers, linear
        regression with normal noise; of rows split by time, the value of the row before.
    """
    number = source.sizes[split]
    learned = source.targets("train")
    if p.kind == "classes":
        counts = np.bincount(learned, minlength=p.log_probs.shape[-1]) + 1.0
        log_probs = np.broadcast_to(np.log(counts / counts.sum()), (1, number, len(counts)))
        return [
            {"the class frequencies": Classes({"log_probs": log_probs}, class_names=p.class_names)}
        ]
    y = learned.reshape(len(learned), -1).astype(np.float64)
    found: list[dict[str, Predictive]] = []
    for one, column in zip(p.targets, y.T, strict=True):
        constant = _normal(one, np.full(number, column.mean()), float(column.std()) or 1.0)
        if one.kind == "quantiles":
            at = np.broadcast_to(np.quantile(column, one.levels), constant.arrays["quantile"].shape)
            constant = dataclasses.replace(constant, arrays={"quantile": at})
        found.append({"the training mean": constant})
    strata = source.strata(split)
    products = source.sizes["train"] * float(np.prod(source.input_shape)) ** 2
    for title, is_wanted, predict in (
        ("linear regression", products <= max_products, linear_regression),
        ("the last value", strata is not None and strata.kind == "time", last_value),
    ):
        if is_wanted and (normals := predict(source, split)):
            for baseline, one, mean, deviation in zip(found, p.targets, *normals, strict=True):
                baseline[title] = _normal(one, mean, float(deviation))
    return found


def _normal(p: Any, mean: NDArray, deviation: float) -> Predictive:
    from ensemble.likelihoods.numbers import Numbers  # Not of classes.
    from ensemble.likelihoods.quantiles import Quantiles

    if p.kind == "quantiles":
        at = mean[None, :, None] + deviation * ndtri(p.levels)
        return Quantiles({"quantile": at}, levels=p.levels, unit=p.unit)
    return Numbers({"loc": mean[None], "scale": np.full((1, len(mean)), deviation)}, unit=p.unit)


def linear_regression(source: Source, split: str) -> Normals | None:
    """Least squares with an intercept; the residuals' variance is without bias.

    Returns None of too few rows for the columns.
    """
    num_rows = source.sizes["train"]
    rows = in_memory(source, "train").inputs.reshape(num_rows, -1).astype(np.float64)
    centre = rows.mean(axis=0)
    scale = rows.std(axis=0)
    scale[scale == 0] = 1

    def design(inputs: NDArray) -> NDArray:
        standardised = (inputs.reshape(len(inputs), -1) - centre) / scale
        return np.insert(standardised, 0, 1, axis=1)

    y = source.targets("train").reshape(num_rows, -1).astype(np.float64)
    weights, _, rank, _ = np.linalg.lstsq(design(rows), y, rcond=None)
    means = np.concatenate([design(block.inputs) @ weights for block in blocks(source, split)])
    return _normals(means, y, y - design(rows) @ weights, num_rows - int(rank))


def last_value(source: Source, split: str) -> Normals | None:
    """The target of the row before in time, which may be of the same split: a one-step forecast.

    Returns None if rows share a time, or a row has none before it.
    """
    strata = [source.strata(name) for name in source.sizes]
    times = np.concatenate([one.values for one in strata if one is not None])
    y = np.concatenate([source.targets(name) for name in source.sizes]).astype(np.float64)
    y = y.reshape(len(y), -1)
    names = np.repeat([*source.sizes], [*source.sizes.values()])
    if len(np.unique(times)) < len(times):
        return None
    order = np.argsort(times)
    means = np.full_like(y, np.nan)
    means[order[1:]] = y[order[:-1]]
    is_learned = names[order] == "train"
    both = order[1:][is_learned[1:] & is_learned[:-1]]
    return _normals(means[names == split], y, (y - means)[both], len(both))


def _normals(means: NDArray, y: NDArray, misses: NDArray, freedom: int) -> Normals | None:
    """Means [N, D] with the deviation of misses [K, D] of targets; None if it is not known."""
    deviation = np.sqrt((misses**2).sum(axis=0) / max(freedom, 1))
    is_known = np.isfinite(means).all() and (deviation > 1e-9 * y.std(axis=0)).all()
    return (means.T, deviation) if freedom > 0 and is_known else None
