"""What was stated beside what was found: a summary as Markdown, and every row as CSV."""

import csv
import io
import itertools
from collections.abc import Iterable

from simulations import suite
from simulations.statement import HIGH, LOW, MOST_WRONG, VERDICT

HEAD = f"""# How often statements hold

What the program states of its own results was simulated, where the truth is known: data and
members are drawn, the statement is made, and the truth is looked up. An interval should hold what
it is about as often as it promises: a 95% interval in {LOW:.0%} to {HIGH:.1%} of cases, one of at
least 95% in {LOW:.0%} or more, and those of other levels as near to them. A verdict should be wrong
in at most {MOST_WRONG:.0%} of all cases. A row misses this if it is beyond these bounds by more
than two standard errors of the simulation. Where little is stated, it is stated of draws that look
harmless, and holds less often in these than in all.

[statements.csv](statements.csv) has every row, one for each part of a statement in each setting:
`stated` is the share of replications in which anything was said, for in the others the report says
that it cannot be told, and `found` is the share of these in which the interval held, or the verdict
was wrong. The table below has the lowest and the highest of a statement's rows.

`python -m simulations` simulates what is missing and writes
[the results](../benchmarks/results/statements); `python -m simulations --page=docs/statements.md`
draws this page and the CSV from them. A new interval that no simulation names fails `make lint`.
"""


def text(results: dict) -> str:
    """The summary: a row for each statement.

    Args:
        results: as `__main__` writes them.
    """
    found = list(suite.rows(results))
    missed = [row for row in found if not row["is_met"]]
    lines = [
        "| statement | it says | over | promise | found | rows | missed | last at |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for statement, rows in itertools.groupby(found, lambda row: row["statement"]):
        many = list(rows)
        shares = [share for row in many if (share := _share(row)) is not None]
        latest = max(results[statement.name].values(), key=lambda one: one["date"])
        cells = (
            f"`{statement.name}`", statement.claim, statement.over, _promise(statement),
            f"{min(shares):.1%} to {max(shares):.1%}" if shares else "never stated",
            len(many), sum(not row["is_met"] for row in many) or "",
            f"{latest['commit']}, {latest['date']}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    summary = f"{len(missed)} of {len(found)} rows miss this:"
    return "\n\n".join([HEAD.strip(), summary, table(missed).strip(), "\n".join(lines)]) + "\n"


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
