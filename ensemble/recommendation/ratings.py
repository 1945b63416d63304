"""Who rated or watched what: interactions of files, of data frames, and of MovieLens by TFDS.

A file is a CSV or Parquet table, whose columns have usual names. Rows are read one
after another, so that no text of a row outlives it: a million ratings take some tens of megabytes.
Nothing of MovieLens is in this repository: its licence forbids handing it on.
"""

from __future__ import annotations

import array
import csv
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ensemble.data.own_arrays import local_path
from ensemble.data.source import Request
from ensemble.data.tables import read_table
from ensemble.data.tables.raw_columns import of_frame
from ensemble.data.tables.table_files import check_header, open_parquet, reading
from ensemble.data.tfds_sets import PreparedSet, broken, open_set
from ensemble.errors import InputError, in_one_line, quoted, shown
from ensemble.notes import note

PREFIX, MOVIELENS = "ratings:", "movielens/"
"""How names of such data begin; those of MovieLens are prepared by TFDS."""
FRAME = "arrays"
"""The name of what a program hands over."""

_USUAL: Mapping[str, tuple[str, ...]] = {
    "user": ("user", "userid"),
    "item": ("item", "itemid", "movie", "movieid"),
    "rating": ("rating", "userrating"),
    "weight": ("weight",),
    "time": ("time", "timestamp"),
    "title": ("title", "movietitle"),
    "genre": ("genre", "genres"),
}
"""Names of columns that are recognised, in lower case and without underscores, by their meaning."""
_ROWS_AT_ONCE = 4096


class RatingsKeys(NamedTuple):
    """What the configuration says of interactions, such as ratings.

    Attributes:
        split_by: what is held out: `random`, `time` or `user`.
        of_ratings: whether ratings are learned; else who has watched what.
    """

    split_by: str = "random"
    of_ratings: bool = False

    @property
    def keys(self) -> list[str]:
        """The keys of the configuration that are set."""
        usual = self._field_defaults
        return [
            f"config.{key}"
            for key, value in self._asdict().items()
            if key != "of_ratings" and value != usual[key]
        ]


NO_RATINGS = RatingsKeys()
"""Nothing is said of interactions."""


def keys_of(request: Request) -> RatingsKeys:
    """What is said of interactions where data are asked for."""
    return request.own or NO_RATINGS


class Row(NamedTuple):
    """An interaction as it is read; what a file does not say is None."""

    user: str
    item: str
    rating: Any = None
    weight: Any = None
    time: Any = None
    title: str | None = None
    genre: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Interactions:
    """Pairs of a user and an item, each at most once, in the order of the data.

    Attributes:
        name: of the data set.
        users: int32 `[R]`, numbers of users in the order in which they appear.
        items: int32 `[R]`, numbers of items, likewise.
        ratings: float32 `[R]`; None where there are none.
        weights: float32 `[R]`, positive; None where there are none.
        times: float64 `[R]`; None where there are none.
        user_ids: of the data, `[N]`.
        item_ids: of the data, `[M]`.
        titles: `[M]`; the ids where nobody says them.
        genres: `[M]`, the first genre of each item, or nothing.
    """

    name: str
    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray | None
    weights: np.ndarray | None
    times: np.ndarray | None
    user_ids: tuple[str, ...]
    item_ids: tuple[str, ...]
    titles: tuple[str, ...]
    genres: tuple[str, ...]


def read_named(name: str, request: Request) -> Interactions:
    """Reads `ratings:FILE`, or MovieLens as TFDS prepares it, such as `movielens/1m-ratings`.

    Args:
        name: of the data set.
        request: with what is said of interactions.

    Raises:
        InputError: the data cannot be had or used.
    """
    if name.startswith(MOVIELENS):
        prepared = open_set(name, request.data_dir, request.prepares)
        rows, place = _rows_of_set(prepared), prepared.directory
    else:
        place = local_path(name.removeprefix(PREFIX))
        if not place.is_file():
            raise InputError(f"{name}: there is no file {place.absolute()}; check the path")
        rows = _rows_of(place, name)
    return _collect(name, rows, keys_of(request), str(place))


def of_data_frame(frame: Any, keys: RatingsKeys) -> Interactions:
    """The interactions of a data frame, or of a mapping from names of columns to values.

    Raises:
        InputError: it cannot be used.
    """
    return _collect(FRAME, _rows_of_frames([frame], FRAME), keys, FRAME)


def _rows_of(place: Path, what: str) -> Iterator[Row]:
    """The rows of a file, by its form."""
    if place.suffix.lower() == ".parquet":
        return _rows_of_parquet(place, what)
    return _rows_of_table(_lines(place, what), what)


