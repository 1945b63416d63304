"""What columns are taken for: dates in other forms than ISO 8601, and texts for missing values."""

import json

import numpy as np
import pandas as pd
import pytest

from ensemble import UserError
from ensemble.notes import collected
from ensemble.sources.tables import column_kinds, read_table
from ensemble.sources.tables.raw_columns import Column

WHEN = pd.Timestamp("2021-02-01") + pd.to_timedelta(np.arange(60), "D")
DAYS = (WHEN - pd.Timestamp("1970-01-01")).days.to_numpy(float)


def texts(form, **others):
    """A table whose column holds dates in this form."""
    return {"when": Column(WHEN.strftime(form).to_numpy(object)), **others}


def kinds_and_notes(columns, chosen=(), date_format=""):
    with collected() as notes:
        kinds = column_kinds.kinds_of(columns, dict(chosen), {}, date_format)
    return kinds, notes


@pytest.mark.parametrize("kind", ["", "text"])
@pytest.mark.parametrize("every", [1, 20])
@pytest.mark.parametrize(
    ("form", "remedy"),
    [
        ("%d.%m.%Y", "config.date_format='%d.%m.%Y', or"),
        ("%m/%d/%Y", "config.date_format='%m/%d/%Y', or"),
        ("%m/01/%Y", "config.date_format='%d/%m/%Y' or '%m/%d/%Y', or"),
        ("%d %b %Y %H:%M", "config.date_format='%d %b %Y %H:%M', or"),
        ("%b %d, %Y", "config.date_format='%b %d, %Y', or"),
    ],
)
def test_what_looks_like_dates_and_is_not_read_as_such_is_noted(form, remedy, every, kind):
    (found,) = texts(form).values()
    found = Column(found.values[::every].repeat(every), kind)  # Categories, or too many.
    kinds, notes = kinds_and_notes({"when": found})
    assert kinds["when"][0] in ("category", "drop")
    (line,) = notes
    assert f"such as {found.values[0]!r}, and is not read as dates: set {remedy}" in line
    assert kinds_and_notes({"when": found}, {"when": "category"})[1] == []


@pytest.mark.parametrize("values", [["red", "blue"], ["1.2.3", "1.10.0"], ["A 1", "12/40/2020"]])
def test_other_texts_are_no_dates(values):
    kinds, notes = kinds_and_notes({"what": Column(np.array(values * 30, object))})
    assert kinds == {"what": ("category", "")}
    assert notes == []


@pytest.mark.parametrize("chosen", [{}, {"when": "date"}])
@pytest.mark.parametrize("form", ["%d.%m.%Y", "%d/%m/%Y %H:%M", "%b %d, %Y"])
def test_dates_are_read_in_the_form_that_is_named(form, chosen):
    iso = Column(WHEN.strftime("%Y-%m-%d").to_numpy(object))
    columns = texts(form, iso=iso, dates=Column(DAYS, "date"))
    kinds, notes = kinds_and_notes(columns, chosen, form)
    assert kinds == {"when": ("date", form), "iso": ("date", ""), "dates": ("date", "")}
    assert notes == []
    for column in column_kinds.parsed(columns, kinds).values():
        np.testing.assert_array_equal(column.values, DAYS)


def test_a_form_that_no_column_has_is_noted():
    _, notes = kinds_and_notes(texts("%d.%m.%Y"), date_format="%d/%m/%Y")
    assert len(notes) == 2
    assert "config.date_format='%d/%m/%Y' is the form of no column's texts." in notes


@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        ({}, "'soon'.*4.*config.na_values='soon'"),
        (
            {"when": "date"},
            "'soon'.*4.*%d.%m.%Y.*config.date",
        ),
    ],
)
def test_a_text_among_dates_is_named(chosen, line):
    columns = texts("%d.%m.%Y")
    columns["when"].values[3] = "soon"
    with pytest.raises(UserError, match=line):
        column_kinds.parsed(columns, kinds_and_notes(columns, chosen, "%d.%m.%Y")[0])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ()),
        ("", ()),
        (" unknown, -999,", ("unknown", "-999")),
        (["Not, known", -999, 0.5], ("not, known", "-999", "0.5")),
        ((-999.0,), ("-999",)),
        (-1, ("-1",)),
        (json.dumps(["x", 7]), ("x", "7")),
    ],
)
def test_what_stands_for_missing_values(value, expected):
    assert column_kinds.parse_na_values(value) == expected


@pytest.mark.parametrize("value", [{"a": 1}, [None], [True], "[1, "])
def test_what_cannot_stand_for_missing_values_is_one_line(value):
    with pytest.raises(UserError, match=r"config\.na_values=.*'unknown, -999'"):
        column_kinds.parse_na_values(value)


def test_missing_values_are_blank_in_texts_and_numbers():
    texts = np.array(["-999", "-999.0", "Unknown", "7", "", "999"], object)
    missing = ("unknown", "-999")
    assert read_table.blank(texts, missing, "") == ["", "", "", "7", "", "999"]
    numbers = np.array([-999.0, 7.0, np.nan])
    np.testing.assert_array_equal(
        read_table.blank(numbers, missing, "number"), [np.nan, 7.0, np.nan]
    )
    np.testing.assert_array_equal(read_table.blank(numbers, missing, "date"), numbers)


@pytest.mark.parametrize(
    ("name", "is_noted"),
    [
        ("customer_id", True),
        ("Customer ID", True),
        ("rowId", True),
        ("paid", False),
        ("GRID", False),
    ],
)
def test_numbers_that_are_named_as_ids_are_noted(name, is_noted):
    columns = {name: Column(np.arange(100) % 40 + 0.0, "number")}
    with collected() as notes:
        column_kinds.note_row_numbers(columns, {name: ("number", "")}, {})
    assert len(notes) == is_noted
    assert all("is named as ids are, and is learned" in line for line in notes)


@pytest.mark.parametrize(
    ("values", "is_noted"),
    [
        (np.arange(1000, 1100), True),
        (np.random.default_rng(0).permutation(300)[:100], True),
        (np.random.default_rng(0).integers(0, 300, 100), False),  # Some are equal.
        (np.random.default_rng(0).permutation(10**6)[:100], False),  # None is by chance.
        (np.arange(100) / 2, False),
        (np.where(np.arange(100) == 7, np.nan, np.arange(100)), False),
    ],
)
def test_whole_numbers_that_are_ids_are_noted(values, is_noted):
    columns = {"key": Column(values.astype(float), "number")}
    kinds = {"key": ("number", "")}
    with collected() as notes:
        column_kinds.note_row_numbers(columns, kinds, {"key": "number"})
        assert notes == []
        column_kinds.note_row_numbers(columns, kinds, {})
    assert [line for line in notes if "'key=drop' leaves it out" in line] == notes
    assert len(notes) == is_noted
