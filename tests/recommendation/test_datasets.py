"""Who watched what: small sets as TFDS prepares them, generated ones, and what is held out."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from recommendation import movielens_sets
from tensorflow_datasets.proto import tf_example_pb2

from ensemble import InputError
from ensemble.data.source import Request
from ensemble.recommendation import datasets


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


def test_duplicate_ratings_are_refused(tmp_path):
    ratings = movielens_sets.random_ratings()
    user, _, title, _ = ratings[5]
    movielens_sets.write_ratings(tmp_path, [*ratings, ratings[5]])
    with pytest.raises(InputError) as error:
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
    "no shard": (
        lambda directory: (directory / "movielens-train.array_record-00000-of-00001").unlink(),
        "movielens-train.array_record-00000-of-00001 is missing",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_set_is_one_clear_line(tmp_path, damage, message):
    directory = movielens_sets.write_ratings(tmp_path, movielens_sets.random_ratings())
    damage(directory)
    with pytest.raises(InputError, match=message) as error:
        read_movielens("movielens/1m-ratings", str(tmp_path))
    assert str(directory) in str(error.value)
    assert "delete this directory" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("movies", "count"), [([0, 1, 2], 3), ([], 0)])
def test_a_user_with_all_or_none_is_named(watches, movies, count):
    watched = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 1]], np.uint8)
    watched[1, movies] = 1
    small = dataclasses.replace(watches, name="mine", watched=watched, user_ids=("a", "b", "c"))
    with pytest.raises(InputError, match=f"'b' watched {count}.*3 items"):
        datasets.check_watches(small)


@pytest.mark.parametrize(
    "name",
    ["watches:10", "watches:0x5", "watches:5x1", "watches:-3x4", "watches:3x4x5", "watches:ax4"],
)
def test_malformed_sizes_are_refused(name):
    with pytest.raises(InputError, match=f"^dataset='{name}'.*watches:1000x600$"):
        datasets.generate_watches(name)


def test_a_matrix_beyond_memory_is_refused_with_its_bytes():
    with pytest.raises(InputError, match=r"279396772\.4 GiB"):
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
