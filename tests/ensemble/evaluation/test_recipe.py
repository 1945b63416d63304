"""Sentences on recipes conclude only what their interval does."""

import numpy as np
import pytest

from ensemble.evaluation import recipe
from ensemble.metrics import jackknife
from ensemble.metrics.jackknife import LeaveOneOut


def make_comparison(interval=(-0.3, 0.2), **changes):
    section = {
        "score": "NLL", "over": "members and examples", "difference": -0.01, "interval": interval,
        "margin": 0.004, "could_see": 0.02, **changes,
    }  # fmt: skip
    paired = {"nll": (-0.02, -0.001)}
    return {
        "workdir": "runs/b", "recipe": section, "difference": {"nll": -0.01}, "interval": paired,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("interval", "starts"),
    [
        ((-0.03, -0.001), "The recipe of runs/b is better: NLL -0.010 [-0.030, -0.0010] over"),
        ((0.001, 0.03), "The recipe of runs/b is worse: "),
        ((-0.03, 0.003), "The recipe of runs/b is no worse than by 0.0040, 1% of the NLL: "),
        ((-0.03, 0.005), "Whether the recipe of runs/b is better cannot be told: NLL -0.010"),
    ],
)
def test_a_sentence_concludes_what_the_interval_does(interval, starts):
    assert recipe.sentence(make_comparison(interval)).startswith(starts)


@pytest.mark.parametrize(
    ("interval", "starts"),
    [
        ((0.1, 0.3), "The posterior is better than the ensemble that it starts from, runs/b: NLL "),
        ((-0.3, -0.1), "The posterior is worse than the ensemble that it starts from, runs/b: "),
        ((-0.1, 0.3), "Whether the posterior is better than the ensemble that it starts from, "),
    ],
)
def test_a_posterior_beside_its_start_is_told_from_the_posterior(interval, starts):
    by_nll = make_comparison(interval, difference=0.2)
    start = make_comparison() | {"recipe_by_nll": by_nll["recipe"], "is_start": True}
    sentence = recipe.sentence(start)
    assert sentence.startswith(starts)
    low, high = (f"{-end:+.2f}" for end in reversed(interval))
    assert f"NLL -0.20 [{low}, {high}] over" in sentence


def test_what_cannot_be_told_says_what_could_have_been_seen_and_what_is_known():
    sentence = recipe.sentence(make_comparison())
    assert "A difference of 0.020 would have been seen in 80% of cases" in sentence
    assert "This very ensemble has the lower NLL: -0.010 [-0.020, -0.0010] over" in sentence


def test_two_members_tell_nothing_of_a_recipe():
    terms = np.random.default_rng(0).random((2, 30))
    assert recipe.leave_one_out(lambda subset: terms[list(subset)].mean(axis=0), 2) is None
    section = recipe.score_recipes("NLL", "chains", None, None)
    assert section["reason"] == "it takes 3 chains of each to tell"
    assert "cannot be told: it takes 3" in recipe.sentence({**make_comparison(), "recipe": section})


def test_infinite_scores_are_said():
    ours = LeaveOneOut(np.ones(4), np.full((3, 4), np.inf))
    assert "infinite" in recipe.score_recipes("NLL", "members", ours, ours)["reason"]


def test_what_another_difference_takes_is_computed_from_a_section():
    terms = np.random.default_rng(0).random((2, 4, 30))
    section = recipe.score_recipes(
        "NLL", "members", *(LeaveOneOut(one.mean(axis=0), one) for one in terms)
    )
    found = jackknife.needed(jackknife.TwoWay.of(section), section["margin"])
    assert found._asdict() == section["needed"]


@pytest.mark.parametrize(
    ("needed", "says"),
    [
        ({"examples": 900, "members": None, "times": 2.0}, "about 900 test examples or 2.0 times"),
        ({"examples": None, "members": None, "times": 3.0}, "about 3.0 times as many of both."),
        ({"examples": 90, "members": 3, "times": 0.5}, "There are enough examples and members"),
    ],
)
def test_power(needed, says):
    assert says in recipe.power(make_comparison(needed=needed))


def test_rows_in_groups_are_drawn_with_their_group():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), 20)
    ours, theirs = (LeaveOneOut(one[0], one) for one in rng.normal(size=(2, 3, 240)))
    alike = LeaveOneOut(*(one + np.sin(groups) for one in theirs))
    rows = recipe.score_recipes("NLL", "members", ours, alike)
    found = recipe.score_recipes("NLL", "members", ours, alike, groups=groups)
    assert found["over"] == "members and groups"
    assert found["difference"] == pytest.approx(rows["difference"])
    assert found["of_examples"] > 3 * rows["of_examples"]
    few = recipe.score_recipes("NLL", "members", ours, theirs, groups=groups // 2)
    assert few["reason"] == "it takes 10 groups of rows, not 6"
    assert recipe.sentence({**make_comparison(), "recipe": few}).endswith("not 6.")
