"""What a search tries, and in which order."""

import itertools
import math

import pytest

from ensemble.config import all_keys, model_block
from ensemble.config_rules import validate
from ensemble.search.fit import _family, _fixed
from ensemble.search.trials import FIRST, trials


def tried(number, seed=0, fixed=None, loss=lambda trial: trial.family):
    """The first trials, each of which has the loss that `loss` says."""
    tries = trials(seed, 200, _fixed(fixed or {}))
    found = [next(tries)]
    while len(found) < number:
        found.append(tries.send(loss(found[-1])))
    return found


def test_the_default_comes_first_and_then_the_better_half_of_every_rung_trains_for_longer():
    found = [(trial.family, trial.num_epochs) for trial in tried(1 + 7 + 14)]
    first = [(0, 200), (1, 50), (2, 50), (3, 50), (4, 50), (1, 100), (2, 100), (1, 200)]
    second = (
        [(k, 50) for k in range(5, 13)] + [(k, 100) for k in range(5, 9)] + [(5, 200), (6, 200)]
    )
    assert found == first + second
    falling = [trial.family for trial in tried(8, loss=lambda trial: -trial.family)]
    assert falling == [0, 1, 2, 3, 4, 4, 3, 4]


def test_families_that_fail_go_no_further():
    found = tried(9, loss=lambda trial: math.inf if trial.family in (1, 2, 3) else 1.0)
    assert [trial.family for trial in found[5:8]] == [4, 4, 5]
    found = tried(6, loss=lambda trial: math.inf)
    assert found[5].family == 5, "a round whose families all fail ends, and the next begins"


def test_the_seed_alone_says_which_families_there_are():
    assert tried(22) == tried(22)
    first, other = (tried(22, seed=seed)[8:] for seed in (0, 1))
    assert [one.settings for one in first] != [one.settings for one in other]
    settings = [tuple(sorted(one.settings.items())) for one in tried(22) if one.num_epochs < 100]
    assert len({*settings}) == len(settings) == 12


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"learning_rate": 1e-4},
        {"model": "embedded_mlp"},
        {"mlp.widths": "32"},
        {"model": "cnn", "dataset": "digits"},
    ],
)
def test_every_family_is_a_valid_configuration_with_the_keys_that_were_given(given):
    for trial in itertools.islice(tried(22, fixed=given), 22):
        values = _family(trial.settings, _fixed(given))
        assert all(values[key] == one for key, one in given.items())
        assert not {key for key in values if key not in all_keys()}
        own = {key for key in values if "mlp." in key}
        assert own <= {*model_block(values["model"]).keys}
        validate(values)


def test_where_all_is_given_there_is_nothing_else_to_try():
    keys = {
        key for settings in [*FIRST, *(trial.settings for trial in tried(50))] for key in settings
    }
    fixed = dict.fromkeys(keys, 0) | {"model": "mlp"}
    tries = trials(0, 200, fixed)
    assert next(tries).family == 0
    with pytest.raises(StopIteration):
        tries.send(1.0)
