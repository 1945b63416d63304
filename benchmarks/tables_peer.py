"""Worker of tables.py: a peer at its default settings, a line of JSON for each split.

    python benchmarks/tables_peer.py PEER TABLE WHEEL SPLIT...

What a peer says of a row is one normal distribution, or quantiles. RealMLP and TabM predict a
number alone: theirs is a normal distribution of the errors on a tenth of the training rows, which
they have not learned from. Quantiles have no density, hence no NLL; their CRPS is the mean of twice
the pinball losses at the middles of equal steps of probability.
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tables_data

from ensemble.metrics import regression

NUM_LEVELS = 10
HELD_OUT = 0.1


def normal_scores(mean: np.ndarray, sd: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Scores of normal distributions [N]; they are their own moments."""
    nll = float(regression.gaussian_nll(mean, sd**2, targets).mean())
    return {
        "rmse": float(np.sqrt(np.mean((mean - targets) ** 2))),
        "nll": nll,
        "nll_by_moments": nll,
        "crps": float(regression.gaussian_mixture_crps(mean[None], sd[None], targets).mean()),
        "coverage_90": float(np.mean(np.abs(mean - targets) <= 1.6448536 * sd)),
    }


def least_squares(split: tables_data.Split) -> dict[str, float]:
    """A line, and the standard deviation of the training rows around it."""
    train_inputs, _, test_inputs, _ = tables_data.standardised(split)
    inputs = {"train_inputs": train_inputs, "test_inputs": test_inputs}
    return normal_scores(*tables_data.fit_line(split._replace(**inputs)), split.test_targets)


def hist_gradient_boosting(split: tables_data.Split) -> dict[str, float]:
    """scikit-learn's, one for the mean and one for each quantile, put in order."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def fitted(**settings: object) -> np.ndarray:
        regressor = HistGradientBoostingRegressor(random_state=0, **settings)
        return regressor.fit(split.train_inputs, split.train_targets).predict(split.test_inputs)

    levels = (np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS
    quantiles = np.sort([fitted(loss="quantile", quantile=one) for one in levels], axis=0)
    errors = split.test_targets - quantiles
    pinball = np.maximum(levels[:, None] * errors, (levels[:, None] - 1) * errors)
    return {
        "rmse": float(np.sqrt(np.mean((fitted() - split.test_targets) ** 2))),
        "crps": float(2 * pinball.mean()),
        "coverage_90": float(np.mean((errors[0] >= 0) & (errors[-1] <= 0))),
    }


def xgb_distribution(split: tables_data.Split) -> dict[str, float]:
    """XGBDistribution, normal, stopped early as in its documentation.

    Its default of 100 trees fits yacht's training targets exactly: 90% intervals then hold 5%.
    """
    from xgboost_distribution import XGBDistribution

    inner = tables_data.Split(**tables_data.held_out(split._asdict(), HELD_OUT, seed=0))
    model = XGBDistribution(
        distribution="normal",
        n_estimators=500,
        early_stopping_rounds=10,
        random_state=0,
        n_jobs=1,
    )
    held_out = [(inner.test_inputs, inner.test_targets)]
    model.fit(inner.train_inputs, inner.train_targets, eval_set=held_out, verbose=False)
    found = model.predict(split.test_inputs)
    loc, scale = (np.asarray(one, np.float64) for one in (found.loc, found.scale))
    return normal_scores(loc, scale, split.test_targets)


def ngboost(split: tables_data.Split) -> dict[str, float]:
    """NGBoost, normal."""
    from ngboost import NGBRegressor

    model = NGBRegressor(random_state=0, verbose=False)
    model.fit(split.train_inputs, split.train_targets)
    found = model.pred_dist(split.test_inputs).params
    return normal_scores(found["loc"], found["scale"], split.test_targets)


def catboost(split: tables_data.Split) -> dict[str, float]:
    """CatBoost's RMSEWithUncertainty."""
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        random_seed=0,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
    )
    model.fit(split.train_inputs, split.train_targets)
    mean, variance = model.predict(split.test_inputs).T
    return normal_scores(mean, np.sqrt(variance), split.test_targets)


def realmlp(split: tables_data.Split) -> dict[str, float]:
    """RealMLP with its tuned defaults."""
    from pytabkit import RealMLP_TD_Regressor

    return _with_errors(RealMLP_TD_Regressor, split)


def tabm(split: tables_data.Split) -> dict[str, float]:
    """TabM with its defaults."""
    from pytabkit import TabM_D_Regressor

    return _with_errors(TabM_D_Regressor, split)


def _with_errors(create: Callable[..., Any], split: tables_data.Split) -> dict[str, float]:
    """A predictor of numbers, with the errors on rows that chose its epoch."""
    inner = tables_data.Split(**tables_data.held_out(split._asdict(), HELD_OUT, seed=0))
    model = create(device="cpu", random_state=0, n_threads=1, verbosity=0)
    model.fit(inner.train_inputs, inner.train_targets, inner.test_inputs, inner.test_targets)
    errors = inner.test_targets - np.ravel(model.predict(inner.test_inputs))
    mean = np.asarray(np.ravel(model.predict(split.test_inputs)), np.float64)
    sd = np.full(len(mean), np.sqrt(np.mean(errors**2)))
    return normal_scores(mean, sd, split.test_targets)


_ALL = (least_squares, hist_gradient_boosting, xgb_distribution, catboost, ngboost, tabm, realmlp)
PEERS = {one.__name__: one for one in _ALL}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    tables_data.work(
        argparse.ArgumentParser(description=__doc__.splitlines()[0]),
        PEERS,
        lambda peer, _table, split, _others: PEERS[peer](split),
    )
