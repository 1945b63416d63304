"""A program's own arrays get the defaults of a bundled configuration, and no key too many."""

import numpy as np
import pandas as pd
import pytest
from run_parts import validated

from ensemble import default_config
from ensemble.config import flatten
from ensemble.configs import arrays, images, tabular
from ensemble.run.own_data import with_defaults

TABLE = (np.zeros((20, 5)), np.arange(20) % 2)
FRAME = (pd.DataFrame({"size": np.arange(20.0), "town": ["here", "there"] * 10}), TABLE[1])
PICTURES = (np.zeros((20, 12, 12, 3)), np.arange(20) % 2)
SHARED = ("optimizer", "learning_rate", "schedule", "early_stopping_epochs", "num_epochs")


@pytest.mark.parametrize(
    ("data", "bundled"), [(TABLE, arrays), (PICTURES, images), (FRAME, tabular)]
)
def test_defaults_are_those_of_the_configuration(data, bundled):
    given, found = with_defaults({"ensemble_size": 2}, data)
    expected = flatten(bundled.get_config())
    config = flatten(validated(given, ["ensemble_size"]))
    assert {key: config[key] for key in SHARED} == {key: expected[key] for key in SHARED}
    assert config["model"] == expected["model"]
    if config["model"] == "mlp":
        assert config["mlp.widths"] == expected["mlp.widths"]
    assert config["ensemble_size"] == 2
    assert found.keys() == {"inputs", "labels"}


def test_what_is_given_is_kept_and_what_suits_it_only():
    given, _ = with_defaults({"learning_rate": 0.1, "num_epochs": 3}, TABLE)
    assert given == {"learning_rate": 0.1, "num_epochs": 3, "model": "mlp"}
    given, _ = with_defaults({"learning_rate": 0.1}, TABLE)
    assert given == {"learning_rate": 0.1, "num_epochs": 100, "model": "mlp"}
    given, _ = with_defaults({"num_steps": 9, "hold_out": False, "model": "tiny"}, TABLE)
    assert given["model"] == "tiny"
    assert not given.keys() & {"num_epochs", "early_stopping_epochs"}
    validated(given, ["num_steps"])


def test_widths_are_those_of_a_model_that_has_some():
    assert with_defaults({"learning_rate": 0.1}, FRAME)[0]["mlp.widths"] == "128,128"
    given, _ = with_defaults({"model": "linear", "mlp.widths": "3"}, FRAME)
    assert given["mlp.widths"] == "3"
    given, _ = with_defaults({"model": "linear"}, FRAME)
    assert "mlp.widths" not in given
    validated(given, ["model"])


def test_a_sampler_gets_no_key_of_sgd():
    given, _ = with_defaults({"method": "hmc"}, TABLE)
    assert given.keys() == {"method", "model"}
    validated(given, ["method"])


def test_a_sampler_of_a_frame_has_the_widths_of_tables():
    given, _ = with_defaults({"method": "hmc"}, FRAME)
    assert given == {"method": "hmc", "model": "mlp", "mlp.widths": "128,128"}
    validated(given, ["method"])


def test_numbers_get_a_likelihood_of_numbers():
    table = (TABLE[0], np.linspace(0, 1, 20))
    assert with_defaults({}, table)[0]["likelihood"] == "gaussian"
    given, found = with_defaults({"likelihood": "student_t"}, TABLE)
    assert given["likelihood"] == "student_t"
    assert "targets" in found


def test_ragged_inputs_are_left_to_what_checks_the_data():
    given, found = with_defaults({}, {"inputs": [[1, 2], [1]], "labels": [0, 1]})
    assert given["model"] == "mlp"
    assert found["inputs"] == [[1, 2], [1]]


def test_small_pictures_go_to_an_mlp_and_a_whole_configuration_stays():
    tiny = (np.zeros((20, 4, 4)), TABLE[1])
    assert with_defaults({}, tiny)[0]["model"] == "mlp"
    channels_first = (np.zeros((20, 3, 12, 12)), TABLE[1])
    assert "model" not in with_defaults({}, channels_first)[0]  # The default, a CNN.
    whole = flatten(default_config())
    assert with_defaults(whole, TABLE)[0] == whole
