"""A posterior stands beside what it starts from, whoever asks for it."""

from types import SimpleNamespace

import pytest

from ensemble import UserError
from ensemble.evaluation.beside import lay_beside


def compare(workdir):
    if "gone" in workdir:
        raise UserError(f"{workdir} is not a workdir: it has no config.json")
    return {"workdir": workdir}


def beside(start, *workdirs):
    found = lay_beside(
        SimpleNamespace(config={"num_chains": 2, **start}, report={}), workdirs, compare
    )
    return [(one["workdir"], one.get("is_start", False)) for one in found[0]], found[1]


@pytest.mark.parametrize(
    ("workdirs", "expected"),
    [
        ([], [("runs/a", True)]),
        (["runs/b"], [("runs/a", True), ("runs/b", False)]),
        (["runs/b", "runs/./a"], [("runs/a", True), ("runs/b", False)]),
    ],
)
def test_the_start_is_first_and_once(workdirs, expected):
    assert beside({"init_from": "runs/a"}, *workdirs) == (expected, [])


@pytest.mark.parametrize("config", [{}, {"init_from": "prior"}, {"init_from": "map"}])
def test_what_starts_from_no_members_has_none_beside_it(config):
    assert beside(config, "runs/b") == ([("runs/b", False)], [])


def test_an_ensemble_has_nothing_beside_it_that_it_started_from():
    subject = SimpleNamespace(config={"init_from": "runs/a"}, report={})
    assert lay_beside(subject, [], compare) == ([], [])


def test_a_start_that_is_gone_is_a_note_unless_it_was_asked_for():
    found, (note,) = beside({"init_from": "runs/gone"}, "runs/b")
    assert found == [("runs/b", False)]
    assert (
        note == "What it starts from is not beside it: runs/gone is not a workdir: it has no "
        "config.json"
    )
    with pytest.raises(UserError, match="runs/gone is not a workdir"):
        beside({"init_from": "runs/gone"}, "runs/gone")
