"""The configuration of scikit-learn's estimators."""

import pytest

from ensemble import EnsembleClassifier, EnsembleRegressor
from ensemble.config import flatten
from ensemble.configs import arrays, tabular


@pytest.mark.parametrize(
    ("estimator", "bundled"), [(EnsembleClassifier, arrays), (EnsembleRegressor, tabular)]
)
def test_defaults_are_those_of_a_bundled_configuration(estimator, bundled):
    config = flatten(bundled.get_config())
    found = flatten(estimator()._run_config(num_examples=50))
    keys = ["ensemble_size", "model", "num_epochs", "batch_size", "optimizer", "learning_rate"]
    keys += ["schedule", "weight_decay", "mlp.widths", "mlp.activation", "beta_nll"]
    if estimator is EnsembleRegressor:  # A classifier learns from every example.
        keys.append("early_stopping_epochs")
    assert {key: found[key] for key in keys} == {key: config[key] for key in keys}


def test_another_model_is_not_told_that_it_has_no_use_for_default_widths(caplog):
    assert "mlp" not in EnsembleRegressor(model="cnn")._run_config(num_examples=50)
    assert not caplog.records
