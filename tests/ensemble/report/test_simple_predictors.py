"""A constant and least squares are rows of the table of every run that predicts numbers."""

from types import SimpleNamespace

import numpy as np
import pytest

from ensemble import likelihoods
from ensemble.report import simple_predictors
from ensemble.scoring.score import scores_of
from ensemble.sources import dataset_from_arrays
from ensemble.target_rows import joined


def scored(kind, targets, inputs, **settings):
    source = dataset_from_arrays({"inputs": inputs, "targets": targets}, "arrays", 0)
    train = source.targets("train")
    return SimpleNamespace(
        dataset=source, likelihood=likelihoods.of_data(kind, train, (), **settings)
    )


RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3)).astype(np.float32)
Y = (X @ [1.0, -2.0, 0.5] + 0.5 * RNG.normal(size=400)).astype(np.float32)


def test_they_have_the_scores_of_the_table():
    found = simple_predictors.simple_scores(scored("gaussian", Y, X), "test")["simple"]
    line, constant = found["least_squares"], found["constant"]
    assert line["rmse"] == pytest.approx(0.5, rel=0.3)
    assert line["nll"] == pytest.approx(np.log(0.5) + 1.42, abs=0.3)
    assert constant["rmse"] == pytest.approx(Y.std(), rel=0.3)
    assert [label for label, _ in simple_predictors.rows_of({"simple": found})] == [
        "a constant",
        "least squares",
    ]
    assert simple_predictors.rows_of({}) == []  # Reports of before.


def test_each_of_several_targets_has_its_line():
    both = simple_predictors.simple_scores(
        scored("gaussian", np.stack([Y, 10 * Y[::-1]], axis=1), X), "test"
    )
    alone = simple_predictors.simple_scores(scored("gaussian", Y, X), "test")["simple"]
    line = both["simple"]["least_squares"]
    assert line["rmse"] > alone["least_squares"]["rmse"]
    quantiles = scored("quantiles", Y, X, levels="0.1,0.5,0.9")
    assert simple_predictors.simple_scores(quantiles, "test")["simple"]["constant"]["pinball"] > 0


def test_censored_targets_have_neither_nll_nor_coverage():
    rows = joined({"targets": np.minimum(Y, 1), "censored": Y > 1})
    likelihood = likelihoods.of_data("gaussian", rows, ())
    view, _ = likelihood.constant(rows).views(rows)
    found = [one for one in scores_of(view) if simple_predictors.has_score("density", view, one)]
    assert "rmse" in found
    assert not [name for name in found if name.startswith(("nll", "coverage"))]
