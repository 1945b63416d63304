"""The table that converging.py makes of its rows."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from price_summary import over_splits
from side_by_side import as_table

SCORES = ("nll", "crps", "rmse", "coverage_90")
ALL = (
    "8 members",
    "32 members",
    "8 chains",
    "32 chains",
    "8 chains, T = .3",
    "32 chains, T = .3",
    "heads",
    "heads, T = .3",
)
"""What is run, in the order of the table."""
STANDARD, GAPS = ("yacht", "concrete"), ("gap_energy",)
"""The tables."""


def compare(rows: Any, table: str, sizes: float) -> Iterator[list[str]]:
    """Rows of a Markdown table: R-hat, means over splits, NLL less that of 8 chains."""
    scores: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        if row["table"] == table:
            scores.setdefault(row["name"], {})[row["split"]] = row
    base = scores.get("8 chains", {})
    for name in (one for one in ALL if one in scores):
        own = scores[name]
        mean = [np.mean([row["scores"][one] for row in own.values()]) for one in SCORES]
        both = sorted(own.keys() & base.keys())
        less = [own[k]["scores"]["nll"] - base[k]["scores"]["nll"] for k in both]
        told = ""
        if len(less) > 1 and name != "8 chains":
            low, high = over_splits(less, sizes)
            told = f"{np.mean(less):+.3f} [{low:+.3f}, {high:+.3f}]"
        rhats = [row["rhat_max"] for row in own.values() if "rhat_max" in row]
        seconds = np.median([row["cpu_seconds"] for row in own.values()])
        yield [
            f"{table} ({len(own)})",
            name,
            f"{np.median(rhats):.2f} ({max(rhats):.2f})" if rhats else "",
            *(f"{one:.3f}" for one in mean),
            told,
            f"{seconds:.0f}",
        ]


def format_all(rows: Any) -> str:
    """The Markdown table of all rows."""
    head = (
        "| data (splits) | what | R-hat of predictions: median (largest) "
        "| NLL | CRPS | RMSE | 90% intervals cover | NLL less that of 8 chains | CPU seconds |"
    )
    lines: list[Iterable[object]] = []
    for table in (*STANDARD, *GAPS):
        sizes = {row["test_share"] for row in rows if row["table"] == table}
        lines += compare(rows, table, max(sizes)) if sizes else []
    return as_table(head, lines)
