"""What does not suit a factorisation is refused."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from recommendation.in_contracts import RUN
from run_parts import validated

import ensemble
from ensemble import UserError, explain
from ensemble.config_rules import check
from ensemble.configs import movielens_hmc
from ensemble.run.loop import create_task
from ensemble.sources import load_dataset


@pytest.mark.parametrize(
    ("run", "line"),
    [
        ({"dataset": "watches:20x15", "num_epochs": 1}, "matrix_factorisation.*watches:20x15"),
        (RUN | {"dataset": "digits"}, "needs who watched or rated"),
    ],
)
def test_what_does_not_suit_is_refused(run, line):
    with pytest.raises(UserError, match=line):
        create_task(validated(run), None)


def test_arrays_are_no_watches():
    run = {key: value for key, value in RUN.items() if key != "dataset"}
    with pytest.raises(UserError, match=r"data is a tuple.*columns of users and items"):
        ensemble.train(run, (np.zeros((5, 2)), np.arange(5)))


def test_keys_of_a_factorisation_are_of_its_model():
    with pytest.raises(UserError) as error:
        validated({"num_factors": 3, "num_epochs": 1})
    assert (
        "config.num_factors=3 is for config.model='matrix_factorisation', and this run has "
        "config.model='cnn'"
    ) in str(error.value)
    with pytest.raises(UserError) as error:
        validated({"method": "hmc", "model": "matrix_factorisation", "target": "rating"})
    assert str(error.value).startswith(
        "config.target='rating' is for config.model='mlp' or another network, and this run has "
        "config.model='matrix_factorisation': leave it out"
    )


def test_a_method_that_cannot_learn_what_the_model_means_is_refused():
    config = {"method": "mclmc", "model": "matrix_factorisation", "num_factors": 3}
    with pytest.raises(UserError, match=r"config.method='mclmc'.*hmc or nuts"):
        validated(config)


def test_a_prior_that_a_file_leaves_out_is_the_task_s():
    watches = movielens_hmc.get_config()
    watches.prior = "none"
    assert validated(watches).prior == "normal(1)"  # Its parameters have no fan-in.


def test_the_seed_s_protocol_is_as_published():
    config = movielens_hmc.get_config("seed")
    assert config.dataset == "movielens/1m-ratings"
    assert (config.num_factors, config.num_chains, config.init_from) == (20, 2, "prior")
    assert (config.sampler.step_size, config.sampler.num_leapfrog_steps) == (0.01, 100)
    # 80% of 1,000 adapt.
    assert (config.sampler.num_warmup, config.sampler.num_burn_in) == (800, 200)
    assert config.sampler.num_samples == 500


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("watches:", "watches:USERSxMOVIES"),
        ("movielens/1m-rating", "did you mean movielens/1m-ratings?"),
    ],
)
def test_unknown_names_list_the_known(name, hint):
    with pytest.raises(UserError, match="is unknown; known are digits") as error:
        load_dataset(name)
    assert hint in str(error.value)


def test_watches_are_not_resized():
    with pytest.raises(UserError, match=r"pictures.*\(folder:PATH, tfds:NAME"):
        load_dataset("watches:20x30", resize=8)


def test_factorisation_lists_the_data_that_it_can_learn():
    checked = check({"method": "hmc", "model": "matrix_factorisation"})
    told = " ".join(explain.table(checked).split())
    assert (
        "must be watches or ratings: ratings:FILE, movielens/1m-ratings, movielens/100k-ratings, "
        "watches:USERSxMOVIES"
    ) in told


@pytest.mark.check
def test_recommending_from_nowhere_is_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "recommend.py", "--workdir=no_such", "--user=u1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no_such" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
