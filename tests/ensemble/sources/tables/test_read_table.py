"""The reader: NumPy alone makes of a table what scikit-learn would, line by line as it says."""

import json
import pathlib
import subprocess
import sys
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ensemble import UserError
from ensemble.notes import collected
from ensemble.sources.tables import column_kinds, frames, read_table, table_form


def make_frame(num_rows: int = 60) -> pd.DataFrame:
    """Numbers with gaps, truth values, dates, and categories of which some are rare."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, num_rows).astype(float),
            "member": rng.random(num_rows) < 0.4,
            "when": pd.Timestamp("2021-03-01") + pd.to_timedelta(np.arange(num_rows) * 37, "h"),
            "colour": rng.choice(["red", "blue", "green"], num_rows),
            "id": [f"row {i}" for i in range(num_rows)],
            "always": 3,
        }
    )
    frame.loc[::7, "age"] = np.nan
    frame.loc[[3, 9], "colour"] = ["teal", "pink"]
    frame.loc[::11, "colour"] = None
    return frame


def fit(frame: pd.DataFrame) -> table_form.TableForm:
    columns = frames.of_frame(frame)
    return table_form.fit(columns, column_kinds.kinds_of(columns, {}, {}), "", "it")


def test_numpy_makes_what_scikit_learn_would():
    frame = make_frame()
    form = fit(frame)
    inputs = form.encode(frame)
    assert inputs.dtype == np.float32
    assert inputs.shape == (60, len(form.features))
    titles = [one.name for one in form.features]
    by_name = dict(zip(titles, inputs.T, strict=True))
    age = SimpleImputer(strategy="median").fit_transform(frame[["age"]])
    np.testing.assert_allclose(by_name["age"], StandardScaler().fit_transform(age)[:, 0], 1e-5)
    np.testing.assert_array_equal(by_name["age is missing"], frame["age"].isna())
    texts = frame[["colour"]].fillna("").to_numpy(object)
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=3)
    expected = encoder.fit_transform(texts).toarray()
    names = [name for name in titles if name.startswith("colour")]
    assert names[0] == "colour=(missing)"
    assert names[-1] == "colour=(rare or unseen)"
    np.testing.assert_array_equal(np.stack([by_name[name] for name in names], 1), expected)
    angle = 2 * np.pi * (frame["when"] - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=7)
    np.testing.assert_allclose(by_name["sine of when in week"], np.sin(angle), atol=1e-5)
    assert [line.split("  ")[0].strip() for line in form.lines() if "left out" in line] == [
        "id",
        "always",
    ]


def test_inputs_are_told_as_the_table_has_them():
    frame = make_frame()
    form = fit(frame)
    rows = form.rows(form.encode(frame))
    for name, row in enumerate(rows):
        age, colour = frame["age"][name], frame["colour"][name]
        assert row["age"] == ("(missing)" if np.isnan(age) else f"{age:.4g}")
        assert row["member"] == str(frame["member"][name]).lower()
        assert row["when"] == str(frame["when"][name].date())
        rare = "(rare or unseen)" if colour in ("teal", "pink") else colour
        assert row["colour"] == (rare if isinstance(colour, str) else "(missing)")
    assert [one.column for one in form.features if one.moves] == [0, 1]
    age = form.features[0]
    np.testing.assert_allclose(form.encode(frame)[1, 0] * age.scale + age.shift, frame["age"][1])


def test_the_reader_runs_alone_on_what_a_file_says(tmp_path):
    frame = make_frame()
    form = fit(frame)
    new = frame.drop(columns="id")[["colour", "when", "member", "age"]]
    new.loc[0, "colour"], new.loc[1, "age"] = "mauve", np.nan
    new.to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",")
    (tmp_path / "table.json").write_text(json.dumps(form.content))
    source = pathlib.Path(read_table.__file__).read_text()
    assert len(source.splitlines()) <= 125
    (tmp_path / "read_table.py").write_text(
        "import sys; sys.modules.update(dict.fromkeys(['ensemble', 'sklearn', 'pandas']))\n"
        + source
    )
    arguments = ["read_table.py", "table.json", "new.csv", "inputs.npy"]
    ran = subprocess.run(
        [sys.executable, "-I", *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = np.load(tmp_path / "inputs.npy")
    np.testing.assert_array_equal(found, form.encode(new))
    assert "'colour' holds categories unseen in training in 1 of 60 rows, such as 'mauve'" in (
        ran.stderr
    )
    titles = [one.name for one in form.features]
    assert found[0, titles.index("colour=(rare or unseen)")] == 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"age": None}, r"lacks the column 'age'"),
        ({"age": "old"}, r"'age': 'old'.*1.*number"),
        ({"when": 3.0}, r"'when'.*number.*date"),
        ({"age": np.inf}, r"column 'age' is infinite in row 1"),
        ({"age": 1e300}, r"'age'.*too large"),
    ],
)
def test_what_cannot_be_is_one_line(change, line):
    frame = make_frame()
    form = fit(frame)
    (name,) = change
    new = frame.drop(columns=name) if change[name] is None else frame.assign(**change)
    with pytest.raises(ValueError, match=line) as error:
        form.encode(new)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("scale", "of_training", "new"), [(1, 1e307, 1), (1e-6, 0, 1e305)])
def test_numbers_that_overflow_are_one_line(scale, of_training, new):
    """And no warning of NumPy: warnings are errors here."""
    frame = make_frame().assign(age=np.arange(60.0) * scale)
    frame.loc[3, "age"] = of_training
    form = fit(frame)
    with pytest.raises(UserError, match=r"'age'.*too large"):
        form.encode(frame.assign(age=float(new)))


def test_the_memory_of_categories_is_that_of_the_rows():
    names = [str(i) for i in range(40_000)]
    one = {"name": "a", "kind": "category", "categories": names, "rare": ["x"]}
    tracemalloc.start()
    inputs, warnings = read_table.encode({"a": ["7", "x"]}, {"columns": [one]})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000  # The square of their number would take 12.8 GB.
    assert [row.nonzero()[0].tolist() for row in inputs] == [[7], [40_000]]
    assert not warnings


@pytest.mark.parametrize(("order", "is_said"), [([1, 0, 2], True), ([0, 1, 2], False)])
def test_rows_whose_index_has_another_order_are_said(order, is_said):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]})
    with collected() as notes:
        frames.note_other_rows(frame, pd.Series([1, 2, 3]).iloc[order], "X and y")
        frames.note_other_rows(frame, pd.Series([1, 2, 3], index=[7, 8, 9]), "no index in common")
        frames.note_other_rows(frame.to_numpy(), [1, 2, 3], "no index at all")
    assert ["X and y have the same index in another order" in line for line in notes] == (
        [True] if is_said else []
    )


def test_frames_mappings_rows_and_arrays_are_one():
    frame = make_frame()
    form = fit(frame)
    expected = form.encode(frame)
    reordered = frame[frame.columns[::-1]].assign(more=1)
    rows = frame.to_dict("records")
    for same in (reordered, dict(frame.items()), rows, frame.to_numpy()):
        np.testing.assert_array_equal(form.encode(same), expected)
    lists = frame.assign(more=[[1.0, 2.0]] * len(frame))  # As embeddings are stored.
    np.testing.assert_array_equal(form.encode(lists), expected)
    with pytest.raises(UserError, match="column 'age' holds values of the types list"):
        form.encode(lists.assign(age=lists["more"]))
    numbered = frame.set_axis(range(6), axis=1)  # As a frame made of an array has them.
    np.testing.assert_array_equal(form.encode(numbered), expected)
    with pytest.raises(ValueError, match="two columns of one name"):
        form.encode(frame.set_axis([*"aabcde"], axis=1))
    with pytest.raises(ValueError, match="6 columns 'age', 'member'"):
        form.encode(np.zeros((3, 5)))


def test_a_bare_row_is_told_to_be_a_list_of_one():
    with pytest.raises(UserError, match=r"'a' holds one value.*give a row as \[\{\.\.\.\}\]"):
        frames.of_frame({"a": 1})
