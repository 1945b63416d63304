"""What does not suit a factorisation is refused."""

import pytest
from recommendation.in_contracts import RUN
from run_parts import validated

from ensemble import InputError
from ensemble.configs import movielens_hmc
from ensemble.run.loop import create_task


@pytest.mark.parametrize(
    ("run", "line"),
    [
        ({"dataset": "watches:20x15", "num_epochs": 1}, "matrix_factorisation.*watches:20x15"),
        (RUN | {"dataset": "digits"}, "needs who watched or rated"),
    ],
)
def test_what_does_not_suit_is_refused(run, line):
    with pytest.raises(InputError, match=line):
        create_task(validated(run), None)


def test_keys_of_a_factorisation_are_of_its_model():
    with pytest.raises(InputError) as error:
        validated({"num_factors": 3, "num_epochs": 1})
    assert (
        "config.num_factors=3 is for config.model='matrix_factorisation', and this run has "
        "config.task='supervised'"
    ) in str(error.value)
    with pytest.raises(InputError) as error:
        validated({"method": "hmc", "model": "matrix_factorisation", "target": "rating"})
    assert str(error.value).startswith("config.target='rating' is for config.dataset='arrays'")


def test_a_method_that_cannot_learn_what_the_model_means_is_refused():
    config = {"method": "mclmc", "model": "matrix_factorisation", "num_factors": 3}
    with pytest.raises(InputError, match=r"config.method='mclmc'.*hmc or nuts"):
        validated(config)


def test_the_seed_s_protocol_is_as_published():
    config = movielens_hmc.get_config("seed")
    expected = {"dataset": "movielens/1m-ratings", "num_factors": 20, "num_chains": 2}
    expected |= {"init_from": "prior", "sampler.step_size": 0.01, "sampler.num_samples": 500}
    expected |= {"sampler.num_leapfrog_steps": 100}
    expected |= {"sampler.num_warmup": 800, "sampler.num_burn_in": 200}  # 80% of 1,000 adapt.
    assert expected.items() <= config.items()
