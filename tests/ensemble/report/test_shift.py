"""Shifted and made inputs: the same in every process, milder at lower severities."""

import numpy as np
import pytest
from scipy import ndimage

from ensemble.report import shift

RNG = np.random.default_rng(0)
SMOOTH = ndimage.gaussian_filter(RNG.normal(size=(40, 16, 16, 3)), (0, 4, 4, 0))
IMAGES = np.clip(128 + 1500 * SMOOTH, 0, 255).astype(np.uint8)


def shifted(images, kind, severity):
    return np.concatenate([*shift.shifted_images(images, (0, 255), kind, severity)])


@pytest.mark.parametrize("kind", shift.IMAGES)
def test_images_move_more_at_higher_severities(kind):
    distances = [
        np.abs(shifted(IMAGES, kind, severity).astype(float) - IMAGES).mean()
        for severity in shift.SEVERITIES
    ]
    assert distances == sorted(distances)
    assert distances[0] > 0
    assert shifted(IMAGES, kind, 3).dtype == np.uint8


@pytest.mark.parametrize("kind", shift.IMAGES)
def test_pieces_and_the_number_of_images_change_nothing(kind, monkeypatch):
    whole = shifted(IMAGES, kind, 2)
    monkeypatch.setattr(shift, "_PIECE", 7 * IMAGES[0].size)
    if kind in ("noise", "blur", "contrast"):
        np.testing.assert_array_equal(shifted(IMAGES, kind, 2), whole)
    np.testing.assert_array_equal(shifted(IMAGES, kind, 2)[:7], whole[:7])


def test_rotation_and_translation_are_those_of_scipy():
    image = IMAGES[:1].astype(np.float32)
    both = [
        ndimage.rotate(
            image, sign * 30, (1, 2), reshape=False, order=1, mode="grid-constant", cval=0
        )
        for sign in (1, -1)
    ]
    found = shifted(image, "rotation", 3)
    assert min(np.abs(found - one).max() for one in both) < 0.1
    moved = shifted(np.eye(28, dtype=np.float32)[None, ..., None] * 255, "translation", 2)
    assert moved.sum() == 26 * 255  # Two whole pixels, and what leaves does not come back.


def test_rows_are_shifted_column_by_column():
    rows = RNG.normal([0, 5, -2], [1, 10, 0.1], (500, 3)).astype(np.float32)
    number = np.ones(3, bool)
    columns = shift.Columns(
        np.arange(3), number, rows.mean(0), rows.std(0), rows.min(0), rows.max(0)
    )

    def moved(columns, kind, severity):
        return next(shift.shifted_rows(rows, columns, kind, severity))

    noisy = moved(columns, shift.NOISY, 4)
    np.testing.assert_allclose((noisy - rows).std(0), 0.8 * columns.deviation, rtol=0.1)
    missing = moved(columns, shift.MISSING, 4)
    np.testing.assert_allclose((missing != rows).mean(0), 0.6, atol=0.07)
    milder = moved(columns, shift.MISSING, 2)
    assert not ((milder != rows) & (missing == rows)).any()
    together = columns._replace(column=np.array([0, 1, 1]))
    changed = moved(together, shift.MISSING, 3) != rows
    np.testing.assert_array_equal(changed[:, 1], changed[:, 2])
    fixed = columns._replace(is_number=np.array([True, False, True]))
    np.testing.assert_array_equal(moved(fixed, shift.NOISY, 3)[:, 1], rows[:, 1])
    inside, outside = (
        next(shift.drawn(name, (300, 3), rows.dtype, columns.low, columns.high))
        for name in (shift.BOX, shift.OUTSIDE)
    )
    assert ((inside >= columns.low) & (inside <= columns.high)).all()
    assert ((outside <= columns.low) | (outside >= columns.high)).all()


def test_made_inputs_fill_the_range():
    noise = np.concatenate([*shift.drawn("uniform", (50, 8, 8), np.dtype(np.uint8), 0, 16)])
    assert noise.shape == (50, 8, 8)
    assert np.unique(noise).tolist() == [*range(17)]
    constant = shift.constant_inputs((2, 2), (0, 16), np.dtype(np.uint8))
    assert constant.shape == (17, 2, 2)
    assert (constant == constant[:, :1, :1]).all()
    floats = shift.constant_inputs((3,), (-1.0, 1.0), np.dtype(np.float32))
    assert floats.shape == (256, 3)
