"""Shifts against hand-worked cases, and what holds for every one of them."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from sklearn.datasets import load_digits

from ensemble import UserError
from ensemble.evaluation import shift
from ensemble.evaluation.shift import SHIFTS, shift_images

SEVERITIES = range(1, 6)
DRAWN = ("rotation", "translation", "noise")


@pytest.fixture(scope="module")
def digits():
    """Every eighth digit: uint8 0..16, [225, 8, 8, 1]."""
    return load_digits().images[::8, ..., None].astype(np.uint8)


def random_images(shape=(7, 10, 12, 3), low=-0.5, high=1.5, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def one_hot(height, width, row, column, value=1.0, num_images=1):
    images = np.zeros((num_images, height, width, 1), np.float32)
    images[:, row, column] = value
    return images


def resample(images, sources, low=0.0):
    return shift._resample(images, np.zeros(len(images), int), [sources], low)


# What holds for every shift.


def test_all_shifts_are_there():
    assert list(SHIFTS) == ["rotation", "translation", "noise", "blur", "contrast"]
    for name, kind in SHIFTS.items():
        assert len(kind.amounts) == 5
        assert kind.unit
        steps = np.diff(kind.amounts) * (-1 if name == "contrast" else 1)
        assert np.all(steps > 0), name


def test_the_docstring_has_every_parameter():
    rows = {
        cells[1].strip(): cells[2:7]
        for cells in (line.split("|") for line in shift.__doc__.splitlines())
        if len(cells) > 1
    }
    for name, kind in SHIFTS.items():
        numbers = [np.divide(*map(float, f"{cell}/1".split("/")[:2])) for cell in rows[name]]
        np.testing.assert_allclose(numbers, kind.amounts, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", SHIFTS)
def test_severity_takes_images_further_away(digits, name):
    distances = [
        np.linalg.norm(
            shift_images(digits, name, severity, value_range=(0, 16)).astype(float) - digits
        )
        for severity in SEVERITIES
    ]
    assert distances[0] > 0
    assert np.all(np.diff(distances) > 0)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", SHIFTS)
def test_first_images_do_not_depend_on_the_rest(name, severity, monkeypatch):
    images = random_images()
    whole = shift_images(images, name, severity, value_range=(-0.5, 1.5))
    for num_images in (0, 1, 4):
        first = shift_images(images[:num_images], name, severity, value_range=(-0.5, 1.5))
        np.testing.assert_array_equal(first, whole[:num_images])
    for values in (1, 2 * images[0].size):  # One image in a chunk, then two.
        monkeypatch.setattr(shift, "_CHUNK_VALUES", values)
        chunked = shift_images(images, name, severity, value_range=(-0.5, 1.5))
        np.testing.assert_array_equal(chunked, whole)


@pytest.mark.parametrize("name", SHIFTS)
def test_only_drawn_shifts_depend_on_the_seed(name):
    images = random_images((40, 6, 6, 1))
    before = images.copy()
    first, again, other = (
        shift_images(images, name, 3, value_range=(-0.5, 1.5), seed=seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, other) == (name not in DRAWN)
    np.testing.assert_array_equal(images, before)  # They are not written to.


@pytest.mark.check
def test_another_process_shifts_alike():
    program = (
        "import hashlib, numpy as np\n"
        "from ensemble.evaluation.shift import SHIFTS, shift_images\n"
        "images = np.arange(3 * 9 * 9, dtype=np.uint8).reshape(3, 9, 9, 1)\n"
        "shifted = [shift_images(images, name, 2, value_range=(0, 255)) for name in SHIFTS]\n"
        "print(hashlib.sha256(np.array(shifted).tobytes()).hexdigest())"
    )
    outputs = {
        subprocess.check_output(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, cwd=ROOT
        )
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("shape", [(5, 8, 8, 1), (4, 28, 20, 3), (2, 5, 7, 6), (2, 1, 1, 1)])
def test_shape_dtype_and_range_are_kept(name, severity, shape):
    floats = random_images(shape, 3.0, 16.0)
    for images in (floats, floats.astype(np.uint8)):
        shifted = shift_images(images, name, severity, value_range=(3, 15))
        assert shifted.shape == shape
        assert shifted.dtype == images.dtype
        assert shifted.min() >= 3  # What comes in from outside is 3, not 0.
        assert shifted.max() <= 15


@pytest.mark.parametrize("name", SHIFTS)
def test_constant_images_change_by_what_comes_in_alone(name):
    for value in (0, 7, 16):
        images = np.full((20, 8, 8, 3), value, np.uint8)
        shifted = shift_images(images, name, 5, value_range=(0, 16))
        if name == "noise":
            assert shifted.max() <= 16
        elif name in ("blur", "contrast"):
            np.testing.assert_array_equal(shifted, images)
        else:
            assert shifted.max() == value
            np.testing.assert_array_equal(shifted[:, 3:5, 3:5], value)


@pytest.mark.parametrize("name", ["rotation", "translation", "blur", "contrast"])
def test_channels_are_shifted_alike(name):
    images = random_images()
    together = shift_images(images, name, 3, value_range=(-0.5, 1.5))
    for channel in range(images.shape[-1]):
        alone = shift_images(images[..., [channel]], name, 3, value_range=(-0.5, 1.5))
        np.testing.assert_allclose(together[..., [channel]], alone, atol=1e-6)


@pytest.mark.parametrize("name", ["rotation", "translation", "noise", "blur", "contrast"])
def test_units_of_the_values_do_not_matter(name):
    images = random_images()
    shifted = shift_images(images, name, 4, value_range=(-0.5, 1.5))
    scaled = shift_images(100 * images + 50, name, 4, value_range=(0, 200))
    np.testing.assert_allclose(scaled, 100 * shifted + 50, atol=1e-3)


# Rotation.


@pytest.mark.parametrize("quarters", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("side", [1, 4, 7, 28])
def test_quarter_turns_are_exact(quarters, side):
    images = random_images((3, side, side, 2))
    rotated = resample(images, shift._rotated_sources(side, side, 90 * quarters), low=-9.0)
    np.testing.assert_array_equal(rotated, np.rot90(images, quarters, axes=(1, 2)))


def test_rotation_by_45_degrees_by_hand():
    # The pixel above the middle comes from 1/sqrt(2) pixels above it and as far to its right.
    images = one_hot(3, 3, 0, 2)
    rotated = resample(images, shift._rotated_sources(3, 3, 45))[0, ..., 0]
    share = np.sqrt(0.5)
    assert rotated[0, 1] == pytest.approx(share**2)
    # The corner itself lies sqrt(2) pixels above the middle: from beside it, partly.
    assert rotated[0, 2] == 0


def test_rotation_goes_to_both_sides_by_the_stated_angle():
    images = np.repeat(random_images((1, 9, 9, 1)), 400, axis=0)
    rotated = shift_images(images, "rotation", 2, value_range=(-0.5, 1.5))
    kinds = [
        np.clip(resample(images[:1], shift._rotated_sources(9, 9, degrees), -0.5), -0.5, 1.5)[0]
        for degrees in (20, -20)
    ]
    left, right = (np.array([np.array_equal(one, kind) for one in rotated]) for kind in kinds)
    assert np.all(left ^ right)
    assert 140 <= left.sum() <= 260  # Binomial(400, 1/2): six standard deviations.


# Translation.


def test_whole_pixels_move_exactly():
    images = one_hot(28, 28, 10, 12, value=200, num_images=64).astype(np.uint8)
    for severity in SEVERITIES:
        moved = shift_images(images, "translation", severity, value_range=(0, 255))
        assert np.all(moved.reshape(64, -1).max(axis=1) == 200)
        assert np.all(moved.sum(axis=(1, 2, 3)) == 200)
        places = {(int(n) // 28 - 10, int(n) % 28 - 12) for n in moved.reshape(64, -1).argmax(1)}
        assert places == {(0, severity), (severity, 0), (0, -severity), (-severity, 0)}


def test_every_severity_moves_an_image_the_same_way():
    images = one_hot(28, 28, 14, 14, num_images=20)
    steps = np.array(
        [
            np.argwhere(shift_images(images, "translation", s, value_range=(0, 1)))[:, 1:3] - 14
            for s in SEVERITIES
        ]
    )
    np.testing.assert_array_equal(steps, steps[:1] * np.arange(1, 6)[:, None, None])


def test_parts_of_a_pixel_are_interpolated():
    sources = shift._translated_sources(1, 5, 0, 1.25)
    moved = resample(one_hot(1, 5, 0, 2), sources)[0, 0, :, 0]
    np.testing.assert_allclose(moved, [0, 0, 0, 0.75, 0.25], atol=1e-6)
    moved = resample(np.full((1, 1, 5, 1), 8, np.float32), sources, low=4.0)[0, 0, :, 0]
    np.testing.assert_allclose(moved, [4, 7, 8, 8, 8], atol=1e-6)


def test_what_leaves_does_not_come_back():
    images = np.full((12, 28, 28, 1), 255, np.uint8)
    moved = shift_images(images, "translation", 5, value_range=(0, 255))
    np.testing.assert_array_equal((moved == 0).sum(axis=(1, 2, 3)), 5 * 28)
    np.testing.assert_array_equal((moved == 255).sum(axis=(1, 2, 3)), 23 * 28)


# Noise.


@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_has_its_standard_deviation(severity):
    images = np.full((50, 32, 32, 1), 100, np.float32)
    # Nothing is clipped where the value is far from both ends.
    noise = (shift_images(images, "noise", severity, value_range=(-900, 1100)) - images) / 2000
    amount, count = SHIFTS["noise"].amounts[severity - 1], noise.size
    is_inside = abs(noise) < 0.499
    assert is_inside.mean() > 0.8
    if severity == 1:  # Six standard deviations within the range.
        assert noise.std() == pytest.approx(amount, rel=5 / np.sqrt(2 * count))
        assert abs(noise.mean()) < 5 * amount / np.sqrt(count)
    quartile = np.median(abs(noise)) / 0.6744898  # Clipping does not move the median.
    assert quartile == pytest.approx(amount, rel=0.02)


def test_noise_is_not_repeated():
    images = np.zeros((2, 16, 16, 2), np.float32)
    noise = shift_images(images, "noise", 1, value_range=(-1, 1))
    assert len(np.unique(noise)) > 0.99 * noise.size
    severe = shift_images(images, "noise", 2, value_range=(-1, 1))
    np.testing.assert_allclose(severe, 1.5 * noise, atol=1e-5)  # 0.12 / 0.08: the same draws.


# Blur.


@pytest.mark.parametrize("severity", SEVERITIES)
def test_blur_keeps_the_mean(severity):
    images = random_images((4, 9, 14, 3))
    blurred = shift_images(images, "blur", severity, value_range=(-0.5, 1.5))
    np.testing.assert_allclose(blurred.mean(axis=(1, 2)), images.mean(axis=(1, 2)), atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(101, 101), (25, 101)])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_blur_has_its_standard_deviation(severity, height, width):
    share = SHIFTS["blur"].amounts[severity - 1]
    blurred = shift._blur(one_hot(height, width, height // 2, width // 2), share)[0, ..., 0]
    for axis, side in ((0, height), (1, width)):
        density = blurred.astype(float).sum(axis=1 - axis)
        variance = density @ (np.arange(side) - side // 2) ** 2
        assert np.sqrt(variance) == pytest.approx(share * side, rel=0.005)


# Contrast.


def test_contrast_by_hand():
    images = np.array([0, 4, 8, 12, 10, 10, 10, 14], np.float32).reshape(2, 2, 2, 1)
    reduced = shift_images(images, "contrast", 2, value_range=(0, 16))  # Half; means 6 and 11.
    np.testing.assert_array_equal(reduced.ravel(), [3, 5, 7, 9, 10.5, 10.5, 10.5, 12.5])
    reduced = shift_images(images.astype(np.uint8), "contrast", 5, value_range=(0, 16))
    # 6 + 0.15 (-6, -2, 2, 6) and 11 + 0.15 (-1, -1, -1, 3), rounded.
    np.testing.assert_array_equal(reduced.ravel(), [5, 6, 6, 7, 11, 11, 11, 11])


# Bad input: one line with the value, the rule and the remedy.

IMAGES = np.zeros((2, 4, 4, 1), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"images": np.zeros((5, 6), np.float32)},
            r"\(5, 6\).*by blur: only images \[N",
        ),
        ({"images": IMAGES[..., 0]}, r"\(2, 4, 4\) cannot be shifted"),
        ({"images": IMAGES.astype(float)}, "float64 must be uint8 or float32"),
        ({"name": "fog"}, "'fog'.*translation"),
        ({"severity": 0}, "severity=0 .* from 1 to 5"),
        ({"severity": 6}, "severity=6 .* from 1 to 5"),
        ({"severity": 2.5}, r"severity=2\.5.*1.*5"),
        ({"value_range": (3, 3)}, r"value_range=\(3, 3\)"),
        ({"value_range": (0, np.nan)}, r"value_range=\(0, nan\) must be finite"),
        ({"value_range": (0, 256)}, r"value_range=\(0, 256\).*0.*255"),
        ({"seed": -1}, "seed=-1 must not be negative"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    call = {"images": IMAGES, "name": "blur", "severity": 1, "value_range": (0, 16), **arguments}
    with pytest.raises(UserError, match=message) as caught:
        shift_images(**call)
    assert "\n" not in str(caught.value)
