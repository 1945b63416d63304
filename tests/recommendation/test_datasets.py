"""Who watched what: small sets as TFDS prepares them, generated ones, and what is held out."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from recommendation import movielens_sets
from tensorflow_datasets.proto import tf_example_pb2

from ensemble import UserError
from ensemble.recommendation import datasets
from ensemble.source import Request
from ensemble.sources import prepare_dataset


def read_movielens(name, data_dir):
    return datasets.load_ratings(name, Request(data_dir)).watches


@pytest.fixture(scope="module")
def watches():
    return datasets.generate_watches("watches:300x200")


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("config", ["1m-ratings", "100k-ratings"])
def test_reads_what_was_written(tmp_path, config, num_shards):
    """As the notebook does it, with pandas."""
    ratings = movielens_sets.random_ratings()
    movielens_sets.write_ratings(tmp_path, ratings, config, num_shards)

    watches = read_movielens(f"movielens/{config}", str(tmp_path))

    users, movies, titles, genres = zip(*ratings, strict=True)
    user_indices, user_labels = pd.factorize(np.array(users, object))
    movie_indices, movie_labels = pd.factorize(np.array(movies, object))
    expected = np.zeros((9, 7), np.uint8)
    expected[user_indices, movie_indices] = 1
    np.testing.assert_array_equal(watches.watched, expected)
    assert watches.watched.dtype == np.uint8
    assert watches.user_ids == tuple(user_labels)
    title_of, genres_of = (dict(zip(movies, each, strict=True)) for each in (titles, genres))
    assert watches.movie_titles == tuple(title_of[label] for label in movie_labels)
    assert len(set(watches.movie_titles)) < 7  # One title can belong to two movies.
    names = movielens_sets.GENRE_NAMES
    assert watches.movie_genres == tuple(names[genres_of[label][0]] for label in movie_labels)
    assert watches.truth is None


def test_an_absent_set_is_one_line_with_the_command(tmp_path, monkeypatch):
    for scheme in ("http", "https", "HTTP", "HTTPS"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(prepare_dataset, "prepare_in_child", prepare_dataset.prepare)
    with pytest.raises(UserError) as error:
        read_movielens("movielens/1m-ratings", str(tmp_path))

    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"movielens/1m-ratings is not in {tmp_path}")
    assert (
        "python -m ensemble.sources.prepare_dataset movielens/1m-ratings --data_dir=DIR" in message
    )


def test_duplicate_ratings_are_refused(tmp_path):
    ratings = movielens_sets.random_ratings()
    user, _, title, _ = ratings[5]
    movielens_sets.write_ratings(tmp_path, [*ratings, ratings[5]])
    with pytest.raises(UserError) as error:
        read_movielens("movielens/1m-ratings", str(tmp_path))
    assert f"user {user!r} has 2 ratings of {title!r}" in str(error.value)
    assert "\n" not in str(error.value)


def _without(feature):
    def damage(directory):
        example = tf_example_pb2.Example.FromString(
            movielens_sets.serialise(("1", "2", "Film", [0]))
        )
        del example.features.feature[feature]
        _replace([example.SerializeToString()])(directory)

    return damage


def _replace(records):
    def damage(directory):
        size = len(movielens_sets.random_ratings())
        file = directory / "movielens-train.array_record-00000-of-00001"
        movielens_sets.tfds_sets.write_array_record(file, (records * size)[:size])

    return damage


LATIN = movielens_sets.serialise(("1", "2", "Film", [0])).replace(b"Film", b"F\xeflm")
DAMAGES = {
    "no user": (_without("user_id"), "cannot be decoded"),
    "no movie": (_without("movie_id"), "cannot be decoded"),
    "no title": (_without("movie_title"), "cannot be decoded"),
    "no genre": (_without("movie_genres"), "cannot be decoded"),
    "unknown genre": (_replace([movielens_sets.serialise(("1", "2", "F", [4]))]), "be decoded"),
    "negative genre": (_replace([movielens_sets.serialise(("1", "2", "F", [-1]))]), "be decoded"),
    "not UTF-8": (_replace([LATIN]), "cannot be decoded"),
    "no protos": (_replace([b"\xff"]), "cannot be decoded"),
    "no genre names": (
        lambda directory: (directory / "movie_genres.labels.txt").unlink(),
        "movie_genres.labels.txt is missing",
    ),
    "no shard": (
        lambda directory: (directory / "movielens-train.array_record-00000-of-00001").unlink(),
        "movielens-train.array_record-00000-of-00001 is missing",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_set_is_one_clear_line(tmp_path, damage, message):
    directory = movielens_sets.write_ratings(tmp_path, movielens_sets.random_ratings())
    damage(directory)
    with pytest.raises(UserError, match=message) as error:
        read_movielens("movielens/1m-ratings", str(tmp_path))
    assert str(directory) in str(error.value)
    assert "delete this directory" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("movies", "count"), [([0, 1, 2], 3), ([], 0)])
def test_a_user_with_all_or_none_is_named(watches, movies, count):
    watched = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 1]], np.uint8)
    watched[1, movies] = 1
    small = dataclasses.replace(watches, name="mine", watched=watched, user_ids=("a", "b", "c"))
    with pytest.raises(UserError, match=f"'b' watched {count}.*3 items"):
        datasets.check_watches(small)


def test_a_set_whose_user_rated_everything_is_refused(tmp_path):
    ratings = [*movielens_sets.random_ratings(1, 3)[:1], ("2", "500", "Other (1999)", [0])]
    ratings += [("2", *ratings[0][1:])]
    movielens_sets.write_ratings(tmp_path, ratings)
    with pytest.raises(UserError, match=r"user '2' .*2 of 2 "):
        read_movielens("movielens/1m-ratings", str(tmp_path))


@pytest.mark.parametrize(
    "name",
    ["watches:10", "watches:0x5", "watches:5x1", "watches:-3x4", "watches:3x4x5", "watches:ax4"],
)
def test_malformed_sizes_are_refused(name):
    with pytest.raises(UserError, match=f"^dataset='{name}'.*watches:1000x600$"):
        datasets.generate_watches(name)


def test_a_matrix_beyond_memory_is_refused_with_its_bytes():
    with pytest.raises(UserError, match=r"279396772\.4 GiB"):
        datasets.generate_watches("watches:100000000x1000000000")


def test_generated_watches_follow_their_truth(watches):
    """Every probability is right: counts by deciles of it are within 4 standard errors."""
    p = watches.truth.probabilities(slice(None)).astype(float)
    assert p.shape == watches.watched.shape == (300, 200)
    edges = np.quantile(p, np.linspace(0, 1, 11))
    for low, high in itertools.pairwise(edges):
        inside = (p >= low) & (p <= high)
        expected, variance = p[inside].sum(), (p * (1 - p))[inside].sum()
        assert abs(watches.watched[inside].sum() - expected) < 4 * variance**0.5
    some = np.array([3, 250])
    np.testing.assert_allclose(watches.truth.probabilities(some), p[some], rtol=1e-4)


def test_generated_watches_are_like_real_ones(watches):
    """Few movies are popular, few users watch much, and a genre's movies go together."""
    by_user, by_movie = watches.watched.sum(axis=1), watches.watched.sum(axis=0)
    assert by_user.mean() > 1.2 * np.median(by_user)
    assert by_movie.mean() > 1.2 * np.median(by_movie)
    factors = watches.truth.movie_factors
    distances = np.linalg.norm(factors[:, None] - factors, axis=-1)
    genres = np.array(watches.movie_genres)
    same = genres[:, None] == genres
    assert distances[same & (distances > 0)].mean() < 0.8 * distances[~same].mean()
    assert len(watches.user_ids) == len(set(watches.user_ids)) == 300
    assert len(set(watches.movie_titles)) == 200


