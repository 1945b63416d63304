"""Peers on tables at their default settings, and what they say of rows that they have not seen.

    python benchmarks/tables_peer.py PEER TABLE WHEEL SPLIT...

is the worker of tables.py, a line of JSON for each split; neutral_worker.py has these peers too. Of
numbers a peer says a normal distribution for each row, of classes their probabilities.

- XGBDistribution and CatBoost (RMSEWithUncertainty) learn both parameters of the distribution.
- HistGradientBoosting, the forest, least squares and scikit-learn's MLP predict a number alone: its
  standard deviation is that of their errors on rows of five folds, each predicted by a fit to the
  other four.
- RealMLP and TabM take long: theirs is that of the errors on the tenth that chose their epoch. They
  stop by cross-entropy on classes, and labels are not smoothed, as pytabkit advises where
  probabilities count. PEER_DEVICE=cuda:0 in the environment trains them on a GPU.
- XGBoost stops by a tenth of the rows, which it does not learn.
- The forest's probabilities are at least a floor, chosen by NLL on five folds.
- The linear models' penalties are chosen by cross-validation.

HistGradientBoosting, CatBoost and XGBoost's classifier take missing numbers and categories as they
are. RealMLP and TabM take categories, with medians and flags in place of missing numbers. All
others take columns of 0 and 1 for categories, too, and all columns are standardised for them.
"""

import argparse
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import neutral_data
import numpy as np
import scipy.stats
import tables_data
from neutral_data import Problem, encoded, is_text

HELD_OUT = 0.1
NUM_FOLDS = 5
FLOORS = np.logspace(-6, -1, 11)
LEAST_PROBABILITY = float(np.finfo(np.float32).eps)
"""The least probability of any method: 0 would cost infinitely many nats."""

Said = tuple[np.ndarray, np.ndarray] | np.ndarray
"""Mean and standard deviation [T] of each row, or probabilities [T, C]."""
Fit = Callable[[np.ndarray, np.ndarray], Any]
"""Fits to inputs [N, F] and targets [N], and returns what has `predict`."""