def _collect(name: str, rows: Iterator[Row], keys: RatingsKeys, place: str) -> Interactions:
    """Numbers users and items, and checks numbers, row by row.

    Raises:
        InputError: with the number of the row that cannot be used.
    """
    user_index: dict[str, int] = {}
    item_index: dict[str, int] = {}
    users, items = array.array("i"), array.array("i")
    numbers = {"rating": array.array("f"), "weight": array.array("f"), "time": array.array("d")}
    titles: list[str] = []
    genres: list[str] = []
    for i, row in enumerate(rows, 1):
        for kind, text in (("user", row.user), ("item", row.item)):
            if text.lower() in read_table.WORDS:
                raise InputError(f"{name}: row {i} has no {kind}; fill it in or remove the row")
        users.append(user_index.setdefault(row.user, len(user_index)))
        items.append(item_index.setdefault(row.item, len(item_index)))
        if items[-1] == len(titles):
            titles.append(row.item if row.title is None else row.title)
            genres.append(row.genre or "")
        for kind, values in numbers.items():
            value = getattr(row, kind)
            if value is not None:
                values.append(_number(value, kind, i, name))
    if not users:
        raise InputError(f"{name} has no rows; give at least one below its header")
    ratings, weights, times = (
        np.array(values) if len(values) else None for values in numbers.values()
    )
    found = Interactions(
        name,
        np.array(users),
        np.array(items),
        ratings,
        weights,
        times,
        tuple(user_index),
        tuple(item_index),
        tuple(titles),
        tuple(genres),
    )
    rates_once = keys.of_ratings or name.startswith(MOVIELENS)
    return _without_repeats(found, place, rates_once)


def _number(value: Any, kind: str, row: int, name: str) -> float:
    """A rating, a weight or a time; a time may be a date of ISO 8601."""
    try:
        # Python takes 1_0 as 10.
        number = math.nan if isinstance(value, str) and "_" in value else float(value)
    except (TypeError, ValueError):
        number = math.nan
        if kind == "time":
            try:
                number = 86_400 * read_table.days(str(value))
            except (ValueError, OverflowError):
                number = math.nan
    is_good = math.isfinite(number) and (kind != "weight" or number > 0)
    if kind != "time":  # The others are kept in float32.
        is_good = is_good and abs(number) < 1e15
    if not is_good:
        rule = {
            "rating": "a rating must be a finite number",
            "weight": "a weight must be a positive, finite number",
            "time": "a time must be a number or a date such as 2024-12-31",
        }[kind]
        raise InputError(
            f"{name}: row {row} has the {kind} {in_one_line(repr(value), 60)}, and {rule}; correct "
            "or remove the row"
        )
    return number


def _without_repeats(found: Interactions, place: str, rates_once: bool) -> Interactions:
    """Joins rows of one pair, whose weights add up, unless a user rates an item once.

    Raises:
        InputError: there are two ratings of an item by one user.
    """
    entries = found.users.astype(np.int64) * len(found.item_ids) + found.items
    _, kept, pairs, counts = np.unique(
        entries, return_index=True, return_inverse=True, return_counts=True
    )
    if len(kept) == len(entries):
        return found
    if not rates_once:
        note(
            f"{found.name}: {len(entries) - len(kept):,} of {len(entries):,} rows repeat a user "
            "and an item; a pair is learned once, with the sum of its rows' weights."
        )
        weights = np.bincount(pairs, found.weights).astype(np.float32)
        order = np.sort(kept)
        columns = ("users", "items", "ratings", "times")
        some = {name: getattr(found, name) for name in columns}
        some = {name: one if one is None else one[order] for name, one in some.items()}
        return dataclasses.replace(found, **some, weights=weights[np.argsort(kept)])
    entry = entries[kept[counts.argmax()]]
    user, item = divmod(int(entry), len(found.item_ids))
    count = counts.max()
    raise InputError(
        f"{found.name}: user {shown(repr(found.user_ids[user]))} has {count} ratings of "
        f"{shown(repr(found.titles[item]))}, but a user rates an item once; remove the duplicates "
        f"from {place}, or join them to one with a weight"
    )


# Rows of text.


def _lines(place: Path, what: str) -> Iterator[str]:
    """Lines of a text in UTF-8."""
    try:
        with open(place, newline="", encoding="utf-8-sig") as file:
            yield from file
    except UnicodeDecodeError:
        raise InputError(f"{what} is no text in UTF-8; save it in UTF-8") from None
    except OSError as error:
        raise InputError(f"{what} cannot be read: {error.strerror or error}") from None


def _table(lines: Iterator[str], what: str) -> tuple[list[str], Iterator[list[str]]]:
    """The names of columns in the first line of a CSV file, and its rows."""
    first = next(lines, "")
    if not first.strip():
        raise InputError(f"{what} is empty; its first line must have the names of columns")
    mark = max(",;\t|", key=first.count)
    names = [name.strip() for name in next(csv.reader([first], delimiter=mark))]
    check_header(names, what)

    def rows() -> Iterator[list[str]]:
        try:
            for i, row in enumerate(csv.reader(lines, delimiter=mark, strict=True), 1):
                if row and len(row) != len(names):
                    raise InputError(
                        f"{what}: row {i} has {len(row)} values for {len(names)} columns; correct "
                        "or remove it"
                    )
                if row:
                    yield [text.strip() for text in row]
        except csv.Error as error:
            raise InputError(f"{what}: {in_one_line(error)}; correct or remove it") from None

    return names, rows()


