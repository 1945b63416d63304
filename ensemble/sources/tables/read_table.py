"""Makes a table into an ensemble's inputs: read_table.py model.bin.table.json new.csv x.npy"""

import csv
import datetime
import json
import re
import sys

import numpy as np

MISSING = frozenset(("", "?", "na", "n/a", "nan", "nat", "none", "null", "<na>"))
TRUTHS = {"true": 1.0, "yes": 1.0, "1": 1.0, "false": 0.0, "no": 0.0, "0": 0.0}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)  # noqa: UP017
ONE_DAY = datetime.timedelta(days=1)


def read_csv(path, as_is=False):
    """Reads the columns of a CSV file, texts [N] by the names in its first line, trimmed or not."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        mark = max(",;\t|", key=file.readline().count)
        file.seek(0)
        names, *rows = [row for row in csv.reader(file, delimiter=mark, strict=True) if row] or [[]]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"row {number} has {len(row)} values for {len(names)} columns")
        if mark == ";" and not as_is:  # Then a comma is a decimal point.
            row[:] = [re.sub(r"^([-+]?\d*),(\d+)$", r"\1.\2", text) for text in row]
    trim = str if as_is else str.strip
    return {name.strip(): [trim(row[i]) for row in rows] for i, name in enumerate(names)}


def days(text, form=""):
    """Days since 1970 of a date, in this form or that of ISO 8601; UTC unless it has a zone."""
    parse_date = datetime.datetime.strptime if form else datetime.datetime.fromisoformat
    when = parse_date(text, *[form] * bool(form))
    return ((when if when.tzinfo else when.replace(tzinfo=EPOCH.tzinfo)) - EPOCH) / ONE_DAY


PARSE = {"number": float, "boolean": lambda text: TRUTHS[text.lower()], "date": days}


def number(text):
    """The number that a text is; None of others."""
    try:
        return float(text)
    except ValueError:
        return None


def blank(values, missing, kind):
    """Values with gaps in place of those that `missing` names: texts, or numbers by their value."""
    numbers = {number(text) for text in missing} - {None}
    if isinstance(values, np.ndarray) and values.dtype.kind in "buif":
        return np.where(np.isin(values, [*numbers]), np.nan, values) if kind == "number" else values
    return ["" if text.lower() in missing or number(text) in numbers else text for text in values]


def parse(values, kind, name, form=""):
    """Numbers [N] float64 of texts, or of numbers, with NaN where a value is missing."""
    found = np.full(len(values), np.nan)
    if isinstance(values, np.ndarray) and values.dtype.kind in "buif":
        found[:], values = values, ()
    for i, text in enumerate(values, 1):
        try:
            found[i - 1] = days(text, form) if form else PARSE[kind](text)
        except (KeyError, ValueError, OverflowError) as e:
            if text.lower() not in MISSING:
                what = f"{text[:40]!r} in row {i} is no {kind}{f' as {form}' if form else ''}"
                raise ValueError(f"column {name!r}: {what}: correct it, or leave it empty") from e
    if np.isinf(found).any():
        raise ValueError(f"column {name!r} is infinite in row {np.isinf(found).argmax() + 1}")
    return found


def of_numbers(values, one, warnings):
    """Standardised numbers [N, 1 + ...], with the phases of dates and a flag of missing values."""
    found = parse(values, one["kind"], one["name"], one.get("form", ""))
    gaps = np.isnan(found)
    if gaps.any() and not one["flag"]:
        line = f"is missing in {gaps.sum()} of {len(gaps)} rows, and never was in training"
        warnings.append(f"column {one['name']!r} {line}: the median takes its place")
    found[gaps] = one["median"]
    parts = [(found - one["shift"]) / one["scale"]]
    for period in one["periods"]:
        parts += [np.sin(2 * np.pi * found / period), np.cos(2 * np.pi * found / period)]
    return np.stack(parts + [gaps] * one["flag"], axis=1)


def of_categories(values, one, warnings):
    """One-hot rows [N, C]: of the categories, and of all that are rare or unseen together."""
    texts = ["" if text.lower() in MISSING else text for text in values]
    place, rare = {text: k for k, text in enumerate(one["categories"])}, set(one["rare"])
    unseen = [text for text in texts if text not in place and text not in rare]
    if unseen:
        line = f"{len(unseen)} of {len(texts)} rows, such as {unseen[0][:40]!r}"
        warnings.append(f"column {one['name']!r} holds categories unseen in training in {line}")
    return np.equal.outer([place.get(t, len(place)) for t in texts], range(len(place) + bool(rare)))


@np.errstate(all="ignore")  # What overflows is refused.
def encode(columns, table):
    """Makes inputs [N, F] float32 of columns by name, and warnings of what is new to training."""
    learned = [one for one in table["columns"] if one["kind"] != "drop"]
    if absent := [repr(one["name"]) for one in learned if one["name"] not in columns]:
        raise ValueError(f"the table lacks the column{'s' * (len(absent) > 1)} {', '.join(absent)}")
    parts, warnings = [], []
    for one in learned:
        make = of_categories if one["kind"] == "category" else of_numbers
        values = columns[one["name"]]
        if "missing" in table:
            values = blank(values, table["missing"], one["kind"])
        parts.append(make(values, one, warnings))
        if not (np.abs(parts[-1]) < 3e38).all():
            raise ValueError(f"column {one['name']!r} holds numbers that are too large")
    return np.concatenate(parts, axis=1).astype(np.float32), warnings


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as content:
        inputs, warnings = encode(read_csv(sys.argv[2]), json.load(content))
    print("\n".join(warnings), file=sys.stderr, end="\n" * bool(warnings))
    np.save(sys.argv[3], inputs)
