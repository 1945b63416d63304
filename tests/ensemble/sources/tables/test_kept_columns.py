"""Columns that predictions keep, as texts and numbers of JSON and CSV."""

import datetime
import decimal

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from ensemble import UserError
from ensemble.sources.tables.kept_columns import as_values, read_kept

HALF = decimal.Decimal("1.50")
CASES = {
    "text": (["007", None], ["007", None]),
    "whole": ([2**63 - 1, None], [2**63 - 1, None]),
    "number": ([0.1, np.nan], [0.1, None]),
    "truth": ([True, None], [True, None]),
    "day": ([datetime.date(2024, 2, 29), None], ["2024-02-29", None]),
    "exact": ([HALF, None], ["1.50", None]),
}


def write(path, values):
    pyarrow.parquet.write_table(pyarrow.table({"c": values}), path)
    return str(path)


@pytest.mark.parametrize("case", CASES)
def test_values_of_a_parquet_file(tmp_path, case):
    given, expected = CASES[case]
    path = write(tmp_path / "t.parquet", pyarrow.array(given))
    kept = read_kept(path, ["c"], ["c"])
    assert kept["c"].to_pylist()[0] == given[0]
    assert as_values(kept, path) == {"c": expected}


def test_categories_and_zones(tmp_path):
    path = write(tmp_path / "t.parquet", pyarrow.array(["a", None, "b"]).dictionary_encode())
    assert as_values(read_kept(path, ["c"], ["c"]), path) == {"c": ["a", None, "b"]}
    times = pyarrow.array([1, None], pyarrow.timestamp("ns", "UTC"))
    path = write(tmp_path / "t.parquet", times)
    found = as_values(read_kept(path, ["c"], ["c"]), path)
    assert found == {"c": ["1970-01-01 00:00:00.000000001Z", None]}


def test_what_text_has_not_is_one_line(tmp_path):
    for values, line in (([np.inf], "infinite"), ([[1, 2]], r"type list<.*int64>")):
        path = write(tmp_path / "t.parquet", pyarrow.array(values))
        with pytest.raises(UserError, match=rf"--keep=c: .*t\.parquet.*{line}.*\.parquet"):
            as_values(read_kept(path, ["c"], ["c"]), path)
