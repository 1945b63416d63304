"""MovieLens as TFDS prepares it, generated watches, and what is held out of both."""

import numpy as np
import pandas as pd
import pytest
from recommendation import movielens_sets
from tensorflow_datasets.proto import tf_example_pb2

from ensemble import InputError
from ensemble.data.source import Request
from ensemble.recommendation import dataset
from ensemble.recommendation.dataset import generate_watches


def watched_of(found):
    """Whether each user has watched each item, [N, M]."""
    watched = np.zeros(found.shape, bool)
    watched[tuple(found.rows[["user", "item"]].to_numpy().T)] = True
    return watched


@pytest.mark.parametrize("num_shards", [1, 3])
def test_reads_what_was_written(tmp_path, num_shards):
    """As the notebook does it, with pandas."""
    ratings = movielens_sets.random_ratings()
    movielens_sets.write_ratings(tmp_path, ratings, "100k-ratings", num_shards)
    found = dataset.load_interactions("movielens/100k-ratings", Request(str(tmp_path)))

    users, movies, titles, _ = zip(*ratings, strict=True)
    user_indices, user_labels = pd.factorize(np.array(users, object))
    movie_indices, movie_labels = pd.factorize(np.array(movies, object))
    expected = np.zeros((9, 7), bool)
    expected[user_indices, movie_indices] = True
    np.testing.assert_array_equal(watched_of(found), expected)
    assert found.user_ids == [*user_labels]
    items = found.items
    title_of = dict(zip(movies, titles, strict=True))
    assert items["item"].tolist() == [*movie_labels]
    assert items["title"].tolist() == [title_of[label] for label in movie_labels]
    assert items["title"].nunique() < 7  # One title can belong to two movies.


def without(feature):
    example = tf_example_pb2.Example.FromString(movielens_sets.serialise(("1", "2", "F", [0])))
    del example.features.feature[feature]
    return example.SerializeToString()


LATIN = movielens_sets.serialise(("1", "2", "Film", [0])).replace(b"Film", b"F\xeflm")
DAMAGES = {
    "no user": without("user_id"),
    "not UTF-8": LATIN,
    "no protos": b"\xff",
}


@pytest.mark.parametrize("record", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_set_is_one_clear_line(tmp_path, record):
    ratings = movielens_sets.random_ratings()
    directory = movielens_sets.write_ratings(tmp_path, ratings, "1m-ratings")
    file = directory / "movielens-train.array_record-00000-of-00001"
    movielens_sets.tfds_sets.write_array_record(file, [record] * len(ratings))
    with pytest.raises(InputError, match="cannot be read") as error:
        dataset.load_interactions("movielens/1m-ratings", Request(str(tmp_path)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", ["10", "0x5", "5x1", "-3x4", "3x4x5", "ax4"])
def test_malformed_sizes_are_refused(size):
    with pytest.raises(InputError, match=f"^dataset='watches:{size}'.*watches:1000x600$"):
        generate_watches(f"watches:{size}", 0)


def test_a_matrix_beyond_memory_is_refused_with_its_bytes():
    with pytest.raises(InputError, match=r"372529029\.8 GiB"):
        generate_watches("watches:100000000x1000000000", 0)


def test_held_out_pairs():
    found = dataset.load_interactions("watches:300x200", Request())
    pairs, labels = found.splits["test"]
    assert pairs.dtype == labels.dtype == np.int32
    users, movies = pairs.T
    watched = watched_of(found)
    np.testing.assert_array_equal(watched[users, movies], labels)
    signs = found.signs
    assert signs.dtype == np.int8
    np.testing.assert_array_equal(np.argwhere(signs == 0), pairs[np.lexsort((movies, users))])
    np.testing.assert_array_equal((signs > 0)[signs != 0], watched[signs != 0])
    counts = watched.sum(axis=1)
    held = np.where(counts < 2, 0, np.maximum(1, np.round(counts * 0.1)))
    others = np.round(held / counts * (200 - counts))  # At the user's own rate: no odds change.
    for label, expected in ((1, held), (0, others)):
        numbers = np.bincount(users[labels == label], minlength=300)
        np.testing.assert_array_equal(numbers, expected)
    assert (np.diff(users) >= 0).all()
    again = dataset.load_interactions("watches:300x200", Request())
    assert again.fingerprint == found.fingerprint
    other = dataset.load_interactions("watches:300x200", Request(seed=1))
    assert other.fingerprint != found.fingerprint
