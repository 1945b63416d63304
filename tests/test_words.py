"""Every sentence is the one of `words.json`; `python -m tests.words` renews it."""

import inspect
import json
import pathlib

import pytest
import words
from words import GOLDEN, said, written

from ensemble.evaluation import sentences, verdict
from ensemble.evaluation.numbers import number_verdict


@pytest.mark.parametrize(
    "module", [verdict, number_verdict, sentences], ids=lambda one: one.__name__
)
def test_every_sentence_has_a_case(module):
    questions = [
        name
        for name, one in inspect.getmembers(module, inspect.isfunction)
        if one.__module__ == module.__name__
        and not name.startswith("_")
        and inspect.signature(one).return_annotation is str
    ]
    code = "".join(path.read_text() for path in pathlib.Path(words.__file__).parent.glob("*.py"))
    assert questions
    assert [name for name in questions if f".{name}(" not in code] == []


def test_every_case_is_said_as_it_is_written():
    expected, found = json.loads(GOLDEN.read_text()), said()
    assert found == expected
    assert written(found) == GOLDEN.read_text()
