"""Recipes are compared over members and examples."""

import numpy as np
import pytest

from ensemble.evaluation import recipe
from ensemble.metrics import jackknife
from ensemble.metrics.jackknife import LeaveOneOut


def test_two_members_tell_nothing_of_a_recipe():
    terms = np.random.default_rng(0).random((2, 30))
    assert recipe.leave_one_out(lambda subset: terms[list(subset)].mean(axis=0), 2) is None
    assert "3 chains" in recipe.score_recipes("NLL", "chains", None, None)["reason"]


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
    assert "not 6" in few["reason"]
