"""Recommendations from end to end: users are sharded, sampled, resumed, scored, asked for."""

import json

import numpy as np
import pytest

import ensemble
from ensemble import InputError
from ensemble.configs import movielens_hmc

USERS = 41  # Which 2 and 4 shards do not divide.


def watch_config(**overrides):
    """A factorisation of generated watches, of two chains."""
    hmc = {
        "step_size": 0.05,
        "num_leapfrog_steps": 8,
        "num_warmup": 40,
        "num_samples": 40,
        "thinning": 2,
    } | overrides.pop("sampler", {})
    return {
        "dataset": f"watches:{USERS}x30",
        "model": "matrix_factorisation",
        "num_factors": 2,
        "method": "hmc",
        "prior": "normal(1)",
        "num_chains": 2,
        "num_devices": 4,
        "log_every_steps": 20,
        "sampler": hmc,
        **overrides,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two chains, each on two shards."""
    workdir = tmp_path_factory.mktemp("watches")
    result = ensemble.train(watch_config(), workdir=str(workdir))
    return workdir, result


@pytest.mark.check
def test_an_answer_is_a_table_and_a_document(finished):
    answer = ensemble.recommend(finished[0], "u7", top=3)
    assert (answer.user, answer.of) == ("u7", "probability")
    assert (answer.from_prior, answer.notes) == ((), ())
    text = str(answer)
    assert text.startswith(f"User u7 has seen {answer.num_seen} items.\n\n")
    assert len(text.splitlines()) == 2 + 1 + 3
    document = json.loads(json.dumps(answer.document(), allow_nan=False))
    assert (document["of"], document["num_seen"]) == ("probability", answer.num_seen)
    first, *others = document["recommendations"]
    assert first["title"] in text
    assert first["item"] == answer.items[0].item
    assert len(others) == 2
    assert 0 < first["low"] < first["mean"] == answer.items[0].mean < first["high"] < 1


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a workdir"):
        ensemble.recommend(tmp_path, "u7")


@pytest.mark.check
def test_of_a_new_user_the_prior_answers_and_it_is_said(finished):
    workdir, result = finished
    answer = ensemble.recommend(workdir, "me", top=30)
    assert answer.from_prior == ("user",)
    assert answer.notes == ("Nothing was learned of user me: the answer is the prior's.",)
    assert str(answer).startswith(f"{answer.notes[0]}\nUser me has seen 0 items")
    # Two factors and a bias, all N(0, 1).
    assert answer.table["low"].mean() < 0.2
    assert answer.table["high"].mean() > 0.3
    known = ensemble.recommend(workdir, "u7", item="Movie 3")
    assert known.from_prior == ()
    (one,) = known.items
    p = result.predictor(np.array([[6, 2]], np.int32)).probs[0, 1]
    assert one.mean == pytest.approx(p, rel=1e-4)
    with pytest.raises(InputError, match="an unknown user or item"):
        result.predictor(np.array([[6, 41]], np.int32))
    with pytest.raises(InputError, match="0 items have the id or the title 'unheard'"):
        ensemble.recommend(workdir, "u7", item="unheard")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"sampler": {"mass_matrix": "low_rank"}}, "sampler.mass_matrix='low_rank'"),
        ({"num_factors": 10**9}, r"the states of 2 chains would take \d+\.\d GiB"),
        ({"dataset": "watches:3x30"}, "3 users cannot be spread over 4 devices"),
        ({"prior": "normal(1/sqrt(fan_in))"}, "has a fan-in; set 'normal"),
        ({"train_on_all": True}, "config.train_on_all=True must be False"),
        ({"dataset": "digits"}, "'matrix_factorisation' needs"),
        (
            {"likelihood": "gaussian"},
            "'gaussian' must be 'categorical' or 'gaussian_homoscedastic'",
        ),
        ({"likelihood": "gaussian_homoscedastic"}, "watches:41x30 has no column rating"),
        ({"split_by": "time"}, "watches:41x30 has no column time"),
        ({"column_types": "who=users"}, "column_types='who=users' must be meanings of columns"),
        ({"dataset": "csv:x.csv"}, "csv:x.csv.*config.dataset"),
    ],
)
def test_bad_input_is_one_line(change, line):
    if change.get("dataset") == "watches:3x30":
        change = {**change, "num_chains": 1}
    with pytest.raises(InputError, match=line) as caught:
        ensemble.train(watch_config(**change))
    assert "\n" not in str(caught.value)


def test_the_seed_s_protocol_is_as_published():
    config = movielens_hmc.get_config("seed")
    expected = {"dataset": "movielens/1m-ratings", "num_factors": 20, "num_chains": 2}
    expected |= {"init_from": "prior", "sampler.step_size": 0.01, "sampler.num_samples": 500}
    expected |= {"sampler.num_leapfrog_steps": 100}
    expected |= {"sampler.num_warmup": 800, "sampler.num_burn_in": 200}  # 80% of 1,000 adapt.
    assert expected.items() <= config.items()
