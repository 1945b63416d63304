"""Every key and every rule of the configuration."""

import ml_collections
import pytest

import ensemble
from ensemble import UserError
from ensemble.config import MAY_CHANGE, default_config, differences, flatten
from ensemble.config_rules import validate


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


SAMPLER = {"method": "hmc", "prior": "normal(1)"}


def test_limits_may_be_reached():
    validate({"num_steps": 2**31 - 1, "seed": 2**32 - 1, "learning_rate": 1e15, "momentum": 0.0})
    draws = {"num_warmup": 1, "num_burn_in": 1, "num_samples": 2**31 - 3}
    validate(SAMPLER | {"num_chains": 2**20, "hmc": draws})
    validate({"method": "rwm", "num_chains": 2**21})


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
        (
            {"num_epochs": 1, "ensemble_size": 2**20 + 1},
            "config.ensemble_size=1048577 must be at most 1048576",
        ),
        ({"num_epochs": 1, "seed": None}, "config.seed=None must have a value; leave it out for 0"),
        (SAMPLER | {"hmc": {"thin": None}}, "config.hmc.thin=None must have a value; leave it"),
        ({"num_steps": 2**31}, "config.num_steps=2147483648 must be at most 2147483647"),
        (
            {"num_epochs": 1, "learning_rate": 1e308},
            r"config.learning_rate=1e\+308 must be from 1e-15 to 1e\+15 in size: its square must",
        ),
        ({"num_epochs": 1, "weight_decay": 1e-300}, "config.weight_decay=1e-300 must be from"),
        (SAMPLER | {"num_chains": 2**20 + 1}, "num_chains=1048577 must be at most 1048576 with"),
        (
            SAMPLER | {"hmc": {"num_leapfrog_steps": 2**20 + 1}},
            "config.hmc.num_leapfrog_steps=1048577 must be at most 1048576",
        ),
        (SAMPLER | {"hmc": {"num_warmup": 2**20 + 1}}, "hmc.num_warmup=1048577 must be at most"),
        (
            SAMPLER | {"hmc": {"num_warmup": 0, "num_burn_in": 1, "num_samples": 2**31 - 1}},
            "config.hmc has 2147483648 draws of each chain in all, which must be at most 214748364",
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


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"num_devices": 1025}, "config.num_devices=1025 must be a whole number from 1 to 1024"),
        ({"num_epochs": 2**31 - 1, "batch_size": 1}, "steps here, which must be at most 214748364"),
        ({"class_weights": "1e308,1,1"}, "class_weights='1e308,1,1' must all be positive and fin"),
    ],
)
def test_what_shows_only_with_the_data_is_one_line_too(change, line, blobs):
    with pytest.raises(UserError, match=line) as error:
        ensemble.train({"model": "mlp", "num_epochs": 1, **change}, data=blobs)
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
