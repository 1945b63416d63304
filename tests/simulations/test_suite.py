"""Statements are simulated: a short form of each, and that the counting itself can fail."""

import dataclasses

import pytest

from simulations import suite
from simulations.statement import VERDICT, Statement

FEW = 30


def make_statement(share, **changes):
    """One whose outcome is true with probability `share`, and not stated in a tenth of cases."""

    def prepare():
        return lambda rng: {"it": rng.random() < share if rng.random() < 0.9 else None}

    made = Statement("name", "claim", "examples", (), {"one": {}}, prepare)
    return dataclasses.replace(made, **changes)


def found(statement, number=2000):
    return suite.simulate(statement, "one", range(number))["it"]


@pytest.mark.parametrize(
    ("share", "changes", "is_met"),
    [
        (0.95, {}, True),
        (0.88, {}, False),
        (0.995, {}, False),
        (0.995, {"at_least": True}, True),
        (0.9, {"level": 0.9}, True),
        (0.03, {"kind": VERDICT}, True),
        (0.09, {"kind": VERDICT}, False),
    ],
)
def test_a_share_that_is_too_low_or_too_high_is_found(share, changes, is_met):
    statement = make_statement(share, **changes)
    count = found(statement)
    assert 1700 < count["stated"] < 1900
    assert suite.is_met(statement, count, 2000) is is_met


def test_replications_in_blocks_are_those_of_one_run():
    statement = make_statement(0.5)
    parts = [suite.simulate(statement, "one", range(*ends))["it"] for ends in ((0, 30), (30, 100))]
    whole = found(statement, 100)
    assert whole == {key: sum(part[key] for part in parts) for key in whole}


def test_statements_have_names_of_their_own_and_six_settings():
    names = [one.name for one in suite.STATEMENTS]
    assert len(set(names)) == len(names)
    assert [one.name for one in suite.STATEMENTS if len(one.settings) < 6] == []


@pytest.mark.check
@pytest.mark.parametrize("statement", suite.STATEMENTS, ids=lambda one: one.name)
def test_a_statement_holds_about_as_often_as_it_says(statement):
    """A few replications of the first setting; all of them are `python -m simulations`."""
    for part, count in suite.simulate(
        statement, next(iter(statement.settings)), range(FEW)
    ).items():
        assert suite.is_met(statement, count, FEW, errors=3.5), part
