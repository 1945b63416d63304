"""Weights of classes: as scikit-learn has them, or as given."""

import numpy as np
import pytest
import sklearn.utils.class_weight

from ensemble import UserError
from ensemble.likelihoods.class_weights import class_weights


def test_class_weights():
    labels = np.array([0] * 6 + [1] * 3 + [2])
    np.testing.assert_array_equal(class_weights("none", labels, 3), [1, 1, 1])
    balanced = class_weights("balanced", labels, 3)
    expected = sklearn.utils.class_weight.compute_class_weight(
        "balanced", classes=np.arange(3), y=labels
    )
    np.testing.assert_allclose(balanced, expected, rtol=1e-6)
    np.testing.assert_allclose(balanced[labels].mean(), 1, rtol=1e-6)
    assert balanced.dtype == np.float32
    assert np.isfinite(class_weights("balanced", labels, 5)).all()
    weights = class_weights("1, 2,0.5", labels, 3)
    np.testing.assert_array_equal(weights, np.float32([1, 2, 0.5]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("1,2", "has 2 numbers; give one for each of the 3 classes"),
        ("1,2,3,4", "has 4 numbers"),
        ("1,0,2", "must all be positive and finite"),
        ("1,-1,2", "must all be positive and finite"),
        ("1,nan,2", "must all be positive and finite"),
        ("1,inf,2", "must all be positive and finite"),
        ("heavy", "must be none, balanced, or 3 positive numbers"),
        ("", "must be none, balanced, or 3 positive numbers"),
        ("1,,2", "must be none, balanced, or 3 positive numbers"),
    ],
)
def test_class_weights_that_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        class_weights(spec, np.array([0, 1, 2]), 3)
