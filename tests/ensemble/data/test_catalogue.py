"""Data sets, splits, batch order, augmentation, class weights."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT

import input_pipeline
from ensemble import InputError
from ensemble.data import catalogue

SPLITS = ["train", "validation", "calibration", "test"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("minst", "mnist"),
        ("npz:", "npz:PATH"),
        (
            "",
            "digits, clutter, grouped_clutter, mnist, fashion_mnist, kmnist, cifar10, diabetes",
        ),
        ("tar:x", "known are"),
    ],
)
def test_unknown_names_list_the_known(name, hint):
    with pytest.raises(InputError, match="is unknown; known are digits") as error:
        input_pipeline.load_dataset(name)
    assert hint in str(error.value)


@pytest.mark.parametrize("name", ["mine.csv", "mine.npz", os.path.dirname(__file__)])
def test_paths_without_a_prefix_are_told_how_to_write_them(name):
    for call in (
        lambda: input_pipeline.load_dataset(name),
        lambda: catalogue.complete({"dataset": name, "likelihood": "auto"}, {}, None),
    ):
        with pytest.raises(InputError, match="named by its prefix, such as csv:PATH"):
            call()


def test_stratified_split_of_rare_classes():
    labels = np.array([0] * 100 + [1] * 10 + [2] * 2 + [3])
    parts = input_pipeline.stratified_split(labels, (80, 11, 11, 11), seed=0)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(113))
    assert set(labels[parts[0]]) == {0, 1, 2, 3}
    for part in parts:
        counts = np.bincount(labels[part], minlength=4)
        assert np.abs(counts - np.array([100, 10, 2, 1]) * len(part) / 113).max() <= 1.5


@pytest.mark.parametrize("num_examples", [1, 5, 8, 13, 97])
@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_every_example_once_an_epoch(num_examples, batch_size):
    indices, weights = input_pipeline.epoch_batches(num_examples, batch_size, seed=0, epoch=2)
    assert indices.shape == weights.shape == (-(-num_examples // batch_size), batch_size)
    assert indices.dtype == np.int32
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(np.sort(indices[weights == 1]), np.arange(num_examples))
    assert weights.sum() == num_examples
    assert (weights[:-1] == 1).all()


@pytest.mark.check
def test_order_is_a_function_of_seed_epoch_and_member():
    def order(*args):
        return tuple(input_pipeline.epoch_batches(50, 50, *args)[0][0])

    streams = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    assert len({order(*stream) for stream in streams}) == len(streams)
    assert all(order(*stream) == order(*stream) for stream in streams)
    code = "import input_pipeline as p; print(*p.epoch_batches(50, 50, 1, 2, 3)[0][0])"
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert tuple(map(int, output.split())) == order(1, 2, 3)


_augment = jax.jit(input_pipeline.augment, static_argnums=(2, 3))


def _keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


@pytest.mark.check
def test_augment_shifts_with_zeros_up_to_the_limit():
    """One bright pixel in the middle ends up everywhere within the limit, and nowhere else."""
    images = jnp.zeros((500, 9, 9, 1), jnp.uint8).at[:, 4, 4].set(200)
    moved = np.asarray(_augment(_keys(500), images, 2, False))
    np.testing.assert_array_equal(moved.sum((1, 2, 3)), 200)
    _, rows, columns, _ = np.nonzero(moved)
    assert {*zip(rows, columns, strict=True)} == {(r, c) for r in range(2, 7) for c in range(2, 7)}

    edge = jnp.zeros((500, 3, 3, 1), jnp.uint8).at[:, 0, 0].set(200)
    sums = np.asarray(_augment(_keys(500), edge, 1, False)).sum((1, 2, 3))
    assert set(sums) == {0, 200}  # What leaves on one side does not come back on the other.


def test_augment_flips_half_of_the_images_left_to_right():
    image = jnp.arange(12, dtype=jnp.uint8).reshape(3, 4, 1)
    flipped = np.asarray(_augment(_keys(400), jnp.stack([image] * 400), 0, True))
    is_same = (flipped == np.asarray(image)).all((1, 2, 3))
    is_mirrored = (flipped == np.asarray(image)[:, ::-1]).all((1, 2, 3))
    assert (is_same ^ is_mirrored).all()
    assert 140 < is_mirrored.sum() < 260  # 6 standard deviations
