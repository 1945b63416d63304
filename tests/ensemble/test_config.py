"""Every key and every rule of the configuration."""

import re
import subprocess
import sys

import ml_collections
import pytest
from conftest import ROOT

import ensemble
from ensemble import UserError, registry
from ensemble.config import (
    RUN,
    all_keys,
    default_config,
    differences,
    flatten,
    likelihood_block,
    method_block,
    model_block,
    task_block,
    unknown_key,
)
from ensemble.config_rules import check, validate
from ensemble.configs import digits_ensemble
from ensemble.storage.old import validate_stored


def test_what_is_not_given_is_the_default():
    config = validate({"num_epochs": 3, "augment": {"flip": True}})
    assert config.num_epochs == 3
    assert config.augment.flip
    assert config.augment.shift == 0
    assert config.ensemble_size == default_config().ensemble_size


def test_config_dicts_and_plain_dicts_are_the_same():
    as_dict = ml_collections.ConfigDict({"num_steps": 5, "model": "mlp"})
    assert validate(as_dict).to_dict() == validate({"num_steps": 5, "model": "mlp"}).to_dict()


@pytest.mark.parametrize("value", [None, 64, "64", "64x48"])
def test_a_size_is_a_number_or_text(value):
    assert validate({"num_epochs": 1, "resize": value}).resize == value
    config = default_config()
    config.num_epochs, config.resize = 1, value
    assert validate(config).resize == value
    with pytest.raises(UserError, match=r"config\.resize='64x'.*None.*64"):
        validate({"num_epochs": 1, "resize": "64x"})


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("digits", "str, 'digits'"),
        (["ab\ncd" * 90], r"a list, [^\n]{60}; "),
    ],
)
def test_a_configuration_that_is_no_mapping_is_one_line(config, line):
    with pytest.raises(UserError, match=line):
        flatten(config)


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
    validate(SAMPLER | {"num_chains": 2**20, "sampler": draws})


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"num_epochs": 0}, "exactly one of the two"),
        ({}, "num_epochs=None.*config.num_steps=None"),
        ({"num_epochs": 1, "num_steps": 1}, "set exactly one of the two"),
        ({"hmc": {"thin": 2}}, "config.hmc.thin.*config.sampler.thin"),
        ({"pretrained": "w.npz"}, "config.pretrained.*config.init_from"),
        ({"num_epochs": 1, "init_from": "map"}, "config.init_from='map' is for samplers"),
        ({"num_epoch": 1}, "config.num_epoch.*num_epochs?"),
        ({"zzz": 1}, "config.zzz.*augment.flip"),
        ({"augment": {"rotate": 1}}, "config.augment.rotate is not a key"),
        ({"augment": "shift"}, "config.augment.*config.augment.flip"),
        (
            {"num_epochs": 1, "batch_size": "many"},
            "type str.*whole number",
        ),
        (
            {"num_epochs": 1, "model": "mlp", "mlp.widths": (32, 16)},
            r"config.mlp.widths=\[32, 16\].*'32,16'",
        ),
        (
            {"num_epochs": 1, "ensemble_size": True},
            "config.ensemble_size=True.*bool",
        ),
        ({"num_epochs": 1, "batch_size": 0}, "config.batch_size=0 must be positive"),
        ({"num_epochs": 1, "momentum": 1.0}, "config.momentum=1.0.*0.*1"),
        (
            {"num_epochs": 1, "learning_rate": float("inf")},
            "config.learning_rate=inf must be finite",
        ),
        ({"num_epochs": 1, "seed": -1}, "config.seed=-1 must be at least 0"),
        ({"num_epochs": 10**25}, "config.num_epochs=10000000000000000000000000"),
        (
            {"num_epochs": 1, "prior": "normal(0)"},
            r"config.prior='normal\(0\)'",
        ),
        (
            {"num_epochs": 1, "ensemble_size": 2**20 + 1},
            "config.ensemble_size=1048577.*1048576",
        ),
        ({"num_epochs": 1, "seed": None}, "config.seed=None.*0"),
        (SAMPLER | {"sampler": {"thin": None}}, "config.sampler.thin=None"),
        ({"num_steps": 2**31}, "config.num_steps=2147483648.*2147483647"),
        (
            {"num_epochs": 1, "learning_rate": 1e308},
            r"config.learning_rate=1e\+308.*1e-15.*1e\+15",
        ),
        ({"num_epochs": 1, "weight_decay": 1e-300}, "config.weight_decay=1e-300 must be from"),
        (SAMPLER | {"num_chains": 2**20 + 1}, "num_chains=1048577.*1048576 with"),
        (
            SAMPLER | {"sampler": {"num_leapfrog_steps": 2**20 + 1}},
            "config.sampler.num_leapfrog_steps=1048577.*1048576",
        ),
        (
            SAMPLER | {"sampler": {"num_warmup": 2**20 + 1}},
            "sampler.num_warmup=1048577 must be at most",
        ),
        (
            SAMPLER | {"sampler": {"num_warmup": 0, "num_burn_in": 1, "num_samples": 2**31 - 1}},
            "config.sampler.*2147483648 draws.*214748364",
        ),
        ({"num_epochs": 1, "batching": "mixed"}, "must be one of shared, independent"),
    ],
)
def test_what_is_wrong_is_one_line(config, line):
    with pytest.raises(UserError, match=line) as error:
        validate(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"num_devices": 1025}, "config.num_devices=1025.*1.*1024"),
        ({"num_epochs": 2**31 - 1, "batch_size": 1}, "steps here.*214748364"),
        ({"class_weights": "1e308,1,1"}, "class_weights='1e308,1,1'"),
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
        is_free = all_keys()[key].may_change
        assert bool(differences(flatten(config), changed)) == (not is_free)
    assert differences({"a": {"b": (1, 2)}}, {"a": {"b": [1, 2]}}) == []
    assert differences({"seed": 1}, {"seed": 2, "new": 3}) == ["new: None -> 3", "seed: 1 -> 2"]


