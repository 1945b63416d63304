"""The configuration of scikit-learn's estimators."""

import pytest

from ensemble import EnsembleClassifier, EnsembleRegressor
from ensemble.config import flatten
from ensemble.configs import tabular


@pytest.mark.parametrize("estimator", [EnsembleClassifier, EnsembleRegressor])
@pytest.mark.parametrize("variant", ["", "sgd"])
def test_defaults_are_those_of_the_bundled_configuration(estimator, variant):
    config = flatten(tabular.get_config(variant))
    method = {"method": variant} if variant else {}
    found = flatten(estimator(**method)._run_config(num_examples=50))
    keys = ["ensemble_size", "model", "num_epochs", "batch_size", "optimizer", "learning_rate"]
    keys += ["schedule", "weight_decay", "mlp.widths", "mlp.activation", "method", "scaling"]
    keys.append("early_stopping_epochs" if variant else "cross_fitted.patience")
    assert {key: found[key] for key in keys} == {key: config[key] for key in keys}


def test_another_model_is_not_told_that_it_has_no_use_for_default_widths(caplog):
    assert "mlp" not in EnsembleRegressor(model="cnn")._run_config(num_examples=50)
    assert not caplog.records
