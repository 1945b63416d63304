"""Generated images of digits in clutter."""

import numpy as np
import pytest

from ensemble.sources import batches, catalogue, clutter


def _rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def _digits(count):
    """Blank digits, but the first is a bright square."""
    digits = np.zeros((count, 8, 8), np.uint8)
    digits[0, 1:7, 1:7] = 16
    return digits


def test_images_show_the_digits_that_they_are_to_show():
    images = clutter.render(_digits(50), np.tile(np.arange(50), 4), _rng())
    assert images.dtype == np.uint8
    assert images.shape == (200, clutter.SIDE, clutter.SIDE, 1)
    brightness = images.mean((1, 2, 3)).reshape(4, 50)
    assert (brightness[:, 0] > 30).all()
    assert np.median(brightness[:, 1:]) < 15  # Noise, and now and then a piece of the square.


def test_every_copy_is_another_image():
    images = clutter.render(_digits(2), np.arange(12) % 2, _rng())
    assert len(np.unique(images, axis=0)) == 12


def test_a_second_digit_is_never_brighter_than_the_first(monkeypatch):
    """Two digits of one shape: where the second overlaps, the maximum is the first's."""
    monkeypatch.setattr(clutter, "_PAIRED", 1.0)
    monkeypatch.setattr(clutter, "_NUM_PIECES", 0)
    digits = np.full((2, 8, 8), 16, np.uint8)
    middle = clutter.SIDE // 2
    centres = clutter.render(digits, np.arange(200) % 2, _rng())[
        :, middle - 1 : middle + 1, middle - 1 : middle + 1
    ]
    assert centres.mean((1, 2, 3)).min() > 0.6 * 255 - 60  # Brightness from 0.6, noise of 0.1.


@pytest.fixture
def rendered(monkeypatch):
    """The digits that are rendered, split by split; their images are blank."""
    given = []

    def render(digits, shown, rng):
        given.append(digits)
        return np.zeros((len(shown), 20, 20, 1), np.uint8)

    monkeypatch.setattr(clutter, "render", render)
    return given


def test_a_split_shows_its_own_digits_only(rendered):
    """Also its clutter is made of them: nothing of a test digit is in a training image."""
    splits = catalogue.load_dataset("grouped_clutter").splits
    digits = catalogue.load_dataset("digits").splits
    assert list(splits) == list(digits)
    for shown, (name, split) in zip(rendered, splits.items(), strict=True):
        np.testing.assert_array_equal(shown, digits[name].inputs[..., 0])
        copies = len(split.targets) // len(shown)
        np.testing.assert_array_equal(split.targets, np.tile(digits[name].targets, copies))


@pytest.mark.parametrize("hold_out", [True, False])
def test_rows_of_one_digit_are_a_group(rendered, hold_out):
    """Intervals are over digits: images of one may be alike."""
    dataset = catalogue.load_dataset("grouped_clutter", hold_out=hold_out)
    strata = dataset.strata("test")
    assert (strata.column, strata.kind, len(np.unique(strata.values))) == ("digit", "group", 300)
    for split, size in dataset.sizes.items():
        numbers, labels = dataset.strata(split).values, dataset.targets(split)
        assert len(numbers) == size
        first = np.unique(numbers, return_index=True, return_inverse=True)[1:]
        np.testing.assert_array_equal(labels, labels[first[0]][first[1]])
    of_splits = [set(dataset.strata(split).values) for split in dataset.sizes]
    assert len(set.union(*of_splits)) == sum(map(len, of_splits)) == 1797
    if not hold_out:
        assert dataset.strata("calibration") is None


def test_without_held_out_data_all_but_the_test_split_is_trained_on(rendered):
    splits = catalogue.load_dataset("grouped_clutter", hold_out=False).splits
    sizes = {name: len(split.targets) for name, split in splits.items()}
    assert sizes == {"train": 4791, "test": 1500}


@pytest.mark.check
def test_the_set_is_the_same_everywhere():
    """Runs are resumed and compared by this fingerprint: it may not change unnoticed."""
    dataset = catalogue.load_dataset("grouped_clutter", seed=5)
    assert dataset.fingerprint == "6c0c9b3680f27a12"
    sizes = {name: len(split.targets) for name, split in dataset.splits.items()}
    assert sizes == {"train": 3591, "validation": 600, "calibration": 600, "test": 1500}
    assert dataset.input_shape == (20, 20, 1)
    assert dataset.class_names == tuple("0123456789")
    scaled = batches.normalise(dataset.splits["test"].inputs[:100], dataset.shift, dataset.scale)
    assert (scaled.min(), scaled.max()) == (0, 1)


@pytest.mark.check
def test_independent_images_draw_their_digits_anew():
    dataset = catalogue.load_dataset("clutter", seed=5)
    assert dataset.fingerprint == "a84139dc63a8beee"
    assert {name: len(split.targets) for name, split in dataset.splits.items()} == clutter.SIZES
    assert dataset.strata("test") is None
    images = np.concatenate([split.inputs for split in dataset.splits.values()])
    assert len(np.unique(images, axis=0)) == len(images) == 6_700
    shares = np.bincount(dataset.splits["test"].targets, minlength=10) / 1_500
    assert (abs(shares - 0.1) < 0.03).all()