def test_generated_watches_are_a_function_of_the_seed(watches):
    again = datasets.generate_watches("watches:300x200", seed=0)
    np.testing.assert_array_equal(again.watched, watches.watched)
    other = datasets.generate_watches("watches:300x200", seed=1)
    assert (other.watched != watches.watched).mean() > 0.05
    with pytest.raises(UserError, match="seed=-1 "):
        datasets.generate_watches("watches:3x4", seed=-1)


def test_the_smallest_sets_can_be_used():
    """Rows without a watched or an unwatched movie are drawn again."""
    watched = datasets.generate_watches("watches:500x2").watched
    assert (watched.sum(axis=1) == 1).all()
    assert 0.2 < watched[:, 0].mean() < 0.8


def test_held_out_pairs(watches):
    observed, (pairs, labels) = datasets.hold_out(watches, seed=0)

    assert observed.dtype == np.uint8
    assert pairs.dtype == labels.dtype == np.int32
    users, movies = pairs.T
    np.testing.assert_array_equal(watches.watched[users, movies], labels)
    np.testing.assert_array_equal(np.argwhere(observed == 2), pairs[np.lexsort((movies, users))])
    rest = observed != 2
    np.testing.assert_array_equal(observed[rest], watches.watched[rest])
    counts = watches.watched.sum(axis=1)
    watched = np.where(counts < 2, 0, np.maximum(1, np.round(counts * 0.1)))
    others = np.round(watched / counts * (200 - counts))  # At the user's own rate: no odds change.
    for label, expected in ((1, watched), (0, others)):
        held = np.bincount(users[labels == label], minlength=300)
        np.testing.assert_array_equal(held, expected)
    assert (np.diff(users) >= 0).all()


