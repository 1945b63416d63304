"""Every sentence is the one of `words.json`; `python -m tests.words` renews it."""

import ast
import json
import pathlib
import re

import pytest
from conftest import ROOT
from words import GOLDEN, findings, said, written

from ensemble.evaluation import words
from ensemble.evaluation.words import SILENT, WORDS, say


def test_every_case_is_said_as_it_is_written():
    expected, found = json.loads(GOLDEN.read_text()), said()
    assert found == expected
    assert written(found) == GOLDEN.read_text()


def test_every_answer_has_words_and_a_case():
    codes = {one.code for one in findings()}
    assert codes == WORDS.keys()
    assert codes >= SILENT


def test_every_answer_is_explained_in_the_docs():
    page = (ROOT / "docs" / "findings.md").read_text()
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    explained = [code for cell in cells for code in re.findall(r"`(\w+\.\w+)`", cell)]
    assert sorted(explained) == sorted(WORDS)


def test_nothing_is_decided_in_words():
    """No number is compared with another, but in the choice of a singular or a plural."""
    tree = ast.parse(pathlib.Path(words.__file__).read_text())
    singular = {"plural", "_who", "_points"}
    for function in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)):
        if function.name in singular:
            function.body = []
    compared = [one for one in ast.walk(tree) if isinstance(one, ast.Compare)]
    for one in compared:
        for operator, other in zip(one.ops, one.comparators, strict=True):
            is_text = isinstance(other, ast.Constant) and isinstance(other.value, str | None)
            is_in = isinstance(operator, ast.In | ast.NotIn)
            assert is_text or is_in, ast.unparse(one)


@pytest.mark.parametrize("code", WORDS)
def test_a_sentence_is_short(code):
    """At most 25 words and four numbers: an interval is one, and so is a date; levels are names."""
    for one in findings():
        if one.code != code:
            continue
        text = re.sub(r"\[[^\]]*\]|\d{4}-\d\d-\d\d", "[]", say(one))
        text = re.sub(r"\b(90% interval|95% interval|95% confidence)", "level", text)
        for sentence in re.split(r"(?<=[.:;]) (?=[A-Z\d])|; ", text):
            assert len(sentence.split()) <= 25, sentence
            assert len(re.findall(r"\d[\d,.]*|\[\]", sentence)) <= 4, sentence
