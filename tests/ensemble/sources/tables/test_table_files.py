"""Files of tables: what is read, and the line about each that cannot be."""

import time

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from run_parts import loaded_table

from ensemble import UserError
from ensemble.sources.tables import table_files
from ensemble.sources.tables.table_files import read_files

ROWS = "".join(f"{i},{i % 3},{'abc'[i % 3]}\n" for i in range(40))
TABLE = f"a,y,c\n{ROWS}"


@pytest.mark.parametrize(
    ("content", "keys", "line"),
    [
        ("", {}, "is empty; its first line"),
        ("a,y,c\n", {}, "has no rows"),
        (ROWS, {}, "header.*'0', '0'"),
        ("a,a,y\n" + ROWS, {}, "has two columns of the name 'a'"),
        (TABLE + "1,2\n", {}, "row 41 has 2 values for 3 columns"),
        (TABLE + '1,2,"x\n', {}, "unexpected end of data"),
        (b"a,y,c\n\xe9,1,2\n", {}, "is no text in UTF-8"),
        (TABLE, {"target": ""}, "set config.target.*'a', 'y', 'c'"),
        (TABLE, {"target": "yy"}, "is no column of .*; did you mean 'y'"),
        (TABLE, {"columns": "b=drop"}, "config.columns.*'b'.*'a', 'c'"),
        (TABLE, {"columns": "c=number"}, "column 'c': 'a' in row 1 is no number: correct it"),
        (TABLE, {"target": "c", "kind": "targets"}, "numbers: .*categorical"),
        (TABLE.replace(",1,", ",.5,"), {"kind": "labels"}, "holds 0.5, which is no class: .*gauss"),
        (TABLE.replace(",1,", ",inf,"), {}, "column 'y'.*infinite.*2"),
        (TABLE.replace(",1,", ",1e999,"), {"kind": "labels"}, "column 'y' is infinite in row 2;"),
        (TABLE.replace(",1,", ",1e30,"), {"kind": "labels"}, "holds 1e.30, which is no class"),
        (TABLE, {"split": "group:b"}, "config.split names the column 'b'"),
        (TABLE, {"split": "time:c"}, "dates.*2024-12-31"),
        (TABLE, {"split": "group:c"}, "3 groups.*calibration"),
        (TABLE.replace("7,1,b", "old,1,b"), {}, "'a'.*'old'.*8.*number"),
        (TABLE.replace("7,1,b", "7,,b"), {}, "'y'.*missing.*2.*40 rows"),
        (TABLE.replace("7,1,b", "7,1,NA"), {"split": "group:c"}, "'c' of config.split is missing"),
        ("a,y\n" + "3,0\n3,1\n" * 20, {}, r"\(a: always 3\)"),
        ("a,y\n" + ",0\n,1\n" * 20, {}, r"\(a.*values.*missing\)"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path, content, keys, line):
    file = tmp_path / "t.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=line) as error:
        loaded_table(f"csv:{file}", **keys)
    assert "\n" not in str(error.value)


def test_a_time_that_there_is_not_is_one_line(tmp_path):
    times = pyarrow.array([10**15, 0] * 20, pyarrow.time64("us"))
    table = pyarrow.table({"a": times, "y": pyarrow.array([0, 1] * 20)})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"'a'.*hour"):
        loaded_table(f"parquet:{tmp_path}/t.parquet")


def test_names_that_are_no_text_are_one_line(tmp_path):
    table = pyarrow.table({"abcdefgh": list(range(40)), "y": [0, 1] * 20})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", store_schema=False)
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(content.replace(b"abcdefgh", b"\xf8bcdefgh"))
    with pytest.raises(UserError, match=r"t\.parquet.*codec"):
        loaded_table(f"parquet:{tmp_path}/t.parquet")


def test_other_data_have_no_columns():
    with pytest.raises(UserError, match=r"config\.target.*'digits'"):
        loaded_table("digits")
    with pytest.raises(UserError, match="its data were arrays or data frames"):
        loaded_table("arrays")  # A frame's keys are right: it is gone.


def test_a_folder_is_of_parts_or_of_splits(tmp_path):
    parts, splits = tmp_path / "parts", tmp_path / "splits"
    parts.mkdir()
    (splits / "test").mkdir(parents=True)
    (parts / "1.csv").write_text(TABLE)
    (parts / "2.csv").write_text("c,a,y\nb,100,0\n")
    (splits / "train.csv").write_text(TABLE)
    (splits / "test" / "x.csv").write_text("c,a,y\nb,100,0\n")
    (pool,) = read_files(f"csv:{parts}").values()
    assert pool["a"].values.tolist() == [*map(str, range(40)), "100"]
    dataset = loaded_table(f"csv:{splits}")
    assert dataset.sizes == {"train": 32, "validation": 4, "calibration": 4, "test": 1}
    (splits / "more.csv").write_text(TABLE)
    with pytest.raises(UserError, match="name all of them after splits"):
        read_files(f"csv:{splits}")
    (parts / "2.csv").write_text("a,y\n1,0\n")
    with pytest.raises(UserError, match=r"2\.csv .*'c'"):
        read_files(f"csv:{parts}")


def test_what_memory_cannot_hold_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text(TABLE)
    monkeypatch.setattr(table_files, "max_bytes", lambda: 100)
    with pytest.raises(UserError, match=" 100 "):
        read_files(f"csv:{tmp_path}/t.csv")


def test_many_columns_take_no_long_time(tmp_path):
    """The search for names that come twice was quadratic: four times as many took 16 times."""
    took = []
    for number in (10_000, 40_000):
        names = [f"c{i}" for i in range(number)]
        (tmp_path / "t.csv").write_text(f"{','.join(names)}\n{','.join('1' for _ in names)}\n")
        began = time.process_time()
        assert [*table_files.read_csv(tmp_path / "t.csv", "t")] == names
        took.append(time.process_time() - began)
    assert took[1] < 10 * took[0]


def test_decimal_commas_an_index_and_quotes_are_read(tmp_path):
    frame = pd.DataFrame({"a": [1.5, np.nan, -0.25], "t": ["x, y", "z;", '"']})
    frame.to_csv(tmp_path / "t.csv", sep=";", decimal=",")
    (columns,) = read_files(f"csv:{tmp_path}/t.csv").values()
    assert columns.keys() == {"a", "t"}
    assert columns["a"].values.tolist() == ["1.5", "", "-0.25"]
    assert columns["t"].values.tolist() == frame["t"].tolist()


def test_what_is_predicted_may_have_columns_that_cannot_be_learned(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0], "embedding": [[1.0, 2.0], [3.0, 4.0]]})
    frame.to_parquet(tmp_path / "t.parquet")
    assert [*table_files.read_if_table([str(tmp_path / "t.parquet")])] == ["a"]
    with pytest.raises(UserError, match="column 'embedding' holds values of the types"):
        table_files.read_if_table([str(tmp_path / "t.parquet")], ["embedding"])
    with pytest.raises(UserError, match="column 'embedding' holds values of the types"):
        table_files.read_parquet(tmp_path / "t.parquet", "t")


