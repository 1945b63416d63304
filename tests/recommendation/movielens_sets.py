"""Writes small sets of ratings in the format in which TensorFlow Datasets leaves MovieLens."""

from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
import tfds_sets
from tensorflow_datasets.proto import tf_example_pb2

GENRE_NAMES = ("Action", "Comedy", "Drama", "(no genres listed)")

Rating = tuple[str, str, str, list[int]]
"""User id, movie id, title and genres."""


def random_ratings(num_users: int = 9, num_movies: int = 7) -> list[Rating]:
    """Ratings in random order; every user has some, and none has all. Two titles are equal."""
    rng = np.random.default_rng(0)
    ratings = [
        (
            str(user + 1),
            str(100 + movie),
            f"The Crème of Film {movie // 2} (19{50 + movie // 2})",
            [movie % 3, (movie + 1) % 3],
        )
        for user in range(num_users)
        for movie in rng.permutation(num_movies)[: rng.integers(1, num_movies)]
    ]
    return [ratings[index] for index in rng.permutation(len(ratings))]


def serialise(rating: Rating) -> bytes:
    """The `tf.train.Example` of a rating, with fields that nobody reads, as TFDS has them."""
    example = tf_example_pb2.Example()
    feature = example.features.feature
    for name, text in zip(("user_id", "movie_id", "movie_title"), rating, strict=False):
        feature[name].bytes_list.value.append(text.encode())
    feature["movie_genres"].int64_list.value.extend(rating[3])
    feature["timestamp"].int64_list.value.append(978_300_760)
    feature["user_rating"].float_list.value.append(4.0)
    return example.SerializeToString()


def write_ratings(
    data_dir: Path, ratings: list[Rating], config: str = "1m-ratings", num_shards: int = 1
) -> Path:
    """Writes a prepared set.

    Returns:
        its directory, `data_dir/movielens/config/0.1.1`.
    """
    directory = data_dir / "movielens" / config / "0.1.1"
    directory.mkdir(parents=True)
    parts = np.array_split(np.arange(len(ratings)), num_shards)
    for index, part in enumerate(parts):
        file = directory / f"movielens-train.array_record-{index:05d}-of-{num_shards:05d}"
        tfds_sets.write_array_record(file, [serialise(ratings[i]) for i in part])
    genres = tfds.features.ClassLabel(names=GENRE_NAMES)
    features = {
        **dict.fromkeys(("user_id", "movie_id", "movie_title"), np.str_),
        "movie_genres": tfds.features.Sequence(genres),
        "timestamp": np.int64,
        "user_rating": np.float32,
    }
    lengths = {"train": [len(part) for part in parts]}
    tfds_sets.write_json_files(directory, lengths, features, keys=None, name="movielens")
    return directory
