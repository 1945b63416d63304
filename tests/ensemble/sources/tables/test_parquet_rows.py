"""Parquet files become records by row groups: the same data as the table in memory."""

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from programs import run_here
from run_parts import examples_of

from ensemble import UserError
from ensemble.sources import in_memory, load_dataset, own_arrays
from ensemble.sources.tables import parquet_rows, table_files
from ensemble.sources.tables.table_files import read_files

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "size": RNG.normal(3, 2, 50),
        "floor": np.arange(50) % 7,
        "town": np.array(["here", "there"])[np.arange(50) % 2],
        "new": np.arange(50) % 3 == 0,
        "price": RNG.normal(size=50),
    }
)
NUMBERS = FRAME.drop(columns="town")


def _write(frame, path, rows=11):
    frame.to_parquet(path, row_group_size=rows, index=False)
    return f"parquet:{path}"


def _given(name, target="price"):
    return examples_of(name, target)


def test_rows_are_read_by_their_groups(tmp_path, monkeypatch):
    read, values = [], parquet_rows._values

    def counted(group, *arguments):
        read.append(group.number)
        return values(group, *arguments)

    monkeypatch.setattr(parquet_rows, "_values", counted)
    given = _given(_write(NUMBERS, tmp_path / "t.parquet"))
    rows = given.inputs["pool"]
    expected = NUMBERS.drop(columns="price").to_numpy(np.float32)
    for where in (slice(0, 9), slice(9, 30), slice(30, 50)):
        np.testing.assert_array_equal(rows[where], expected[where])
    assert read == [0, 1, 2, 3, 4]
    indices = np.array([49, 3, 3, 20])
    np.testing.assert_array_equal(rows[indices], expected[indices])
    np.testing.assert_array_equal(given.targets["pool"], NUMBERS["price"].astype(np.float32))


def test_equal_values_are_counted_as_they_are_decoded(tmp_path, monkeypatch):
    """In the file they take next to nothing."""
    frame = pd.DataFrame({"size": np.zeros(4000), "price": np.arange(4000) % 2})
    name = _write(frame, tmp_path / "t.parquet", rows=2000)
    monkeypatch.setattr(table_files, "max_bytes", lambda: 64_000)
    monkeypatch.setattr(parquet_rows, "max_bytes", lambda: 32_000)
    assert len(read_files(name)["pool"]["size"].values) == 4000
    assert len(_given(name).inputs["pool"][:9]) == 9
    monkeypatch.setattr(table_files, "max_bytes", lambda: 63_999)
    with pytest.raises(UserError, match=r"64,000 bytes.*63,999 allowed"):
        read_files(name)
    monkeypatch.setattr(parquet_rows, "max_bytes", lambda: 31_999)
    with pytest.raises(UserError, match=r"0.*32,000 bytes.*31,999 allo"):
        _given(name).inputs["pool"][:9]
    monkeypatch.setattr(own_arrays, "memory_bytes", lambda: 4 * 8 * 3999)
    with pytest.raises(UserError, match=r"4,000 rows.*3,999 allowed"):
        _given(name)


def test_columns_that_float32_rounds_are_named_once(tmp_path, caplog):
    folder = tmp_path / "t"
    folder.mkdir()
    exact = {"floor": NUMBERS["floor"], "half": NUMBERS["floor"] / 2, "price": NUMBERS["price"]}
    rounded = {"size": NUMBERS["size"], "year": 2e9 + NUMBERS["floor"]}
    frame = pd.DataFrame(exact | rounded)
    for part, rows in (("train", frame[:30]), ("test", frame[30:])):
        _write(rows, folder / f"{part}.parquet")
    given = _given(f"parquet:{folder}")
    caplog.clear()
    for part in [*given.inputs.values()] * 2:
        for start in range(0, len(part), 7):
            part[start : start + 7]
    told = [record.getMessage() for record in caplog.records]
    assert [line.removeprefix(f"parquet:{folder}: ") for line in told] == [
        "records hold float32, about seven digits of a number; rounded are the columns 'size', "
        "'year'.",
        "column 'year' holds numbers from 2000000000 to 2000000006, which float32 rounds by up to "
        "6: subtract a constant first, such as the smallest.",
    ]