def test_parquet_says_the_same_as_the_frame(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, of requirements-dev.txt")
    frame = pd.DataFrame(
        {
            "a": [1.5, np.nan, 2],
            "n": pd.array([1, None, 3], "Int64"),
            "when": pd.to_datetime(["2020-01-01", None, "2021-05-06"]),
            "zoned": pd.to_datetime(["2020-01-01"] * 3).tz_localize("Europe/Vienna"),
            "c": pd.Categorical(["x", "y", None]),
            "b": pd.array([True, None, False], "boolean"),
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    (found,) = read_files(f"parquet:{tmp_path}/t.parquet").values()
    kinds = {name: column.kind for name, column in found.items()}
    assert kinds == {
        "a": "number", "n": "number", "when": "date", "zoned": "date", "c": "text", "b": "boolean",
    }  # fmt: skip
    np.testing.assert_array_equal(found["n"].values, [1, np.nan, 3])
    np.testing.assert_array_equal(found["b"].values, [1, np.nan, 0])
    assert found["zoned"].values[0] == found["when"].values[0] - 1 / 24
    assert found["c"].values.tolist() == ["x", "y", ""]
    (tmp_path / "t.parquet").write_bytes(b"PAR1nothing")
    with pytest.raises(UserError, match="is damaged or no Parquet file"):
        read_files(f"parquet:{tmp_path}/t.parquet")
