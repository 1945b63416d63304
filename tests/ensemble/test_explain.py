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


@pytest.mark.parametrize("method", registry.METHODS)
def test_a_run_s_table_has_its_keys_with_value_meaning_and_rule(method):
    checked = check({"method": method, "seed": 12345})
    lines = explain.table(checked).splitlines()
    starts = [lines[0].index(title) for title in ("key", "value", "meaning", "rule")]
    rows = {line.split()[0]: line for line in lines[2:] if line and not line.startswith("Of ")}
    assert rows.keys() == flatten(checked.config).keys()
    for name, line in rows.items():
        cells = [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        key = all_keys()[name]
        value = flatten(checked.config)[name]
        assert cells[:3] == [name, str(value) if value != "" else "''", key.meaning]
        assert cells[3].startswith(key.rule.text)
        assert cells[3].endswith("may change on resumption") == key.may_change
    assert "12345" in rows["seed"]


def test_factorisation_lists_the_data_that_it_can_learn():
    checked = check({"method": "hmc", "model": "matrix_factorisation"})
    (row,) = re.findall("^dataset .*", explain.table(checked), re.MULTILINE)
    assert row.endswith(
        "must be watches: movielens/1m-ratings, movielens/100k-ratings, watches:USERSxMOVIES"
    )


if __name__ == "__main__":
    before, _, after = sections(PAGE.read_text())
    PAGE.write_text(f"{before}{explain.pages()}\n{after}")
