"""What the page says of the runs of `make soak`: how their tests ended, and what they counted."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def format_all(rows: Sequence[Row]) -> str:
    """A table of the runs, and one of what their tests have counted in all.

    Args:
        rows: those of `benchmarks/results/soak.json`, a run each.
    """
    lines = [
        "| date | commit | tests of | passed | failed | skipped | minutes | minutes of CPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["date"][:10], row["commit"], " ".join(row["tests"]), row["passed"]]
        cells += [row["failed"] + row["error"], row["skipped"]]
        cells += [f"{row[key] / 60:.0f}" for key in ("seconds", "cpu_seconds")]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    totals: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        for name, counts in row["counted"].items():
            totals[name].update(counts)
    if not totals:
        return "\n".join(lines)
    lines += ["", "Tests that passed have counted:", "", "| what | of these |", "|---|---|"]
    for name in sorted(totals):
        counts = ", ".join(f"{one} {number:,}" for one, number in totals[name].items())
        lines.append(f"| {name} | {counts} |")
    return "\n".join(lines)
