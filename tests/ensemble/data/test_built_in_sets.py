"""Sets that come with the package: the same bits everywhere, for runs are compared by them."""

import numpy as np
import pytest
import sklearn.datasets

from ensemble.data import clutter, load_dataset, normalise

CARVED = ("train", "validation", "calibration", "test")
SETS = {
    "digits": ("43cf4a3fa37b8d1b", "5005a46d84203ecc", (1197, 150, 150, 300)),
    "clutter": ("a84139dc63a8beee", "99ce83cdce94f3cd", (3600, 600, 1000, 1500)),
    "grouped_clutter": ("6c0c9b3680f27a12", "eccc74f9180e8649", (3591, 600, 600, 1500)),
    "diabetes": ("6833c874ceeb6f85", "6e4dddd7e24b035b", (310, 44, 44, 44)),
}
"""Digests of all splits and of the test split, and sizes."""


@pytest.mark.parametrize(
    "name",
    ["digits", "diabetes", *(pytest.param(k, marks=pytest.mark.check) for k in list(SETS)[1:3])],
)
def test_a_set_is_the_same_everywhere_and_for_every_seed(name):
    whole, test, sizes = SETS[name]
    dataset = load_dataset(name, seed=5)
    joined = load_dataset(name, hold_out=False)
    assert dataset.fingerprint == whole
    assert dataset.test_fingerprint == joined.test_fingerprint == test
    assert dict(dataset.sizes) == dict(zip(CARVED, sizes, strict=True))
    assert dict(joined.sizes) == {"train": sum(sizes[:-1]), "test": sizes[-1]}
    scaled = np.asarray(normalise(dataset.splits["train"].inputs, dataset.shift, dataset.scale))
    if dataset.has_pictures:
        assert dataset.class_names == tuple("0123456789")
        assert (scaled.min(), scaled.max()) == (0, 1)
    else:
        assert dataset.class_names is None
        np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("digits", sklearn.datasets.load_digits()),
        ("diabetes", sklearn.datasets.load_diabetes(scaled=False)),
    ],
)
def test_every_row_of_scikit_learn_comes_once(name, expected):
    dataset = load_dataset(name)
    parts = dataset.splits.values()
    rows = [
        np.column_stack([part.inputs.reshape(len(part.inputs), -1), part.targets]) for part in parts
    ]
    found = np.concatenate(rows)
    whole = np.column_stack([expected.data, expected.target]).astype(np.float32)
    np.testing.assert_array_equal(found[np.lexsort(found.T)], whole[np.lexsort(whole.T)])


def test_images_show_the_digits_that_they_are_to_show():
    digits = np.zeros((50, 8, 8), np.uint8)
    digits[0, 1:7, 1:7] = 16  # The others are blank.
    rng = np.random.Generator(np.random.Philox(0))
    images = clutter.render(digits, np.tile(np.arange(50), 4), rng)
    assert images.dtype == np.uint8
    assert images.shape == (200, clutter.SIDE, clutter.SIDE, 1)
    brightness = images.mean((1, 2, 3)).reshape(4, 50)
    assert (brightness[:, 0] > 30).all()
    assert np.median(brightness[:, 1:]) < 15  # Noise, and now and then a piece of the square.


@pytest.mark.parametrize("hold_out", [True, False])
def test_images_of_one_digit_are_a_group_in_one_split(hold_out, monkeypatch):
    """Intervals are over digits: images of one may be alike. Also the clutter is of the split's."""
    rendered = []

    def render(digits, shown, rng):
        rendered.append(digits)
        return np.zeros((len(shown), 20, 20, 1), np.uint8)

    monkeypatch.setattr(clutter, "render", render)
    dataset = load_dataset("grouped_clutter", hold_out=hold_out)
    digits = load_dataset("digits")
    for shown, split in zip(rendered, digits.splits.values(), strict=True):
        np.testing.assert_array_equal(shown, split.inputs[..., 0])
    of_splits = []
    for split in dataset.sizes:
        strata = dataset.strata(split)
        labels = dataset.targets(split)
        assert (strata.column, strata.kind, len(strata.values)) == ("digit", "group", len(labels))
        numbers, first, group = np.unique(strata.values, return_index=True, return_inverse=True)
        np.testing.assert_array_equal(labels, labels[first][group])
        of_splits.append({*numbers.tolist()})
    assert len(set.union(*of_splits)) == sum(map(len, of_splits)) == 1797
    assert dataset.strata("nowhere") is None
