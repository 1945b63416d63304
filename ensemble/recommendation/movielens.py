"""Who watched what: MovieLens as TFDS prepares it, or generated in the same form.

A movie that a user rated is a movie that the user watched; the rating itself is not used. Nothing
of MovieLens is in this repository: its licence forbids handing it on.
"""

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from ensemble.errors import UserError
from ensemble.source import Examples, Request
from ensemble.sources import prepare_dataset, tfds_records
from ensemble.sources.dataset import Dataset
from ensemble.storage.memory import check_memory

NOT_WATCHED, WATCHED, HELD_OUT = 0, 1, 2
"""What an entry of an observed matrix may be."""

RANK = 8
"""Of the planted factors of generated watches."""
GENRES = ("Action", "Comedy", "Crime", "Drama", "Horror", "Musical", "Romance", "Western")
_GENRE_SHARE = 0.6  # Of the variance of a movie's factors; the rest is its own.
_MOVIE_SCALE = 0.5  # Taste moves a log-odds by 0.5 sqrt(8) = 1.4, one standard deviation.
_LOG_ODDS = -5.5  # Of the least active user and a movie of ordinary popularity.
_USUAL_MOVIES = 600  # With fewer to choose from, a user watches a larger share of them.
_USERS_PER_BLOCK, _RATINGS_AT_ONCE = 256, 4096
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
    """

    name: str
    watched: np.ndarray
    user_ids: tuple[str, ...]
    movie_titles: tuple[str, ...]
    movie_genres: tuple[str, ...]
    truth: Planted | None = None


class HeldOut(NamedTuple):
    """Entries of a watch matrix that nothing was fitted to.

    Attributes:
        pairs: int32 `[P, 2]`, (user, movie), in the order of the users.
        targets: int32 `[P]`, 1 where the user watched the movie, else 0.
    """

    pairs: np.ndarray
    targets: np.ndarray


def read_movielens(name: str, data_dir: str | None = None) -> Watches:
    """Reads MovieLens as TFDS prepares it.

    Args:
        name: `movielens/1m-ratings` or `movielens/100k-ratings`; prepared first where it is not.
        data_dir: where TFDS sets lie; by default the variable TFDS_DATA_DIR, else
            `~/tensorflow_datasets`.

    Raises:
        UserError: if the data cannot be had or used.
    """
    directory = prepare_dataset.find_or_prepare(name, tfds_records.data_directory(data_dir))
    watches = _read_movielens(name, directory)
    check_watches(watches)
    return watches


def generate_watches(name: str, seed: int = 0) -> Watches:
    """Generates watches in the form of MovieLens.

    Args:
        name: such as `watches:1000x600`, of so many users and movies.
        seed: not negative; equal arguments give equal watches.

    Raises:
        UserError: if the numbers or the seed cannot be used.
    """
    watches = _generate_watches(name, *_parse_size(name, name.partition(":")[2]), seed)
    check_watches(watches)
    return watches


def check_watches(watches: Watches) -> None:
    """Raises UserError naming the first user who watched no movie, or every one."""
    num_movies = watches.watched.shape[1]
    counts = watches.watched.sum(axis=1, dtype=np.int64)
    odd = np.flatnonzero((counts == 0) | (counts == num_movies))
    if len(odd):
        user = watches.user_ids[odd[0]]
        raise UserError(
            f"{watches.name}: user {user!r} watched {counts[odd[0]]} of {num_movies} movies, but "
            f"every user needs one that is watched and one that is not; leave this user out"
        )


class _Ratings(NamedTuple):
    """The ratings of a data set, factorised: in order of appearance, as `pandas.factorize` does."""

    users: np.ndarray  # [R]
    movies: np.ndarray  # [R]
    user_ids: list[str]
    movie_titles: list[str]
    movie_genres: list[str]


def _read_movielens(name: str, directory: Path) -> Watches:
    """Reads a prepared set: the million ratings of `1m-ratings` in some ten seconds.

    Args:
        name: of the data set, for messages.
        directory: `DATA_DIR/movielens/CONFIG/VERSION`, as from `tfds_records.find_prepared`.

    Raises:
        UserError: if a file is damaged, or a user rated a movie twice.
    """
    ratings = _read_ratings(directory)
    shape = len(ratings.user_ids), len(ratings.movie_titles)
    watched = np.zeros(shape, np.uint8)
    watched[ratings.users, ratings.movies] = 1
    if np.count_nonzero(watched) < len(ratings.users):
        entries, counts = np.unique(
            np.ravel_multi_index((ratings.users, ratings.movies), shape), return_counts=True
        )
        entry = counts.argmax()
        user, movie = np.unravel_index(entries[entry], shape)
        raise UserError(
            f"{name}: user {ratings.user_ids[user]!r} has {counts[entry]} ratings of "
            f"{ratings.movie_titles[movie]!r}, but a user rates a movie once; remove the "
            f"duplicates from {directory}, or delete it and prepare the set anew"
        )
    labels = tuple(ratings.user_ids), tuple(ratings.movie_titles), tuple(ratings.movie_genres)
    return Watches(name, watched, *labels)


def _read_ratings(directory: Path) -> _Ratings:
    """All ratings of the split `train`, which is the only one."""
    prepared = tfds_records.PreparedSet(directory)
    try:
        genre_names = dict(enumerate(prepared.features["movie_genres"].feature.names))
    except (KeyError, AttributeError) as error:
        raise tfds_records.broken(directory, "features.json has no genres of movies") from error
    if not (directory / "movie_genres.labels.txt").is_file():  # TFDS takes numbers for names.
        raise tfds_records.broken(directory, "movie_genres.labels.txt is missing")
    records = prepared.records("train")
    user_index: dict[str, int] = {}
    movie_index: dict[bytes, int] = {}
    users: list[int] = []
    movies: list[int] = []
    titles: list[str] = []
    genres: list[str] = []
    for start in range(0, len(records), _RATINGS_AT_ONCE):
        rows = range(start, min(start + _RATINGS_AT_ONCE, len(records)))
        for row, record in zip(rows, records.read(rows), strict=True):
            try:
                feature = records.parse(record).features.feature
                user = feature["user_id"].bytes_list.value[0].decode()
                movie = feature["movie_id"].bytes_list.value[0]
                users.append(user_index.setdefault(user, len(user_index)))
                movies.append(movie_index.setdefault(movie, len(movie_index)))
                if movies[-1] == len(titles):
                    titles.append(feature["movie_title"].bytes_list.value[0].decode())
                    genres.append(genre_names[feature["movie_genres"].int64_list.value[0]])
            except (LookupError, UnicodeDecodeError, DecodeError) as error:
                what = f"{records.place(row)} is a rating that cannot be decoded"
                raise tfds_records.broken(directory, what) from error
    return _Ratings(np.array(users), np.array(movies), [*user_index], titles, genres)


def _parse_size(name: str, size: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,12})x(\d{1,12})", size, re.ASCII)
    num_users, num_movies = map(int, match.groups()) if match else (0, 0)
    if num_users < 1 or num_movies < 2:
        raise UserError(
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
        UserError: if the seed is negative, or memory cannot hold the matrix.
    """
    _check_seed(seed)
    size = 3 * num_users * num_movies  # Watched, observed, and as the devices have it.
    check_memory(size, f"dataset={name!r}", "its numbers")
    watched = np.empty((num_users, num_movies), np.uint8)
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


