"""Models that a factorisation has to beat: popularity, and a bias for each user and item.

Each is returned as parameters of a factorisation without factors, so that it is scored as draws
are. Everything is computed on the host in float64, watches by blocks of users. Of watches,
`signs` [N, M] are those of `InteractionDataset`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from ensemble.likelihoods.numbers import MIN_SCALE

Floats = NDArray[np.float64]

_USERS_PER_BLOCK = 64  # Tiles that stay in cache.
_MAX_SWEEPS = 200
_TOLERANCE = 1e-9  # Nats; the largest step of a bias at the end.
_SMALL_STEP = 1e-5  # Standard deviations of ratings, likewise.
_MAX_STEP = 2.0  # Nats; Newton's method overshoots far from the maximum.


def as_params(user_bias: Floats, item_bias: Floats) -> dict[str, Any]:
    """Parameters of a factorisation without factors, of biases [N] and [M]."""
    return {
        "user_embeddings": np.zeros((len(user_bias), 0)),
        "user_bias": user_bias,
        "movie_embeddings": np.zeros((len(item_bias), 0)),
        "movie_bias": item_bias,
    }


def watch_baselines(signs: NDArray) -> dict[str, dict[str, Any]]:
    """Fits `biases` and `popularity`, which recommends to everybody what most have watched."""
    popularity = as_params(np.zeros(len(signs)), fit_popularity(signs))
    return {"biases": as_params(*fit_biases(signs)), "popularity": popularity}


def fit_popularity(signs: NDArray) -> Floats:
    """Log-odds [M] of watching an item.

    Its probability is (watched + 1) / (known + 2), by Laplace's rule of succession, over the users
    for whom it is known whether they watched it: never 0, nor 1.
    """
    watched = np.maximum(signs, 0).sum(axis=0, dtype=np.float64)
    known = abs(signs).sum(axis=0, dtype=np.float64)
    return logit((watched + 1) / (known + 2))


def fit_biases(signs: NDArray) -> tuple[Floats, Floats]:
    """Finds the MAP of logit p_ij = u_i + v_j with priors N(0, 1), over what is not held out.

    The Rasch model (Rasch 1960), whose log density is concave. Users and items take Newton steps
    in turn. A constant moved from all u to all v changes the likelihood nowhere, and so would come
    to rest slowly: it is found in closed form.

    Returns:
        u [N] and v [M].
    """
    user_counts, item_counts = (
        np.maximum(signs, 0).sum(axis=axis, dtype=np.float64) for axis in (1, 0)
    )
    user_bias, item_bias = np.zeros(len(signs)), fit_popularity(signs)
    user_step = np.zeros(len(signs))

    def moments(users: slice, axis: int) -> Floats:
        """Sums of p and p^2, weighted, over the pairs that count."""
        # exp of a sum is a product: no exp for every entry.
        p = 1 / (1 + np.exp(-user_bias[users, None]) * np.exp(-item_bias))
        counted = abs(signs[users]) * p
        return np.array([counted.sum(axis=axis), (counted * p).sum(axis=axis)])

    for _ in range(_MAX_SWEEPS):
        of_items = np.zeros((2, len(item_bias)))
        for start in range(0, len(signs), _USERS_PER_BLOCK):
            users = slice(start, start + _USERS_PER_BLOCK)
            user_step[users] = _newton(user_counts[users], moments(users, 1), user_bias[users])
            user_bias[users] += user_step[users]
            of_items += moments(users, 0)
        item_step = _newton(item_counts, of_items, item_bias)
        item_bias += item_step
        shift = (item_bias.sum() - user_bias.sum()) / sum(signs.shape)
        user_bias += shift
        item_bias -= shift
        if max(abs(user_step).max(), abs(item_step).max(), abs(shift)) < _TOLERANCE:
            break
    return user_bias, item_bias


def _newton(counts: Floats, moments: Floats, bias: Floats) -> Floats:
    """Newton's step of biases: gradient over curvature, not longer than `_MAX_STEP`."""
    sums, squares = moments
    return np.clip((counts - sums - bias) / (sums - squares + 1.0), -_MAX_STEP, _MAX_STEP)


def rating_baselines(
    pairs: NDArray, values: Floats, weights: Floats, shape: tuple[int, int]
) -> dict[str, dict[str, Any]]:
    """Fits r_ij ~ N(u_i + v_j, sd^2): `biases`, and `popularity`, which rates as everybody does.

    `popularity` has the mean of an item's ratings and of one that is average. `biases` are at the
    mode with priors N(0, 1) on u and v: each of u, v and sd is set to its maximum given the others,
    in turn; a constant moved from all u to all v, as of `fit_biases`, in closed form.

    Args:
        pairs: Numbers of a user and an item, [R, 2].
        values: Standardised ratings [R].
        weights: How often each counts, [R].
        shape: Numbers of users and of items.
    """

    def mean(axis: int, residuals: Floats, pull: float) -> Floats:
        """The mean for each user or item of its residuals and zeros of the weight `pull`."""
        index, size = pairs[:, axis], shape[axis]
        sums = np.bincount(index, weights * residuals, size)
        return sums / (np.bincount(index, weights, size) + pull)

    def deviation() -> float:
        errors = values - user_bias[pairs[:, 0]] - item_bias[pairs[:, 1]]
        return max(float(np.average(errors**2, weights=weights)) ** 0.5, 2 * MIN_SCALE)

    def found() -> dict[str, Any]:
        raw = np.log(np.expm1(sd - MIN_SCALE)) - np.log(np.expm1(1 - MIN_SCALE))
        return {**as_params(user_bias, item_bias), "likelihood": {"raw_scale": raw}}

    user_bias, item_bias = np.zeros(shape[0]), mean(1, values, 1.0)
    sd = deviation()
    popularity = found()
    for _ in range(_MAX_SWEEPS):
        before = np.concatenate([user_bias, item_bias])
        user_bias = mean(0, values - item_bias[pairs[:, 1]], sd**2)
        item_bias = mean(1, values - user_bias[pairs[:, 0]], sd**2)
        shift = (item_bias.sum() - user_bias.sum()) / sum(shape)
        user_bias, item_bias = user_bias + shift, item_bias - shift
        sd = deviation()
        if abs(np.concatenate([user_bias, item_bias]) - before).max() < _SMALL_STEP:
            break
    return {"biases": found(), "popularity": popularity}
