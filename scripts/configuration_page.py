"""Renews the tables of keys in `docs/configuration.md`, which are those of the code.

python -m scripts.configuration_page
"""

import pathlib
import textwrap
from collections.abc import Mapping

from ensemble.config.build import all_parts, shown
from ensemble.config.keys import Key, as_json, rule_of

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
HEADING = "## Every key\n"
END = "\n## "


def tables() -> str:
    """Returns every key with its default, by the class that declares it, as Markdown tables."""
    groups: dict[type, dict[str, Key]] = {}
    for _, _, part in all_parts():
        for name, field in part.fields.items():
            cls = next(one for one in part.cls.__mro__ if name.rpartition(".")[2] in vars(one))
            groups.setdefault(cls, {})[name] = field
    return "\n\n".join(_section(cls, fields) for cls, fields in groups.items())


def _section(cls: type, fields: Mapping[str, Key]) -> str:
    """The table of a class of keys, below the pieces that have them."""
    users = [f"`{name}`" for _, name, part in all_parts() if issubclass(part.cls, cls)]
    rows = []
    for name, field in fields.items():
        rule = rule_of(field).removeprefix("must be ") + " †" * field.may_change
        rows.append(f"| `{name}` | {shown(as_json(field.default))} | {field.meaning} | {rule} |")
    table = "\n".join(["| key | default | meaning | rule |", "|---|---|---|---|", *rows])
    title = str(cls.__doc__).splitlines()[0].rstrip(".")
    of = "" if "`every`" in users else textwrap.fill(f"Of {', '.join(users)}.", 120) + "\n\n"
    return f"### {title}\n\n{of}" + table.replace("*", "\\*")


def sections(page: str) -> tuple[str, str, str]:
    """Returns the page before its tables, the tables, and what follows."""
    before, heading, rest = page.partition(HEADING)
    introduction, _, found = rest.partition("\n### ")
    found, end, after = found.partition(END)
    return f"{before}{heading}{introduction}\n", f"### {found}".strip(), end + after


if __name__ == "__main__":
    before, _, after = sections(PAGE.read_text())
    PAGE.write_text(f"{before}{tables()}\n{after}")
