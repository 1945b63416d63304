"""The page that shows what was stated beside what was found."""

import itertools
import textwrap
from collections.abc import Iterable

from simulations import suite
from simulations.statement import HIGH, LOW, MOST_WRONG, VERDICT

HEAD = f"""# How often statements hold

What the program states of its own results was simulated, where the truth is known: data and
members are drawn, the statement is made, and the truth is looked up. An interval should hold what
it is about as often as it promises: a 95% interval in {LOW:.0%} to {HIGH:.1%} of cases, one of at
least 95% in {LOW:.0%} or more, and those of other levels as near to them. A verdict should be wrong
in at most {MOST_WRONG:.0%} of all cases. A row misses this, and is marked, if it is beyond these
bounds by more than two standard errors of the simulation. *Stated* is the share of replications in
which anything was said: in the others the report says that it cannot be told. Where little is
stated, it is stated of draws that look harmless, and holds less often in these than in all.

`python -m simulations` simulates what is missing and writes
[the results](../benchmarks/results/statements); `python -m simulations --page=docs/statements.md`
draws this page from them. A new interval that no simulation names fails `make lint`.
"""


def text(results: dict) -> str:
    """The page.

    Args:
        results: as `__main__` writes them.
    """
    found = list(suite.rows(results))
    num_missed = sum(not row["is_met"] for row in found)
    parts = [HEAD, f"{num_missed} of {len(found)} rows miss this.\n"]
    for statement, rows in itertools.groupby(found, lambda row: row["statement"]):
        many = list(rows)
        latest = max(results[statement.name].values(), key=lambda one: one["date"])
        text_of_it = (
            f"{statement.claim}. Over {statement.over}; {_promise(statement)}; last at commit "
            f"{latest['commit']}, {latest['date']}."
        )
        parts.append(f"## {statement.name}\n\n{textwrap.fill(text_of_it, 116)}\n\n{table(many)}")
    return "\n".join(parts)


def _promise(statement: suite.Statement) -> str:
    if statement.kind == VERDICT:
        return f"wrong in at most {MOST_WRONG:.0%}"
    bound = "at least " if statement.at_least else ""
    return f"nominal {bound}{statement.level:.0%}"


def table(rows: Iterable[dict]) -> str:
    """A Markdown table of rows of `suite.rows`."""
    lines = ["| setting | of | found | stated | replications | |", "|---|---|---|---|---|---|"]
    for row in rows:
        found = "never stated" if row["found"] is None else f"{row['found']:.1%}"
        if row["statement"].kind == VERDICT and row["found"] is not None:
            found = f"{row['found'] * row['stated']:.1%} wrong"
        remark = "" if row["is_met"] else "**missed**"
        lines.append(
            f"| {row['setting']} | {row['part']} | {found} | {row['stated']:.0%} | "
            f"{row['replications']:,} | {remark} |"
        )
    return "\n".join(lines) + "\n"
