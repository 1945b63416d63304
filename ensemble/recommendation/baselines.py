"""Models that a factorisation has to beat: popularity, and a bias for each user and item.

Each is returned as parameters of a factorisation without factors, so that it is scored as draws
are. Everything is computed on the host in float64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from ensemble.likelihoods.numbers import MIN_SCALE

Floats = NDArray[np.float64]

_USERS_PER_BLOCK = 64  # Tiles that stay in cache.
_MAX_SWEEPS = 200
_TOLERANCE = 1e-8  # The largest step of a bias at the end.
_MAX_STEP = 2.0  # Newton's method overshoots far from the maximum.


def watch_baselines(signs: NDArray) -> dict[str, dict[str, Any]]:
    """Fits logit p_ij = u_i + v_j to watches [N, M], the signs of `InteractionDataset`.

    Returns:
        `biases`, the Rasch model (Rasch 1960) with priors N(0, 1) on u and v; and `popularity`,
        which recommends to everybody what most have watched: the probability of an item is
        (watched + 1) / (known + 2), by Laplace's rule of succession, never 0, nor 1.
    """
    counts = [np.maximum(signs, 0).sum(axis=axis, dtype=np.float64) for axis in (1, 0)]
    popularity = logit((counts[1] + 1) / (abs(signs).sum(axis=0, dtype=np.float64) + 2))

    def slopes(axis: int, biases: list[Floats]) -> tuple[Floats, Floats]:
        parts = []
        for start in range(0, len(signs), _USERS_PER_BLOCK):
            users = slice(start, start + _USERS_PER_BLOCK)
            # exp of a sum is a product: no exp for every entry.
            p = 1 / (1 + np.exp(-biases[0][users, None]) * np.exp(-biases[1]))
            counted = abs(signs[users]) * p
            parts.append([counted.sum(axis=1 - axis), (counted * (1 - p)).sum(axis=1 - axis)])
        sums, curvature = np.concatenate(parts, axis=1) if axis == 0 else np.sum(parts, axis=0)
        return counts[axis] - sums, curvature

    start = [np.zeros(len(signs)), popularity]
    return {"biases": _params(*_maximise(slopes, start)), "popularity": _params(*start)}


def rating_baselines(
    pairs: NDArray, values: Floats, weights: Floats, shape: tuple[int, int]
) -> dict[str, dict[str, Any]]:
    """Fits r_ij ~ N(u_i + v_j, sd^2) to standardised ratings.

    Args:
        pairs: Numbers of a user and an item, [R, 2].
        values: Ratings [R].
        weights: How often each counts, [R].
        shape: Numbers of users and of items.

    Returns:
        `biases`, with priors N(0, 1) on u and v; and `popularity`, which rates as everybody does:
        an item by the mean of its ratings and of one that is average.
    """

    def count(axis: int, values: Floats) -> Floats:
        return np.bincount(pairs[:, axis], weights * values, shape[axis])

    def errors(biases: list[Floats]) -> tuple[Floats, float]:
        """What the biases leave, and its standard deviation."""
        left = values - biases[0][pairs[:, 0]] - biases[1][pairs[:, 1]]
        return left, max(np.average(left**2, weights=weights) ** 0.5, 2 * MIN_SCALE)

    def slopes(axis: int, biases: list[Floats]) -> tuple[Floats, Floats]:
        left, sd = errors(biases)
        return count(axis, left / sd**2), count(axis, np.full_like(left, 1 / sd**2))

    def with_noise(biases: list[Floats]) -> dict[str, Any]:
        sd = errors(biases)[1]
        raw = np.log(np.expm1(sd - MIN_SCALE)) - np.log(np.expm1(1 - MIN_SCALE))
        return {**_params(*biases), "likelihood": {"raw_scale": raw}}

    start = [np.zeros(shape[0]), count(1, values) / (count(1, np.ones_like(values)) + 1)]
    return {"biases": with_noise(_maximise(slopes, start)), "popularity": with_noise(start)}


def _params(user_bias: Floats, item_bias: Floats) -> dict[str, Any]:
    """Parameters of a factorisation without factors."""
    return {
        "user_embeddings": np.zeros((len(user_bias), 0)),
        "user_bias": user_bias,
        "movie_embeddings": np.zeros((len(item_bias), 0)),
        "movie_bias": item_bias,
    }


def _maximise(
    slopes: Callable[[int, list[Floats]], tuple[Floats, Floats]], start: list[Floats]
) -> list[Floats]:
    """Finds the biases of users [N] and items [M] at the mode, with priors N(0, 1).

    Both take Newton steps in turn. A constant moved from all of one to all of the other changes the
    likelihood nowhere, and so would come to rest slowly: it is found in closed form.

    Args:
        slopes: From 0 for users or 1 for items, and the biases, to the gradient of the log
            likelihood and its curvature.
        start: Biases to start from.
    """
    biases = [*start]
    for _ in range(_MAX_SWEEPS):
        before = np.concatenate(biases)
        for axis in (0, 1):
            gradient, curvature = slopes(axis, biases)
            step = (gradient - biases[axis]) / (curvature + 1)
            biases[axis] = biases[axis] + np.clip(step, -_MAX_STEP, _MAX_STEP)
        shift = (biases[1].sum() - biases[0].sum()) / len(before)
        biases = [biases[0] + shift, biases[1] - shift]
        if abs(np.concatenate(biases) - before).max() < _TOLERANCE:
            break
    return biases
