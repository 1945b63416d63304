"""The source of interactions: who watched what, or rated what how, and what is held out.

Interactions come from files, data frames and MovieLens, which is read as TFDS prepares it. Nothing
of it is in this repository: its licence forbids that. Watches can be generated, too, in the form of
MovieLens and with its words: movies are items.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas import DataFrame

from ensemble.config.builtin import MEANINGS
from ensemble.data.own_arrays import local_path, reading
from ensemble.data.source import Examples, Request, Source
from ensemble.data.tables import is_table
from ensemble.data.tfds_sets import open_set
from ensemble.errors import InputError, quoted, shown
from ensemble.storage.memory import check_memory

FRAME = "arrays"
"""Name of data that a program hands over."""
RATINGS = "gaussian_homoscedastic"
"""`config.likelihood` of ratings; another learns who has watched what."""
PAIR = ["user", "item"]
_SHARE = 0.1  # Of the interactions is held out.
_WATCH_STREAM, _AGAIN_STREAM, _HOLD_OUT_STREAM = 3, 4, 5  # 1 and 2 are those of batches.py.
_USUAL = {
    "userid": "user",
    "itemid": "item",
    "movie": "item",
    "movieid": "item",
    "userrating": "rating",
    "timestamp": "time",
    "movietitle": "title",
}
"""Meanings of usual names of columns, in lower case and without underscores."""

_MOVIELENS = {
    "user_id": "bytes_list",
    "movie_id": "bytes_list",
    "movie_title": "bytes_list",
    "user_rating": "float_list",
    "timestamp": "int64_list",
}
"""Columns of MovieLens, and how TFDS has written them."""

RANK = 8
"""Rank of the planted factors of generated watches."""
NUM_GENRES = 8
_GENRE_SHARE = 0.6  # Of the variance of a movie's factors; the rest is its own.
_MOVIE_SCALE = 0.5  # Taste moves a log-odds by 0.5 sqrt(8) = 1.4, one standard deviation.
_LOG_ODDS = -5.5  # Of the least active user and a movie of ordinary popularity.
_USUAL_MOVIES = 600  # With fewer to choose from, a user watches a larger share of them.


@dataclass(frozen=True, eq=False)
class InteractionDataset(Source):
    """Pairs of a user and an item in the splits `train` and `test`.

    Targets are ratings; or classes of watches: `train` has the watched pairs, `test` held-out ones
    of both classes, and all others are known not to be watched.

    Attributes:
        rows: Frame of all interactions, held-out ones too, in the order of the data: the columns
            `user` and `item`, numbers in order of appearance, and those of `rating`, `weight` and
            `time` that the data have, [R].
        user_ids: Ids in the data, [N].
        items: Frame of the ids `item`, and `title`, an id if there is none, [M].
        weights: How often each training rating counts, float32 [R].
    """

    rows: DataFrame
    user_ids: list[str]
    items: DataFrame
    weights: NDArray

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of users and of items."""
        return len(self.user_ids), len(self.items)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change when pairs, targets or weights do."""
        digest = blake2b(super().fingerprint.encode(), digest_size=8)
        digest.update(self.weights.tobytes())
        return digest.hexdigest()

    @cached_property
    def signs(self) -> NDArray:
        """Watches [N, M] int8: 1 where user i has watched item j, -1 if not, 0 if held out."""
        signs = np.full(self.shape, -1, np.int8)
        signs[tuple(self.splits["train"].inputs.T)] = 1
        signs[tuple(self.splits["test"].inputs.T)] = 0
        return signs


# Reading.


def load_interactions(name: str, request: Request) -> InteractionDataset:
    """Reads `ratings:FILE` or MovieLens, or generates `watches:`, and holds a tenth out.

    Raises:
        InputError: The data are not there, or cannot be used.
    """
    if name.startswith("watches:"):
        return _split(*generate_watches(name, request.seed), name, request)
    place = local_path(name.removeprefix("ratings:"))
    with reading(name):
        if name.startswith("movielens/"):
            prepared = open_set(name, request.data_dir)
            rows = (
                [getattr(fields[key], kind).value[0] for key, kind in _MOVIELENS.items()]
                for fields in prepared.examples("train", range(prepared.sizes["train"]))
            )
            frame = DataFrame(rows, columns=[*_MOVIELENS])
            for text in ("user_id", "movie_id", "movie_title"):
                frame[text] = frame[text].str.decode("utf-8")
        elif place.suffix.lower() == ".parquet":
            frame = pd.read_parquet(place)
        else:
            with open(place, encoding="utf-8-sig") as file:
                mark = max(",;\t|", key=file.readline().count)
            # Ids stay as they are written.
            how: Any = {"dtype": str, "index_col": False, "skipinitialspace": True}
            frame = pd.read_csv(place, sep=mark, encoding="utf-8-sig", **how)
    return _of_frame(frame, name, request)


def given_interactions(data: Any) -> Any:
    """Takes data of a program: a data frame, or a mapping from columns to their values.

    Returns:
        An object with the method `source(request)`, as `ensemble.data.data_forms.Given` has it.

    Raises:
        InputError: They are in another form.
    """
    if not (is_table(data) or isinstance(data, Mapping)):
        raise InputError(
            f"data is a {type(data).__name__}, and config.model='matrix_factorisation' learns who "
            "watched or rated what: give a data frame with columns of users and items"
        )
    frame = data.to_pandas() if hasattr(data, "to_pandas") else DataFrame(data)
    return SimpleNamespace(source=lambda request: _of_frame(frame, FRAME, request))


def _of_frame(frame: DataFrame, name: str, request: Request) -> InteractionDataset:
    """Numbers the users and items of a frame with a row for each interaction, and splits them."""
    own = json.loads((request.own or {}).get("column_types") or "{}")
    given = quoted([*map(str, frame)], 12)
    names = [str(own.get(one, one)).lower().replace("_", "") for one in frame]
    frame = frame.set_axis([_USUAL.get(one, one) for one in names], axis=1)
    frame = frame.loc[:, frame.columns.isin(MEANINGS)].reset_index(drop=True)
    if frame.empty or frame.columns.has_duplicates or not {*PAIR} <= {*frame}:
        raise InputError(
            f"{name} has {len(frame):,} rows of the columns {given}, and needs a user and an item "
            "in each, and each meaning once: rename columns, or set config.column_types to such as "
            "'NAME=user, OTHER=item'"
        )
    rows = frame.drop(columns="title", errors="ignore")
    for one in rows.columns.difference(PAIR):
        values = pd.to_numeric(rows[one], errors="coerce").where(rows[one].notna())
        if one == "time" and values.isna().all():
            values = pd.to_datetime(rows[one], errors="coerce", utc=True, format="ISO8601")
        rows[one] = values.mask(values <= 0) if one == "weight" else values
    is_bad = (rows.isna() | rows.isin([np.inf, -np.inf])).to_numpy()
    if is_bad.any():
        row, column = np.argwhere(is_bad)[0]
        meaning = rows.columns[column]
        raise InputError(
            f"{name}: row {row + 1} has the {meaning} {shown(repr(frame[meaning][row])[:60])}; "
            "each row needs a user and an item, ratings are finite numbers, weights positive ones, "
            "and times numbers or dates such as 2024-12-31: correct or remove the row"
        )
    ids = {}
    for one in PAIR:
        # Whole numbers in a column of floats are whole numbers.
        rows[one], ids[one] = pd.factorize(rows[one].convert_dtypes().astype(str))
    items = frame.reindex(columns=["title"]).astype(object).groupby(rows["item"]).first()
    items.insert(0, "item", ids["item"])
    items["title"] = items["title"].fillna(items["item"]).astype(str)
    return _split(rows, ids["user"].tolist(), items, name, request)


def generate_watches(name: str, seed: int) -> tuple[DataFrame, list[str], DataFrame]:
    """Generates watches from planted factors: few movies are popular, few users watch very much.

    Every genre has a place among the factors, and its movies lie around it. A user's row that came
    out without a watched or without an unwatched movie is drawn again.

    Args:
        name: Such as `watches:1000x600`, with the numbers of users and of movies.
        seed: Equal arguments give equal watches.

    Returns:
        `rows`, `user_ids` and `items`, as of `InteractionDataset`.

    Raises:
        InputError: The numbers cannot be used, or memory cannot hold so many pairs.
    """
    match = re.fullmatch(r"watches:([1-9]\d{0,11})x([2-9]|[1-9]\d{1,11})", name, re.ASCII)
    if match is None:
        raise InputError(
            f"dataset={name!r} must give the numbers of users, from 1, and of movies, from 2; "
            f"write watches:1000x600"
        )
    num_users, num_movies = map(int, match.groups())
    _check_matrix(name, num_users, num_movies)
    rng = np.random.default_rng([_WATCH_STREAM, seed])
    genres = rng.integers(NUM_GENRES, size=num_movies)
    places = rng.normal(size=(NUM_GENRES, RANK))
    own = rng.normal(size=(num_movies, RANK))
    movies = np.sqrt(_GENRE_SHARE) * places[genres] + np.sqrt(1 - _GENRE_SHARE) * own
    # Gumbel's right tail is popularity; the exponential bounds activity below, as MovieLens does.
    popularity = _LOG_ODDS + rng.gumbel(scale=0.8, size=num_movies)
    popularity += max(0.0, np.log(_USUAL_MOVIES / num_movies))
    activity = rng.exponential(0.8, num_users)
    planted = rng.normal(size=(num_users, RANK)), _MOVIE_SCALE * movies, activity, popularity
    users, items, u, v = (one.astype(np.float32) for one in planted)
    p = 1 / (1 + np.exp(-(users @ items.T) - u[:, None] - v))
    watched = rng.random(p.shape, np.float32) < p
    for user in np.flatnonzero(watched.all(axis=1) | ~watched.any(axis=1)):
        again = np.random.default_rng([_AGAIN_STREAM, seed, int(user)])
        while watched[user].all() or not watched[user].any():
            watched[user] = again.random(num_movies, np.float32) < p[user]
    titles = [f"Movie {movie + 1}" for movie in range(num_movies)]
    return (
        DataFrame(np.argwhere(watched), columns=PAIR),
        [f"u{user + 1}" for user in range(num_users)],
        DataFrame({"item": titles, "title": titles}),
    )


def _check_matrix(name: str, num_users: int, num_items: int) -> None:
    """Refuses watches of more pairs of a user and an item than memory can hold.

    Raises:
        InputError: With the bytes that they would take.
    """
    check_memory(
        4 * num_users * num_items,
        f"dataset={name!r}, {num_users:,} users times {num_items:,} items,",
        "these numbers, or learn ratings, which need no such matrix",
    )


# Holding out.


def _split(
    rows: DataFrame, user_ids: list[str], items: DataFrame, name: str, request: Request
) -> InteractionDataset:
    """Holds out a tenth of each user's interactions, or the latest tenth.

    Unwatched items are held out at the rate of each user's watched ones: what is left, and what is
    held out, both have the odds of the whole row, so that a model of one is right for the other.
    What is drawn of a user depends on the user's own row and id, and the seed.

    Args:
        rows: As of `InteractionDataset`, like `user_ids` and `items`.
        user_ids: Ids of the users.
        items: Ids and titles of the items.
        name: Name of the data.
        request: Request; `own` is the configuration.

    Raises:
        InputError: A column is missing, a user rates an item twice, memory cannot hold the matrix
            of watches, or there is too little to hold out or to learn.
    """
    keys = request.own or {}
    by_time = keys.get("split_by") == "time"
    of_ratings = keys.get("likelihood") == RATINGS
    learned = rows
    for column in ["rating"] * of_ratings + ["time"] * by_time:
        if column not in rows:
            raise InputError(
                f"{name} has no column {column}, which config.likelihood={RATINGS!r} and "
                "config.split_by='time' need: name it so, or set others"
            )
    if not of_ratings:
        _check_matrix(name, len(user_ids), len(items))
        learned = rows.drop_duplicates(PAIR).sort_values(PAIR, ignore_index=True)
    elif len(repeats := rows[rows.duplicated(PAIR)]):
        user, item = repeats[PAIR].iloc[0]
        raise InputError(
            f"{name}: user {shown(repr(user_ids[user]))} rates {shown(repr(items['title'][item]))} "
            "twice; remove the duplicates, or join them to one with a weight"
        )
    pairs = learned[PAIR].to_numpy(np.int32)
    targets = np.ones(len(learned), np.int32)
    if of_ratings:
        targets = learned["rating"].to_numpy(np.float32)
    is_held = np.zeros(len(learned), bool)
    if by_time:
        times = learned["time"]
        latest = times.nlargest(max(1, round(_SHARE * len(times))))
        is_held = (times >= latest.min()).to_numpy()
    others = []
    for user, places in learned.groupby("user").indices.items():
        digest = blake2b(user_ids[user].encode(), digest_size=8).digest()
        rng = np.random.default_rng([_HOLD_OUT_STREAM, request.seed, int.from_bytes(digest)])
        if not by_time:
            is_held[rng.choice(places, _part(_SHARE, len(places)), replace=False)] = True
        if not of_ratings:
            number = is_held[places].sum()
            unwatched = np.delete(np.arange(len(items)), pairs[places, 1])
            size = _part(number / len(places), len(unwatched)) if number else 0
            chosen = np.sort(rng.choice(unwatched, size, replace=False))
            others.append(np.column_stack([np.full(size, user), chosen]))
    held = np.concatenate([pairs[is_held], *others]).astype(np.int32)
    values = np.pad(targets[is_held], (0, len(held) - is_held.sum()))
    # Watches are scored on pairs of both classes.
    if is_held.all() or len(np.unique(values)) < 2 - of_ratings:
        raise InputError(
            f"{name} has too few interactions or times to hold a tenth of them out; use more "
            "data, or another config.split_by"
        )
    order = slice(None) if of_ratings else np.argsort(held[:, 0], kind="stable")
    splits = {
        "train": Examples(pairs[~is_held], targets[~is_held]),
        "test": Examples(held[order], values[order]),
    }
    class_names = None if of_ratings else ("not watched", "watched")
    weights = np.asarray(learned.get("weight", np.ones(len(learned))), np.float32)[~is_held]
    return InteractionDataset(name, splits, class_names, rows, user_ids, items, weights)


def _part(share: float, number: int) -> int:
    """The size of a share of a number of things: at least 1, and leaves 1."""
    return max(0, min(max(1, round(share * number)), number - 1))