def test_a_key_that_is_newer_than_the_workdir_had_its_default():
    new = validate({"num_epochs": 1}).to_dict()
    old = {key: value for key, value in new.items() if key != "hold_out"}
    assert differences(old, new) == []
    assert differences(old, {**new, "hold_out": False}) == ["hold_out: True -> False"]


BLOCKS = [
    RUN,
    *map(task_block, registry.TASKS),
    *map(method_block, registry.METHODS),
    *map(model_block, registry.NETWORKS.built_in),
    *map(likelihood_block, registry.LIKELIHOODS.built_in),
]


@pytest.mark.parametrize("name", sorted(all_keys()))
def test_every_key_has_a_meaning_and_a_rule_that_its_default_keeps(name):
    key = all_keys()[name]
    assert key.meaning
    assert re.match("must (not )?be ", key.rule.text)
    assert key.default is None or key.rule.holds(key.default)
    assert (key.default is None) == (key.kind is not None)
    for block in BLOCKS:  # What several have is one thing.
        assert block.keys.get(name, key) is key


def test_a_key_stands_in_one_block_of_a_run():
    for method in registry.METHODS:
        for task in registry.tasks_of(method):
            for model in registry.NETWORKS.built_in:
                blocks = [RUN, task_block(task), method_block(method), model_block(model)]
                keys = [key for block in blocks for key in block.keys]
                assert len(set(keys)) == len(keys)


def test_what_to_use_instead_is_of_keys_that_others_have_and_rules_are_of_own_ones():
    for block in BLOCKS:
        assert not block.instead.keys() & block.keys.keys()
        assert block.rules.keys() <= block.keys.keys()
        assert block.instead.keys() <= all_keys().keys()


def test_the_keys_are_listed_before_jax_is_imported():
    """For XLA's flags depend on the method."""
    program = (
        "import sys, ensemble; ensemble.default_config();"
        "assert 'jax' not in sys.modules and 'flax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("config", "own", "others"),
    [
        (
            {"num_epochs": 1},
            {"seed", "model", "learning_rate", "augment.flip"},
            {"sampler.", "num_chains", "temperature", "stop_at."},
        ),
        (
            {"num_epochs": 1, "model": "mlp"},
            {"seed", "model", "learning_rate", "mlp.widths", "mlp.activation"},
            {"sampler.", "num_chains"},
        ),
        (
            {"method": "nuts"},
            {"seed", "model", "prior", "sampler.thin", "num_chains", "stop_at.ess"},
            {"learning_rate", "augment.", "class_w", "mlp."},
        ),
    ],
)
def test_a_run_has_its_own_keys_only(config, own, others):
    found = flatten(validate(config)).keys()
    assert own <= found
    assert [key for key in found if key.startswith(tuple(others))] == []


def test_what_was_validated_is_valid_and_stays_as_it_is():
    for method in registry.METHODS:
        duration = {"num_epochs": 1} if "num_epochs" in method_block(method).keys else {}
        once = validate({"method": method, **duration})
        assert validate(once).to_dict() == once.to_dict()
        assert validate_stored(once.to_dict()).to_dict() == once.to_dict()


