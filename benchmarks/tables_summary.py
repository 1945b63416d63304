"""What tables.py makes of its rows: means over splits, published scores beside them, ranks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tables_data
from side_by_side import as_table

SCORES = ("rmse", "nll_by_moments", "nll", "crps", "coverage_90", "seconds", "cpu_seconds")

PUBLISHED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "concrete": {"deep ensemble": ("6.03", "3.06"), "long": ("4.83", "2.937")},
    "energy": {"deep ensemble": ("2.09", "1.38"), "long": (".539", "1.212")},
    "kin8nm": {"deep ensemble": (".09", "-1.20"), "long": (".0789", "-1.136")},
    "naval": {"deep ensemble": (".00", "-5.63"), "long": (".00074", "-4.450")},
    "power": {"deep ensemble": ("4.11", "2.79"), "long": ("4.01", "2.808")},
    "protein": {"deep ensemble": ("4.71", "2.83"), "long": ("4.27", "2.871")},
    "wine": {"deep ensemble": (".64", ".94"), "long": (".622", ".928")},
    "yacht": {"deep ensemble": ("1.58", "1.18"), "long": (".666", "1.250")},
}
"""RMSE and NLL of the deep ensemble of Lakshminarayanan et al. 2017, and of MC dropout trained for
100 times the epochs (yaringal/DropoutUncertaintyExps), as they are printed."""

Row = Mapping[str, Any]


def by_method_and_table(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each method on each table, in the order of their splits."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["split"]):
        found.setdefault((row["method"], row["table"]), []).append(row)
    return found


def summarise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Mean and standard error over the splits, by method and table."""
    summary = []
    for (method, table), group in by_method_and_table(rows).items():
        entry: dict[str, Any] = {"method": method, "table": table, "splits": len(group)}
        for name in SCORES:
            values = [row[name] for row in group if name in row]
            if values:
                error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0
                entry[name] = [float(np.mean(values)), float(error)]
        if method == "recipe" and table in PUBLISHED:
            entry["not_above"] = not_above(table, entry)
        summary.append(entry)
    return summary


def not_above(table: str, entry: Mapping[str, Any]) -> dict[str, dict[str, bool]]:
    """Whether RMSE and NLL by moments are at most the published ones, at the printed precision."""
    return {
        who: {
            name: round(entry[score][0], len(printed.partition(".")[2])) <= float(printed)
            for name, score, printed in zip(
                ("rmse", "nll"), ("rmse", "nll_by_moments"), scores, strict=True
            )
        }
        for who, scores in PUBLISHED[table].items()
    }


def ranks(rows: Sequence[Row], score: str, seed: int = 0) -> dict[str, list[float]]:
    """Mean rank of the methods over tables, with a 95% bootstrap interval over tables.

    Methods are compared on the splits that all of them have scored. Tables of few distinct targets
    are left out where the score is an NLL, and so are methods that do not have the score.

    Returns:
        By method: mean rank, and the interval's ends.
    """
    groups = by_method_and_table(rows)
    tables = [
        table
        for table in tables_data.UCI_TABLES
        if not (score.startswith("nll") and table in tables_data.FEW_TARGETS)
    ]
    has = {
        method
        for method in {key[0] for key in groups}
        if all(score in row for table in tables for row in groups.get((method, table), ()))
    }
    tables = [table for table in tables if all((method, table) in groups for method in has)]
    methods = sorted(has)
    if not tables or len(methods) < 2:
        return {}
    found = []
    for table in tables:
        of = {method: {row["split"]: row[score] for row in groups[method, table]} for method in has}
        common = set.intersection(*(set(one) for one in of.values()))
        means = [np.mean([of[method][split] for split in common]) for method in methods]
        found.append(np.argsort(np.argsort(means)) + 1)
    table_ranks = np.array(found, float)
    drawn = np.random.default_rng(seed).integers(len(tables), size=(10_000, len(tables)))
    low, high = np.quantile(table_ranks[drawn].mean(axis=1), [0.025, 0.975], axis=0)
    columns = zip(methods, table_ranks.mean(axis=0), low, high, strict=True)
    return {name: [float(a), float(b), float(c)] for name, a, b, c in columns}


def format_all(rows: Sequence[Row]) -> str:
    """The tables as Markdown: scores by table and method, and mean ranks."""
    head = (
        "| table | method | splits | RMSE | NLL by moments | NLL | CRPS | in 90% | CPU s a split |"
    )
    shown = ("rmse", "nll_by_moments", "nll", "crps", "coverage_90", "cpu_seconds")
    lines = []
    for entry in sorted(summarise(rows), key=lambda one: one["table"]):
        found = (entry.get(name) for name in shown)
        cells = ["" if value is None else f"{value[0]:.4g} ± {value[1]:.2g}" for value in found]
        lines.append([entry["table"], entry["method"], entry["splits"], *cells])
    parts = [as_table(head, lines)]
    for score in ("crps", "nll", "nll_by_moments"):
        ranked = sorted(ranks(rows, score).items(), key=lambda item: item[1][0])
        if ranked:
            text = "; ".join(f"{name} {a:.2f} [{b:.2f}, {c:.2f}]" for name, (a, b, c) in ranked)
            parts.append(f"Mean rank by {score}, with 95% intervals over tables: {text}")
    return "\n\n".join(parts)
