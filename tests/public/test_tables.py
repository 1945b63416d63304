"""Tables as people have them: codes, decimal commas, words that are classes, long ids, dates.

Each case has data that are made here and a right value. Most are known from other projects, where
they came out wrong without a word.
"""

import logging
import subprocess
import sys

import names
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from small import refused, run_command, train
from test_data import marked

from ensemble import EnsembleRegressor

KEYS = {
    "method": "deep_ensemble",
    "likelihood": "auto",
    "ensemble_size": 1,
    "optimizer": "adam",
    "learning_rate": 0.03,
    "lr_schedule": "cosine",
    "mlp.widths": "32",
    "num_epochs": 40,
    "target": "y",
}
QUICK = {**KEYS, "num_epochs": 1}


def learn(data, keys, workdir=None):
    """Trains with a frame, or with the data set of a name or of a file."""
    if isinstance(data, pd.DataFrame | pa.Table | dict):
        return train(keys, data, workdir)
    data = data if isinstance(data, str) else f"{data.suffix[1:]}:{data}"
    return train({**keys, "dataset": data}, None, workdir)


def columns(result):
    """What was made of each column, by name."""
    return {one["name"]: one for one in result.report["dataset"]["table"]["columns"]}


def kinds(result):
    return {name: one["kind"] for name, one in columns(result).items()}


def score(result, name):
    return result.report["metrics"]["test"][name]["value"]


def write(path, lines, **options):
    path.write_text("\n".join(lines) + "\n", **options)
    return path


def comma(value):
    return str(value).replace(".", ",")


# Codes and ids.


@pytest.mark.check
def test_codes_are_categories_in_files_and_frames(tmp_path):
    rng = np.random.default_rng(1)
    lot = rng.choice(["3_1", "31_0", "3_10"], 600)
    y = np.select([lot == "31_0", lot == "3_10"], [5.0, -5.0], 0.0) + rng.normal(size=600)
    frame = pd.DataFrame({"lot": lot, "zip": rng.choice(["007", "0070", "012"], 600), "y": y})
    frame.to_csv(tmp_path / "lots.csv", index=False)
    for data in (frame, tmp_path / "lots.csv"):
        result = learn(data, KEYS)
        assert columns(result)["lot"]["categories"] == ["31_0", "3_1", "3_10"]
        assert columns(result)["zip"]["categories"] == ["007", "0070", "012"]
        assert score(result, "rmse") == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("form", marked(["int64", "str", "csv"], ["int64"]))
def test_long_ids_stay_apart(form, tmp_path):
    rng = np.random.default_rng(2)
    uid = 95820843523155000 + np.repeat(np.arange(30), 20)
    x = rng.normal(size=600)
    frame = pd.DataFrame({"uid": uid, "x": x, "y": x + (uid % 2) * 4 + rng.normal(0, 0.1, 600)})
    if form == "csv":
        data = tmp_path / "t.csv"
        frame.to_csv(data, index=False)
    else:
        data = frame.astype({"uid": form})
    result = learn(data, {**QUICK, "column_types": {"uid": "category"}})
    found = columns(result)["uid"]
    assert len(found["categories"]) + len(found["rare"]) == 30
    grouped = learn(data, {**QUICK, "split_by": "group:uid"})
    sizes = grouped.report["dataset"]["num_examples"]
    assert sizes["test"] == pytest.approx(60, abs=20)


def test_an_id_is_left_out_and_said(tmp_path, caplog):
    rows = [f"u{i:03d},{i % 7},{i / 9:.4f}" for i in range(80)]
    path = write(tmp_path / "t.csv", ["name,x,y", *rows])
    with caplog.at_level(logging.INFO):
        assert kinds(learn(path, QUICK)) == {"name": "drop", "x": "number"}
    assert "left out" in caplog.text
    assert "80 different texts in 80 rows" in caplog.text


# Numbers as the world writes them.


def german(num_rows=500):
    rng = np.random.default_rng(3)
    income = rng.integers(200, 5000, num_rows)
    area = rng.uniform(40, 99, num_rows).round(1)
    y = (income / 100 + area / 10 + rng.normal(0, 0.5, num_rows)).round(2)
    return income, area, y


