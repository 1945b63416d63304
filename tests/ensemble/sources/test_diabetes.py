"""The diabetes study: as scikit-learn has it, always split alike."""

import numpy as np
import sklearn.datasets

from ensemble.sources import load_dataset


def test_it_is_scikit_learn_s_with_every_patient_once():
    raw = sklearn.datasets.load_diabetes(scaled=False)
    source = load_dataset("diabetes")
    rows = [
        np.column_stack([source.read(split, slice(None)).inputs, source.targets(split)])
        for split in source.sizes
    ]
    found = np.concatenate(rows)
    expected = np.column_stack([raw.data, raw.target]).astype(np.float32)
    np.testing.assert_array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])
    assert source.class_names is None
    assert dict(source.sizes) == {"train": 310, "validation": 44, "calibration": 44, "test": 44}


def test_the_split_does_not_depend_on_the_seed_and_the_test_split_not_on_hold_out():
    source, whole = load_dataset("diabetes", seed=3), load_dataset("diabetes", hold_out=False)
    assert source.fingerprint == load_dataset("diabetes", seed=4).fingerprint
    assert source.test_fingerprint == whole.test_fingerprint
    assert dict(whole.sizes) == {"train": 398, "test": 44}


def test_features_are_standardised_by_the_training_rows():
    source = load_dataset("diabetes")
    train = (source.read("train", slice(None)).inputs - source.shift) * source.scale
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(train.std(axis=0), 1, rtol=1e-4)
