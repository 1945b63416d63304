"""Every sentence is the one of `words.json`; `python -m tests.words` renews it."""

import json

from words import GOLDEN, said, written


def test_every_case_is_said_as_it_is_written():
    expected, found = json.loads(GOLDEN.read_text()), said()
    assert found == expected
    assert written(found) == GOLDEN.read_text()
