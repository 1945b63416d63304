"""What families train for."""

import pytest

from ensemble.config import default_config, flatten
from ensemble.config_rules import check
from ensemble.search.cells import checked
from ensemble.search.families import FAMILIES, PLAIN, steps_after_trials

TRAINING = [one for one in FAMILIES if one.start < 1 and not one.selects]


def network(**keys):
    values = {"dataset": "digits", "model": "mlp", "num_epochs": 5, **keys}
    return checked({**flatten(default_config()), **values}, {"method": "sgd", "ensemble_size": 1})


@pytest.mark.parametrize("steps", [8, 100, 12345])
@pytest.mark.parametrize("family", TRAINING, ids=[one.name for one in TRAINING])
def test_each_takes_as_many_steps_as_it_is_told(family, steps):
    config = network()
    keys = {"method": family.method, **family.keys(config, 4), **family.lasts(steps)}
    keys |= {"init_from": "runs/start"} if family.start else {}
    found = checked(config, keys)
    assert not check(found, found.keys()).conflicts
    if family.method == "sghmc":
        draws = found["sgmcmc.num_samples"] * found["sgmcmc.steps_per_draw"]
        assert found["sgmcmc.num_burn_in"] + draws == steps
    else:
        assert (found["num_steps"], found["num_epochs"]) == (steps, 0)


def test_others_that_need_networks_come_last():
    assert FAMILIES[0].name == PLAIN
    order = [(one.selects, one.start == 1) for one in FAMILIES]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("deep_ensemble", [2, 4, 16]),
        ("swag", [1, 4, 16]),
        ("dropout", [1, 2, 8]),
        ("batch_ensemble", [1, 2, 8]),
        ("packed", [1, 2, 8]),
        ("snapshots", [1, 2, 8]),
        ("sghmc", [1, 2, 8]),
        ("plain", [1, 1, 1]),
    ],
)
def test_longer_times_are_divided_among_networks(name, sizes):
    family = next(one for one in FAMILIES if one.name == name)
    keys = [family.keys(network(), times) for times in (1, 4, 16)]
    key = "num_chains" if name == "sghmc" else "ensemble_size"
    assert [one.get(key, 1) for one in keys] == sizes


def test_dropout_of_the_network_is_kept_and_its_lack_remedied():
    dropout = next(one for one in FAMILIES if one.name == "dropout")
    assert dropout.keys(network(), 1) == {"mlp.dropout": 0.1}
    assert dropout.keys(network(**{"mlp.dropout": 0.3}), 1) == {}
    assert dropout.keys(network(model="logistic_regression"), 1) == {}


def test_members_that_hold_out_rows_have_a_fold_each():
    crossing = next(one for one in FAMILIES if one.name == "cross_fitted")
    keys = [crossing.keys(network(), times) for times in (1, 4, 16)]
    assert [one["ensemble_size"] for one in keys] == [4, 4, 16]
    assert all(one["ensemble_size"] == one["cross_fitted.folds"] for one in keys)


def test_cross_fitted_networks_take_the_steps_that_are_paid_for():
    assert steps_after_trials(60, 6, 3) == 6 * 7, "of ten epochs two trials take one each"
    assert steps_after_trials(60, 6, 2) == 6 * 8
    assert steps_after_trials(5, 6, 3) == 5
    assert steps_after_trials(23, 6, 3) == 23, "there are no trials"
    assert steps_after_trials(6000, 6, 3) == 6 * 960, "of 20 epochs at most"
