"""Tables for a terminal and for a notebook's cell, and pictures for the latter.

Texts may be a stranger's, such as names of classes: none of them steers a terminal or a page.
"""

import base64
import html
import io
from collections.abc import Callable, Iterable, Sequence

from PIL import Image

from ensemble.errors import shown

Row = Sequence[tuple[str, str | float]]
"""Titles of columns, and the values of one row."""

NUMBER = ".6g"
"""How numbers of any size are formatted, such as targets."""

NUM_SHOWN = 10
"""Rows that a preview has."""

_MAX_TEXT = 80
_NUM_COLOURS = 24


def aligned(rows: Sequence[Row], number: str = ".4f") -> str:
    """Returns a table whose columns are as wide as they must be, texts flush left.

    Args:
        rows: at least one.
        number: how numbers are formatted.
    """
    is_text = [isinstance(value, str) for _, value in rows[0]]
    lines = [[title for title, _ in rows[0]], *(_cells(row, number) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        "  ".join(
            f"{cell:<{width}}" if text else f"{cell:>{width}}"
            for cell, width, text in zip(line, widths, is_text, strict=True)
        )
        for line in lines
    ]
    return "\n".join([table[0], "-" * len(table[0]), *table[1:]])


def preview(heading: str, count: int, row: Callable[[int], Row], number: str = ".4f") -> str:
    """Returns a heading and the first rows of a long table.

    Args:
        heading: above the table.
        count: rows that there are.
        row: returns one by its number.
        number: as of `aligned`.
    """
    parts = [heading, aligned(_first(count, row), number)] if count else [heading]
    return "\n".join([*parts, *_more(count)])


def preview_html(heading: str, count: int, row: Callable[[int], Row], number: str = ".4f") -> str:
    """The same for a notebook's cell; the arguments are those of `preview`."""
    rows = _first(count, row)
    titles = [title for title, _ in rows[0]] if rows else []
    table = [html_table(titles, [_cells(one, number) for one in rows])] if rows else []
    return page([paragraph(heading), *table, *map(paragraph, _more(count))])


def html_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns an HTML table; the first column has the names of the rows."""
    head, *body = (_html_row(row, tag) for row, tag in [(titles, "th"), *((r, "td") for r in rows)])
    return f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"


def html_picture(png: bytes, name: str) -> str:
    """Returns a PNG file as an HTML image; few colours make it a third as large."""
    content = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    few = picture.quantize(_NUM_COLOURS, method=Image.Quantize.FASTOCTREE)
    few.save(content, "png", optimize=True)
    data = base64.b64encode(content.getvalue()).decode()
    style = "max-width:48%;display:inline-block;vertical-align:top"
    return f'<img style="{style}" alt="{_escaped(name)}" src="data:image/png;base64,{data}">'


def paragraph(text: str) -> str:
    """Returns a line of text as HTML."""
    return f"<p>{_escaped(text)}</p>"


def page(parts: Iterable[str]) -> str:
    """Returns what a cell shows; dollars in it are no formulas."""
    return f'<div class="tex2jax_ignore mathjax_ignore">{"".join(parts)}</div>'


def _first(count: int, row: Callable[[int], Row]) -> list[Row]:
    return [[("", str(i)), *row(i)] for i in range(min(count, NUM_SHOWN))]


def _more(count: int) -> list[str]:
    return [f"and {count - NUM_SHOWN:,} more"] if count > NUM_SHOWN else []


def _cells(row: Row, number: str) -> list[str]:
    return [_printable(v) if isinstance(v, str) else format(v, number) for _, v in row]


def _printable(text: str) -> str:
    """A text as a table has it: printable, and without the middle of a long one."""
    text, half = shown(text), _MAX_TEXT // 2
    return text if len(text) <= _MAX_TEXT else f"{text[:half]}…{text[-half:]}"


def _html_row(row: Sequence[str], tag: str) -> str:
    name, *cells = map(_escaped, row)
    values = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
    return f'<tr><th style="text-align:left">{name}</th>{values}</tr>'


def _escaped(text: str) -> str:
    return html.escape(shown(text))
