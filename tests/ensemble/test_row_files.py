"""Files of rows: every form holds the same, in pieces, and texts that are no UTF-8."""

import csv
import io
import json

import pyarrow.parquet
import pytest

from ensemble.commands.predict import WRITERS

PIECES = [
    {"name": ["a", 'quoted "b", c'], "x": [0.1, 1e-300], "label": [3, 2**60], "is": [True, False]},
    {"name": ["two\nlines"], "x": [1 / 3], "label": [0], "is": [True]},
]


def rows_of(piece):
    return [dict(zip(piece, row, strict=True)) for row in zip(*piece.values(), strict=True)]


ROWS = [row for piece in PIECES for row in rows_of(piece)]


def written(ending, pieces):
    file = io.BytesIO()
    WRITERS[ending](file, map(rows_of, pieces))
    return file.getvalue()


def test_every_form_holds_every_digit_of_all_pieces():
    for ending in (".jsonl", ".ndjson"):
        lines = written(ending, PIECES).decode().splitlines()
        assert [json.loads(line) for line in lines] == ROWS
    text = io.StringIO(written(".csv", PIECES).decode(), newline="")
    assert list(csv.DictReader(text)) == [
        {name: str(value) for name, value in row.items()} for row in ROWS
    ]
    content = io.BytesIO(written(".parquet", PIECES))
    table = pyarrow.parquet.read_table(content)
    assert table.to_pylist() == ROWS
    assert [str(one.type) for one in table.schema] == ["string", "double", "int64", "bool"]


def test_a_missing_value_is_null_or_empty():
    piece = [{"a": [None, 0.5]}]
    assert written(".jsonl", piece) == b'{"a": null}\n{"a": 0.5}\n'
    assert written(".csv", [{"a": ["x", ""], "b": [None, 0.5]}]) == b"a,b\nx,\n,0.5\n"


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_names_of_files_need_not_be_utf_8(ending):
    content = written(ending, [{"input": ["\udcff.png"]}])
    assert rb"\udcff.png" in content
