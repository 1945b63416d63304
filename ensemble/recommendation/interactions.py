"""Interactions: who watched what, or rated what how, of files, data frames and MovieLens.

MovieLens is read as TFDS prepares it. Nothing of it is in this repository: its licence forbids
that. Watches can be generated, too, in the form of MovieLens and with its words: movies are items.
"""

import json
import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from ensemble.config.builtin import MEANINGS
from ensemble.data.own_arrays import local_path, reading
from ensemble.data.source import Request
from ensemble.data.tfds_sets import open_set
from ensemble.errors import InputError, quoted, shown
from ensemble.storage.memory import check_memory

PAIR = ["user", "item"]
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
_WATCH_STREAM, _AGAIN_STREAM = 3, 4  # 1 and 2 are those of batches.py.


class Interactions(NamedTuple):
    """Pairs of a user and an item in the order of the data.

    Attributes:
        name: Name of the data set.
        rows: Frame of columns `user` and `item`, numbers in order of appearance, and those of
            `rating`, `weight` and `time` that the data have, [R].
        user_ids: Ids in the data, [N].
        items: Frame of the ids `item`, and `title`, an id if there is none, [M].
    """

    name: str
    rows: pd.DataFrame
    user_ids: list[str]
    items: pd.DataFrame

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of users and of items."""
        return len(self.user_ids), len(self.items)


def read_frame(name: str, request: Request) -> pd.DataFrame:
    """Reads `ratings:FILE`, or MovieLens as TFDS prepares it, such as `movielens/1m-ratings`.

    Raises:
        InputError: The data are not there, or cannot be read.
    """
    place = local_path(name.removeprefix("ratings:"))
    with reading(name):
        if name.startswith("movielens/"):
            return _movielens(name, request)
        if place.suffix.lower() == ".parquet":
            return pd.read_parquet(place)
        with open(place, encoding="utf-8-sig") as file:
            mark = max(",;\t|", key=file.readline().count)
        # Ids stay as they are written.
        return pd.read_csv(
            place, sep=mark, dtype=str, encoding="utf-8-sig", index_col=False, skipinitialspace=True
        )


def _movielens(name: str, request: Request) -> pd.DataFrame:
    """Ratings of the split `train`, which is the only one."""
    prepared = open_set(name, request.data_dir, request.prepares)
    rows = (
        [getattr(fields[name], kind).value[0] for name, kind in _MOVIELENS.items()]
        for fields in prepared.examples("train", range(prepared.sizes["train"]))
    )
    frame = pd.DataFrame(rows, columns=[*_MOVIELENS])
    for text in ("user_id", "movie_id", "movie_title"):
        frame[text] = frame[text].str.decode("utf-8")
    return frame


def of_frame(frame: pd.DataFrame, name: str, request: Request) -> Interactions:
    """Numbers the users and items of a frame with a row for each interaction.

    Raises:
        InputError: A column is missing, or a row cannot be used.
    """
    own = json.loads((request.own or {}).get("column_types") or "{}")
    names = [str(own.get(one, one)).lower().replace("_", "") for one in frame]
    meanings = [_USUAL.get(one, one) for one in names]
    columns = [one for one in meanings if one in MEANINGS]
    if frame.empty or not {*PAIR} <= {*columns} or len({*columns}) < len(columns):
        raise InputError(
            f"{name} has {len(frame):,} rows of the columns {quoted([*map(str, frame)], 12)}, and "
            "needs a user and an item in each, and each meaning once: rename columns, or set "
            "config.column_types to such as 'NAME=user, OTHER=item'"
        )
    frame = frame.set_axis(meanings, axis=1)[columns].reset_index(drop=True)
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
    return Interactions(name, rows, ids["user"].tolist(), items)


def generate_watches(name: str, seed: int) -> Interactions:
    """Generates watches from planted factors: few movies are popular, few users watch very much.

    Every genre has a place among the factors, and its movies lie around it. A user's row that came
    out without a watched or without an unwatched movie is drawn again.

    Args:
        name: Such as `watches:1000x600`, with the numbers of users and of movies.
        seed: Equal arguments give equal watches.

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
    check_matrix(name, (num_users, num_movies))
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
    return Interactions(
        name,
        pd.DataFrame(np.argwhere(watched), columns=PAIR),
        [f"u{user + 1}" for user in range(num_users)],
        pd.DataFrame({"item": titles, "title": titles}),
    )


def check_matrix(name: str, shape: tuple[int, int]) -> None:
    """Refuses watches of more pairs of a user and an item than memory can hold.

    Raises:
        InputError: With the bytes that they would take.
    """
    check_memory(
        4 * shape[0] * shape[1],
        f"dataset={name!r}, {shape[0]:,} users times {shape[1]:,} items,",
        "these numbers, or learn ratings, which need no such matrix",
    )