@pytest.mark.parametrize("target", ["price", "town", "floor"])
def test_what_is_converted_is_learned_as_the_arrays_are(tmp_path, target):
    """Folders of parts and of splits too; texts and few whole numbers are classes."""
    frame = NUMBERS if target != "town" else FRAME
    folder = tmp_path / "parts"
    folder.mkdir()
    for i, part in enumerate((frame[:20], frame[20:])):
        _write(part, folder / f"{i}.parquet")
    done = run_here(
        "ensemble.__main__",
        "convert",
        f"parquet:{folder}",
        tmp_path / "records",
        f"--target={target}",
    )
    assert done.returncode == 0, done.stderr
    key = "targets" if target == "price" else "labels"
    arrays = {
        "inputs": frame.drop(columns=target).to_numpy(np.float32),
        key: np.array(frame[target].tolist()),
    }
    np.savez(tmp_path / "all.npz", **arrays)
    names = f"records:{tmp_path / 'records'}", f"npz:{tmp_path / 'all.npz'}"
    ours, theirs = map(load_dataset, names)
    assert ours.sizes == theirs.sizes
    assert ours.class_names == theirs.class_names
    for split in theirs.sizes:
        for one, other in zip(in_memory(ours, split), in_memory(theirs, split), strict=True):
            np.testing.assert_array_equal(one, other)


MISSING = "row group 2, row 1: column 'size' has no finite number"
FAULTS = {
    "no column 'prize' to learn": (NUMBERS, "prize"),
    "'town' is not of numbers": (FRAME, "price"),
    MISSING: (
        NUMBERS.assign(size=np.where(np.arange(50) == 23, np.nan, 1.0)),
        "price",
    ),
    "has no column beside the target": (NUMBERS[["price"]], "price"),
}


@pytest.mark.parametrize("line", FAULTS)
def test_what_cannot_be_converted_is_named(tmp_path, line):
    frame, target = FAULTS[line]
    name = _write(frame, tmp_path / "t.parquet")
    done = run_here(
        "ensemble.__main__", "convert", name, tmp_path / "records", f"--target={target}"
    )
    assert done.returncode == 2
    assert line in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "records").exists()


def test_a_damaged_row_group_is_named_or_left_out(tmp_path):
    path = tmp_path / "t.parquet"
    name = _write(NUMBERS, path)
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(bytes(content))
    rows = _given(name).inputs["pool"]
    assert len(rows[:11]) == 11
    with pytest.raises(UserError, match="row group 1 is damaged"):
        rows[5:15]
    command = ("ensemble.__main__", "convert", name, tmp_path / "records", "--target=price")
    done = run_here(*command, "--skip_damaged")
    assert done.returncode == 0, done.stderr
    assert "39 examples, 11 damaged left out" in done.stdout


def test_training_rows_decide_whether_a_target_is_a_class_or_a_number(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, price in (("test", np.arange(50) % 3), ("train", np.arange(50))):
        _write(NUMBERS.assign(price=price), folder / f"{part}.parquet")
    assert _given(f"parquet:{folder}").class_names is None


def test_rows_without_a_number_alone_are_left_out(tmp_path):
    name = _write(FAULTS[MISSING][0], tmp_path / "t.parquet")
    rows = _given(name).inputs["pool"]
    assert len(rows[:23]) == 23
    with pytest.raises(UserError, match=MISSING):
        rows[np.array([24, 23])]
    command = ("ensemble.__main__", "convert", name, tmp_path / "records", "--target=price")
    done = run_here(*command, "--skip_damaged")
    assert done.returncode == 0, done.stderr
    assert "49 examples, 1 damaged left out" in done.stdout


def test_files_of_other_columns_are_refused(tmp_path):
    for i, frame in enumerate((NUMBERS, NUMBERS.assign(size=1))):
        _write(frame, tmp_path / f"{i}.parquet")
    with pytest.raises(UserError, match=r"1\.parquet has other columns"):
        _given(f"parquet:{tmp_path}")
