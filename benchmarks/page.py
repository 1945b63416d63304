"""The page docs/benchmarks.md, drawn from the files of benchmarks/results alone.

    python benchmarks/page.py --page=docs/benchmarks.md

`goals.py` has the goals that were stated. Each row beside a peer says in its last column whether it
is at least as good.
"""

import argparse
import ast
import json
import pathlib
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import fit_beside_search
import goals
import larger_tables
import neutral_summary
import price_summary
import soak_summary
import startup
from comparisons import COMPARISONS
from side_by_side import format_table

HERE = pathlib.Path(__file__).resolve().parent
PAGES = {
    "aot": "scaling.md",
    "bde": "bde_table.md",
    "distillation": "distillation.md",
    "masses": "posteriors.md",
    "posteriordb": "posteriordb.md",
    "sgmcmc_bias": "posteriors.md",
    "tables": "results.md",
    "tables_defaults": "results.md",
}
"""Pages that say what else the files hold."""

SUMMARIES = {
    "fit_beside_search": fit_beside_search.format_all,
    "larger_tables": larger_tables.format_all,
    "neutral_tables": neutral_summary.format_all,
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


def sections(contents: Mapping[str, Content]) -> Iterator[str]:
    """The sections of the page, by the names of the files."""
    for name, content in contents.items():
        yield f"## {name}"
        yield provenance(name, content)
        if is_side_by_side(content):
            yield format_table(content["rows"], as_good)
        elif name in SUMMARIES:
            yield SUMMARIES[name](content["rows"])
        else:
            sizes = {key: len(one) for key, one in content.items() if isinstance(one, list | dict)}
            key = max(sizes, key=sizes.__getitem__)
            where = f" They are drawn on [another page]({PAGES[name]})." if name in PAGES else ""
            yield f"The file has {sizes[key]:,} entries in `{key}`.{where}"
        if name == "price":
            yield price_summary.format_all(content["rows"])


def text(contents: Mapping[str, Content]) -> str:
    """The page."""
    rows = [row for one in contents.values() if is_side_by_side(one) for row in one["rows"]]
    found = [as_good(row) for row in rows]
    number, once = sum(map(bool, found)), sum(map(is_beside_a_peer, rows)) - sum(map(bool, found))
    summary = (
        f"Of {number} comparisons with a peer in several rounds, {found.count('yes')} are at least "
        f"as good in every round, {found.count('not in every round')} in some rounds only, and "
        f"{found.count('no')} in none. {once} more were measured once, which is too few to say it."
    )
    beside = [_INTRODUCTION.strip(), textwrap.fill(summary, 100), *sections(contents)]
    stated = ["## Goals", goals.counts(contents), goals.table(contents), _VERDICTS.strip()]
    return "\n\n".join([*beside, *stated]) + "\n"


def stored() -> dict[str, Content]:
    """The files of benchmarks/results, by name."""
    files = sorted((HERE / "results").glob("*.json"))
    return {file.stem: json.loads(file.read_text()) for file in files}


_INTRODUCTION = """
# Benchmarks

Every figure here is read from a file of [`benchmarks/results`](../benchmarks/results), and nothing
else is. The sections have machine, command, date and commit of each file. [Speed](speed.md) says
what was measured and why the figures are what they are.

`python benchmarks/page.py --page=docs/benchmarks.md` draws this page. At its end are [the
goals](#goals) that the project has set itself, with their verdicts.

Training, evaluation and sampling should be at least as good as each peer. The last column of the
tables says where they are in every round. Ratios above 1 are in our favour. They are taken within
rounds, because the machine is noisy.
"""

_VERDICTS = """
The figure alone decides. A verdict that is *within the interval* could be the other one: one end of
the interval reaches the goal, and the other does not. Intervals of rounds and of seeds go from the
lowest to the highest. A verdict *on one seed* has none: another seed or split could say otherwise.
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=pathlib.Path, required=True)
    parser.parse_args().page.write_text(text(stored()))
