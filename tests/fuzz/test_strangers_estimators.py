"""The estimators within scikit-learn's own tools, as strangers use them."""

import numpy as np
import pandas as pd
import pytest
from sklearn import (
    calibration,
    compose,
    ensemble,
    model_selection,
    multiclass,
    pipeline,
    preprocessing,
)
from strangers import MARKS, numbers, r_squared, vectors

from ensemble import EnsembleClassifier, EnsembleRegressor

pytestmark = MARKS
FAST = {"ensemble_size": 2, "num_epochs": 20, "learning_rate": 5e-3}
QUICK, QUICK_REGRESSOR = EnsembleClassifier(**FAST), EnsembleRegressor(**FAST)
ONE_HOT = (preprocessing.OneHotEncoder(), ["colour"])
NETWORKS = {"ensembleclassifier__hidden": [(8,), (32, 16)]}


def mixed(x):
    """A data frame with a column of texts."""
    return pd.DataFrame(x).assign(colour=np.where(x[:, 0] > 0, "red", "blue")).rename(columns=str)


# fmt: off
CLASSIFIERS = {
    "pipeline with texts": pipeline.make_pipeline(
        compose.make_column_transformer(ONE_HOT, remainder="passthrough"), QUICK
    ),
    "search in a pipeline": model_selection.GridSearchCV(
        pipeline.make_pipeline(compose.make_column_transformer(ONE_HOT), QUICK), NETWORKS, cv=2
    ),
    "a vote": ensemble.VotingClassifier([("a", QUICK), ("b", QUICK)], voting="soft"),
    "calibration": calibration.CalibratedClassifierCV(QUICK, cv=2),
    "one against the rest": multiclass.OneVsRestClassifier(QUICK),
    "bagging": ensemble.BaggingClassifier(QUICK, n_estimators=2),
}
# fmt: on


@pytest.mark.parametrize("case", CLASSIFIERS)
def test_classifiers(case):
    (x, y), (new, truth) = vectors(0), vectors(1)
    is_mixed = "pipeline" in case
    change, names = mixed if is_mixed else np.asarray, np.array(["ox", "cat", "dog"])
    fitted = CLASSIFIERS[case].fit(change(x), names[y])
    assert fitted.score(change(new), names[truth]) > (0.4 if "search" in case else 0.6)


def test_a_regressor_of_scaled_targets():
    scaled = compose.TransformedTargetRegressor(
        QUICK_REGRESSOR, transformer=preprocessing.StandardScaler()
    )
    new, truth = numbers(1)
    found, floor = r_squared(scaled.fit(*numbers(0)).predict(new), truth)
    assert found > floor
