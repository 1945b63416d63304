"""What reads a table: numbers and dialects of files, and inputs as scikit-learn would make them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ensemble import InputError
from ensemble.data.source import Examples, Parts, Request
from ensemble.data.splitting import POOL
from ensemble.data.tables import read_table, table


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


def fit(frame: pd.DataFrame) -> table.TableForm:
    given = Parts({POOL: Examples(frame, np.arange(len(frame)) % 2)}, is_table=True)
    return table.source_of(given, "it", Request(hold_out=False)).table


def test_numpy_makes_what_scikit_learn_would():
    frame = make_frame()
    form = fit(frame)
    inputs = form.encode(frame)
    assert inputs.dtype == np.float32
    assert inputs.shape == (60, len(form.features))
    age = SimpleImputer(strategy="median").fit_transform(frame[["age"]])
    np.testing.assert_allclose(inputs[:, 0], StandardScaler().fit_transform(age)[:, 0], 1e-5)
    np.testing.assert_array_equal(inputs[:, 1], frame["age"].isna())
    assert [one for one in form.features if one[1]] == [(0, True)]
    texts = frame[["colour"]].fillna("").to_numpy(object)
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=3)
    expected = encoder.fit_transform(texts).toarray()
    np.testing.assert_array_equal(inputs[:, -expected.shape[1] :], expected)
    angle = 2 * np.pi * (frame["when"] - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=7)
    np.testing.assert_allclose(inputs[:, 6], np.sin(angle), atol=1e-5)
    assert [line.split("  ")[0].strip() for line in form.lines() if "left out" in line] == [
        "id",
        "always",
    ]


def test_frames_mappings_and_rows_are_one():
    frame = make_frame()
    form = fit(frame)
    expected = form.encode(frame)
    reordered = frame[frame.columns[::-1]].assign(more=1)
    rows = frame.to_dict("records")
    for same in (reordered, dict(frame.items()), rows):
        np.testing.assert_array_equal(form.encode(same), expected)
    numbered = frame[["age"]].set_axis([0], axis=1)
    assert fit(numbered).encode(numbered).shape == (60, 2)
    lists = frame.assign(more=[[1.0, 2.0]] * len(frame))  # As embeddings are stored.
    np.testing.assert_array_equal(form.encode(lists), expected)
    with pytest.raises(InputError, match=r"column 'age' holds values .*list"):
        form.encode(lists.assign(age=lists["more"]))
    with pytest.raises(ValueError, match="two columns of one name"):
        form.encode(frame.set_axis(["age", "age", *"abcd"], axis=1))
    with pytest.raises(InputError, match="a ndarray in place of named columns"):
        form.encode(np.zeros((3, 5)))


@pytest.mark.parametrize(
    ("texts", "points", "commas"),
    [
        (["1.355", "987"], [1.355, 987], [1355, 987]),
        (["1,355", "987"], [1355, 987], [1.355, 987]),
        (["51,10"], [51.1], [51.1]),
        (["0.123"], [0.123], [0.123]),
        (["1.234.567", "-3"], [1234567, -3], [1234567, -3]),
        (["1'234.5"], [1234.5], [1234.5]),
        (["-5 €", "1.234,5 €"], [-5, 1234.5], [-5, 1234.5]),
        (["1e999", "+.5"], [np.inf, 0.5], [np.inf, 0.5]),
        (["12%", "5"], None, None),
        (["$5", "€5"], None, None),
        (["1.234 567"], None, None),
        (["1_000"], None, None),
        (["95820843523155001"], None, None),
        (["nan"], None, None),
    ],
)
def test_numbers_by_their_marks(texts, points, commas):
    for marks, expected in ((".,", points), (",.", commas)):
        if expected is None:
            with pytest.raises(ValueError, match="no numbers"):
                read_table.numbers(texts, marks)
        else:
            assert read_table.numbers(texts, marks).tolist() == expected