@pytest.mark.check
def test_thousands_with_a_dot_are_read_where_the_file_has_decimal_commas(tmp_path):
    income, area, y = german()
    rows = [
        ";".join((f"{i:,}".replace(",", "."), comma(a), comma(t)))
        for i, a, t in zip(income.tolist(), area.tolist(), y.tolist(), strict=True)
    ]
    path = write(tmp_path / "de.csv", ["income;area;y", *rows])
    result = learn(path, KEYS, tmp_path / "run")
    assert columns(result)["income"]["shift"] == pytest.approx(income.mean(), rel=0.05)
    assert score(result, "rmse") < 1
    frame = pd.DataFrame({"income": income, "area": area, "y": y})
    expected = names.point(result.predictor(frame))
    alone = learn(frame, KEYS)
    np.testing.assert_array_equal(names.point(alone.predictor(frame)), expected)
    # Alone, a text cannot show what its dot is: the file that was learned does.
    new = write(tmp_path / "new.csv", ["income;area", "1.355;51,5"])
    run_command("predict", *names.flags(workdir=tmp_path / "run", out=tmp_path / "p.csv"), new)
    (found,) = pd.read_csv(tmp_path / "p.csv")["mean"]
    frame = pd.DataFrame({"income": [1355], "area": [51.5]})
    assert found == pytest.approx(names.point(result.predictor(frame))[0])


@pytest.mark.check
def test_decimal_commas_in_quotes_are_a_target_of_numbers(tmp_path):
    rng = np.random.default_rng(4)
    price = rng.integers(100, 180, 400) / 10
    size = (price * 3 + rng.normal(0, 1, 400)).round(2)
    rows = [f'{s},"{comma(p)}"' for s, p in zip(size.tolist(), price.tolist(), strict=True)]
    path = write(tmp_path / "q.csv", ["size,price", *rows])
    result = learn(path, {**KEYS, "target": "price"})
    assert result.report["config"]["likelihood"] == "gaussian"
    assert score(result, "rmse") < 0.5


@pytest.mark.check
def test_a_mark_that_may_be_either_is_noted_with_a_key(tmp_path, caplog):
    rows = [f"{1 + i % 9}.{100 + i},{i}" for i in range(60)]
    path = write(tmp_path / "t.csv", ["a,y", *rows])
    assert columns(learn(path, QUICK))["a"]["shift"] < 10
    assert "config.column_types='a=number:,'" in caplog.text
    caplog.clear()
    found = columns(learn(path, {**QUICK, "column_types": "a=number:,"}))["a"]
    assert found["shift"] > 1000
    assert "may be" not in caplog.text


# Missing values and words.


@pytest.mark.parametrize("form", marked(["frame", "categorical", "csv"], ["csv"]))
def test_a_class_may_be_called_none(form, tmp_path, caplog):
    x = np.random.default_rng(5).normal(size=600)
    damage = np.select([x < -0.4, x < 0.4], ["None", "Mild"], "Severe")
    frame = pd.DataFrame({"x": x, "damage": damage})
    data = frame.astype({"damage": "category"}) if form == "categorical" else frame
    if form == "csv":
        data = tmp_path / "d.csv"
        frame.to_csv(data, index=False)
    result = learn(data, {**KEYS, "target": "damage"})
    assert result.predictor(frame).class_names == ("Mild", "None", "Severe")
    assert score(result, "accuracy") > 0.9
    assert ("config.na_values='None'" in caplog.text) == (form == "csv")


@pytest.mark.check
def test_words_are_missing_among_numbers_and_categories_have_them(tmp_path):
    gaps = ("NA", "-", "#DIV/0!", "")
    rows = [
        f"{i if i % 5 else gaps[i % 4]},{'NA' if i % 3 else 'DE'},{i / 9:.3f}" for i in range(60)
    ]
    found = columns(learn(write(tmp_path / "t.csv", ["a,country,y", *rows]), QUICK))
    assert found["a"]["flag"] == 1
    assert found["country"]["categories"] == ["DE", "NA"]
    keys = {**QUICK, "na_values": "NA"}
    found = columns(learn(write(tmp_path / "t.csv", ["a,country,y", *rows]), keys))
    assert found["country"]["categories"] == ["", "DE"]


