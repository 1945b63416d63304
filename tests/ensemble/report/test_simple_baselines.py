"""Constant, linear regression and the last value, against scikit-learn and worked cases."""

import types

import numpy as np
import pytest
from evaluations import classes, numbers, several
from sklearn.linear_model import LinearRegression

from ensemble.data.source import Strata
from ensemble.report.baselines import baselines, last_value, linear_regression
from ensemble.report.evaluation import Evaluation

RNG = np.random.default_rng(0)


class Rows:
    """Rows of three splits."""

    def __init__(self, inputs, targets, strata=None):
        self.inputs = inputs
        self.all_targets = targets
        self.all_strata = strata
        self.sizes = {"train": 100, "validation": 20, "test": len(inputs) - 120}
        self.places = {
            "train": slice(0, 100), "validation": slice(100, 120), "test": slice(120, None)
        }  # fmt: skip
        self.input_shape = inputs.shape[1:]
        self.input_dtype = inputs.dtype
        self.name = "rows"

    def targets(self, split):
        return self.all_targets[self.places[split]]

    def read(self, split, indices):
        found = self.inputs[self.places[split]][indices], self.targets(split)[indices]
        return types.SimpleNamespace(inputs=found[0], targets=found[1])

    def strata(self, split):
        if self.all_strata is None:
            return None
        return Strata("t", "time", self.all_strata[self.places[split]])


def test_linear_regression_is_that_of_scikit_learn():
    inputs = RNG.normal(size=(320, 4)).astype(np.float32)
    targets = inputs @ RNG.normal(size=(4, 2)) + RNG.normal(size=(320, 2))
    source = Rows(inputs, targets)
    means, deviations = linear_regression(source, "test")
    model = LinearRegression().fit(inputs[:100].astype(float), targets[:100])
    np.testing.assert_allclose(means, model.predict(inputs[120:].astype(float)), rtol=1e-6)
    residuals = targets[:100] - model.predict(inputs[:100].astype(float))
    np.testing.assert_allclose(deviations, np.sqrt((residuals**2).sum(0) / 95), rtol=1e-6)


def test_the_last_value_is_that_of_the_row_before():
    times = np.concatenate([RNG.permutation(120), 120 + RNG.permutation(80)])
    in_order = np.cumsum(RNG.normal(size=200))
    source = Rows(np.zeros((200, 1), np.float32), in_order[times], times.astype(float))
    means, _ = last_value(source, "test")
    np.testing.assert_allclose(means[:, 0], in_order[times[120:] - 1])
    source.all_strata[150] = source.all_strata[151]
    assert last_value(source, "test") is None


@pytest.mark.parametrize("kind", ["gaussian", "quantiles", "poisson"])
def test_baselines_are_of_the_ensemble_s_kind_where_they_can(kind):
    _, p, y = numbers(kind)
    inputs = RNG.normal(size=(320, 2)).astype(np.float32)
    targets = np.concatenate([y[:120], y])
    (found,) = baselines(p, Rows(inputs, targets), "test")
    assert list(found) == ["the training mean", "linear regression"]
    constant = found["the training mean"]
    assert len(constant) == 200
    np.testing.assert_allclose(constant.median[0], targets[:100].mean(), rtol=0.2)
    names = Evaluation(p, y).shared(constant)
    assert ("nll" in names) == (kind == "gaussian")


def test_class_frequencies_and_several_targets():
    p, y = classes()
    labels = np.concatenate([y[:120], y])
    source = Rows(np.zeros((320, 2), np.float32), labels)
    (found,) = baselines(p, source, "test")
    (constant,) = found.values()
    np.testing.assert_allclose(constant.probs[0], (np.bincount(labels[:100]) + 1) / 103)
    # Watches alone are learned: their frequency says nothing of pairs that are held out.
    assert not baselines(p, Rows(np.zeros((320, 2), np.float32), np.ones_like(labels)), "test")
    q, targets = several()
    source = Rows(RNG.normal(size=(320, 2)), np.concatenate([targets[:120], targets]))
    assert [list(one) for one in baselines(q, source, "test")] == [
        ["the training mean", "linear regression"]
    ] * 2