def test_negatives_are_drawn_evenly(watches):
    """Over many seeds an unwatched movie of a user is held out as often as any other."""
    user = int(watches.watched.sum(axis=1).argmax())
    one = dataclasses.replace(
        watches, watched=watches.watched[[user]], user_ids=(watches.user_ids[user],)
    )
    counts = sum((datasets.hold_out(one, seed)[0][0] == 2).astype(int) for seed in range(400))
    for label in (0, 1):
        side = counts[one.watched[0] == label]
        p = side.mean() / 400
        assert np.ptp(side) < 8 * (400 * p * (1 - p)) ** 0.5


def test_a_users_pairs_do_not_depend_on_others(watches):
    _, (pairs, labels) = datasets.hold_out(watches, seed=3)
    order = np.random.default_rng(0).permutation(300)[:200]
    fewer = dataclasses.replace(
        watches,
        watched=watches.watched[order],
        user_ids=tuple(watches.user_ids[user] for user in order),
    )
    _, (fewer_pairs, fewer_labels) = datasets.hold_out(fewer, seed=3)
    for place, user in enumerate(order):
        mine, theirs = fewer_pairs[:, 0] == place, pairs[:, 0] == user
        np.testing.assert_array_equal(fewer_pairs[mine, 1], pairs[theirs, 1])
        np.testing.assert_array_equal(fewer_labels[mine], labels[theirs])
    assert len(fewer_pairs) > 100

    _, (other_pairs, _) = datasets.hold_out(watches, seed=4)
    assert (other_pairs != pairs).any()


def test_users_with_little_keep_it(watches):
    watched = np.zeros((4, 6), np.uint8)
    watched[0, 0] = watched[1, :5] = watched[2, :4] = watched[3, :2] = 1
    small = dataclasses.replace(watches, watched=watched, user_ids=tuple("abcd"))
    observed, (pairs, _) = datasets.hold_out(small, seed=0, share=0.9)
    assert np.bincount(pairs[:, 0], minlength=4).tolist() == [0, 0, 3 + 1, 1 + 2]
    assert (observed == 1).any(axis=1).all()
    assert (observed == 0).any(axis=1).all()


def test_what_cannot_be_held_out_is_refused(watches):
    with pytest.raises(UserError, match=r"share=1\.0 "):
        datasets.hold_out(watches, seed=0, share=1.0)
    with pytest.raises(UserError, match="seed=-1 "):
        datasets.hold_out(watches, seed=-1)
    with pytest.raises(UserError, match="no user with two watched"):
        datasets.hold_out(datasets.generate_watches("watches:5x2"), seed=0)
