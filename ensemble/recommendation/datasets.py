"""Data sets of interactions: who watched what, or who rated what how, and what is held out.

An item that a user rated is an item that the user watched. `ratings` reads them from files and data
frames, and `movielens/1m-ratings` as TFDS prepares it. Watches can be generated too, in the form of
MovieLens, with its words: movies are the items.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ensemble.data.data_forms import Given
from ensemble.data.dataset import Dataset
from ensemble.data.source import Examples, Request
from ensemble.data.splitting import POOL
from ensemble.data.tables import is_table
from ensemble.errors import InputError
from ensemble.notes import note
from ensemble.recommendation import ratings
from ensemble.recommendation.ratings import Interactions, keys_of
from ensemble.storage.memory import check_memory

NOT_WATCHED, WATCHED, HELD_OUT = 0, 1, 2
"""What an entry of an observed matrix may be."""

RANK = 8
"""The rank of the planted factors of generated watches."""
GENRES = ("Action", "Comedy", "Crime", "Drama", "Horror", "Musical", "Romance", "Western")
_GENRE_SHARE = 0.6  # Of the variance of a movie's factors; the rest is its own.
_MOVIE_SCALE = 0.5  # Taste moves a log-odds by 0.5 sqrt(8) = 1.4, one standard deviation.
_LOG_ODDS = -5.5  # Of the least active user and a movie of ordinary popularity.
_USUAL_MOVIES = 600  # With fewer to choose from, a user watches a larger share of them.
_USERS_PER_BLOCK = 256
_WATCH_STREAM, _AGAIN_STREAM, _HOLD_OUT_STREAM = 3, 4, 5  # 1 and 2 are those of batches.py.


@dataclasses.dataclass(frozen=True, eq=False)
class Planted:
    """What generated watches were drawn from: logit p_ij = U_i . V_j + u_i + v_j.

    Attributes:
        user_factors: U, float32 `[N, D]`.
        movie_factors: V, float32 `[M, D]`.
        user_bias: u, float32 `[N]`.
        movie_bias: v, float32 `[M]`.
    """

    user_factors: np.ndarray
    movie_factors: np.ndarray
    user_bias: np.ndarray
    movie_bias: np.ndarray

    def probabilities(self, users: slice | np.ndarray) -> np.ndarray:
        """Probabilities of watching, float32 `[B, M]`, of some users."""
        logits = self.user_factors[users] @ self.movie_factors.T
        return 1 / (1 + np.exp(-logits - self.user_bias[users, None] - self.movie_bias))


@dataclasses.dataclass(frozen=True, eq=False)
class Watches:
    """Who watched what. Users and movies are in the order in which they appear in the data.

    Attributes:
        name: of the data set.
        watched: uint8 `[N, M]`, 1 where user i watched movie j, else 0.
        user_ids: of the data, `[N]`.
        movie_titles: `[M]`; two movies can have the same.
        movie_genres: `[M]`, the first genre of each.
        truth: what generated watches were drawn from; None for real ones.
        movie_ids: of the data, `[M]`; empty where titles are all that there is.
    """

    name: str
    watched: np.ndarray
    user_ids: tuple[str, ...]
    movie_titles: tuple[str, ...]
    movie_genres: tuple[str, ...]
    truth: Planted | None = None
    movie_ids: tuple[str, ...] = ()


class HeldOut(NamedTuple):
    """Entries of a watch matrix that nothing was fitted to.

    Attributes:
        pairs: int32 `[P, 2]`, (user, movie), in the order of the users.
        targets: int32 `[P]`, 1 where the user watched the movie, else 0.
    """

    pairs: np.ndarray
    targets: np.ndarray


def generate_watches(name: str, seed: int = 0) -> Watches:
    """Generates watches in the form of MovieLens.

    Args:
        name: such as `watches:1000x600`, of so many users and movies.
        seed: not negative; equal arguments give equal watches.

    Raises:
        InputError: if the numbers or the seed cannot be used.
    """
    watches = _generate_watches(name, *_parse_size(name, name.partition(":")[2]), seed)
    check_watches(watches)
    return watches


def check_watches(watches: Watches) -> None:
    """Raises InputError naming the first user who watched no movie, or every one."""
    num_movies = watches.watched.shape[1]
    counts = watches.watched.sum(axis=1, dtype=np.int64)
    odd = np.flatnonzero((counts == 0) | (counts == num_movies))
    if len(odd):
        user = watches.user_ids[odd[0]]
        raise InputError(
            f"{watches.name}: user {user!r} watched {counts[odd[0]]} of {num_movies} items, but "
            f"every user needs one that is watched and one that is not; leave this user out"
        )


def _parse_size(name: str, size: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,12})x(\d{1,12})", size, re.ASCII)
    num_users, num_movies = map(int, match.groups()) if match else (0, 0)
    if num_users < 1 or num_movies < 2:
        raise InputError(
            f"dataset={name!r} must give the numbers of users, from 1, and of movies, from 2; "
            f"write watches:1000x600"
        )
    return num_users, num_movies


def _generate_watches(name: str, num_users: int, num_movies: int, seed: int) -> Watches:
    """Draws watches from planted factors: few movies are popular, few users watch very much.

    Every genre has a place among the factors, and its movies lie around it. A user's row that came
    out without a watched or without an unwatched movie is drawn again.

    Args:
        name: of the data set, for messages.
        num_users: N, positive.
        num_movies: M, at least 2.
        seed: not negative; equal arguments give equal watches.

    Raises:
        InputError: if the seed is negative, or memory cannot hold the matrix.
    """
    _check_seed(seed)
    watched = _new_matrix(name, num_users, num_movies, False, "these numbers")
    rng = np.random.default_rng([_WATCH_STREAM, seed])
    genres = rng.integers(len(GENRES), size=num_movies)
    truth = _plant(rng, num_users, genres)
    for start in range(0, num_users, _USERS_PER_BLOCK):
        users = slice(start, min(start + _USERS_PER_BLOCK, num_users))
        probabilities = truth.probabilities(users)
        drawn = rng.random(probabilities.shape, np.float32) < probabilities
        for row in np.flatnonzero(drawn.all(axis=1) | ~drawn.any(axis=1)):
            again = np.random.default_rng([_AGAIN_STREAM, seed, start + int(row)])
            while drawn[row].all() or not drawn[row].any():
                drawn[row] = again.random(num_movies, np.float32) < probabilities[row]
        watched[users] = drawn
    return Watches(
        name,
        watched,
        user_ids=tuple(f"u{user + 1}" for user in range(num_users)),
        movie_titles=tuple(f"Movie {movie + 1}" for movie in range(num_movies)),
        movie_genres=tuple(GENRES[genre] for genre in genres),
        truth=truth,
    )


def _new_matrix(
    name: str, num_users: int, num_movies: int, is_weighted: bool, remedy: str
) -> np.ndarray:
    """A matrix uint8 [N, M] for who has watched what, empty.

    Raises:
        InputError: memory cannot hold what is made of it.
    """
    of_devices = 4 if is_weighted else 1
    size = (2 + of_devices) * num_users * num_movies  # Watched, observed, and theirs.
    what = f"dataset={name!r}, {num_users:,} users times {num_movies:,} items,"
    check_memory(size, what, remedy)
    return np.empty((num_users, num_movies), np.uint8)


def _plant(rng: np.random.Generator, num_users: int, genres: np.ndarray) -> Planted:
    """Factors and biases of users and of movies of these genres `[M]`."""
    num_movies = len(genres)
    places = rng.normal(size=(len(GENRES), RANK))
    own = rng.normal(size=(num_movies, RANK))
    movie_factors = np.sqrt(_GENRE_SHARE) * places[genres] + np.sqrt(1 - _GENRE_SHARE) * own
    # Gumbel's right tail is popularity; the exponential bounds activity below, as MovieLens does.
    movie_bias = _LOG_ODDS + rng.gumbel(scale=0.8, size=num_movies)
    movie_bias += max(0.0, np.log(_USUAL_MOVIES / num_movies))
    user_bias = rng.exponential(0.8, num_users)
    arrays = rng.normal(size=(num_users, RANK)), _MOVIE_SCALE * movie_factors, user_bias, movie_bias
    return Planted(*(array.astype(np.float32) for array in arrays))


def hold_out(
    watches: Watches,
    seed: int,
    share: float = 0.1,
    held: Sequence[np.ndarray] | None = None,
) -> tuple[np.ndarray, HeldOut]:
    """Holds out a share of what every user watched, and the same share of what they did not.

    Of n watched movies `share * n` are held out, rounded, but at least one and never all. Unwatched
    ones go at the rate that this makes of the user: what is left, and what is held out, both have
    the odds of the whole row, so that a model of the one is right for the other. Users with one
    watched or one unwatched movie keep everything. A user's pairs are a function of the user's own
    row and id, the seed and the share alone.

    Args:
        watches: of every user at least one movie, and not all.
        seed: not negative.
        share: of the watched movies, between 0 and 1.
        held: the watched movies of each user [N] that are held out, in order, where a share of
            them is not drawn; unwatched ones go at the same rate, which may be 1.

    Returns:
        The observed matrix, uint8 `[N, M]`: 0, 1, or 2 where the entry is held out, and is neither
        known as watched nor as unwatched; and the held-out pairs.

    Raises:
        InputError: if the seed or the share is out of range, or no user has enough to hold out.
    """
    _check_seed(seed)
    if not 0 < share < 1:
        raise InputError(f"share={share} must lie between 0 and 1; use 0.1")
    observed = watches.watched.copy()
    pairs, labels = [], []
    for user, user_id in enumerate(watches.user_ids):
        sides = [np.flatnonzero(watches.watched[user] == label) for label in (1, 0)]
        rng = _generator_of(user_id, seed)
        if held is None:
            sizes = _held_out_sizes(len(sides[0]), len(sides[1]), share)
            watched = _drawn(rng, sides[0], sizes[0])
        else:
            watched = held[user]
            sizes = len(watched), round(len(watched) / len(sides[0]) * len(sides[1]))
        movies = np.concatenate([watched, _drawn(rng, sides[1], sizes[1])])
        observed[user, movies] = HELD_OUT
        pairs.append(np.stack([np.full_like(movies, user), movies], axis=1))
        labels.append(np.repeat([1, 0], sizes))
    held_out = HeldOut(_int32(pairs), _int32(labels))
    if not len(held_out.targets):
        raise InputError(
            f"{watches.name} has no user with two watched and two unwatched items, which is what "
            f"holding out takes; use more items"
        )
    return observed, held_out


def _generator_of(user_id: str, seed: int) -> np.random.Generator:
    """What draws a user's pairs: the id is hashed, for a place would depend on other users."""
    return np.random.default_rng([_HOLD_OUT_STREAM, seed, _hash_of(user_id)])


