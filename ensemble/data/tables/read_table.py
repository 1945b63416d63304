"""Makes a table into an ensemble's inputs: read_table.py model.bin.table.json new.csv x.npy

NumPy alone, for exports. Training and prediction encode by the same function, to the same bits.
"""

import collections
import csv
import datetime
import functools
import io
import json
import re
import statistics
import sys

import numpy as np

ERRORS = ("#n/a", "#div/0!", "#value!", "#num!", "#ref!")  # Of spreadsheets.
WORDS = frozenset(
    ("", "?", "-", "na", "n/a", "n.a.", "nan", "nat", "none", "null", "<na>", *ERRORS)
)
TRUTHS = {"true": 1.0, "yes": 1.0, "1": 1.0, "false": 0.0, "no": 0.0, "0": 0.0}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)  # noqa: UP017
ONE_DAY = datetime.timedelta(days=1)
DIGITS = frozenset("0123456789+-.eE")  # Of others `float` makes numbers too, such as of 1_000.
SIGNS = "$€£¥%"
SPACES = " \u00a0\u202f'\u2019"
WHOLE = 2.0**53  # From here on two whole numbers may be one in float64.
UNREADABLE = (ValueError, KeyError, OverflowError)  # Of `read`.
SAMPLE = 2**16  # Characters of a file by which its separator is found.


def decode(content):
    """Returns the text of a file's bytes, and its encoding: UTF-8, UTF-16 or Windows-1252."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16"), "utf-16"
    try:
        return content.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace"), "cp1252"


def dialect(text):
    """Returns the separator of a CSV file, the last line of its header, and the names in that.

    By the separator most lines have as many values as the header. Lines that hold a title, or
    `sep=;`, stand before the header.
    """
    found: list = []
    for mark in "\t;|,":
        reader = csv.reader(io.StringIO(text[:SAMPLE], newline=""), delimiter=mark)
        rows = [(reader.line_num, *row) for row in reader if row] or [(0,)]
        width = statistics.mode([*map(len, rows[1:] or rows)])
        while rows[1:] and width > 2 and rows[0][1] and not any(rows[0][2:]):
            rows.pop(0)
        score = sum(len(row) == width for row in rows) / len(rows) + (len(rows[0]) == width)
        found.append(((width > 2) * score, mark, *rows[0]))
    _, mark, line, *names = max(found, key=lambda one: one[0])
    return mark, line, [name.strip() for name in names]


def parse_csv(content):
    """Returns the columns, trimmed texts [N] by name, of a CSV file's bytes, and its encoding."""
    text, encoding = decode(content)
    mark, before, names = dialect(text)
    if not any(names):
        raise ValueError("it is empty; its first line must have the names of columns")
    if sum(is_read(name, "number") for name in names) > len(names) / 2:
        raise ValueError(f"it has no header: its first line holds {names[0]!r}; name the columns")
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise ValueError(f"it has two columns of the name {twice[0]!r} by the separator {mark!r}")
    rows = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    for row in reader:
        if reader.line_num > before and row:
            if len(row) != len(names):
                what = f"has {len(row)} values for {len(names)} columns"
                raise ValueError(f"line {reader.line_num} {what} by the separator {mark!r}")
            rows.append(row)
    while rows and not any(map(str.strip, rows[-1])):
        rows.pop()
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    pairs = zip(names, columns, strict=True)
    # A column without a name is as an index of pandas has it.
    return {name: [*map(str.strip, texts)] for name, texts in pairs if name}, encoding


def read_csv(path):
    """Reads the columns of a CSV file, trimmed texts [N] by the names in its header."""
    with open(path, "rb") as file:
        return parse_csv(file.read())[0]


@functools.cache
def grammar(mark, sign=""):
    """Returns the form of numbers with this decimal mark, and a table that makes Python's of it."""
    other = "," if mark == "." else "."
    unit = rf"[{SPACES}]?{re.escape(sign)}[{SPACES}]?"
    whole = rf"[1-9]\d{{0,2}}(?:([{other}{SPACES}])\d{{3}})(?:\1\d{{3}})*|\d*"
    number = rf"(?:{whole})(?:(?<=\d){re.escape(mark)}\d*|{re.escape(mark)}\d+)?(?:[eE][-+]?\d+)?"
    form = re.compile(rf"(?=.*\d)(?:{unit})?[-+]?(?:{unit})?{number}(?:{unit})?", re.ASCII)
    return form, str.maketrans(mark, ".", other + SPACES + sign)


def numbers(texts, marks=".,"):
    """Numbers [N] of texts, none missing, by the first decimal mark that suits all of them.

    Digits may come in groups of three, and all texts with one sign such as $ or %.

    Raises:
        ValueError: They are none, or whole numbers that float64 does not tell apart.
    """
    sign = "".join(one for one in SIGNS if texts and one in texts[0])
    for mark in marks:
        form, plain = grammar(mark, sign)
        if mark == "." and DIGITS.issuperset("".join(texts)):
            given = texts
        elif all(sign in text and form.fullmatch(text) for text in texts):
            given = [text.translate(plain) for text in texts]
        else:
            continue
        try:
            found = np.array([*map(float, given)], np.float64)
        except ValueError:
            continue
        is_long = np.abs(found) >= WHOLE
        if any(given[i].lstrip("+-").isdigit() for i in is_long.nonzero()[0]):
            break
        return found
    raise ValueError("these are no numbers")


