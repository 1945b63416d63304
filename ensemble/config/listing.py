"""The keys of a run in words: `ensemble train --print_config`."""

import functools
import shutil
import textwrap

from ensemble.config.build import Run
from ensemble.config.keys import as_json, rule_of

_WIDTH = 100
_INDENT = " " * 6


def table(run: Run) -> str:
    """Returns every key of a run with its value, and below it its meaning and rule; and its notes.

    Lines are at most as long as the terminal is wide. Keys that differ from their default are
    marked.
    """
    width = min(shutil.get_terminal_size(fallback=(_WIDTH, 0)).columns, _WIDTH)
    wrapped = functools.partial(textwrap.wrap, width=width, subsequent_indent=_INDENT)
    lines = ["* differs from its default"]
    for part in run.parts:
        if part.fields:
            lines += ["", *wrapped(f"Keys of {part.title}:")]
        for name, field in part.fields.items():
            value = run.values[name]
            mark = " " if value == as_json(field.default) else "*"
            lines += wrapped(f"{mark} {name} = {shown(value)}")
            changes = "; may change when the run is resumed" * field.may_change
            lines += wrapped(f"{_INDENT}{field.meaning}; {rule_of(field)}{changes}")
    for note in run.notes:
        lines += ["", *wrapped(note)]
    return "\n".join(lines)


def shown(value: object) -> str:
    """A value, of which an empty text is seen."""
    return "''" if value == "" else str(value)