def test_nullable_types_say_the_same():
    rng = np.random.default_rng(6)
    plain = pd.DataFrame(
        {
            "a": rng.normal(size=200),
            "k": rng.choice([1, 2, None], 200),
            "b": rng.choice([True, False, None], 200),
            "s": rng.choice(["u", "v", None], 200),
        }
    )
    y = plain["a"] + (plain["k"] == 2)
    nullable = plain.convert_dtypes()
    forms = {
        "nullable": nullable,
        "arrow": pa.Table.from_pandas(nullable),
        "categories": nullable.assign(s=pd.Categorical(nullable["s"], ["v", "u", "w"])),
    }
    result = learn(plain.assign(y=y), QUICK, None)
    assert kinds(result) == {"a": "number", "k": "number", "b": "boolean", "s": "category"}
    expected = names.point(result.predictor(plain))
    for form, frame in forms.items():
        np.testing.assert_array_equal(names.point(result.predictor(frame)), expected, err_msg=form)
    again = learn(nullable.assign(y=y.astype("Float64")), QUICK)
    np.testing.assert_array_equal(names.point(again.predictor(plain)), expected)


class Streamed:
    """A frame that has Arrow's interface alone, as polars has it beside its own."""

    def __init__(self, frame):
        table = pa.Table.from_pandas(frame)
        self._table = table.set_column(1, "c", table["c"].cast(pa.large_string()))
        self.columns = self._table.column_names
        self.dtypes = self._table.schema.types

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def test_frames_of_other_libraries_come_by_arrow():
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({"a": rng.normal(size=80), "c": rng.choice(["x", "y"], 80)})
    frame["y"] = frame["a"] + (frame["c"] == "x")
    expected = names.point(learn(frame, QUICK).predictor(frame))
    found = train(QUICK, Streamed(frame)).predictor(Streamed(frame))
    np.testing.assert_array_equal(names.point(found), expected)


# Dates.

DATES = {
    "%Y-%m-%d": "",
    "%d.%m.%Y": "%d.%m.%Y",
    "%m/%d/%Y": "%m/%d/%Y",
    "%b %d, %Y": "%b %d, %Y",
}


@pytest.mark.parametrize("form", marked(DATES, ["%d.%m.%Y"]))
def test_dates_are_read_in_the_one_form_that_fits(form, tmp_path):
    when = pd.Timestamp("2021-02-01") + pd.to_timedelta(np.arange(60), "D")
    frame = pd.DataFrame({"when": when.strftime(form), "y": np.arange(60) / 7})
    frame.to_csv(tmp_path / "t.csv", index=False)
    expected = columns(learn(frame.assign(when=when), QUICK))["when"]
    for data in (frame, tmp_path / "t.csv"):
        found = dict(columns(learn(data, QUICK))["when"])
        assert found.pop("form", "") == DATES[form]
        assert found == expected


@pytest.mark.check
def test_dates_of_two_forms_are_noted_with_a_key(tmp_path, caplog):
    rows = [f"{1 + i % 12:02d}/{1 + i % 11:02d}/2024,{i % 7},{i / 7:.3f}" for i in range(60)]
    path = write(tmp_path / "t.csv", ["when,x,y", *rows])
    assert kinds(learn(path, QUICK))["when"] == "drop"
    assert "config.column_types='when=date:%d/%m/%Y'" in caplog.text
    keys = {**QUICK, "column_types": "when=date:%d/%m/%Y"}
    assert kinds(learn(path, keys))["when"] == "date"


# Files.


HEADER = ("Length (cm, needed)", "Weight (g, kg, needed)", "y")
FILES = {
    "tabs": ("\t", [], []),
    "a title": (";", ["Report of 2024", ""], []),
    "for Excel": (";", ["sep=;"], [";;"]),
}


@pytest.mark.parametrize("case", marked(FILES, ["a title"]))
def test_the_separator_is_that_of_the_rows(case, tmp_path):
    mark, before, after = FILES[case]
    rows = [mark.join((f"{i}", f"{i % 7}", f"{2 * i}.5")) for i in range(60)]
    found = columns(
        learn(write(tmp_path / "t.csv", [*before, mark.join(HEADER), *rows, *after]), QUICK)
    )
    assert [*found] == [*HEADER[:2]]
    assert found[HEADER[1]]["median"] == 3


@pytest.mark.parametrize("encoding", marked(["utf-8-sig", "utf-16", "cp1252"], ["utf-16"]))
def test_encodings_of_spreadsheets_are_read(encoding, tmp_path, caplog):
    rows = [f"{'Köln' if i % 2 else 'Graz'};{i},5" for i in range(60)]
    path = write(tmp_path / "t.csv", ["Größe;y", *rows], encoding=encoding)
    result = learn(path, QUICK)
    assert columns(result)["Größe"]["categories"] == ["Graz", "Köln"]
    assert ("read as Windows-1252" in caplog.text) == (encoding == "cp1252")


