"""What evaluations and reports say of given numbers: cases, whose sentences `words.json` keeps.

A case has a name, `question.case`, and inputs. `python -m tests.words` writes the sentence of each
to `words.json`, and `tests/test_words.py` compares. Whoever changes a sentence renews the file and
reads what has changed as a diff. Other tests ask for numbers, and for which case it is.
"""

import json
import pathlib
from collections.abc import Iterator

from ensemble.evaluation.words import say
from ensemble.scoring.finding import Finding

from . import classes, numbers, posteriors, reports

GOLDEN = pathlib.Path(__file__).parent.parent / "words.json"
Said = str | list[str] | Finding | list[Finding]


def said() -> dict[str, str | list[str]]:
    """What is said in every case, by its name."""
    found: dict[str, str | list[str]] = {}
    for name, one in _cases():
        assert name not in found, f"two cases are called {name}"
        found[name] = [*map(_text, one)] if isinstance(one, list) else _text(one)
    return dict(sorted(found.items()))


def findings() -> list[Finding]:
    """All that cases find."""
    lists = [one if isinstance(one, list) else [one] for _, one in _cases()]
    return [one for each in lists for one in each if isinstance(one, Finding)]


def _text(one: str | Finding) -> str:
    return f"{one.code}: {say(one)}" if isinstance(one, Finding) else one


def written(sentences: dict[str, str | list[str]]) -> str:
    """The content of `words.json`, a sentence per line."""
    return json.dumps(sentences, indent=1, ensure_ascii=False) + "\n"


def _cases() -> Iterator[tuple[str, Said]]:
    for part in (classes, numbers, posteriors, reports):
        yield from part.cases()
