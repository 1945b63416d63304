"""Every key and every rule of the configuration."""

import ml_collections
import pytest

from ensemble import UserError
from ensemble.config import MAY_CHANGE, default_config, differences, flatten, validate


def test_what_is_not_given_is_the_default():
    config = validate({"num_epochs": 3, "augment": {"flip": True}})
    assert config.num_epochs == 3
    assert config.augment.flip
    assert config.augment.shift == 0
    assert config.ensemble_size == default_config().ensemble_size


def test_config_dicts_and_plain_dicts_are_the_same():
    as_dict = ml_collections.ConfigDict({"num_steps": 5, "model": "mlp"})
    assert validate(as_dict).to_dict() == validate({"num_steps": 5, "model": "mlp"}).to_dict()


def test_zero_leaves_a_duration_out_and_numpy_numbers_are_numbers():
    import numpy as np

    config = validate({"num_epochs": 0, "num_steps": np.int64(7), "learning_rate": np.float32(0.5)})
    assert config.num_steps == 7
    assert config.learning_rate == 0.5


def test_a_validated_configuration_cannot_be_changed():
    with pytest.raises(AttributeError):
        validate({"num_epochs": 1}).num_epochs = 2


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"num_epochs": 0}, "set exactly one of the two, the other to 0"),
        ({}, "num_epochs=None and config.num_steps=None: set exactly one"),
        ({"num_epochs": 1, "num_steps": 1}, "set exactly one of the two"),
        ({"num_epoch": 1}, "config.num_epoch is not a key .* did you mean num_epochs?"),
        ({"zzz": 1}, "config.zzz is not a key .* the keys are augment.flip, "),
        ({"augment": {"rotate": 1}}, "config.augment.rotate is not a key"),
        ({"num_epochs": 1, "batch_size": "many"}, "config.batch_size='many' has the wrong type"),
        ({"num_epochs": 1, "batch_size": 0}, "config.batch_size=0 must be positive"),
        ({"num_epochs": 1, "momentum": 1.0}, "config.momentum=1.0 must be at least 0 and below 1"),
        (
            {"num_epochs": 1, "learning_rate": float("inf")},
            "config.learning_rate=inf must be finite",
        ),
        ({"num_epochs": 1, "seed": -1}, "config.seed=-1 must be at least 0"),
        ({"num_epochs": 10**25}, "config.num_epochs=10000000000000000000000000 must be at most"),
        (
            {"num_epochs": 1, "prior": "normal(0)"},
            r"config.prior='normal\(0\)': .* is no prior; write",
        ),
        ({"num_epochs": 1, "batching": "mixed"}, "must be one of shared, independent"),
        (
            {"num_epochs": 1, "hold_out": False, "early_stopping_epochs": 2},
            "config.early_stopping_epochs=2 needs a validation split: set config.hold_out=True",
        ),
    ],
)
def test_what_is_wrong_is_one_line(config, line):
    with pytest.raises(UserError, match=line) as error:
        validate(config)
    assert "\n" not in str(error.value)


def test_only_what_may_change_may_differ():
    config = default_config()
    for key in flatten(config):
        changed = flatten(default_config())
        changed[key] = "something else"
        assert bool(differences(flatten(config), changed)) == (key not in MAY_CHANGE)
    assert differences({"a": {"b": (1, 2)}}, {"a": {"b": [1, 2]}}) == []
    assert differences({"seed": 1}, {"seed": 2, "new": 3}) == ["new: None -> 3", "seed: 1 -> 2"]


def test_a_key_that_is_newer_than_the_workdir_had_its_default():
    new = validate({"num_epochs": 1}).to_dict()
    old = {key: value for key, value in new.items() if key != "hold_out"}
    assert differences(old, new) == []
    assert differences(old, {**new, "hold_out": False}) == ["hold_out: True -> False"]
