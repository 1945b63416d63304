"""What was stated beside what was found: a summary as Markdown, and every row as CSV."""

import csv
import io
import itertools
import pathlib
from collections.abc import Iterable

from simulations import suite
from simulations.statement import HIGH, LOW, MOST_WRONG, VERDICT

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "statements.md"
NEXT = "## Beside Stan's reference draws\n"
"""Begins what `benchmarks/posteriordb.py` writes into the page."""

HEAD = f"""# Are intervals and samplers right?

## How often statements hold

Intervals and verdicts of reports and evaluations were simulated where the truth is known: data and
members are drawn, the statement is made, and the truth is looked up. A 95% interval should hold in
{LOW:.0%} to {HIGH:.1%} of cases, one of at least 95% in {LOW:.0%} or more, and those of other
levels as near to them. A verdict should be wrong in at most {MOST_WRONG:.0%} of all cases. A row,
which is one part of a statement in one setting, misses this if it is beyond these bounds by more
than two standard errors of the simulation.

The table has the lowest and the highest share of a statement's rows, and each row that misses. If
a report says that it cannot tell, nothing was stated. If little is stated, it is stated of draws
that look harmless, and it holds less often in these than in all.
[Every row](../benchmarks/results/statements.csv) says in `stated` how often anything was said, and
in `found` how often the interval held then, or the verdict was wrong.

`python -m simulations` simulates what is missing and writes
[the results](../benchmarks/results/statements); with `--page` it draws this table and the CSV. A
new interval that no simulation names fails `make lint`.
"""


def text(results: dict) -> str:
    """The page up to `NEXT`: a row for each statement.

    Args:
        results: as `__main__` writes them.
    """
    found = list(suite.rows(results))
    missed = sum(not row["is_met"] for row in found)
    lines = [
        "| statement | it says | over | promise | found | rows | missed |",
        "|---|---|---|---|---|---|---|",
    ]
    for statement, rows in itertools.groupby(found, lambda row: row["statement"]):
        many = list(rows)
        shares = [share for row in many if (share := _share(row)) is not None]
        cells = (
            f"`{statement.name}`", statement.claim, statement.over, _promise(statement),
            f"{min(shares):.1%} to {max(shares):.1%}" if shares else "never stated",
            len(many), "; ".join(_missed(row) for row in many if not row["is_met"]),
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    summary = f"{missed} of {len(found)} rows miss this."
    return "\n\n".join([HEAD.strip(), summary, "\n".join(lines)]) + "\n\n"


def _missed(row: dict) -> str:
    """Share, part and setting of a row, with how often it was stated unless it always was."""
    often = "" if row["stated"] == 1 else f", stated {row['stated']:.0%}"
    return f"**{_share(row):.1%}** of {row['part']}: {row['setting']}{often}"


def rows_as_csv(results: dict) -> str:
    """Every row of `suite.rows`, shares as fractions.

    Args:
        results: as `__main__` writes them.
    """
    written = io.StringIO()
    names = ("setting", "part", "found", "stated", "replications", "is_met")
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(("statement", *names))
    for row in suite.rows(results):
        cells = [
            f"{row[name]:.4g}" if isinstance(row[name], float) else row[name] for name in names
        ]
        writer.writerow((row["statement"].name, *cells))
    return written.getvalue()


def _share(row: dict) -> float | None:
    """What is compared with the promise: wrong verdicts are a share of all replications."""
    if row["found"] is None or row["statement"].kind != VERDICT:
        return row["found"]
    return row["found"] * row["stated"]


def _promise(statement: suite.Statement) -> str:
    if statement.kind == VERDICT:
        return f"wrong in at most {MOST_WRONG:.0%}"
    bound = "at least " if statement.at_least else ""
    return f"{bound}{statement.level:.0%}"


def table(rows: Iterable[dict]) -> str:
    """A Markdown table of rows of `suite.rows`."""
    lines = [
        "| statement | setting | of | found | stated | replications | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = _share(row)
        found = "never stated" if share is None else f"{share:.1%}"
        if row["statement"].kind == VERDICT and share is not None:
            found += " wrong"
        remark = "" if row["is_met"] else "**missed**"
        lines.append(
            f"| {row['statement'].name} | {row['setting']} | {row['part']} | {found} | "
            f"{row['stated']:.0%} | {row['replications']:,} | {remark} |"
        )
    return "\n".join(lines) + "\n"
