"""The form of images: sizes, axes, channels."""

import numpy as np
import PIL.Image
import pytest

from ensemble import InputError
from ensemble.data import dataset_from_arrays, image_form

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("value", "size"),
    [(None, None), (64, (64, 64)), ("64", (64, 64)), ("48x64", (48, 64)), ("1x16384", (1, 16384))],
)
def test_sizes(value, size):
    assert image_form.parse_size(value) == size


@pytest.mark.parametrize(
    "value", [0, -3, "", "x", "64x", "64x48x3", 16385, True, 1.5, (64, 48), [64]]
)
def test_what_is_no_size(value):
    with pytest.raises(InputError, match=r"config\.resize=.*None.*64"):
        image_form.parse_size(value)


def _resized(pixels, size):
    return np.asarray(image_form.resize_and_crop(PIL.Image.fromarray(pixels), size))


def test_the_shorter_side_is_fitted_and_the_middle_kept():
    """Three squares in a row: the middle one remains, and of a column likewise."""
    row = np.repeat(np.array([10, 100, 200], np.uint8), 8)[None].repeat(8, axis=0)
    for size in ((8, 8), (4, 4)):  # At its edges the middle one is smoothed with the others.
        assert (_resized(row, size)[1:-1, 1:-1] == 100).all()
        assert (_resized(row.T.copy(), size)[1:-1, 1:-1] == 100).all()
    wide = _resized(row, (4, 12))
    np.testing.assert_array_equal(wide[0, [1, 6, 10]], [10, 100, 200])


def test_arrays_with_channels_first_are_turned_with_one_line(caplog):
    images = RNG.integers(0, 256, (40, 7, 6, 3), np.uint8)
    labels = np.arange(40) % 2
    expected = dataset_from_arrays({"inputs": images, "labels": labels})
    assert not caplog.text
    turned = dataset_from_arrays({"inputs": np.moveaxis(images, -1, 1), "labels": labels})
    assert turned.fingerprint == expected.fingerprint
    assert turned.input_shape == (7, 6, 3)
    assert caplog.text.count("are taken for images [N, C, H, W], and turned to [N, H, W, C]") == 1
    cubes = images[:, :3, :3].copy()
    same = dataset_from_arrays({"inputs": cubes, "labels": labels}, hold_out=False)
    np.testing.assert_array_equal(same.splits["train"].inputs, cubes)  # As they are.


def test_inputs_take_the_form_that_was_learned():
    colour = RNG.integers(0, 256, (5, 7, 6, 3), np.uint8)
    pictures = [PIL.Image.fromarray(image) for image in colour]
    grey = np.stack([np.asarray(image.convert("L")) for image in pictures])[..., None]
    first = np.moveaxis(colour, -1, 1)
    for inputs in (colour, first):
        np.testing.assert_array_equal(image_form.in_form(inputs, (7, 6, 3)), colour)
        np.testing.assert_array_equal(image_form.in_form(inputs, (7, 6, 1)), grey)
    for inputs in (grey, grey[..., 0], np.moveaxis(grey, -1, 1)):
        np.testing.assert_array_equal(image_form.in_form(inputs, (7, 6, 1)), grey)
        repeated = image_form.in_form(inputs, (7, 6, 3))
        np.testing.assert_array_equal(repeated, grey.repeat(3, axis=-1))
        np.testing.assert_array_equal(image_form.in_form(repeated, (7, 6, 1)), grey)  # And back.
    floats = image_form.in_form((colour / 255).astype(np.float32), (7, 6, 1))
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats * 255, grey, atol=0.51)