def normal_scores(mean: np.ndarray, sd: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Scores of normal distributions [N]; they are their own moments."""
    nll = -float(scipy.stats.norm.logpdf(targets, mean, sd).mean())
    z = (targets - mean) / sd
    density = scipy.stats.norm.pdf(z)
    below = scipy.stats.norm.cdf(z)
    return {
        "rmse": float(np.sqrt(np.mean((mean - targets) ** 2))),
        "nll": nll,
        "nll_by_moments": nll,
        "crps": float(np.mean(sd * (z * (2 * below - 1) + 2 * density - np.pi**-0.5))),
        "coverage_90": float(np.mean(np.abs(mean - targets) <= 1.6448536 * sd)),
    }


def class_scores(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Scores of probabilities [N, C]; Brier's is summed over classes."""
    probs = np.maximum(np.asarray(probs, np.float64), LEAST_PROBABILITY)
    probs /= probs.sum(axis=1, keepdims=True)
    return {
        "nll": float(-np.log(probs[np.arange(len(labels)), labels]).mean()),
        "brier": float(((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(axis=1).mean()),
        "accuracy": float((probs.argmax(axis=1) == labels).mean()),
    }


def scored(said: Said, truth: np.ndarray) -> dict[str, float]:
    """Scores of what a method says."""
    if isinstance(said, tuple):
        mean, sd = (np.asarray(one, np.float64) for one in said)
        return normal_scores(mean, sd, truth)
    return class_scores(said, truth)


def out_of_fold(fit: Fit, predict: str, inputs: Any, wanted: np.ndarray) -> np.ndarray:
    """What is said of each training row, by a fit to the folds that it is not in."""
    fold = neutral_data.folds(wanted, NUM_FOLDS, seed=0)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for number in range(NUM_FOLDS):
        is_held_out = fold == number
        model = fit(inputs[~is_held_out], wanted[~is_held_out])
        said = getattr(model, predict)(inputs[is_held_out])
        found.append((np.flatnonzero(is_held_out), said))
    order = np.argsort(np.concatenate([rows for rows, _ in found]))
    return np.concatenate([said for _, said in found])[order]


def homoscedastic(fit: Fit, inputs: Any, wanted: np.ndarray, asked: Any) -> Said:
    """Predicted numbers, and one standard deviation: that of errors out of fold."""
    errors = wanted - out_of_fold(fit, "predict", inputs, wanted)
    mean = fit(inputs, wanted).predict(asked)
    return mean, np.full(len(mean), np.sqrt(np.mean(errors**2)))


def floored(probs: np.ndarray, floor: float) -> np.ndarray:
    """Probabilities [N, C] that are at least as high, before they add up to 1."""
    probs = np.maximum(probs, floor)
    return probs / probs.sum(axis=1, keepdims=True)


def constant(problem: Problem) -> Said:
    """The mean of the training rows and their deviation, or the frequencies of the classes."""
    wanted = problem.wanted
    number = len(problem.truth)
    if problem.num_classes:
        counts = np.bincount(wanted, minlength=problem.num_classes)
        return np.tile(counts / counts.sum(), (number, 1))
    return np.full(number, wanted.mean()), np.full(number, wanted.std())


def linear(problem: Problem) -> Said:
    """Ridge regression, or logistic regression."""
    from sklearn.linear_model import LogisticRegressionCV, Ridge, RidgeCV

    inputs, asked = encoded(problem)
    if problem.num_classes:
        model = LogisticRegressionCV(
            Cs=np.logspace(-3, 2, 6),
            cv=NUM_FOLDS,
            scoring="neg_log_loss",
            max_iter=1_000,
            l1_ratios=(0,),
            use_legacy_attributes=False,
        )
        return model.fit(inputs, problem.wanted).predict_proba(asked)
    penalty = RidgeCV(alphas=np.logspace(-2, 5, 15)).fit(inputs, problem.wanted).alpha_
    return homoscedastic(Ridge(alpha=penalty).fit, inputs, problem.wanted, asked)


def hist_gradient_boosting(problem: Problem) -> Said:
    """scikit-learn's."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    train, test = categorical(problem)
    settings = {"random_state": 0, "categorical_features": "from_dtype"}
    if problem.num_classes:
        model = HistGradientBoostingClassifier(**settings)
        return model.fit(train, problem.wanted).predict_proba(test)

    def fit(inputs: Any, wanted: np.ndarray) -> Any:
        return HistGradientBoostingRegressor(**settings).fit(inputs, wanted)

    return homoscedastic(fit, train, problem.wanted, test)


def random_forest(problem: Problem) -> Said:
    """scikit-learn's."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    inputs, asked = encoded(problem)
    wanted = problem.wanted
    labels = problem.wanted
    kind = RandomForestClassifier if problem.num_classes else RandomForestRegressor

    def fit(inputs: Any, wanted: np.ndarray) -> Any:
        return kind(random_state=0).fit(inputs, wanted)

    if not problem.num_classes:
        return homoscedastic(fit, inputs, wanted, asked)
    probs = out_of_fold(fit, "predict_proba", inputs, labels)
    losses = [class_scores(floored(probs, floor), labels)["nll"] for floor in FLOORS]
    said = fit(inputs, labels).predict_proba(asked)
    return floored(said, FLOORS[np.argmin(losses)])


def sklearn_mlp(problem: Problem) -> Said:
    """scikit-learn's; numbers are standardised for it."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    inputs, asked = encoded(problem)
    if problem.num_classes:
        return MLPClassifier(random_state=0).fit(inputs, problem.wanted).predict_proba(asked)
    shift = problem.wanted.mean()
    scale = problem.wanted.std()

    def fit(inputs: Any, wanted: np.ndarray) -> Any:
        return MLPRegressor(random_state=0).fit(inputs, wanted)

    mean, sd = homoscedastic(fit, inputs, (problem.wanted - shift) / scale, asked)
    return shift + scale * mean, scale * sd


def xgboost(problem: Problem) -> Said:
    """XGBoost, or XGBDistribution with a normal one, both stopped early.

    The default of 100 trees fits yacht's training targets exactly: 90% intervals then hold 5%.
    """
    settings = {
        "n_estimators": 500,
        "early_stopping_rounds": 10,
        "random_state": 0,
        "n_jobs": 1,
    }
    wanted = problem.wanted
    is_held_out = neutral_data.folds(wanted, round(1 / HELD_OUT), seed=0) == 0
    inputs, asked = categorical(problem) if problem.num_classes else encoded(problem)
    held_out = [(inputs[is_held_out], wanted[is_held_out])]
    learned = inputs[~is_held_out], wanted[~is_held_out]
    if problem.num_classes:
        from xgboost import XGBClassifier

        model = XGBClassifier(enable_categorical=True, **settings)
        return model.fit(*learned, eval_set=held_out, verbose=False).predict_proba(asked)
    from xgboost_distribution import XGBDistribution

    model = XGBDistribution(distribution="normal", **settings)
    model.fit(*learned, eval_set=held_out, verbose=False)
    found = model.predict(asked)
    return found.loc, found.scale


def ngboost(problem: Problem) -> Said:
    """NGBoost, normal; of numbers alone."""
    from ngboost import NGBRegressor

    inputs, asked = encoded(problem)
    model = NGBRegressor(random_state=0, verbose=False)
    model.fit(inputs, problem.wanted)
    found = model.pred_dist(asked).params
    return found["loc"], found["scale"]


def catboost(problem: Problem) -> Said:
    """CatBoost."""
    train, test, names = frames_of_catboost(problem)
    model = model_of_catboost(problem, names).fit(train, problem.wanted)
    return said_by_catboost(model, problem, test)


def frames_of_catboost(problem: Problem) -> tuple[Any, Any, list[str]]:
    """Data frames of training and test rows, and the names of the columns of categories."""
    names = [name for name, one in problem.train.items() if is_text(one)]
    train, test = map(neutral_data.frame, (problem.train, problem.test))
    train[names], test[names] = train[names].fillna(_MISSING), test[names].fillna(_MISSING)
    return train, test, names


def model_of_catboost(problem: Problem, names: list[str], **settings: Any) -> Any:
    """A classifier, or a regressor that predicts variances too; settings left out are CatBoost's.

    Args:
        problem: what is learned.
        names: of the columns of categories.
        **settings: of CatBoost.
    """
    from catboost import CatBoostClassifier, CatBoostRegressor

    settings |= {
        "random_seed": 0,
        "thread_count": 1,
        "verbose": False,
        "allow_writing_files": False,
        "cat_features": names,
    }
    if problem.num_classes:
        return CatBoostClassifier(**settings)
    return CatBoostRegressor(loss_function="RMSEWithUncertainty", **settings)


def said_by_catboost(model: Any, problem: Problem, asked: Any) -> Said:
    """What a fitted model says of rows."""
    if problem.num_classes:
        return model.predict_proba(asked)
    mean, variance = model.predict(asked).T
    return mean, np.sqrt(variance)


def realmlp(problem: Problem) -> Said:
    """RealMLP with its tuned defaults."""
    from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor

    classifier = functools.partial(RealMLP_TD_Classifier, use_ls=False)
    return _of_pytabkit(classifier if problem.num_classes else RealMLP_TD_Regressor, problem)


def tabm(problem: Problem) -> Said:
    """TabM with its defaults."""
    from pytabkit import TabM_D_Classifier, TabM_D_Regressor

    return _of_pytabkit(TabM_D_Classifier if problem.num_classes else TabM_D_Regressor, problem)


def _of_pytabkit(create: Callable[..., Any], problem: Problem) -> Said:
    """A network whose epoch is chosen on a tenth of the rows."""
    wanted = problem.wanted
    is_held_out = neutral_data.folds(wanted, round(1 / HELD_OUT), seed=0) == 0
    train, test = (neutral_data.frame(one) for one in neutral_data.filled(problem))
    device = os.environ.get("PEER_DEVICE", "cpu")
    settings = {"device": device, "random_state": 0, "n_threads": 1, "verbosity": 0}
    if problem.num_classes:
        settings["val_metric_name"] = "cross_entropy"
    names = [name for name, one in problem.train.items() if is_text(one)]
    train[names], test[names] = train[names].fillna(_MISSING), test[names].fillna(_MISSING)
    held_out = train[is_held_out], wanted[is_held_out]
    model = create(**settings)
    model.fit(train[~is_held_out], wanted[~is_held_out], *held_out, cat_col_names=names)
    if problem.num_classes:
        return model.predict_proba(test)
    errors = held_out[1] - np.ravel(model.predict(held_out[0]))
    mean = np.ravel(model.predict(test))
    return mean, np.full(len(mean), np.sqrt(np.mean(errors**2)))


_MISSING = "missing"


def categorical(problem: Problem) -> tuple[Any, Any]:
    """Data frames whose categories are those of the training rows; missing values stay missing."""
    import pandas as pd  # Of methods that take frames.

    train, test = map(neutral_data.frame, (problem.train, problem.test))
    for name, column in problem.train.items():
        if is_text(column):
            known = pd.CategoricalDtype(sorted(set(train[name].dropna())))
            for one in (train, test):
                one[name] = one[name].where(one[name].isin(known.categories)).astype(known)
    return train, test


_ALL = (
    *(constant, linear, hist_gradient_boosting, xgboost, random_forest, sklearn_mlp),
    *(catboost, ngboost, tabm, realmlp),
)
PEERS: dict[str, Callable[[Problem], Said]] = {one.__name__: one for one in _ALL}


def main() -> None:
    """Scores the splits that the command line names."""
    warnings.simplefilter("ignore")

    def score(peer: str, _table: str, split: tables_data.Split, _others: Any) -> dict[str, float]:
        return scored(PEERS[peer](neutral_data.problem_of(split)), split.test_targets)

    tables_data.work(argparse.ArgumentParser(description=__doc__.splitlines()[0]), PEERS, score)


if __name__ == "__main__":
    main()
