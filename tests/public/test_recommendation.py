"""The posterior of a factorisation: how it ranks, what it recommends, ratings of one's own."""

import functools
import json

import names
import numpy as np
import pandas as pd
import pytest
from small import files_in, refused, refused_command, run_command

CHAINS = {
    "model": "matrix_factorisation",
    "num_factors": 2,
    "method": "hmc",
    "prior": "normal(1)",
    "init_from": "prior",
    "num_chains": 2,
    "num_devices": 4,
    "log_every_steps": 40,
    "sampler.step_size": 0.05,
    "sampler.num_leapfrog_steps": 8,
    "sampler.num_warmup": 60,
    "sampler.num_samples": 60,
    "sampler.thinning": 2,
}


def learn(workdir, data=None, **values):
    config = names.config({**CHAINS, **values})
    return names.train(config, data, str(workdir), show_progress=False)


def stars():
    """Ratings of 30 users for 20 films, of which half like one kind and half the other."""
    rng = np.random.default_rng(0)
    rows = [
        (f"u{user}", f"film {item}", 4.5 - 3 * ((user + item) % 2) + rng.integers(0, 2) / 2)
        for user in range(30)
        for item in rng.permutation(20)[:14]
    ]
    frame = pd.DataFrame(rows, columns=["user", "item", "rating"])
    return frame.assign(timestamp=1_600_000_000 + 60 * rng.permutation(len(frame)))


@pytest.fixture(scope="module")
def watches(tmp_path_factory):
    """A run on generated watches."""
    workdir = tmp_path_factory.mktemp("watches") / "run"
    learn(workdir, dataset="watches:60x40")
    return workdir


@pytest.mark.check
def test_the_posterior_ranks_better_than_popularity(watches):
    found = names.ranking(names.report(watches))
    assert list(found) == ["posterior", "map", "biases", "popularity"]
    for score in ("auc", "recall_at_20", "log_likelihood"):
        assert found["posterior"][score] > found["popularity"][score]
    assert np.isfinite(names.posterior(names.report(watches))["rhat_max"])


@pytest.mark.check
def test_what_is_recommended_was_not_seen_and_comes_in_order(watches):
    every = names.recommend(watches, "u7", top=1000)
    assert len(every.items) == 40 - every.num_seen
    means = [one.mean for one in every.items]
    assert means == sorted(means, reverse=True)
    assert all(0 < one.low <= one.mean <= one.high < 1 for one in every.items)
    first = names.recommend(watches, "u7", top=3).items
    assert [one.item for one in first] == [one.item for one in every.items[:3]]
    flags = [f"--workdir={watches}", "--user=u7", "--top=3"]
    assert first[0].title in run_command("recommend", *flags).stdout
    document = json.loads(run_command("recommend", *flags, "--json").stdout)
    assert [one["item"] for one in document["recommendations"]] == [one.item for one in first]
    new = names.recommend(watches, "stranger", top=3)
    assert new.from_prior == ("user",)
    assert "stranger" in new.notes[0]


@pytest.mark.check
@pytest.mark.parametrize("form", ["csv", "frame"])
def test_ratings_of_ones_own_are_learned(form, tmp_path):
    frame = stars()
    data = None
    values = {"likelihood": "gaussian_homoscedastic", "split_by": "time"}
    if form == "csv":
        frame.to_csv(tmp_path / "stars.csv", index=False)
    else:
        data = frame
    if data is None:
        values["dataset"] = f"ratings:{tmp_path / f'stars.{form}'}"
    learn(tmp_path / "run", data, **values)
    found = names.ranking(names.report(tmp_path / "run"))
    assert found["posterior"]["rmse"] < found["popularity"]["rmse"]
    answer = names.recommend(tmp_path / "run", "u4", top=50, data=data)
    seen = set(frame.loc[frame["user"] == "u4", "item"])
    assert answer.of == "rating"
    held_out = set(frame.nlargest(len(frame) // 10, "timestamp")["item"])
    assert not {one.title for one in answer.items} & (seen - held_out)
    one = names.recommend(tmp_path / "run", "u4", item="film 2", data=data).items[0]
    assert one.low < one.mean < one.high


@pytest.mark.check
def test_a_prepared_set_of_movielens_is_learned(tmp_path):
    from recommendation import movielens_sets

    movielens_sets.write_ratings(tmp_path, movielens_sets.random_ratings(), "100k-ratings")
    few = {"sampler.num_warmup": 4, "sampler.num_samples": 4, "sampler.thinning": 1}
    values = {**few, "dataset": "movielens/100k-ratings", "data_dir": str(tmp_path)}
    learn(tmp_path / "run", num_devices=1, num_chains=1, **values)
    assert len(names.recommend(tmp_path / "run", "1", top=2).items) <= 2


def pairs(*rows):
    return lambda: pd.DataFrame(rows, columns=["user", "item", "rating"])


RATINGS = {"likelihood": "gaussian_homoscedastic"}
BAD = {
    "no such file": (None, {"dataset": "ratings:/nowhere.csv"}, "/nowhere.csv"),
    "a size": (None, {"dataset": "watches:3by30"}, "watches:3by30"),
    "columns": (lambda: stars().rename(columns={"item": "film"}), {}, "film"),
    "two ratings": (pairs(("a", "x", 1.0), ("a", "x", 2.0), ("b", "y", 1.0)), RATINGS, "x"),
    "no number": (pairs(("a", "x", np.nan), ("b", "y", 1.0)), RATINGS, "rating"),
    "likelihood": (stars, {"likelihood": "poisson"}, "poisson"),
    "split": (stars, {"split_by": "day"}, "day", "time"),
    "factors": (stars, {"num_factors": 0}, "num_factors=0"),
    "model": (None, {"dataset": "watches:20x15", "model": "cnn"}, "num_factors"),
    "method": (None, {"dataset": "watches:20x15", "method": "mclmc"}, "mclmc"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_ratings_are_one_line_and_nothing_is_written(case, tmp_path):
    make, values, *words = BAD[case]
    refused(lambda: learn(tmp_path / "run", make and make(), **values), *words)
    assert not files_in(tmp_path)


@pytest.mark.check
def test_a_bad_question_is_one_line(watches):
    for options, word in (
        ({"top": 0}, "top=0"),
        ({"user": 7.5}, "user=7.5"),
        ({"item": float("nan")}, "item=nan"),
        ({"data": 5}, "data"),
    ):
        asked = {"user": "u7", **options}
        refused(functools.partial(names.recommend, watches, **asked), word)
    refused_command("recommend", [f"--workdir={watches}", "--user=u7", "--top=0"], ("top",))
    refused(lambda: names.evaluate(watches), "watches")