def _hash_of(user_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(user_id.encode(), digest_size=8).digest())


def _drawn(rng: np.random.Generator, values: np.ndarray, size: int) -> np.ndarray:
    """So many of some values, in order."""
    return np.sort(rng.choice(values, size, replace=False))


def _held_out_sizes(num_watched: int, num_unwatched: int, share: float) -> tuple[int, int]:
    """How many watched and unwatched movies of one user are held out, at one rate."""
    if min(num_watched, num_unwatched) < 2:
        return 0, 0
    size = min(max(1, round(share * num_watched)), num_watched - 1)
    others = round(size / num_watched * num_unwatched)
    return size, min(max(1, others), num_unwatched - 1)


def _int32(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(np.int32)


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise InputError(f"seed={seed} must not be negative; use any whole number from 0")


class Names(NamedTuple):
    """What users and items are called.

    Attributes:
        user_ids: of the data, `[N]`.
        item_ids: of the data, `[M]`.
        titles: `[M]`.
        genres: `[M]`, the first genre of each item, or nothing.
    """

    user_ids: Sequence[str]
    item_ids: Sequence[str]
    titles: Sequence[str]
    genres: Sequence[str]

    def with_item(self, item: str) -> "Names":
        """The same with one more item, of which nothing else is known."""
        ids, titles, genres = (*self.item_ids, item), (*self.titles, item), (*self.genres, "")
        return Names(self.user_ids, ids, titles, genres)


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedDataset(Dataset):
    """Pairs that may count more than once, or less.

    Attributes:
        weights: float32 [R] of the training pairs: how often each counts; None: once.
    """

    weights: np.ndarray | None

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change when pairs, targets or weights do."""
        usual = super().fingerprint
        if self.weights is None:
            return usual
        digest = hashlib.blake2b(usual.encode(), digest_size=8)
        digest.update(self.weights.tobytes())
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True, eq=False)
class WatchDataset(WeightedDataset):
    """Pairs of a user and a movie, of class 1 if the user watched the movie.

    The split `train` has those that were watched, all others are known not to have been; `test` has
    those that are held out.

    Attributes:
        watches: the users, the movies, and who has watched what.
        observed: [N, M] uint8, 1 where user i has watched movie j, 2 where that is held out.
    """

    watches: Watches
    observed: np.ndarray

    @property
    def names(self) -> Names:
        """What users and movies are called."""
        one = self.watches
        ids = one.movie_ids or one.movie_titles
        return Names(one.user_ids, ids, one.movie_titles, one.movie_genres)

    @property
    def counts(self) -> np.ndarray:
        """Watched movies [N] of each user, held-out ones too."""
        return self.watches.watched.sum(axis=1, dtype=np.int64)

    def seen(self, user: int) -> np.ndarray:
        """Whether a user has watched each movie, bool [M], held-out ones too."""
        return self.watches.watched[user] == WATCHED

    def is_known(self, axis: int, number: int) -> bool:
        """Whether anything is learned of a user, with axis 0, or of a movie, with 1."""
        if number >= self.observed.shape[axis]:
            return False
        return bool((self.observed.take(number, axis) != HELD_OUT).any())


@dataclasses.dataclass(frozen=True, eq=False)
class RatingDataset(WeightedDataset):
    """Pairs of a user and an item with the rating, of both splits `train` and `test`.

    Attributes:
        interactions: all of them.
    """

    interactions: Interactions

    @property
    def names(self) -> Names:
        """What users and items are called."""
        one = self.interactions
        return Names(one.user_ids, one.item_ids, one.titles, one.genres)

    @property
    def counts(self) -> np.ndarray:
        """Ratings [N] of each user, held-out ones too."""
        return np.bincount(self.interactions.users, minlength=len(self.interactions.user_ids))

    def seen(self, user: int) -> np.ndarray:
        """Whether a user has rated each item, bool [M], held-out ones too."""
        found = np.zeros(len(self.interactions.item_ids), bool)
        found[self.interactions.items[self.interactions.users == user]] = True
        return found

    def is_known(self, axis: int, number: int) -> bool:
        """Whether anything is learned of a user, with axis 0, or of an item, with 1."""
        return bool((self.splits["train"].inputs[:, axis] == number).any())


def load_ratings(name: str, request: Request) -> WatchDataset | RatingDataset:
    """Reads interactions, `ratings:FILE` or MovieLens by TFDS, and holds a tenth of them out."""
    return of_interactions(ratings.read_named(name, request), request)


def load_generated(name: str, request: Request) -> WatchDataset:
    """Generates watches, and holds a tenth of each user's out."""
    said = keys_of(request)
    if said.keys or said.of_ratings:
        keys = said.keys or ["config.likelihood='gaussian_homoscedastic'"]
        raise InputError(
            f"{' and '.join(keys)} {'is' if len(keys) == 1 else 'are'} for ratings:FILE, and "
            f"{name} has watches alone: leave {'it' if len(keys) == 1 else 'them'} out"
        )
    watches = generate_watches(name, request.seed)
    return _watch_dataset(watches, *hold_out(watches, request.seed))


def given_interactions(data: Any) -> Given:
    """What a program hands over: a data frame, or a mapping from columns to their values.

    Raises:
        InputError: it is in another form.
    """
    if not (is_table(data) or isinstance(data, Mapping)):
        raise InputError(
            f"data is a {type(data).__name__}, and config.model='matrix_factorisation' learns who "
            "watched or rated what: give a data frame with columns of users and items"
        )
    return _GivenInteractions({POOL: Examples(data, data)}, is_table=True)


class _GivenInteractions(Given):
    """Interactions in a data frame."""

    def source(self, request: Request) -> WatchDataset | RatingDataset:
        """Checks the data, and holds some out."""
        frame = ratings.of_data_frame(self.parts[POOL].inputs, keys_of(request))
        return of_interactions(frame, request)

    def defaults(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Suggests nothing: a factorisation has settings of its own."""
        return {}


def of_interactions(found: Interactions, request: Request) -> WatchDataset | RatingDataset:
    """Holds interactions out: a tenth of each user's, the latest tenth, or a tenth of the users.

    Args:
        found: the interactions.
        request: with what is to be learned, and how it is split.

    Raises:
        InputError: there is too little to hold out, or what is to be learned is not there.
    """
    _check_seed(request.seed)
    keys = keys_of(request)
    if keys.of_ratings:
        return _rating_dataset(found, request)
    if found.ratings is not None and not found.name.startswith(ratings.MOVIELENS):
        note(
            f"{found.name} has ratings, which are not used: who has watched what is learned. Set "
            "config.likelihood='gaussian_homoscedastic' to learn the ratings."
        )
    size = len(found.user_ids), len(found.item_ids)
    remedy = "them, or learn ratings, which need no such matrix"
    watched = _new_matrix(found.name, *size, found.weights is not None, remedy)
    watched[:] = NOT_WATCHED
    watched[found.users, found.items] = WATCHED
    watches = Watches(
        found.name,
        watched,
        found.user_ids,
        found.titles,
        found.genres,
        movie_ids=found.item_ids,
    )
    check_watches(watches)
    if keys.split_by == "random":
        return _watch_dataset(watches, *hold_out(watches, request.seed), found)
    is_held = held_out_rows(found, keys.split_by, request.seed)
    order = np.lexsort([found.items[is_held], found.users[is_held]])
    users, items = found.users[is_held][order], found.items[is_held][order]
    ends = np.searchsorted(users, np.arange(1, len(found.user_ids)))
    observed, held_out = hold_out(watches, request.seed, held=np.split(items, ends))
    # Nothing is known of whom all is held out; of an item, others are known not to watch it.
    is_new = [(observed == HELD_OUT).all(axis=axis) for axis in (1, 0)]
    _note_new(found.name, *((int(one.sum()), len(one)) for one in is_new))
    is_late = ~(observed == WATCHED).any(axis=0) & ~is_new[1]
    if is_late.any():
        note(
            f"{found.name}: nobody watched {is_late.sum():,} of {len(is_late):,} items before the "
            "watches of the test split. All others count as not having watched them, so that they "
            "are predicted as unpopular."
        )
    return _watch_dataset(watches, observed, held_out, found)


def _rating_dataset(found: Interactions, request: Request) -> RatingDataset:
    if found.ratings is None:
        raise InputError(
            f"{found.name} has no column rating: name it so, or set "
            "config.likelihood='categorical' to learn who has watched what"
        )
    is_held = held_out_rows(found, keys_of(request).split_by, request.seed)
    numbers = [
        (len(np.setdiff1d(values[is_held], values[~is_held])), len(np.unique(values)))
        for values in (found.users, found.items)
    ]
    _note_new(found.name, *numbers)
    pairs = np.stack([found.users, found.items], axis=1)
    splits = {
        split: Examples(pairs[rows], found.ratings[rows])
        for split, rows in (("train", ~is_held), ("test", is_held))
    }
    return RatingDataset(
        name=found.name,
        splits=splits,
        class_names=None,
        shift=np.zeros((), np.float32),
        scale=np.ones((), np.float32),
        interactions=found,
        weights=None if found.weights is None else found.weights[~is_held],
    )


def held_out_rows(found: Interactions, split: str, seed: int, share: float = 0.1) -> np.ndarray:
    """Says which interactions are held out, bool `[R]`.

    Args:
        found: all of them.
        split: `random`: a share of each user's, at least one and never all; `time`: the latest
            share, those of one time together; `user`: all of a share of the users, by their ids.
        seed: not negative.
        share: between 0 and 1.

    Raises:
        InputError: all would be held out, or none.
    """
    number = len(found.users)
    is_held = np.zeros(number, bool)
    if split == "time":
        if found.times is None:
            raise InputError(
                f"config.split_by='time' needs times, which {found.name} has not: "
                "name their column time, or set another split"
            )
        latest = np.sort(found.times)[number - max(1, round(share * number))]
        is_held = found.times >= latest
    elif split == "user":
        hashes = [(_hash_of(f"{seed} {one}"), k) for k, one in enumerate(found.user_ids)]
        size = max(1, round(share * len(hashes)))
        is_held = np.isin(found.users, [k for _, k in sorted(hashes)[:size]])
    else:
        order = np.argsort(found.users, kind="stable")
        ends = np.cumsum(np.bincount(found.users))[:-1]
        for user_id, rows in zip(found.user_ids, np.split(order, ends), strict=True):
            size = min(max(1, round(share * len(rows))), len(rows) - 1)
            is_held[_drawn(_generator_of(user_id, seed), rows, size)] = True
    if is_held.all() or not is_held.any():
        what = {"time": "times", "user": "users", "random": "ratings of one user"}[split]
        raise InputError(
            f"{found.name} has too few {what} for config.split_by={split!r}, which needs two; "
            "use more data, or another split"
        )
    return is_held


def _note_new(name: str, users: tuple[int, int], items: tuple[int, int]) -> None:
    """Notes how many users and items, of how many, are in the test split alone."""
    parts = [
        f"{count:,} of {total:,} {noun}"
        for noun, (count, total) in (("users", users), ("items", items))
        if count
    ]
    if parts:
        note(
            f"{name}: in the test split alone: {' and '.join(parts)}. They are scored from the "
            "prior."
        )


def _watch_dataset(
    watches: Watches,
    observed: np.ndarray,
    held_out: HeldOut,
    found: Interactions | None = None,
) -> WatchDataset:
    pairs = np.argwhere(observed == WATCHED).astype(np.int32)
    weights = None
    if found is not None and found.weights is not None:
        order = np.lexsort([found.items, found.users])  # That of the pairs.
        is_learned = observed[found.users, found.items] == WATCHED
        weights = found.weights[order][is_learned[order]]
    train = Examples(pairs, np.ones(len(pairs), np.int32))
    return WatchDataset(
        name=watches.name,
        splits={"train": train, "test": Examples(held_out.pairs, held_out.targets)},
        class_names=("not watched", "watched"),
        shift=np.zeros((), np.float32),
        scale=np.ones((), np.float32),
        weights=weights,
        watches=watches,
        observed=observed,
    )
