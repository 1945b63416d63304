"""Keys in words: `ensemble train --print_config`, and the table of the documentation."""

import shutil
import textwrap
from collections.abc import Mapping, Sequence

from ensemble.config.build import Run, all_parts, listed
from ensemble.config.keys import Key, as_json, rule_of

_WIDTH = 100
_INDENT = " " * 6


def table(run: Run) -> str:
    """Returns every key of a run with its value, and below it its meaning and rule; and its notes.

    Lines are at most as long as the terminal is wide. Keys that differ from their default are
    marked.
    """
    width = min(shutil.get_terminal_size(fallback=(_WIDTH, 0)).columns, _WIDTH)

    def wrapped(text: str, first: str = "") -> list[str]:
        return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=_INDENT)

    lines = ["* differs from its default"]
    for part in run.parts:
        if part.fields:
            lines += ["", *wrapped(f"Keys of {part.title}:")]
        for name, field in part.fields.items():
            value = run.values[name]
            mark = " " if _shown(value) == _shown(as_json(field.default)) else "*"
            lines += wrapped(f"{mark} {name} = {_shown(value)}")
            text = f"{field.meaning}; {rule_of(field)}"
            lines += wrapped(
                text + "; may change when the run is resumed" * field.may_change, _INDENT
            )
    for note in run.notes:
        lines += ["", *wrapped(note)]
    return "\n".join(lines)


def pages() -> str:
    """Returns every key with its default, by owner, as Markdown tables."""
    owners: dict[str, tuple[Key, list[tuple[str, str]]]] = {}
    for place, part in all_parts().items():
        for name, field in part.fields.items():  # Pieces may have other keys of one name.
            owners.setdefault(f"{name} {field}", (field, []))[1].append(place)
    groups: dict[str, dict[str, Key]] = {}
    for key, (field, places) in owners.items():
        groups.setdefault(_owners(places), {})[key.partition(" ")[0]] = field
    return "\n\n".join(f"### {title}\n\n{_markdown(keys)}" for title, keys in groups.items())


def _owners(places: Sequence[tuple[str, str]]) -> str:
    """The runs that have a key, by kinds and names of pieces, as a heading."""
    kinds = [kind for kind, _ in places]
    kind = next((one for one in ("method", "model") if one in kinds), kinds[0])
    names = [one for its, one in places if its == kind]
    if kind == "run":
        return "Every run"
    others = [one for its, one in all_parts() if its == kind and one not in names]
    but = f" except {listed(others, 'and', 99)}" if others else ""
    text = min(listed(names, "and", 99), f"every {kind}{but}", key=len)
    return f"{kind.capitalize()}: {text if len(text) < 110 else listed(names, 'and', 6)}"


def _markdown(keys: Mapping[str, Key]) -> str:
    rows = [
        f"| `{name}` | {_shown(as_json(field.default))} | {field.meaning} | {_rule(field)} |"
        for name, field in keys.items()
    ]
    table = "\n".join(["| key | default | meaning | rule |", "|---|---|---|---|", *rows])
    return table.replace("*", "\\*")


def _rule(field: Key) -> str:
    """The rule below the heading 'rule', with a mark if the key may change."""
    text = rule_of(field).removeprefix("must be ")
    return text + " †" * field.may_change


def _shown(value: object) -> str:
    return "''" if value == "" else str(value)