@pytest.mark.parametrize(
    "widths", ["", "64,", "0", "64,-3", "2.5", "many", "65537", ",".join(["1"] * 65), 64]
)
def test_widths_that_are_none_are_refused_in_one_line(widths):
    with pytest.raises(UserError, match=r"config.mlp.widths=") as error:
        validate({"num_epochs": 1, "model": "mlp", "mlp": {"widths": widths}})
    assert "\n" not in str(error.value)


def test_keys_of_another_model_are_refused_by_hand_and_left_out_of_a_file(caplog):
    with pytest.raises(UserError) as error:
        validate({"num_epochs": 1, "mlp.widths": "64"})
    for named in ("config.mlp.widths='64'", "config.model='cnn'", "config.model='mlp'"):
        assert named in str(error.value)
    assert "\n" not in str(error.value)
    config = swapped("sgd", **{"mlp.widths": "64"})
    assert "mlp" not in validate(config, by_hand=["model"])
    (line,) = caplog.messages
    assert "config.model='cnn'" in line
    assert line.endswith(": mlp.widths='64'.")


def test_a_workdir_of_another_width_or_model_is_told_from_this_one():
    wide, narrow, cnn = (
        validate({"num_epochs": 1, **keys}).to_dict()
        for keys in ({"model": "mlp"}, {"model": "mlp", "mlp.widths": "64"}, {"model": "cnn"})
    )
    old = {key: value for key, value in wide.items() if key != "mlp"}
    assert differences(old, wide) == []
    assert differences(old, narrow) == ["mlp.widths: '256,256' -> '64'"]
    assert differences(narrow, cnn) == ["model: 'mlp' -> 'cnn'"]


def swapped(method, **changes):
    """A file's configuration, with another method."""
    config = digits_ensemble.get_config()
    config.method = method
    config.update_from_flattened_dict(changes)
    return config


def test_one_word_swaps_the_method_and_what_the_file_says_for_the_old_is_left_out(caplog):
    caplog.set_level("INFO", logger="ensemble")
    config = validate(swapped("hmc"), by_hand=["method"])
    assert config.method == "hmc"
    assert config.dataset == "digits"
    dropped, prior = caplog.messages
    assert "config.method='hmc' with config.model='cnn'" in dropped
    assert set(re.findall(r"([\w.]+)=", dropped.rpartition(": ")[2])) == {
        "num_epochs", "batch_size", "batching", "learning_rate", "schedule", "augment.shift",
    }  # fmt: skip
    assert "config.prior" in prior
    assert repr(config.prior) in prior
    assert config.prior == "*kernel=normal(1.4142/sqrt(fan_in)), *=normal(1)"


def test_a_whole_configuration_in_python_is_a_file_s(caplog):
    assert "num_epochs" not in validate(swapped("mclmc"))
    assert len(caplog.messages) == 1


def test_a_prior_that_the_file_has_set_stays(caplog):
    config = validate(swapped("nuts", prior="normal(3)"))
    assert config.prior == "normal(3)"
    assert "prior" not in " ".join(caplog.messages)
    assert validate({"num_epochs": 1}).prior == "none"


def test_what_was_set_by_hand_is_refused_all_of_it_at_once():
    hand = {
        "learning_rate": 0.5,
        "num_epochs": 3,
        "sgmcmc.num_burn_in": 2,
        "sampler.thin": 0,
        "prior": "none",
    }
    with pytest.raises(UserError) as error:
        validate(swapped("hmc", **hand), by_hand=["method", *hand])
    line = str(error.value)
    assert "\n" not in line
    assert line.startswith("5 settings cannot stand: (1) ")
    for part in (
        "config.num_epochs=3 is for config.method='sgd', 'snapshots', 'swag', 'mc_dropout', "
        "'batch_ensemble', 'packed', 'varied' or 'cross_fitted', and this run has "
        "config.method='hmc': leave it out, or choose config.method='sgd', 'snapshots', 'swag', "
        "'mc_dropout', 'batch_ensemble', 'packed', 'varied' or 'cross_fitted'; "
        "config.sampler.num_samples says how long",
        "config.learning_rate=0.5 is for config.method='sgd', 'snapshots', 'swag', 'mc_dropout', ",
        "config.sgmcmc.num_burn_in=2 is for config.method='sgld' or 'sghmc', and this run has "
        "config.method='hmc': leave it out, or choose config.method='sgld' or 'sghmc'",
        "config.sampler.thin=0 must be positive",
        "config.prior='none' does not have; set it to such as 'normal(1)', or leave it out",
    ):
        assert part in line


