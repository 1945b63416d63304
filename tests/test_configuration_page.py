"""The tables of keys in `docs/configuration.md` are those of the code.

`python -m tests.test_configuration_page` renews them.
"""

import pathlib
import re

from ensemble.config.build import all_fields, all_parts
from ensemble.config.keys import as_json
from ensemble.config.listing import pages

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
HEADING = "## Every key\n"
END = "\n## "


def sections(page):
    """The page before its tables, the tables, and what follows."""
    before, heading, rest = page.partition(HEADING)
    assert heading
    introduction, _, tables = rest.partition("\n### ")
    tables, end, after = tables.partition(END)
    return f"{before}{heading}{introduction}\n", f"### {tables}".strip(), end + after


def test_the_page_lists_every_key_as_it_is():
    assert sections(PAGE.read_text())[1] == pages()


def test_every_default_of_every_key_stands_on_the_page_once():
    rows = re.findall(r"^\| `([\w.]+)` \|.*", pages(), re.MULTILINE)
    assert set(rows) == set(all_fields())
    for (kind, name), part in all_parts().items():
        for key in part.fields.values():
            row = re.escape(f"| `{key.name}` | {as_json(key.default)!s}".rstrip())
            assert re.search(row, pages()), (kind, name, key.name)
    table = [row for row in pages().split("\n") if row.startswith("| `")]
    assert len(set(table)) == len(table)


if __name__ == "__main__":
    before, _, after = sections(PAGE.read_text())
    PAGE.write_text(f"{before}{pages()}\n{after}")
