"""Blends of training examples."""

import dataclasses

import numpy as np
import pytest

from ensemble.source import Source
from ensemble.sources import Examples
from ensemble.sources.dataset import dataset_from_arrays, make_dataset
from ensemble.tasks.distillation.blended import Blended


@pytest.fixture
def source(blobs):
    return dataset_from_arrays(blobs)


def test_examples_come_first_and_blends_lie_between_two(source):
    blended = Blended(source, 2, seed=0)
    size = source.sizes["train"]
    assert blended.sizes == {**source.sizes, "train": 3 * size}
    inputs, targets = blended.read("train", slice(None))
    whole = source.read("train", slice(None))
    np.testing.assert_array_equal(inputs[:size], whole.inputs)
    np.testing.assert_array_equal(targets, np.tile(whole.targets, 3))
    np.testing.assert_array_equal(blended.targets("train"), targets)
    for k in (size, 2 * size + 7):  # On the line from its own example to some other.
        steps = whole.inputs - whole.inputs[k % size]
        step = inputs[k] - whole.inputs[k % size]
        share = (steps @ step) / np.maximum((steps**2).sum(axis=1), 1e-9)
        misses = np.abs(steps * share[:, None] - step).max(axis=1)
        assert misses[np.arange(size) != k % size].min() < 1e-5
    np.testing.assert_array_equal(
        blended.read("train", np.array([[3], [2 * size]])).inputs, inputs[[[3], [2 * size]]]
    )


def test_the_seed_gives_them_and_other_splits_are_as_they_were(source):
    one, same, other = (Blended(source, 1, seed).read("train", slice(None)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.inputs, same.inputs)
    assert (one.inputs != other.inputs).any()
    blended = Blended(source, 1, 0)
    np.testing.assert_array_equal(
        blended.read("test", slice(3)).inputs, source.read("test", slice(3)).inputs
    )
    assert blended.fingerprint == source.fingerprint
    assert blended.test_fingerprint == source.test_fingerprint


def test_blends_of_pictures_stay_whole_numbers():
    images = np.arange(2 * 6, dtype=np.uint8).reshape(2, 2, 3, 1) * 20
    part = Examples(images, np.array([0, 1], np.int32))
    blended = Blended(make_dataset("two", {"train": part, "test": part}, ("a", "b"), 1 / 255), 3, 0)
    inputs = blended.read("train", slice(None)).inputs
    assert inputs.dtype == np.uint8
    assert (inputs >= images.min(axis=0)).all()
    assert (inputs <= images.max(axis=0)).all()


def test_what_a_source_says_of_its_inputs_is_said_of_blends(source):
    rows = np.ones((1, *source.input_shape), np.float32)
    source = dataclasses.replace(source, squash=rows[0], quantiles=rows.T)
    blended = Blended(source, 1, seed=0)
    for name in Source.__annotations__:
        assert getattr(blended, name) is getattr(source, name), name
