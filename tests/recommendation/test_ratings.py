"""Interactions of one's own: files, data frames, what is held out, bad input."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ensemble import InputError
from ensemble.data.source import Request
from ensemble.recommendation import datasets, ratings
from ensemble.recommendation.datasets import RatingDataset, WatchDataset, held_out_rows
from ensemble.recommendation.ratings import RatingsKeys

NUM_USERS, NUM_ITEMS = 12, 9
OF_RATINGS = RatingsKeys(of_ratings=True)


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
        {"user_id": users + 100, "movie_id": items + 500, "rating": values, "timestamp": times}
    )


def write(folder, form):
    frame, path = table(), folder / form
    if form.endswith(".parquet"):
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep=";" if form.startswith("semicolons") else ",")
    return f"ratings:{path}"


def load(name, keys=OF_RATINGS, seed=0):
    return datasets.load_ratings(name, Request(seed=seed, own=keys))


FORMS = ("all.csv", "semicolons.csv", "all.parquet")


@pytest.mark.parametrize("form", [*FORMS, "pandas", "pyarrow", "mapping"])
def test_every_form_has_the_same_interactions(tmp_path, form):
    frame = table()
    makers = {"pandas": pd.DataFrame, "pyarrow": pa.table, "mapping": dict}
    if form in makers:
        data = makers[form]({name: frame[name].to_numpy() for name in frame})
        found = ratings.of_data_frame(data, RatingsKeys())
    else:
        found = ratings.read_named(write(tmp_path, form), Request())
    users, user_ids = pd.factorize(frame["user_id"])
    items, item_ids = pd.factorize(frame["movie_id"])
    np.testing.assert_array_equal(found.users, users)
    np.testing.assert_array_equal(found.items, items)
    assert found.users.dtype == found.items.dtype == np.int32
    assert found.user_ids == tuple(map(str, user_ids))
    assert found.item_ids == found.titles == tuple(map(str, item_ids))
    np.testing.assert_array_equal(found.ratings, frame["rating"].astype(np.float32))
    np.testing.assert_array_equal(found.times, frame["timestamp"])
    assert found.weights is None


def test_long_ids_are_not_rounded(tmp_path):
    ids = [2**60, 2**60 + 1]
    frame = pd.DataFrame({"user": ids, "item": [1, 2]})
    frame.to_parquet(tmp_path / "x.parquet")
    for found in (
        ratings.of_data_frame(frame, RatingsKeys()),
        ratings.read_named(f"ratings:{tmp_path / 'x.parquet'}", Request()),
    ):
        assert found.user_ids == tuple(map(str, ids))


def test_weights_and_dates(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "user,movie,rating,weight,time\na,x,4.5,2,2024-01-31\nb,x,3,1,2024-02-01\na,y,1,.5,2023-01-01\n"
    )
    keys = OF_RATINGS
    found = ratings.read_named(f"ratings:{path}", Request(own=keys))
    assert found.user_ids == ("a", "b")
    assert found.ratings.tolist() == [4.5, 3, 1]
    assert found.weights.tolist() == [2, 1, 0.5]
    assert np.argsort(found.times).tolist() == [2, 0, 1]
    assert found.times[1] - found.times[0] == 86_400
    dataset = load(f"ratings:{path}", keys._replace(split_by="time"))
    assert dataset.splits["test"].inputs.tolist() == [[1, 0]]
    assert dataset.weights.tolist() == [2, 0.5]
    path.write_text(path.read_text().replace("x,4.5,2,", "x,4.5,3,"))
    other = load(f"ratings:{path}", keys._replace(split_by="time"))
    assert other.fingerprint != dataset.fingerprint


def test_watches_are_learned_unless_ratings_are_asked_for(tmp_path, caplog):
    name = write(tmp_path, "all.csv")
    dataset, frame = load(name, RatingsKeys()), table()
    assert isinstance(dataset, WatchDataset)
    assert "has ratings, which are not used" in caplog.text
    assert dataset.watches.watched.sum() == len(frame)
    for user, item in zip(frame["user_id"], frame["movie_id"], strict=True):
        names = dataset.names
        where = names.user_ids.index(str(user)), names.item_ids.index(str(item))
        assert dataset.watches.watched[where] == 1
    dataset = load(name)
    assert isinstance(dataset, RatingDataset)
    pairs = np.concatenate([one.inputs for one in dataset.splits.values()])
    values = np.concatenate([one.targets for one in dataset.splits.values()])
    names = dataset.names
    found = {
        (int(names.user_ids[i]), int(names.item_ids[j]), value)
        for (i, j), value in zip(pairs, values, strict=True)
    }
    assert found == set(frame[["user_id", "movie_id", "rating"]].itertuples(index=False, name=None))


def test_a_split_by_time_holds_out_the_latest(tmp_path):
    name = write(tmp_path, "all.csv")
    found = load(name).interactions
    is_held = held_out_rows(found, "time", 0)
    assert is_held.sum() == round(0.1 * len(found.users))
    assert found.times[~is_held].max() < found.times[is_held].min()
    # Of watches too, with unwatched ones of these users at the rate of their watched ones.
    dataset = load(name, RatingsKeys(split_by="time"))
    pairs, labels = dataset.splits["test"]
    watched = {tuple(pair) for pair in pairs[labels == 1]}
    assert watched == set(zip(found.users[is_held], found.items[is_held], strict=True))
    for user in range(NUM_USERS):
        held, count = labels[pairs[:, 0] == user], dataset.counts[user]
        expected = round((held == 1).sum() / count * (NUM_ITEMS - count))
        assert (held == 0).sum() == expected
    assert ((dataset.observed == 2).sum(axis=1) == np.bincount(pairs[:, 0], minlength=12)).all()


@pytest.mark.parametrize("keys", [OF_RATINGS, RatingsKeys()])
def test_a_split_by_user_holds_out_all_of_some_and_says_so(tmp_path, caplog, keys):
    dataset = load(write(tmp_path, "all.csv"), keys._replace(split_by="user"))
    assert "1 of 12 users" in caplog.text
    assert "scored from the prior" in caplog.text
    (held,) = set(dataset.splits["test"].inputs[:, 0])
    assert held not in dataset.splits["train"].inputs[:, 0]
    assert not dataset.is_known(0, held)
    assert dataset.is_known(0, (held + 1) % NUM_USERS)
    assert not dataset.is_known(0, NUM_USERS)
    size = dataset.counts[held] if keys.of_ratings else NUM_ITEMS
    assert dataset.sizes["test"] == size
    assert dataset.seen(held).sum() == dataset.counts[held]


def weights_by_pair(dataset):
    """How often the training pairs count, by the ids of user and item."""
    names, pairs = dataset.names, dataset.splits["train"].inputs
    return {
        (names.user_ids[i], names.item_ids[j]): weight
        for (i, j), weight in zip(pairs, dataset.weights.tolist(), strict=True)
    }


def test_clicks_that_are_repeated_add_up(tmp_path, caplog):
    clicks = "user,item,time\na,x,1\na,y,2\nb,x,3\na,x,4\nb,z,5\nb,x,6\nc,v,7\na,x,8\n"
    (tmp_path / "clicks.csv").write_text(clicks)
    dataset = load(f"ratings:{tmp_path / 'clicks.csv'}", RatingsKeys(split_by="time"))
    assert dataset.counts.tolist() == [2, 2, 1]
    assert "3 of 8 rows repeat a user and an item" in caplog.text
    pairs, labels = dataset.splits["test"]
    assert pairs[labels == 1].tolist() == [[2, 3]]
    expected = {("a", "x"): 3, ("a", "y"): 1, ("b", "x"): 2, ("b", "z"): 1}
    assert weights_by_pair(dataset) == expected


def test_weights_of_watches_are_learned_and_add_up(tmp_path):
    rng, rows = np.random.default_rng(0), table()[["user_id", "movie_id"]]
    rows = rows.assign(weight=rng.integers(1, 9, len(rows)) / 2)
    rows = pd.concat([rows, rows[::3]]).sample(frac=1, random_state=0)
    rows.to_csv(tmp_path / "w.csv", index=False)
    name, keys = f"ratings:{tmp_path / 'w.csv'}", RatingsKeys()
    dataset = load(name, keys)
    sums = rows.astype({"user_id": str, "movie_id": str}).groupby(["user_id", "movie_id"]).sum()
    found = weights_by_pair(dataset)
    assert len(found) == dataset.sizes["train"] < len(sums)
    assert found == {pair: sums["weight"][pair] for pair in found}
    rows.assign(weight=2 * rows["weight"]).to_csv(tmp_path / "w.csv", index=False)
    assert load(name, keys).fingerprint != dataset.fingerprint
    table()[["user_id", "movie_id"]].to_csv(tmp_path / "w.csv", index=False)
    assert load(name, RatingsKeys()).weights is None


HEADER = "user,item,rating,timestamp\n"
BAD = {
    "no column": ("who,item\na,x\n", {}, "no column user or user_id, but 'who', 'item'"),
    "two columns": ("user,item,movie\na,x,y\n", {}, "'item', 'movie'; rename all but one"),
    "no header": (
        "1\t7\t5\t881\n1\t9\t3\t882\n",
        {},
        "has no header: its first line holds '1', '7'",
    ),
    "twice a name": ("user,item,item\na,x,y\n", {}, "two columns of the name .item.;"),
    "empty": ("", {}, "is empty"),
    "no rows": (HEADER, {}, "no rows"),
    "not finite": (HEADER + "a,x,1,2\na,y,inf,2\n", {}, "row 2 has the rating 'inf'.*finite"),
    "no number": (HEADER + "a,x,good,2\n", {}, "row 1 has the rating 'good'"),
    "1_0": (
        HEADER + "a,x,1_0,2\n",
        {},
        "row 1 has the rating '1_0', and a rating must be a finite",
    ),
    "time 1_0": (HEADER + "a,x,1,1_0\n", {}, "row 1 has the time '1_0'"),
    "no user": (HEADER + ",x,1,2\n", {}, "row 1 has no user"),
    "no time": (HEADER + "a,x,1,soon\n", {}, "row 1 has the time 'soon'.*2024-12-31"),
    "weight 0": ("user,item,weight\na,x,0\n", {}, "row 1 has the weight '0'.*positive"),
    "short row": (HEADER + "a,x,1\n", {}, "row 1 has 3 values for 4 columns"),
    "twice a pair": (HEADER + "a,x,1,2\na,y,3,2\na,x,2,9\n", {}, "'a' has 2 ratings of 'x'"),
    "no ratings": ("user,item\na,x\na,y\n", {}, "has no column rating"),
    "no times": ("user,item,rating\na,x,1\n", {"split_by": "time"}, "split_by='time' needs times"),
    "one user": (HEADER + "a,x,1,2\na,y,2,2\n", {"split_by": "user"}, "too few users"),
    "one time": (HEADER + "a,x,1,2\na,y,2,2\n", {"split_by": "time"}, "too few times"),
    "one rating each": (HEADER + "a,x,1,2\nb,y,2,2\n", {}, "too few ratings of one user"),
}


@pytest.mark.parametrize(("text", "said", "line"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(tmp_path, text, said, line):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(InputError, match=line) as error:
        load(f"ratings:{tmp_path / 'bad.csv'}", OF_RATINGS._replace(**said))
    assert "\n" not in str(error.value)


def test_other_bad_files_are_one_line(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        load(f"ratings:{tmp_path / 'absent.csv'}")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"cannot be read.*Parquet"):
        load(f"ratings:{tmp_path / 'x.parquet'}")
    (tmp_path / "latin.csv").write_bytes(HEADER.encode() + b"Ren\xe9,x,1,2\n")
    with pytest.raises(InputError, match="UTF-8"):
        load(f"ratings:{tmp_path / 'latin.csv'}")
