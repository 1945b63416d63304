"""What a matrix factorisation has to beat: popularity, and a bias for each user and movie.

Watch matrices are uint8 `[N, M]` for N users and M movies: 1 watched, 0 not, 2 held out. A watch
may count more than once, or less; what is not watched counts once. Ratings are pairs with
standardised values. Everything is computed on the host in float64, watches by blocks of users.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import logit

logger = logging.getLogger("ensemble")

Floats = NDArray[np.float64]

Excess: TypeAlias = scipy.sparse.csr_array | None
"""By how much the weights [N, M] of watched entries exceed 1; None: all entries count once."""

_USERS_PER_BLOCK = 64  # Tiles that stay in cache.
_MAX_SWEEPS = 200
_TOLERANCE = 1e-9  # Nats; the largest step of a bias at the end.
_SMALL_STEP = 1e-5  # Standard deviations of ratings, likewise.
_LEAST = 1e-6  # Variance of the noise of ratings.
_MAX_STEP = 2.0  # Nats; Newton's method overshoots far from the maximum.


def weights_of(excess: scipy.sparse.csr_array, users: slice) -> Floats:
    """How often each entry `[B, M]` of some users counts."""
    return np.asarray(1 + excess[users].toarray())


def fit_popularity(observed: NDArray, excess: Excess = None) -> Floats:
    """Recommends to everybody what most have watched.

    The probability of a movie is (watched + 1) / (known + 2), by Laplace's rule of succession, over
    the users for whom it is known whether they watched it: never 0, nor 1.

    Args:
        observed: uint8 `[N, M]`.
        excess: of the weights, by which watches are counted.

    Returns:
        The log-odds `[M]` of watching.
    """
    watched, known = np.zeros((2, observed.shape[1]), np.int64)
    for users in _blocks(observed):
        watched += np.count_nonzero(observed[users] == 1, axis=0)
        known += np.count_nonzero(observed[users] <= 1, axis=0)
    if excess is not None:
        watched, known = (counts + excess.sum(axis=0) for counts in (watched, known))
    return logit((watched + 1) / (known + 2))


def fit_biases(observed: NDArray, excess: Excess = None) -> tuple[Floats, Floats]:
    """Finds the MAP of logit p_ij = u_i + v_j with priors N(0, 1), over what is not held out.

    The Rasch model (Rasch 1960), whose log density is concave. Users and movies take Newton steps
    in turn. A constant moved from all u to all v changes the likelihood nowhere, and so would come
    to rest slowly: it is found in closed form.

    Args:
        observed: uint8 `[N, M]`.
        excess: of the weights, which multiply log likelihoods.

    Returns:
        u `[N]` and v `[M]`.
    """
    num_users, num_movies = observed.shape
    user_counts, movie_counts = np.zeros(num_users), np.zeros(num_movies)
    for users in _blocks(observed):
        user_counts[users] = np.count_nonzero(observed[users] == 1, axis=1)
        movie_counts += np.count_nonzero(observed[users] == 1, axis=0)
    if excess is not None:
        user_counts += excess.sum(axis=1)
        movie_counts += excess.sum(axis=0)
    user_bias, movie_bias = np.zeros(num_users), fit_popularity(observed, excess)
    for _ in range(_MAX_SWEEPS):
        user_step = np.empty(num_users)
        movie_sum, movie_squares = np.zeros(num_movies), np.zeros(num_movies)
        for users, p, counted in _watch_probabilities(observed, user_bias, movie_bias, excess):
            sums, squares = counted.sum(axis=1), np.einsum("ij,ij->i", counted, p)
            user_step[users] = _newton(user_counts[users], sums, squares, user_bias[users])
        user_bias += user_step
        for _, p, counted in _watch_probabilities(observed, user_bias, movie_bias, excess):
            movie_sum += counted.sum(axis=0)
            movie_squares += np.einsum("ij,ij->j", counted, p)
        movie_step = _newton(movie_counts, movie_sum, movie_squares, movie_bias)
        movie_bias += movie_step
        shift = (movie_bias.sum() - user_bias.sum()) / (num_users + num_movies)
        user_bias += shift
        movie_bias -= shift
        if max(abs(user_step).max(), abs(movie_step).max(), abs(shift)) < _TOLERANCE:
            return user_bias, movie_bias
    logger.warning("biases have not come to rest after %d sweeps", _MAX_SWEEPS)
    return user_bias, movie_bias


def _blocks(observed: NDArray) -> Iterator[slice]:
    for start in range(0, len(observed), _USERS_PER_BLOCK):
        yield slice(start, start + _USERS_PER_BLOCK)


def _watch_probabilities(
    observed: NDArray, user_bias: Floats, movie_bias: Floats, excess: Excess
) -> Iterator[tuple[slice, Floats, Floats]]:
    """Blocks of users with the probabilities `[B, M]` of what they may watch; 0 if held out.

    With them, the same times how often each entry counts.
    """
    # exp of a sum is a product: no exp for every entry.
    odds_against = np.exp(-movie_bias)
    for users in _blocks(observed):
        tile = np.exp(-user_bias[users, None]) * odds_against
        tile += 1.0
        np.divide(observed[users] <= 1, tile, out=tile)
        yield users, tile, tile if excess is None else tile * weights_of(excess, users)


def _newton(counts: NDArray, sums: Floats, squares: Floats, bias: Floats) -> Floats:
    """Newton's step of biases: gradient over curvature, not longer than `_MAX_STEP`.

    Args:
        counts: how many were watched.
        sums: of p.
        squares: sums of p^2.
        bias: where to step from.
    """
    step = (counts - sums - bias) / (sums - squares + 1.0)
    return np.clip(step, -_MAX_STEP, _MAX_STEP)


class RatingBiases(NamedTuple):
    """A model of standardised ratings: r_ij ~ N(u_i + v_j, sd^2).

    Attributes:
        user_bias: u `[N]`.
        item_bias: v `[M]`.
        sd: of the noise.
    """

    user_bias: Floats
    item_bias: Floats
    sd: float


def fit_item_means(
    pairs: NDArray, values: Floats, weights: Floats, num_users: int, num_items: int
) -> RatingBiases:
    """Rates an item as everybody does: the mean of its ratings and of one that is average.

    Args:
        pairs: `[R, 2]`, of a user and an item.
        values: standardised ratings `[R]`.
        weights: how often each counts `[R]`.
        num_users: N.
        num_items: M.
    """
    items = pairs[:, 1]
    sums = np.bincount(items, weights * values, num_items)
    item_bias = sums / (np.bincount(items, weights, num_items) + 1)
    variance = np.average((values - item_bias[items]) ** 2, weights=weights)
    return RatingBiases(np.zeros(num_users), item_bias, max(float(variance), _LEAST) ** 0.5)


def fit_rating_biases(
    pairs: NDArray, values: Floats, weights: Floats, num_users: int, num_items: int
) -> RatingBiases:
    """Finds the mode of u, v and the noise with priors N(0, 1) on u and v.

    Each is set to its maximum given the others, in turn; a constant moved from all u to all v, as
    of `fit_biases`, in closed form. The arguments are those of `fit_item_means`.
    """
    users, items = np.ascontiguousarray(pairs.T)
    user_weights = np.bincount(users, weights, num_users)
    item_weights = np.bincount(items, weights, num_items)
    user_bias, item_bias, sd = fit_item_means(pairs, values, weights, num_users, num_items)
    for _ in range(_MAX_SWEEPS):
        before = user_bias, item_bias
        residuals = weights * (values - item_bias[items])
        user_bias = np.bincount(users, residuals, num_users) / (user_weights + sd**2)
        residuals = weights * (values - user_bias[users])
        item_bias = np.bincount(items, residuals, num_items) / (item_weights + sd**2)
        shift = (item_bias.sum() - user_bias.sum()) / (num_users + num_items)
        user_bias, item_bias = user_bias + shift, item_bias - shift
        errors = values - user_bias[users] - item_bias[items]
        sd = max(float(np.average(errors**2, weights=weights)), _LEAST) ** 0.5
        change = max(abs(user_bias - before[0]).max(), abs(item_bias - before[1]).max())
        if change < _SMALL_STEP:
            return RatingBiases(user_bias, item_bias, sd)
    logger.warning("biases have not come to rest after %d sweeps", _MAX_SWEEPS)
    return RatingBiases(user_bias, item_bias, sd)
