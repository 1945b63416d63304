"""A baseline and linear regression are rows of the table of every run that predicts numbers."""

import numpy as np
import pytest

from ensemble import likelihoods
from ensemble.report import simple_predictors
from ensemble.scoring.score import scores_of
from ensemble.scoring.sections import values_in
from ensemble.sources import dataset_from_arrays
from ensemble.target_rows import joined


def simple_of(kind, targets, inputs, **settings):
    """What is beside an ensemble, of one member that is the constant."""
    source = dataset_from_arrays({"inputs": inputs, "targets": targets}, "arrays", 0)
    likelihood = likelihoods.of_data(kind, source.targets("train"), (), **settings)
    view, _ = likelihood.constant(source.targets("train")).views(source.targets("test"))
    return simple_predictors.score_simple(likelihood, source, "test", view)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3)).astype(np.float32)
Y = (X @ [1.0, -2.0, 0.5] + 0.5 * RNG.normal(size=400)).astype(np.float32)


def test_they_have_the_scores_of_the_table():
    found = simple_of("gaussian", Y, X)
    line, constant = values_in(found["least_squares"]), values_in(found["constant"])
    low, high = found["least_squares"]["excess_interval"]["rmse"]
    assert low < line["rmse"] - constant["rmse"] < high < 0
    assert line["rmse"] == pytest.approx(0.5, rel=0.3)
    assert line["nll"] == pytest.approx(np.log(0.5) + 1.42, abs=0.3)
    assert constant["rmse"] == pytest.approx(Y.std(), rel=0.3)
    assert [label for label, _ in simple_predictors.rows_of({"simple": found})] == [
        "baseline",
        "linear regression",
    ]
    assert simple_predictors.rows_of({}) == []  # Reports of before.


def test_each_of_several_targets_has_its_line():
    both = simple_of("gaussian", np.stack([Y, 10 * Y[::-1]], axis=1), X)["least_squares"]
    alone = simple_of("gaussian", Y, X)["least_squares"]
    assert values_in(both)["rmse"] > values_in(alone)["rmse"]
    assert "excess_interval" not in both
    quantiles = simple_of("quantiles", Y, X, levels="0.1,0.5,0.9")
    assert values_in(quantiles["constant"])["pinball"] > 0


def test_censored_targets_have_neither_nll_nor_coverage():
    rows = joined({"targets": np.minimum(Y, 1), "censored": Y > 1})
    likelihood = likelihoods.of_data("gaussian", rows, ())
    view, _ = likelihood.constant(rows).views(rows)
    found = [one for one in scores_of(view) if simple_predictors.has_score("density", view, one)]
    assert "rmse" in found
    assert not [name for name in found if name.startswith(("nll", "coverage"))]
