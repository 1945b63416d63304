"""Cases: the estimators within scikit-learn's own tools."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
from sklearn import (
    base,
    calibration,
    compose,
    ensemble,
    inspection,
    model_selection,
    multiclass,
    pipeline,
    preprocessing,
)
from strangers import Score, case
from strangers_data import numbers, pictures, r_squared, vectors

from ensemble import EnsembleClassifier, EnsembleRegressor

WAY = "scikit-learn"


def quick(**settings: Any) -> EnsembleClassifier:
    """A classifier that learns in a second."""
    return EnsembleClassifier(
        **{"ensemble_size": 2, "num_epochs": 20, "learning_rate": 5e-3} | settings
    )


def quick_regressor(**settings: Any) -> EnsembleRegressor:
    """A regressor that learns in a second."""
    return EnsembleRegressor(
        **{"ensemble_size": 2, "num_epochs": 20, "learning_rate": 5e-3} | settings
    )


def of_classifier(
    name: str,
    make: Callable[[], Any] = quick,
    inputs: Callable[[Any], Any] = np.asarray,
    labels: Callable[[Any], Any] = np.asarray,
    says: str = "",
    **fit: Any,
) -> None:
    """Adds a case that fits one and scores it on new examples."""

    @case(name, WAY, says)
    def _(folder) -> Score:
        (x, y), (new, truth) = vectors(0), vectors(1)
        fitted = make().fit(inputs(x), labels(y), **fit)
        _, counts = np.unique(labels(truth), return_counts=True)
        floor = counts.max() / len(truth) + 0.1
        return Score(float(fitted.score(inputs(new), labels(truth))), floor)


def of_regressor(
    name: str,
    make: Callable[[], Any] = quick_regressor,
    targets: Callable[[Any], Any] = np.asarray,
    says: str = "",
    **fit: Any,
) -> None:
    """Adds a case that fits one and scores it on new examples."""

    @case(name, WAY, says)
    def _(folder) -> Score:
        (x, y), (new, truth) = numbers(0), numbers(1)
        return r_squared(make().fit(x, targets(y), **fit).predict(new), targets(truth))


def frame(x: Any) -> Any:
    """A data frame with names."""
    return pd.DataFrame(x, columns=[f"feature {one}" for one in range(x.shape[1])])


def mixed(x: Any) -> Any:
    """A data frame with a column of texts."""
    return frame(x).assign(colour=np.where(x[:, 0] > 0, "red", "blue"))


def hole(x: Any) -> Any:
    """A NaN in a table."""
    return np.where(np.arange(x.size).reshape(x.shape) == 7, np.nan, x)


def names(y: Any) -> Any:
    """Texts for labels."""
    return np.array(["ox", "cat", "dog"])[y]


ONE_HOT = compose.make_column_transformer(
    (preprocessing.OneHotEncoder(), ["colour"]), remainder="passthrough"
)
GRID = {"learning_rate": [1e-3, 1e-2]}

of_classifier("classifier")
of_classifier("classifier, strings", labels=names)
of_classifier(
    "classifier, a data frame and a series", inputs=frame, labels=lambda y: pd.Series(names(y))
)
of_classifier("classifier, categories of pandas", labels=lambda y: pd.Categorical(names(y)))
of_classifier("classifier, floats", labels=lambda y: y + 1.0)
of_classifier("classifier, fractions", labels=lambda y: y + 0.5, says="continuous|label")
of_classifier("classifier, lists", inputs=lambda x: x.tolist(), labels=lambda y: y.tolist())
of_classifier("classifier, sample weights", sample_weight=np.linspace(0.1, 1, 200))
of_classifier("classifier, a negative weight", sample_weight=-np.ones(200), says="weight|negative")
of_classifier("classifier, weights of another length", sample_weight=np.ones(7), says="weight")
of_classifier("classifier, weights that are all 0", sample_weight=np.zeros(200), says="weight")
of_classifier("classifier, balanced", lambda: quick(class_weight="balanced"))
of_classifier("classifier, weights by label", lambda: quick(class_weight={"ox": 2.0}), labels=names)
of_classifier(
    "classifier, a weight for no label",
    lambda: quick(class_weight={"cow": 2.0}),
    labels=names,
    says="cow",
)
of_classifier("classifier, hidden units", lambda: quick(hidden=(32, 16), activation="tanh"))
of_classifier(
    "classifier, an activation that is unknown", lambda: quick(activation="elu"), says="elu"
)
of_classifier("classifier, one number of units", lambda: quick(hidden=32))
of_classifier(
    "classifier, HMC",
    lambda: EnsembleClassifier(
        2,
        "logistic_regression",
        method="hmc",
        config={"hmc.num_samples": 100, "hmc.num_warmup": 100},
    ),
)
of_classifier(
    "classifier, a key that is unknown", lambda: quick(config={"dropout": 1}), says="dropout"
)
of_classifier("classifier, a method that is unknown", lambda: quick(method="mcmc"), says="mcmc")
of_classifier("classifier, a NaN", inputs=hole, says="nan")
of_classifier("classifier, a sparse matrix", inputs=scipy.sparse.csr_matrix, says="sparse")
of_classifier("classifier, a data frame with text", inputs=mixed)
of_classifier("classifier, one class", labels=lambda y: 0 * y, says="class")
of_classifier("classifier, one-hot", labels=lambda y: np.eye(3)[y], says="1d|shape|label|one-hot")
of_classifier("pipeline", lambda: pipeline.make_pipeline(preprocessing.StandardScaler(), quick()))
of_classifier(
    "pipeline with columns of texts", lambda: pipeline.make_pipeline(ONE_HOT, quick()), mixed
)
of_classifier("grid search", lambda: model_selection.GridSearchCV(quick(), GRID, cv=2))
of_classifier(
    "grid search over networks",
    lambda: model_selection.GridSearchCV(quick(), {"hidden": [(8,), (32, 16)]}, cv=2),
)
of_classifier(
    "grid search in a pipeline, strings",
    lambda: model_selection.GridSearchCV(
        pipeline.make_pipeline(preprocessing.StandardScaler(), quick()),
        {"ensembleclassifier__num_epochs": [5, 20]},
        cv=2,
    ),
    labels=names,
)
of_classifier(
    "grid search in two processes",
    lambda: model_selection.GridSearchCV(quick(), GRID, cv=2, n_jobs=2),
)
of_classifier(
    "a vote", lambda: ensemble.VotingClassifier([("a", quick()), ("b", quick())], voting="soft")
)
of_classifier("calibration", lambda: calibration.CalibratedClassifierCV(quick(), cv=2))
of_classifier("one against the rest", lambda: multiclass.OneVsRestClassifier(quick()))
of_classifier("bagging", lambda: ensemble.BaggingClassifier(quick(), n_estimators=2))
of_classifier("a clone", lambda: base.clone(quick()).set_params(ensemble_size=1))
of_regressor("regressor")
of_regressor("regressor, huge numbers", targets=lambda y: 1e9 * y)
of_regressor("regressor, whole numbers", targets=lambda y: np.rint(10 * y).astype(int))
of_regressor("regressor, a column", targets=lambda y: y[:, None])
of_regressor("regressor, two columns", targets=lambda y: np.stack([y, y], 1))
of_regressor("regressor, constant", targets=lambda y: 0 * y, says="standard deviation 0")
of_regressor("regressor, strings", targets=lambda y: y.astype(str))
of_regressor("regressor, Student's t", lambda: quick_regressor(likelihood="student_t"))
of_regressor(
    "regressor, categorical", lambda: quick_regressor(likelihood="categorical"), says="categorical"
)
of_regressor(
    "regressor of scaled targets",
    lambda: compose.TransformedTargetRegressor(
        quick_regressor(), transformer=preprocessing.StandardScaler()
    ),
)
of_regressor("regressor, sample weights", sample_weight=np.linspace(0.1, 1, 200))


@case("classifier, pictures", WAY)
def _(folder) -> Score:
    (x, y), (new, truth) = pictures(0), pictures(1)
    return Score(quick(model="cnn", num_epochs=8).fit(x, y).score(new, truth), 0.44)


@case("classifier, predicts before it is fitted", WAY, "fit")
def _(folder) -> None:
    quick().predict(vectors(0)[0])


@case("classifier, other features", WAY, "features|5")
def _(folder) -> None:
    quick().fit(*vectors(0)).predict(vectors(0, size=3)[0])


@case("classifier, columns in another order", WAY, "order|feature names|match")
def _(folder) -> None:
    x, y = vectors(0)
    quick().fit(frame(x), y).predict(frame(x).iloc[:, ::-1])


@case("classifier, pickled", WAY)
def _(folder) -> Score:
    fitted = pickle.loads(pickle.dumps(quick().fit(*vectors(0))))
    return Score(fitted.score(*vectors(1)), 0.44)


@case("classifier, equal seeds", WAY)
def _(folder) -> Score:
    new = vectors(1)[0]
    one, other = (quick(random_state=3).fit(*vectors(0)).predict_proba(new) for _ in range(2))
    return Score(float((one == other).all()), 0.0)


@case("classifier, cross validation by log loss", WAY)
def _(folder) -> Score:
    found = model_selection.cross_val_score(quick(), *vectors(0), cv=3, scoring="neg_log_loss")
    return Score(float(found.mean()), -1.0)


@case("classifier, importance of features", WAY)
def _(folder) -> Score:
    x, y = vectors(0)
    x = np.hstack([x, np.zeros((len(x), 1))])
    found = inspection.permutation_importance(quick().fit(x, y), x, y, n_repeats=2)
    return Score(float(found.importances_mean[:-1].max()), float(found.importances_mean[-1]))
