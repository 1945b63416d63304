"""What families train for."""

import pytest

from ensemble.config import build
from ensemble.tuning.cells import checked
from ensemble.tuning.families import FAMILIES

TRAINING = [one for one in FAMILIES if one.start < 1 and not one.selects]


def network(**keys):
    values = {"dataset": "digits", "model": "mlp", "num_epochs": 5, **keys}
    return checked(values, {"method": "deep_ensemble", "ensemble_size": 1})


@pytest.mark.parametrize("steps", [8, 100, 12345])
@pytest.mark.parametrize("family", TRAINING, ids=[one.name for one in TRAINING])
def test_each_takes_as_many_steps_as_it_is_told(family, steps):
    config = network()
    keys = {"method": family.method, **family.keys(config, 4), **family.lasts(steps)}
    keys |= {"init_from": "runs/start"} if family.start else {}
    found = checked(config, keys)
    assert build(found).values == found
    if family.method == "sghmc":
        draws = found["sgmcmc.num_samples"] * found["sgmcmc.steps_per_draw"]
        assert found["sgmcmc.num_burn_in"] + draws == steps
    else:
        assert (found["num_steps"], found["num_epochs"]) == (steps, 0)


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
