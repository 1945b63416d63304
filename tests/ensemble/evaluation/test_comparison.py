"""Paired intervals of two classifiers where many predictions are equally sure."""

import numpy as np
import pytest
from test_sections import labelled

from ensemble import metrics
from ensemble.evaluation.comparison import compare_views


def test_equal_confidences_have_no_order_in_a_comparison():
    rng = np.random.default_rng(0)
    labels = np.sort(rng.random(500) < 0.3).astype(int)  # Of one class after the other.
    constant = np.log(np.tile([0.7, 0.3], (500, 1)))
    sure = rng.uniform(0.75, 0.95, 500)
    right = np.where(rng.random(500) < sure, labels, 1 - labels)
    probs = np.where(right[:, None] == [0, 1], sure[:, None], 1 - sure[:, None])
    both = constant, np.log(probs)

    def interval(order):
        views = [labelled(one[None, order], labels[order]) for one in both]
        return compare_views(*views)["scores"]["accuracy_at_80"]["interval"]

    low, high = interval(np.arange(500))
    first, second = (metrics.scores(one, labels)["accuracy_at_80"] for one in both)
    assert low < second - first < high
    assert interval(np.arange(500)[::-1]) == pytest.approx((low, high))
