"""The pages docs/benchmarks.md and benchmarks/GOALS.md, drawn from benchmarks/results alone.

    python benchmarks/page.py

The first has every row beside a peer, whose last column says whether it is at least as good. The
second has the goals that `goals.py` states, and every other measurement.
"""

import ast
import json
import pathlib
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import converging_summary
import fit_beside_search
import goals
import larger_tables
import masses
import neutral_summary
import price_summary
import sgmcmc_bias
import soak_summary
import startup
from comparisons import COMPARISONS
from side_by_side import format_table

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
RECORD = HERE / "GOALS.md"
PAGES = {
    "aot": "scaling.md",
    "bde": "results.md",
    "distillation": "distillation.md",
    "methods": "which_method.md",
    "posteriordb": "statements.md",
    "tables": "results.md",
    "tables_defaults": "results.md",
}
"""Pages of docs/ that say what else the files hold."""

SUMMARIES = {
    "converging": converging_summary.format_all,
    "fit_beside_search": fit_beside_search.format_all,
    "larger_tables": larger_tables.format_all,
    "masses": masses.table,
    "neutral_tables": neutral_summary.format_all,
    "sgmcmc_bias": sgmcmc_bias.format_table,
    "soak": soak_summary.format_all,
    "startup": startup.format_all,
}
"""What is drawn of all rows of a file."""

NO_PEERS = {
    "before",
    "ensemble.load",
    "float64",
    "in memory",
    "its log density alone",
    "one device",
    "scale .1",
    "the file alone",
}
"""Names of what a row shows for scale only: another state or another setting of this project."""

Content = Mapping[str, Any]


def is_beside_a_peer(row: Mapping[str, Any]) -> bool:
    """Whether a row is a comparison with another program."""
    return bool(row["ratio"]) and row["peer_name"] not in NO_PEERS


def as_good(row: Mapping[str, Any]) -> str:
    """Whether a row is at least as good as its peer, in all of its rounds; "" of a single one."""
    if not is_beside_a_peer(row) or row["rounds"] < 2:
        return ""
    if row["ratio"]["min"] >= 1:
        return "yes"
    return "no" if row["ratio"]["max"] < 1 else "not in every round"


def is_side_by_side(content: Content) -> bool:
    """Whether the file is one of `side_by_side.report`."""
    return bool(content.get("rows")) and {"measure", "ratio"} <= content["rows"][0].keys()


def documented(name: str) -> str:
    """The first command that the docstring of a benchmark has for it; empty if there is none."""
    script = HERE / f"{name}.py"
    if not script.exists():
        return ""
    text = (ast.get_docstring(ast.parse(script.read_text())) or "").replace("\\\n", "")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith("    ")]
    return next((line for line in lines if f"benchmarks/{name}.py" in line), "")


_PATH = "PYTHONPATH=. "


def command_of(name: str, content: Content) -> str:
    """The command that measures it now: a comparison may have had a program of its own."""
    command = content.get("command") or documented(name)
    if name in COMPARISONS:
        return command.replace(f"benchmarks/{name}.py", f"benchmarks/compare.py {name}")
    if documented(name).startswith(_PATH) and not command.startswith(_PATH):
        command = _PATH + command
    return command


def provenance(name: str, content: Content) -> str:
    """Machine, command, commits and dates, which a file or each of its rows has."""
    rows = [row for row in content.get("rows", ()) if "commit" in row] or [content]
    commits = sorted({row["commit"] for row in rows})
    dates = sorted({row["date"][:10] for row in rows})
    when = f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else "".join(dates)
    versions = ", ".join(f"{one} {which}" for one, which in content.get("versions", {}).items())
    parts = [
        f"Machine: {content['machine']}.",
        _in_lines(f"Command: `{command_of(name, content)}`."),
        *([_in_lines(f"Versions of peers: {versions}.")] if versions else []),
        f"Date: {when}.",
        f"Commit: {', '.join(commits[:3])}"
        + (f" and {len(commits) - 3} more." if len(commits) > 3 else "."),
    ]
    return "\n".join(parts)


