"""Keys in words: on the terminal, and in the docs.

`python -m tests.ensemble.test_explain` renews the tables of `docs/configuration.md`.
"""

import pathlib
import re

import pytest

from ensemble import explain, registry
from ensemble.config import all_keys, flatten
from ensemble.config_rules import check

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
HEADING = "## Every key\n"
END = "\n## "


def sections(page):
    """The page before its tables, the tables, and what follows."""
    before, heading, rest = page.partition(HEADING)
    assert heading
    _, end, after = rest.partition(END)
    introduction = rest.partition("\n### ")[0]
    tables = rest.partition("\n### ")[2].partition(END)[0]
    return before + heading + introduction + "\n", f"### {tables}".strip(), end + after


def test_the_page_lists_every_key_as_it_is():
    assert sections(PAGE.read_text())[1] == explain.pages()


def test_every_key_stands_on_the_page_once():
    listed = re.findall(r"^\| `([\w.]+)` \|", explain.pages(), re.MULTILINE)
    assert sorted(listed) == sorted(all_keys())


def entries(checked):
    """By key the mark, the value, and the words below it on one line."""
    found = re.findall(
        r"^([* ]) (\S+) = (.*)\n((?: {6}.*\n?)+)", explain.table(checked), re.MULTILINE
    )
    return {name: (mark, value, " ".join(text.split())) for mark, name, value, text in found}


@pytest.mark.parametrize("columns", [40, 200])
@pytest.mark.parametrize("method", registry.METHODS)
def test_a_run_s_keys_have_value_meaning_and_rule(method, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    checked = check({"method": method, "seed": 12345})
    values, found = flatten(checked.config), entries(checked)
    assert found.keys() == values.keys()
    for name, (_, shown, text) in found.items():
        key, value = all_keys()[name], values[name]
        assert shown == (str(value) if value != "" else "''")
        assert text.startswith(f"{key.meaning}; {key.rule.text}")
        assert text.endswith("may change on resumption") == key.may_change
    assert found["seed"][:2] == ("*", "12345")
    assert found["num_devices"][0] == " "
    words = [line for line in explain.table(checked).splitlines() if line.startswith(" " * 6)]
    assert max(map(len, words)) <= min(columns, 100)


if __name__ == "__main__":
    before, _, after = sections(PAGE.read_text())
    PAGE.write_text(f"{before}{explain.pages()}\n{after}")