def test_what_says_that_nothing_is_used_may_be_said_to_all():
    by_hand = {"num_epochs": 0, "num_steps": None, "label_smoothing": 0.0, "class_weights": "none"}
    assert "num_epochs" not in validate({"method": "hmc", **by_hand})
    with pytest.raises(UserError, match=r"config\.temperature=1\.0 .*'hmc'"):
        validate({"num_epochs": 1, "temperature": 1.0})


def test_values_that_cannot_stand_together_are_told_with_all_else():
    config = {
        "learning_rate": -1.0,
        "stop_at.rhat": 1.1,
        "zzz": 1,
    }
    with pytest.raises(UserError) as error:
        validate(config)
    for k, part in enumerate(
        (
            "config.zzz is not a key",
            "config.stop_at.rhat=1.1 is for config.method=",
            "config.learning_rate=-1.0 must be positive",
            "config.num_epochs=None and config.num_steps=None: set exactly one",
        ),
        start=1,
    ):
        assert f"({k}) {part}" in str(error.value)


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            {"num_epochs": 1, "num_blends": 3},
            "config.num_blends=3 is for config.teacher=..., and this run has config.teacher=''",
        ),
        (
            {"num_epochs": 1, "teacher": "runs/a", "resize": 8},
            "config.resize=8 is for config.teacher='', and this run has config.teacher='runs/a'",
        ),
        (
            {"method": "hmc", "num_blends": 3},
            "config.num_blends=3 is for config.method='sgd', and this run has config.method='hmc'",
        ),
        ({"num_epochs": 1, "season": 7}, "config.season=7 needs config.split=time:COLUMN"),
        (
            {"num_epochs": 1, "season": 7, "split": "group:a"},
            "config.season=7 needs config.split=time:COLUMN",
        ),
    ],
)
def test_a_key_of_another_task_names_what_the_run_would_have_to_change(config, line):
    (conflict,) = check(config).conflicts
    assert conflict.startswith(line)


def test_what_breaks_its_own_rule_is_not_told_twice():
    with pytest.raises(UserError) as error:
        validate({"method": "hmc", "sampler.num_samples": 0, "sampler.thin": 2000})
    assert str(error.value) == "config.sampler.num_samples=0 must be positive"


def test_a_stored_configuration_with_every_key_loses_those_of_others_quietly(caplog):
    stored = flatten(default_config())
    stored |= {
        "num_epochs": 2,
        "sampler.step_size": "forged",
        "num_chains": 3,
        "temperature": 2.0,
    }
    found = validate_stored(stored)
    assert found.to_dict() == validate({"num_epochs": 2}).to_dict()
    assert caplog.messages == []
    with pytest.raises(UserError, match=r"config\.prior='none'"):
        validate_stored({**stored, "method": "hmc", "sampler.step_size": 0.1, "temperature": 1.0})


def test_of_two_methods_the_keys_of_both_are_compared():
    sgd = validate({"num_epochs": 1, "seed": 3, "learning_rate": 0.5})
    hmc = validate({"method": "hmc", "prior": "normal(1)"})
    assert differences(sgd, hmc) == [
        "init_from: '' -> 'prior'",
        "method: 'sgd' -> 'hmc'", "prior: 'none' -> 'normal(1)'", "seed: 3 -> 0",
    ]  # fmt: skip


def test_a_value_for_a_block_of_keys_is_refused_where_it_is_given():
    config = default_config()
    with pytest.raises(UserError, match=r"config\.augment is a block .* set config\.augment\.flip"):
        config.augment = "shift"
    config.augment = {"shift": 2}
    assert config.augment.shift == 2
    with pytest.raises(TypeError, match="'learning_rate'"):
        config.learning_rate = "much"
    again = ml_collections.ConfigDict(config)
    assert config.copy_and_resolve_references() == config
    assert again.to_dict() == config.to_dict()


def test_a_key_that_blocks_have_is_named_with_these_blocks():
    known = {"learning_rate": 0.1, "sampler.num_warmup": 1, "rwm.num_warmup": 1}
    assert unknown_key("num_warmup", known).endswith(
        "did you mean rwm.num_warmup or sampler.num_warmup?"
    )
    assert unknown_key("lerning_rate", known).endswith("did you mean learning_rate?")