def _in_lines(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


class Parts(NamedTuple):
    """The rows of a file of `side_by_side.report`, by the page that has them."""

    beside_peers: list[Mapping[str, Any]]
    others: list[Mapping[str, Any]]


def parts(content: Content) -> Parts:
    """Divides the rows of a file between the two pages; none of a file of another form."""
    rows = content["rows"] if is_side_by_side(content) else []
    return Parts(
        [row for row in rows if is_beside_a_peer(row)],
        [row for row in rows if not is_beside_a_peer(row)],
    )


def others(contents: Mapping[str, Content]) -> Iterator[str]:
    """The sections of the record, by the names of the files."""
    for name, content in contents.items():
        beside_peers, rows = parts(content)
        if beside_peers and not rows:
            continue
        yield f"## {name}"
        yield provenance(name, content)
        if rows:
            yield format_table(rows)
        elif name in SUMMARIES:
            yield SUMMARIES[name](content["rows"])
        else:
            sizes = {key: len(one) for key, one in content.items() if isinstance(one, list | dict)}
            key = max(sizes, key=sizes.__getitem__)
            page = f"../docs/{PAGES[name]}" if name in PAGES else ""
            where = f" They are drawn on [a page]({page})." if page else ""
            yield f"The file has {sizes[key]:,} entries in `{key}`.{where}"
        if name == "price":
            yield price_summary.format_all(content["rows"])


def text(contents: Mapping[str, Content]) -> str:
    """The page of comparisons with peers."""
    beside = {name: found for name, one in contents.items() if (found := parts(one).beside_peers)}
    rows = [row for found in beside.values() for row in found]
    verdicts = [as_good(row) for row in rows]
    number = sum(map(bool, verdicts))
    summary = (
        f"Of {number} comparisons in several rounds, {verdicts.count('yes')} are at least as good "
        f"in every round, {verdicts.count('not in every round')} in some rounds only, and "
        f"{verdicts.count('no')} in none. {len(rows) - number} more were measured once, which is "
        "too few to say it."
    )
    written = [_INTRODUCTION.strip(), textwrap.fill(summary, 100)]
    for name, found in beside.items():
        written += [f"## {name}", provenance(name, contents[name]), format_table(found, as_good)]
    return "\n\n".join(written) + "\n"


def record(contents: Mapping[str, Content]) -> str:
    """The goals, and what was measured without a peer."""
    only_beside_peers = {
        name: f"../docs/{PAGE.name}"
        for name, one in contents.items()
        if parts(one).beside_peers and not parts(one).others
    }
    stated = [goals.counts(contents), goals.table(contents, only_beside_peers), _VERDICTS.strip()]
    return "\n\n".join([_RECORD.strip(), *stated, *others(contents)]) + "\n"


def stored() -> dict[str, Content]:
    """The files of benchmarks/results, by name."""
    files = sorted((HERE / "results").glob("*.json"))
    return {file.stem: json.loads(file.read_text()) for file in files}


_INTRODUCTION = """
# Speed beside other programs

Training, evaluation and sampling should be at least as fast as those of each peer. The tables have
every measured comparison of time or memory; the last column says whether ours is at least as good
in every round. Ratios above 1 are in our favour. They are taken within rounds, because the machine
is noisy. [Speed](speed.md) explains how the figures were taken and why they are what they are,
[Scaling](scaling.md) has figures for more devices.

`python benchmarks/page.py` draws this page from [`benchmarks/results`](../benchmarks/results).
[Goals, and measurements without a peer](../benchmarks/GOALS.md) are in the repository.
"""

_RECORD = """
# Goals, and what was measured without a peer

`python benchmarks/page.py` draws this page from the files of [results](results).
[Speed beside other programs](../docs/benchmarks.md) has all rows beside a peer.
"""

_VERDICTS = """
The figure alone decides. A verdict that is *within the interval* could be the other one: one end of
the interval reaches the goal, and the other does not. Intervals of rounds and of seeds go from the
lowest to the highest. A verdict *on one seed* has none: another seed or split could say otherwise.
"""


if __name__ == "__main__":
    PAGE.write_text(text(stored()))
    RECORD.write_text(record(stored()))
