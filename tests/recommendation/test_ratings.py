"""Interactions of one's own: files, data frames, what is held out, bad input."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ensemble import InputError
from ensemble.data.source import Request
from ensemble.recommendation import dataset

NUM_USERS = 12
NUM_ITEMS = 9
OF_RATINGS = {"likelihood": "gaussian_homoscedastic"}


def table(seed=0):
    """Ratings in random order; every user has two at least, and none has all. Ids are numbers."""
    rng = np.random.default_rng(seed)
    pairs = [
        (user, item)
        for user in range(NUM_USERS)
        for item in rng.permutation(NUM_ITEMS)[: rng.integers(2, NUM_ITEMS)]
    ]
    users, items = np.array([pairs[i] for i in rng.permutation(len(pairs))]).T
    values = rng.integers(1, 11, len(users)) / 2
    times = 978_300_000 + rng.permutation(len(users))
    return pd.DataFrame(
        {"user_id": users + 2**60, "movie_id": items + 500, "rating": values, "timestamp": times}
    )


def load(data, **keys):
    """The data set of a file, or of a frame."""
    request = Request(own=keys)
    if isinstance(data, str):
        return dataset.load_interactions(data, request)
    return dataset.given_interactions(data).source(request)


def written(folder, frame, form="all.csv"):
    path = folder / form
    if form.endswith(".parquet"):
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep=";" if form.startswith("semicolons") else ",")
    return f"ratings:{path}"


@pytest.mark.parametrize(
    "form", ["all.csv", "semicolons.csv", "all.parquet", "pandas", "pyarrow", "mapping"]
)
def test_every_form_has_the_same_interactions(tmp_path, form):
    frame = table()
    makers = {"pandas": pd.DataFrame, "pyarrow": pa.table, "mapping": dict}
    data = {name: frame[name].to_numpy() for name in frame}
    found = load(makers[form](data) if form in makers else written(tmp_path, frame, form))
    one = found
    users, user_ids = pd.factorize(frame["user_id"])
    items, item_ids = pd.factorize(frame["movie_id"])
    np.testing.assert_array_equal(one.rows[["user", "item"]], np.stack([users, items], axis=1))
    assert one.user_ids == [*map(str, user_ids)]  # Long ids are not rounded.
    assert one.items["item"].tolist() == one.items["title"].tolist() == [*map(str, item_ids)]
    np.testing.assert_array_equal(one.rows["rating"], frame["rating"])
    np.testing.assert_array_equal(one.rows["time"], frame["timestamp"])
    assert (found.weights == 1).all()


def test_columns_may_have_other_names(tmp_path):
    frame = table().rename(columns={"user_id": "who", "rating": "stars"})
    types = '{"who": "user", "stars": "rating"}'
    found = load(written(tmp_path, frame), column_types=types, **OF_RATINGS)
    assert found.fingerprint == load(table(), **OF_RATINGS).fingerprint


def test_weights_and_dates(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "user,movie,rating,weight,time,title\na,x,4.5,2,2024-01-31,The X\n"
        "b,x,3,1,2024-02-01,\na,y,1,.5,2023-01-01,\n"
    )
    keys = {**OF_RATINGS, "split_by": "time"}
    found = load(f"ratings:{path}", **keys)
    assert found.user_ids == ["a", "b"]
    assert found.items.to_numpy().tolist() == [["x", "The X"], ["y", "y"]]
    assert found.splits["test"].inputs.tolist() == [[1, 0]]
    assert found.splits["train"].targets.tolist() == [4.5, 1]
    assert found.weights.tolist() == [2, 0.5]
    path.write_text(path.read_text().replace("x,4.5,2,", "x,4.5,3,"))
    assert load(f"ratings:{path}", **keys).fingerprint != found.fingerprint


def test_watches_are_learned_unless_ratings_are_asked_for():
    frame = table()
    found = load(frame)
    assert found.class_names == ("not watched", "watched")
    found = load(frame, **OF_RATINGS)
    assert found.class_names is None
    one = found
    triples = {
        (int(one.user_ids[i]), int(one.items["item"][j]), value)
        for split in found.splits.values()
        for (i, j), value in zip(*split, strict=True)
    }
    assert triples == {*frame[["user_id", "movie_id", "rating"]].itertuples(index=False, name=None)}


def test_a_split_by_time_holds_out_the_latest():
    found = load(table(), **OF_RATINGS, split_by="time")
    rows = found.rows
    latest = rows.nlargest(round(0.1 * len(rows)), "time")[["user", "item"]].to_numpy()
    assert {*map(tuple, latest)} == {*map(tuple, found.splits["test"].inputs)}
    # Of watches too, with unwatched ones of these users at the rate of their watched ones.
    pairs, labels = load(table(), split_by="time").splits["test"]
    assert {*map(tuple, pairs[labels == 1])} == {*map(tuple, latest)}
    for user in range(NUM_USERS):
        held = labels[pairs[:, 0] == user]
        count = (rows["user"] == user).sum()
        number = max(1, round((held == 1).sum() / count * (NUM_ITEMS - count)))
        assert (held == 0).sum() == (min(number, NUM_ITEMS - count - 1) if held.any() else 0)


def test_rows_that_repeat_a_watch_are_one():
    rows = table()[["user_id", "movie_id"]].assign(weight=2)
    found = load(pd.concat([rows, rows[::3]]).sample(frac=1, random_state=0))
    assert (found.signs >= 0).sum() == len(rows) + (found.splits["test"].targets == 0).sum()


HEADER = "user,item,rating,timestamp\n"
BAD = {
    "no column": ("who,item\na,x\n", {}, "the columns 'who', 'item', and needs a user"),
    "two columns": ("user,item,movie\na,x,y\n", {}, "'item', 'movie', and needs.*rename"),
    "no header": ("1\t7\t5\t881\n1\t9\t3\t882\n", {}, "the columns '1', '7'"),
    "empty": ("", {}, "cannot be read: No columns"),
    "no rows": (HEADER, {}, "has 0 rows"),
    "long row": (HEADER + "a,x,1,2\na,x,1,2,3\n", {}, "cannot be read.*line 3"),
    "not finite": (HEADER + "a,x,1,2\na,y,inf,2\n", {}, "row 2 has the rating 'inf'.*finite"),
    "1_0": (HEADER + "a,x,1_0,2\n", {}, "row 1 has the rating '1_0'"),
    "time 1_0": (HEADER + "a,x,1,1_0\n", {}, "row 1 has the time '1_0'"),
    "no user": (HEADER + ",x,1,2\n", {}, "row 1 has the user nan"),
    "no time": (HEADER + "a,x,1,soon\n", {}, "row 1 has the time 'soon'.*2024-12-31"),
    "weight 0": ("user,item,weight\na,x,0\n", {}, "row 1 has the weight '0'.*positive"),
    "twice a pair": (HEADER + "a,x,1,2\na,y,3,2\na,x,2,9\n", {}, "'a' rates 'x' twice"),
    "no ratings": ("user,item\na,x\na,y\n", {}, "has no column rating"),
    "no times": ("user,item,rating\na,x,1\n", {"split_by": "time"}, "has no column time"),
    "one time": (HEADER + "a,x,1,2\na,y,2,2\n", {"split_by": "time"}, "too few.*times"),
    "one rating each": (HEADER + "a,x,1,2\nb,y,2,2\n", {}, "too few interactions"),
    "latin": ("user,item\nRené,x\n", {}, "cannot be read.*utf-8"),
}


@pytest.mark.parametrize(("text", "said", "line"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(tmp_path, text, said, line):
    (tmp_path / "bad.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=line) as error:
        load(f"ratings:{tmp_path / 'bad.csv'}", **OF_RATINGS, **said)
    assert "\n" not in str(error.value)


def test_other_bad_files_are_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load(f"ratings:{tmp_path / 'absent.csv'}")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"cannot be read.*Parquet"):
        load(f"ratings:{tmp_path / 'x.parquet'}")
    with pytest.raises(InputError, match="data is a int"):
        load(5)