def _rows_of_table(lines: Iterator[str], what: str) -> Iterator[Row]:
    """Rows of a CSV file with a header."""
    names, rows = _table(lines, what)
    chosen = _columns(names, what)
    places = [(meaning, names.index(name)) for meaning, name in chosen.items()]
    for row in rows:
        values: dict[str, Any] = {meaning: row[k] for meaning, k in places}
        if "genre" in values:
            values["genre"] = values["genre"].split("|")[0]
        yield Row(**values)


def _columns(names: Sequence[str], what: str) -> dict[str, str]:
    """Which column has which meaning, by the usual names.

    Raises:
        InputError: there is no such column, or several may be meant.
    """
    found = {}
    for meaning, usual in _USUAL.items():
        able = [name for name in names if _plain(name) in usual]
        if len(able) > 1:
            raise InputError(f"{what} has {quoted(able)}; rename all but one")
        if not able and meaning in ("user", "item"):
            raise InputError(
                f"{what} has no column {meaning} or {meaning}_id, but {quoted(names, 12)}: rename "
                "the one that is meant"
            )
        if able:
            found[meaning] = able[0]
    return found


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


# Rows of data frames and of Parquet files.


def _rows_of_parquet(place: Path, what: str) -> Iterator[Row]:
    """Rows of a Parquet file, of which only the columns that are needed are read."""
    import pyarrow  # Only where Parquet files are read.

    content = open_parquet(place, what)
    chosen = [*_columns(content.schema_arrow.names, what).values()]

    def frames() -> Iterator[Any]:
        with reading(what):
            for batch in content.iter_batches(columns=chosen):
                yield pyarrow.Table.from_batches([batch])

    return _rows_of_frames(frames(), what)


def _rows_of_frames(frames: Any, what: str) -> Iterator[Row]:
    """Rows of data frames that have the same columns."""
    for frame in frames:
        columns = of_frame(frame, what)
        chosen = _columns([*columns], what)
        size = len(next(iter(columns.values())))
        ids = {meaning: _whole_numbers(frame, chosen[meaning]) for meaning in ("user", "item")}
        for start in range(0, size, _ROWS_AT_ONCE):
            part = slice(start, min(start + _ROWS_AT_ONCE, size))
            values: dict[str, Any] = {}
            for meaning, name in chosen.items():
                column = columns[name]
                if meaning in ("rating", "weight", "time"):
                    values[meaning] = column.values[part].tolist()
                    if meaning == "time" and column.kind == "date":
                        values[meaning] = [86_400 * days for days in values[meaning]]
                elif ids.get(meaning) is not None:
                    values[meaning] = [str(one) for one in ids[meaning][part].tolist()]
                else:
                    values[meaning] = column.rows(part).texts().tolist()
            if "genre" in values:
                values["genre"] = [one.split("|")[0] for one in values["genre"]]
            for row in zip(*values.values(), strict=True):
                yield Row(**dict(zip(values, row, strict=True)))


def _whole_numbers(frame: Any, name: str) -> Any:
    """A column of whole numbers as it is, for float64 may round long ids; None of others."""
    values = np.asarray(frame.column(name) if hasattr(frame, "column_names") else frame[name])
    return values if values.dtype.kind in "iu" else None


# MovieLens as TFDS prepares it.


def _rows_of_set(prepared: PreparedSet) -> Iterator[Row]:
    """Rows of the split `train`, which is the only one: a million in some ten seconds.

    Raises:
        InputError: a file is damaged.
    """
    directory = prepared.directory
    try:
        genre_names = dict(enumerate(prepared.features["movie_genres"].feature.names))
        rows = range(prepared.sizes["train"])
    except (KeyError, AttributeError) as error:
        raise broken(directory, f"it is no set of MovieLens ({in_one_line(error)})") from error
    for row, fields in zip(rows, prepared.examples("train", rows), strict=True):
        try:
            yield Row(
                fields["user_id"].bytes_list.value[0].decode(),
                fields["movie_id"].bytes_list.value[0].decode(),
                fields["user_rating"].float_list.value[0],
                time=fields["timestamp"].int64_list.value[0],
                title=fields["movie_title"].bytes_list.value[0].decode(),
                genre=genre_names[fields["movie_genres"].int64_list.value[0]],
            )
        except (LookupError, UnicodeDecodeError) as error:
            what = f"record {row} of train is a rating that cannot be decoded"
            raise broken(directory, what) from error
