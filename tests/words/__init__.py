"""What evaluations and reports say of given numbers: cases, whose sentences `words.json` keeps.

A case has a name, `question.case`, and inputs. `python -m tests.words` writes the sentence of each
to `words.json`, and `tests/test_words.py` compares. Whoever changes a sentence renews the file and
reads what has changed as a diff. Other tests ask for numbers, and for which case it is.
"""

import json
import pathlib
from collections.abc import Iterator

from . import classes, numbers, posteriors, reports

GOLDEN = pathlib.Path(__file__).parent.parent / "words.json"
Said = str | list[str]


def said() -> dict[str, Said]:
    """What is said in every case, by its name."""
    found: dict[str, Said] = {}
    for name, sentence in _cases():
        assert name not in found, f"two cases are called {name}"
        found[name] = sentence
    return dict(sorted(found.items()))


def written(sentences: dict[str, Said]) -> str:
    """The content of `words.json`, a sentence per line."""
    return json.dumps(sentences, indent=1, ensure_ascii=False) + "\n"


def _cases() -> Iterator[tuple[str, Said]]:
    for part in (classes, numbers, posteriors, reports):
        yield from part.cases()
