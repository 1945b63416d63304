"""The tiles that a page begins with: a number, a mark, and a sentence, of each question."""

import re

import pytest
from words import findings

from ensemble.evaluation.tiles import tiles_of
from ensemble.evaluation.words import say

ASKED = ("convergence", "quality", "gain", "calibration", "coverage", "bands", "abstention")
ASKED += ("shift", "next_member")
FOUND = [one for one in findings() if one.code.partition(".")[0] in ASKED]


def tile_of(finding):
    """The one tile of an evaluation that has found no more."""
    tiles = tiles_of({"findings": [finding.to_json(say(finding))]})
    return tiles[0] if tiles else None


@pytest.mark.parametrize("finding", FOUND, ids=lambda one: one.code)
def test_a_tile_has_a_title_a_number_a_mark_and_one_sentence(finding):
    tile = tile_of(finding)
    if finding.code == "convergence.ensemble":
        assert tile is None
        return
    assert tile.title
    assert "{" not in tile.title
    assert re.fullmatch(
        r"-|(R-hat )?[-+]?[\d.,e+-]+ ?(%|points?|nats)?( lower| higher)?|.*inf.*|.*nan.*",
        tile.number,
    )
    assert say(finding).startswith(tile.sentence)
    is_number = finding.code.startswith(("quality", "gain"))
    marks = {"good": "good", "warning": "caution", "plain": "inconclusive"}
    assert tile.mark == ("" if is_number else marks[finding.tone])


def test_a_tile_speaks_of_chains_where_members_are_chains():
    titles = {tile_of(one).title for one in FOUND if one.code.startswith("next_member")}
    assert titles == {"One more member", "One more chain"}