def decimal_mark(columns, otherwise="."):
    """The decimal mark, a point or a comma, that most columns of texts can only have."""
    shown = collections.Counter[str]()
    for values in columns.values():
        texts = [] if is_numeric(values) else [t for t in values[:300] if t.lower() not in WORDS]
        fit = [mark for mark in ".," if texts and all(map(grammar(mark)[0].fullmatch, texts))]
        shown.update(fit if len(fit) == 1 else ())
    return otherwise if shown["."] == shown[","] else max(shown, key=shown.__getitem__)


def days(text, form=""):
    """Days since 1970 of a date, in this form or that of ISO 8601; UTC unless it has a zone."""
    parse_date = datetime.datetime.strptime if form else datetime.datetime.fromisoformat
    when = parse_date(text, *[form] * bool(form))
    return ((when if when.tzinfo else when.replace(tzinfo=EPOCH.tzinfo)) - EPOCH) / ONE_DAY


def is_numeric(values):
    """Whether values are an array of numbers, and not texts."""
    return isinstance(values, np.ndarray) and values.dtype.kind in "buif"


def blank(values, missing, kind):
    """Values with gaps in place of those that `missing` names: texts, or numbers by their value."""
    if not missing:
        return values
    if is_numeric(values):
        gaps = [read([text], "number")[0] for text in missing if is_read(text, "number")]
        return np.where(np.isin(values, gaps), np.nan, values) if kind == "number" else values
    return ["" if category(text).lower() in missing else text for text in values]


def read(texts, kind, form="", decimal="."):
    """Numbers of texts, none missing, of a kind; the form is a decimal mark or that of dates.

    Raises:
        ValueError, KeyError, OverflowError: One is not of that kind.
    """
    if kind == "number":
        return numbers(texts, form or (",." if decimal == "," else ".,")).tolist()
    return [TRUTHS[text.lower()] if kind == "boolean" else days(text, form) for text in texts]


def is_read(text, *how):
    """Whether a text is of a kind, as `read` takes it."""
    try:
        return bool(read([text], *how))
    except UNREADABLE:
        return False


def parse(values, one, decimal="."):
    """Numbers [N] float64 of a column's texts or numbers, with NaN where a value is missing."""
    if is_numeric(values):
        return values.astype(np.float64)
    how = (one["kind"], one.get("form"), decimal)
    texts = [text for text in dict.fromkeys(values) if text.lower() not in WORDS]
    try:
        known = dict(zip(texts, read(texts, *how), strict=True))
    except UNREADABLE as error:
        bad = next((text for text in texts if not is_read(text, *how)), texts[0])
        place = f"column {one['name']!r}: {bad[:40]!r} in row {[*values].index(bad) + 1}"
        raise ValueError(f"{place} is no {' as '.join(filter(None, how[:2]))}") from error
    return np.array([known.get(text, np.nan) for text in values])


def of_numbers(values, one, decimal, warnings):
    """Standardised numbers [N, 1 + ...], with the phases of dates and a flag of missing values."""
    found = parse(values, one, decimal)
    name = f"column {one['name']!r}"
    if np.isinf(found).any():
        raise ValueError(f"{name} is infinite in row {np.isinf(found).argmax() + 1}: correct it")
    gaps = np.isnan(found)
    if gaps.any() and not one["flag"]:
        line = f"is missing in {gaps.sum()} of {len(gaps)} rows, and never was in training"
        warnings.append(f"{name} {line}: the median takes its place")
    found[gaps] = one["median"]
    parts = [(found - one["shift"]) / one["scale"]]
    for period in one["periods"]:
        angles = 2 * np.pi * found / period
        parts += [np.sin(angles), np.cos(angles)]
    return np.stack(parts + [gaps] * one["flag"], axis=1)


def category(text):
    """The name of a category: 1.0 is a 1 that was in a column of floats with gaps."""
    return text[:-2] if text[-2:] == ".0" else text


def of_categories(values, one, warnings):
    """One-hot rows [N, C]: of the categories, and of all that are rare or unseen together."""
    number = len(one["categories"])
    place = {text: min(i, number) for i, text in enumerate(one["categories"] + one["rare"])}
    texts = [*map(category, values)]
    if unseen := [text for text in texts if text not in place]:
        line = f"{len(unseen)} of {len(texts)} rows, such as {unseen[0][:40]!r}"
        warnings.append(f"column {one['name']!r} holds categories unseen in training in {line}")
    places = [place.get(text, number) for text in texts]
    return np.equal.outer(places, range(number + bool(one["rare"])))


@np.errstate(all="ignore")  # What overflows is refused.
def encode(columns, table):
    """Makes inputs [N, F] float32 of columns by name, and warnings of what is new to training."""
    decimal = decimal_mark(columns, table["decimal"])
    parts = []
    warnings: list[str] = []
    for one in table["columns"]:
        name = one["name"]
        if one["kind"] == "drop":
            continue
        if name not in columns:
            raise ValueError(f"the table lacks the column {name!r}")
        values = blank(columns[name], table["missing"], one["kind"])
        if one["kind"] == "category":
            part = of_categories(values, one, warnings)
        else:
            part = of_numbers(values, one, decimal, warnings)
        if not (np.abs(part) < 3e38).all():
            raise ValueError(f"column {name!r} holds numbers that are too large")
        parts.append(part)
    return np.concatenate(parts, axis=1).astype(np.float32), warnings


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as content:
        inputs, warnings = encode(read_csv(sys.argv[2]), json.load(content))
    for line in warnings:
        print(line, file=sys.stderr)
    np.save(sys.argv[3], inputs)
