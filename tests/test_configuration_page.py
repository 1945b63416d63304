"""The tables of keys in `docs/configuration.md` are those of the code."""

import re

from ensemble.config.build import all_fields, all_parts
from ensemble.config.keys import as_json
from scripts.configuration_page import PAGE, sections, tables


def test_the_page_lists_every_key_as_it_is():
    assert sections(PAGE.read_text())[1] == tables()


def test_every_default_of_every_key_stands_on_the_page():
    rows = re.findall(r"^\| `([\w.]+)` \|.*", tables(), re.MULTILINE)
    assert set(rows) == set(all_fields())
    for kind, name, part in all_parts():
        for full_name, key in part.fields.items():
            row = re.escape(f"| `{full_name}` | {as_json(key.default)!s}".rstrip())
            assert re.search(row, tables()), (kind, name, full_name)
