"""What the JSON of a table must hold that says what was made of its columns."""

import datetime
import re
from collections.abc import Mapping
from typing import Any

FORMAT = 1
"""Version of the JSON."""
FORMAT_OF_TEXTS = 2
"""Version of a table that says which texts are missing values, or how dates are written."""
KINDS = ("number", "boolean", "date", "category", "drop")
"""Kinds of columns; what is of the last is no input."""
PERIODS = {365.2425: "year", 7.0: "week", 1.0: "day"}
"""After which dates are alike, in days."""
MOST_CATEGORIES = 32
"""Inputs that a column of categories becomes, that of all rare ones among them."""
_LARGEST = 1e300
_NUMBERS = ("median", "shift", "scale")


def check_table(content: Any, shape: list[int]) -> None:
    """Refuses what does not make a run's inputs of a table.

    Args:
        content: that was read.
        shape: of an example.

    Raises:
        ValueError: it is damaged or forged.
    """
    if not isinstance(content, dict) or content.get("format") not in (FORMAT, FORMAT_OF_TEXTS):
        raise ValueError(f"dataset.table must be an object of format {FORMAT}")
    if not _are_texts(content.get("missing", [])):
        raise ValueError("dataset.table.missing must be texts")
    columns = content.get("columns")
    if not isinstance(content.get("target"), str) or not isinstance(columns, list):
        raise ValueError("dataset.table must have a target and columns")
    names = set()
    for one in columns:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise ValueError("dataset.table.columns must have names")
        if one.get("kind") not in KINDS or not _is_column(one, one["kind"]):
            raise ValueError(f"dataset.table says of {one['name']!r} what cannot be")
        names.add(one["name"])
    if len(names) < len(columns) or shape != [sum(map(num_features, columns))]:
        raise ValueError("dataset.table does not make the run's inputs")


def _is_column(one: Mapping[str, Any], kind: str) -> bool:
    if kind == "drop":
        return isinstance(one.get("why"), str)
    if kind == "category":
        are_texts = all(_are_texts(one.get(key)) for key in ("categories", "rare"))
        return are_texts and num_features(one) <= MOST_CATEGORIES
    if not all(_is_number(one.get(key)) for key in _NUMBERS) or one["scale"] <= 0:
        return False
    periods = one.get("periods")
    are_known = isinstance(periods, list) and all(_is_number(p) and p in PERIODS for p in periods)
    if "form" in one and not (kind == "date" and is_date_format(one["form"])):
        return False
    return are_known and type(one.get("flag")) is int and one["flag"] in (0, 1)


_LONGEST = 40  # Characters of a form of dates.
_SOME_DAY = datetime.datetime(2021, 3, 14)


def is_date_format(form: Any) -> bool:
    """Whether `datetime.strptime` reads a day of a year in this form."""
    if not isinstance(form, str) or len(form) > _LONGEST:
        return False
    if not re.search("%[YyGcxD]", form):  # Without a year, Python warns and takes 1900.
        return False
    try:
        found = datetime.datetime.strptime(_SOME_DAY.strftime(form), form)
    except (ValueError, re.error):  # A directive that comes twice is an error of its own.
        return False
    return found.date() == _SOME_DAY.date()


def num_features(one: Mapping[str, Any]) -> int:
    """Inputs that a column becomes."""
    if one["kind"] == "drop":
        return 0
    if one["kind"] == "category":
        return len(one["categories"]) + bool(one["rare"])
    return 1 + 2 * len(one["periods"]) + one["flag"]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(one, str) for one in values)
