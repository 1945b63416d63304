"""A baseline and linear regression are rows of the table of every run that predicts numbers."""

import numpy as np
import pytest
from run_parts import loaded_table

from ensemble import UserError, likelihoods
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


def series(tmp_path, num_rows=60, season=4, **keys):
    """A table in no order, split by time, of a season and noise."""
    days = np.random.default_rng(1).permutation(num_rows)
    values = 10 * (days % 4) + np.random.default_rng(2).normal(size=num_rows)
    rows = "".join(f"{day},{day // 2},{y:.4f}\n" for day, y in zip(days, values, strict=True))
    (tmp_path / "t.csv").write_text(f"day,a,y\n{rows}")
    name, keys = f"csv:{tmp_path / 't.csv'}", {"split": "time:day", "season": season, **keys}
    in_order = np.empty(num_rows)
    in_order[days] = np.round(values, 4)
    return loaded_table(name, kind="targets", **keys), in_order


def test_past_values_are_those_of_rows_before_in_time(tmp_path):
    source, in_order = series(tmp_path)
    days = source.strata("test").values.astype(int)
    learned = np.sort(source.strata("train").values.astype(int))
    for lag in (1, 4):
        means, deviation = simple_predictors.past_values(source, "test", lag)
        np.testing.assert_allclose(means, in_order[days - lag], rtol=1e-6)
        expected = np.sqrt(np.mean((in_order[learned][lag:] - in_order[learned][:-lag]) ** 2))
        assert deviation == pytest.approx(expected, rel=1e-6)


def test_past_values_are_rows_of_the_table_where_rows_are_split_by_time(tmp_path):
    source, in_order = series(tmp_path)
    likelihood = likelihoods.of_data("gaussian", source.targets("train"), ())
    view, _ = likelihood.constant(source.targets("train")).views(source.targets("test"))
    found = simple_predictors.score_simple(likelihood, source, "test", view)
    days = source.strata("test").values.astype(int)
    for name, lag in {"last_value": 1, "last_season": 4}.items():
        expected = np.sqrt(np.mean((in_order[days] - in_order[days - lag]) ** 2))
        assert values_in(found[name])["rmse"] == pytest.approx(expected, rel=1e-5)
        assert found[name]["scores"].keys() == found["least_squares"]["scores"].keys()
    assert found["last_season"]["excess_interval"]["rmse"][1] < 0
    titles = [label for label, _ in simple_predictors.rows_of({"simple": found})]
    assert titles == ["baseline", "linear regression", "last value", "last season"]
    several = likelihoods.of_data("quantiles", source.targets("train"), (), levels="0.1,0.5,0.9")
    view, _ = several.constant(source.targets("train")).views(source.targets("test"))
    of_quantiles = simple_predictors.score_simple(several, source, "test", view)
    assert values_in(of_quantiles["last_season"])["pinball"] < 1


def test_without_a_season_or_an_order_there_are_fewer(tmp_path):
    source, _ = series(tmp_path, season=0)
    assert source.strata("test").lags == {"last_value": 1}
    source, _ = series(tmp_path, split="time:a")
    with pytest.raises(UserError, match="several rows have the same time"):
        simple_predictors.past_values(source, "test", 1)
    source, _ = series(tmp_path, season=59)
    with pytest.raises(UserError, match="none 59 rows before"):
        simple_predictors.past_values(source, "test", 59)
    source, _ = series(tmp_path, split="group:day", season=0)
    assert source.strata("test").lags == {}