def hold_out(watches: Watches, seed: int, share: float = 0.1) -> tuple[np.ndarray, HeldOut]:
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

    Returns:
        The observed matrix, uint8 `[N, M]`: 0, 1, or 2 where the entry is held out, and is neither
        known as watched nor as unwatched; and the held-out pairs.

    Raises:
        UserError: if the seed or the share is out of range, or no user has enough to hold out.
    """
    _check_seed(seed)
    if not 0 < share < 1:
        raise UserError(f"share={share} must lie between 0 and 1; use 0.1")
    observed = watches.watched.copy()
    pairs, labels = [], []
    for user, user_id in enumerate(watches.user_ids):
        sides = [np.flatnonzero(watches.watched[user] == label) for label in (1, 0)]
        sizes = _held_out_sizes(len(sides[0]), len(sides[1]), share)
        # The id is hashed, for a place in the data would depend on other users.
        key = hashlib.blake2b(user_id.encode(), digest_size=8).digest()
        rng = np.random.default_rng([_HOLD_OUT_STREAM, seed, int.from_bytes(key)])
        chosen = [
            np.sort(rng.choice(side, size, replace=False))
            for side, size in zip(sides, sizes, strict=True)
        ]
        movies = np.concatenate(chosen)
        observed[user, movies] = HELD_OUT
        pairs.append(np.stack([np.full_like(movies, user), movies], axis=1))
        labels.append(np.repeat([1, 0], sizes))
    held_out = HeldOut(_int32(pairs), _int32(labels))
    if not len(held_out.targets):
        raise UserError(
            f"{watches.name} has no user with two watched and two unwatched movies, which is what "
            f"holding out takes; use more movies"
        )
    return observed, held_out


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
        raise UserError(f"seed={seed} must not be negative; use any whole number from 0")


@dataclasses.dataclass(frozen=True, eq=False)
class WatchDataset(Dataset):
    """Pairs of a user and a movie, of class 1 if the user watched the movie.

    The split `train` has those that were watched, all others are known not to have been; `test` has
    those that are held out.

    Attributes:
        watches: the users, the movies, and who has watched what.
        observed: [N, M] uint8, 1 where user i has watched movie j, 2 where that is held out.
    """

    watches: Watches
    observed: np.ndarray


def load_movielens(name: str, request: Request) -> WatchDataset:
    """Reads watches of MovieLens, and holds a tenth of each user's out."""
    return _held_out(read_movielens(name, request.data_dir), request.seed)


def load_generated(name: str, request: Request) -> WatchDataset:
    """Generates watches, and holds a tenth of each user's out."""
    return _held_out(generate_watches(name, request.seed), request.seed)


def _held_out(watches: Watches, seed: int) -> WatchDataset:
    observed, held_out = hold_out(watches, seed)
    pairs = np.argwhere(observed == 1).astype(np.int32)
    train = Examples(pairs, np.ones(len(pairs), np.int32))
    return WatchDataset(
        name=watches.name,
        splits={"train": train, "test": Examples(held_out.pairs, held_out.targets)},
        class_names=("not watched", "watched"),
        shift=np.zeros((), np.float32),
        scale=np.ones((), np.float32),
        watches=watches,
        observed=observed,
    )