ROWS = [f"{i};{i % 7};{i}.5" for i in range(60)]
REFUSED = {
    "a short row": (["a;b;y", *ROWS, "1;2"], ["line 62 has 2 values for 3 columns", "';'"]),
    "after a quoted newline": (
        ["a;b;y", '"1\n";2;3', *ROWS, "1;2;3;4"],
        ["line 64 has 4 values for 3 columns", "';'"],
    ),
    "a short header": (["a;y", *ROWS], ["line 2 has 3 values for 2 columns", "';'"]),
    "an open quote": (["a;b;y", *ROWS, '1;2;"3'], ["unexpected end of data"]),
    "two of a name": (["a;a;y", *ROWS], ["two columns of the name 'a'", "';'"]),
    "no header": (ROWS, ["no header"]),
    "nothing": ([""], ["is empty"]),
    "no rows": (["a;b;y"], ["no rows"]),
    "a text among numbers": (["a;b;y", *ROWS, "old;1;2"], ["'old' in row 61", "config.na_values"]),
    "an infinite number": (["a;b;y", *ROWS, "1e999;1;2"], ["'a' is infinite in row 61"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_file_is_one_line(case, tmp_path):
    lines, words = REFUSED[case]
    path = write(tmp_path / "t.csv", lines)
    refused(lambda: learn(path, QUICK), *words)


def test_a_column_of_mixed_types_is_one_line():
    frame = pd.DataFrame({"a": [1, "x"] * 30, "y": np.arange(60) / 7})
    refused(lambda: learn(frame, QUICK), "column 'a'", "int, str")


def test_long_numbers_that_are_no_texts_are_refused():
    frame = pd.DataFrame({"a": [2**60 + i for i in range(60)], "y": np.arange(60) / 7})
    refused(lambda: learn(frame, {**QUICK, "column_types": {"a": "number"}}), "'a'")


@pytest.mark.parametrize("form", marked(["csv", "parquet"], ["csv"]))
def test_a_folder_is_of_parts_or_of_splits(form, tmp_path):
    frame = pd.DataFrame({"a": range(60), "c": ["x", "y"] * 30, "y": np.arange(60) / 7})

    def write_part(path, part):
        path.parent.mkdir(exist_ok=True, parents=True)
        part.to_csv(path, index=False) if form == "csv" else part.to_parquet(path, index=False)

    write_part(tmp_path / f"parts/1.{form}", frame[:40])
    write_part(tmp_path / f"parts/2.{form}", frame[["y", "c", "a"]][40:])
    sizes = learn(f"{form}:{tmp_path}/parts", QUICK).report["dataset"]["num_examples"]
    assert sum(sizes.values()) == 60
    write_part(tmp_path / f"splits/train.{form}", frame[:50])
    write_part(tmp_path / f"splits/test/x.{form}", frame[50:])
    sizes = learn(f"{form}:{tmp_path}/splits", QUICK).report["dataset"]["num_examples"]
    assert sizes == {"train": 40, "validation": 5, "calibration": 5, "test": 10}
    write_part(tmp_path / f"splits/more.{form}", frame)
    refused(lambda: learn(f"{form}:{tmp_path}/splits", QUICK), "after splits", f"more.{form}")
    write_part(tmp_path / f"parts/2.{form}", frame[["a", "y"]])
    refused(lambda: learn(f"{form}:{tmp_path}/parts", QUICK), f"2.{form}", "'c'")


@pytest.mark.check
def test_a_run_resumes_with_the_same_table_only(tmp_path):
    frame = pd.DataFrame({"a": np.arange(60), "y": np.arange(60) / 7})
    frame.to_csv(tmp_path / "t.csv", index=False)
    learn(tmp_path / "t.csv", QUICK, tmp_path / "run")
    learn(tmp_path / "t.csv", QUICK, tmp_path / "run")
    frame.assign(a=2 * frame["a"]).to_csv(tmp_path / "t.csv", index=False)  # Standardised alike.
    refused(lambda: learn(tmp_path / "t.csv", QUICK, tmp_path / "run"), "other data")


def test_what_cannot_be_learned_is_one_line(tmp_path):
    path = write(tmp_path / "t.csv", ["a;c;y", *(f"{i};{'pq'[i % 2]};{i}.5" for i in range(60))])
    refused(lambda: learn(path, {**QUICK, "target": "yy"}), "'yy'", "'a', 'c', 'y'", "'y'")
    refused(lambda: learn(path, {**QUICK, "column_types": "b=drop"}), "'b'", "'a', 'c'")
    refused(lambda: learn(path, {**QUICK, "column_types": "c=number"}), "'p' in row 1", "number")
    refused(lambda: learn(path, {**QUICK, "split_by": "group:b"}), "'b'", "'a', 'c'")
    refused(lambda: learn(path, {**QUICK, "split_by": "time:c"}), "dates", "c=date:%d/%m/%Y")
    refused(lambda: learn(path, {**QUICK, "split_by": "group:c"}), "2 groups")
    keys = {**QUICK, "na_values": "2.5, 4.5"}
    refused(lambda: learn(path, keys), "'y' is missing in 2 of 60 rows, first in row 3")
    keys = {**QUICK, "column_types": "a=drop, c=drop"}
    refused(lambda: learn(path, keys), "no column to learn from")


# Everything agrees to the bit.


def test_files_frames_and_exports_make_the_same_inputs(tmp_path):
    rng = np.random.default_rng(9)
    num_rows = 90
    frame = pd.DataFrame(
        {
            "size": np.where(rng.random(num_rows) < 0.1, np.nan, rng.normal(50, 20, num_rows)),
            "town": rng.choice(["here", "there", "NA"], num_rows),
            "code": rng.choice(["007", "1_0"], num_rows),
            "new": rng.choice([True, False], num_rows),
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(num_rows), "D"),
            "k": rng.choice([1.0, 2.0, np.nan], num_rows),
        }
    )
    frame["y"] = np.arange(num_rows) / 7
    keys = {**QUICK, "column_types": {"k": "category"}}
    result = learn(frame, keys, tmp_path / "run")
    inputs = result.predictor.dataset.table.encode(frame)
    assert inputs.dtype == np.float32
    files = {
        "plain": {},
        "german": {"sep": ";", "decimal": ",", "date_format": "%Y-%m-%d", "encoding": "utf-16"},
    }
    run_command("export", f"--workdir={tmp_path}/run", f"--out={tmp_path}/model.bin")
    for form, options in files.items():
        path = tmp_path / f"{form}.csv"
        whole = frame.astype({"k": "Int64"}) if options else frame  # Else 1,0 is a category.
        whole.to_csv(path, index=False, **options)
        again = learn(path, keys)
        np.testing.assert_array_equal(again.predictor.dataset.table.encode(frame), inputs)
        blocked = "import sys; sys.modules.update(dict.fromkeys(['pyarrow', 'pandas', 'ensemble']))"
        code = f"{blocked}; import runpy; runpy.run_path('read_table.py', run_name='__main__')"
        command = [sys.executable, "-I", "-c", code, "model.bin.table.json", path, "x.npy"]
        subprocess.run(command, cwd=tmp_path, check=True)
        np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), inputs, err_msg=form)


def test_a_program_that_has_no_table_imports_no_reader_of_tables(tmp_path):
    code = (
        "import sys, numpy as np, ensemble\n"
        "x = np.random.default_rng(0).normal(size=(60, 2))\n"
        "keys = {'model': 'mlp', 'mlp.widths': '4', 'ensemble_size': 1, 'num_epochs': 1}\n"
        "ensemble.train(keys, {'inputs': x, 'labels': (x[:, 0] > 0).astype(int)})\n"
        "print([name for name in ('pyarrow', 'pandas') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# Estimators.


@pytest.mark.check
def test_arrays_and_frames_of_seconds_since_1970_keep_their_signal():
    rng = np.random.default_rng(11)
    t = 1.76e9 + rng.uniform(0, 600, 400)
    y = (t - 1.76e9) / 200
    found = []
    for inputs in (t[:, None], pd.DataFrame({"t": t})):
        model = EnsembleRegressor(ensemble_size=2, num_epochs=20, random_state=0, num_devices=1)
        found.append(model.fit(inputs, y).predict(inputs))
    np.testing.assert_allclose(*found, atol=0.01)
    assert np.sqrt(np.mean((found[0] - y) ** 2)) < 0.1
