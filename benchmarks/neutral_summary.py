"""What neutral_tables.py makes of its rows: ranks, ratios, the worst tables, coverage, seconds."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
import tables_data
from neutral_data import REPORTED
from side_by_side import as_table

OURS, FORMER = "defaults", "former"
SIMPLE = ("constant", "linear")
UNRANKED = (FORMER, "constant")
"""Not ranked: our own former defaults, and what everybody should beat."""
SPREAD = ("crps", "brier")
"""Scores of the whole distribution beside the NLL; a table has one of them."""
POINT = ("rmse", "accuracy")
ENOUGH_TEST_ROWS = 1_500
"""Fewer cannot tell 90% from 87%."""
LABELS = "CRPS or Brier score"

Row = Mapping[str, Any]
Cells = Mapping[tuple[str, str], Mapping[int, Row]]


def by_cell(rows: Iterable[Row]) -> Cells:
    """Rows by method and table, and there by split."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        found.setdefault((row["method"], row["table"]), {})[row["split"]] = row
    return found


def means(cells: Cells, table: str, methods: Sequence[str], score: str) -> list[float] | None:
    """Each method's mean over the splits of a table that all of them have; None without any."""
    groups = [cells.get((method, table), {}) for method in methods]
    common = sorted(set.intersection(*map(set, groups)))
    if not common or score not in groups[0][common[0]]:
        return None
    return [float(np.mean([group[split][score] for split in common])) for group in groups]


def spread_of(cells: Cells, table: str, methods: Sequence[str]) -> list[float] | None:
    """Means of the table's CRPS or Brier score."""
    found = (means(cells, table, methods, score) for score in SPREAD)
    return next((one for one in found if one), None)


def tables_of(cells: Cells, method: str) -> list[str]:
    """The reported tables that a method has."""
    return [table for table in REPORTED if (method, table) in cells]


def methods_of(cells: Cells) -> list[str]:
    """All methods, in the order in which they were run."""
    return list(dict.fromkeys(method for method, _ in cells))


def ranked(cells: Cells, everybody: bool) -> list[str]:
    """Methods that are ranked.

    Args:
        cells: of all.
        everybody: whether those count too that have only some of the tables.
    """
    most = len(tables_of(cells, OURS))
    return [
        method
        for method in methods_of(cells)
        if method not in UNRANKED and (everybody or len(tables_of(cells, method)) == most)
    ]


def ranks(cells: Cells, score: str, everybody: bool = False, seed: int = 0) -> dict[str, Any]:
    """Mean ranks over the tables that all ranked methods have, ties shared.

    Args:
        cells: of all.
        score: 'nll', or `LABELS`.
        everybody: as of `ranked`.
        seed: of the bootstrap over tables.

    Returns:
        The names of tables, and by method mean rank and the ends of its 95% interval; of the
        method that is first beside the defaults, `behind` has how much their rank is higher.
    """
    methods = ranked(cells, everybody)
    found = {}
    for table in REPORTED:
        if score == "nll":
            scores = means(cells, table, methods, score)
            if table in tables_data.FEW_TARGETS:
                scores = None
        else:
            scores = spread_of(cells, table, methods)
        if scores:
            found[table] = scipy.stats.rankdata(scores)
    if not found or len(methods) < 2:
        return {"tables": [], "ranks": {}}
    values = np.array([*found.values()])
    drawn = np.random.default_rng(seed).integers(len(values), size=(10_000, len(values)))

    def interval(numbers: np.ndarray) -> list[float]:
        low, high = np.quantile(numbers[drawn].mean(axis=1), [0.025, 0.975])
        return [float(numbers.mean()), float(low), float(high)]

    of_method = {name: interval(values[:, i]) for i, name in enumerate(methods)}
    in_order = dict(sorted(of_method.items(), key=lambda one: one[1]))
    first = next(name for name in in_order if name != OURS)
    behind = interval(values[:, methods.index(OURS)] - values[:, methods.index(first)])
    return {"tables": [*found], "ranks": in_order, "first_other": first, "behind": behind}


def against(cells: Cells, other: str) -> dict[str, Any]:
    """Defaults beside another method, on the tables and splits that both have."""
    found: dict[str, Any] = {"tables": 0, "splits": 0, "nll_lower_on": 0, "spread_lower_on": 0}
    losses: dict[str, float] = {}
    ratios: dict[str, dict[str, float]] = {point: {} for point in POINT}
    for table in REPORTED:
        pair = (OURS, other)
        nll, spread = means(cells, table, pair, "nll"), spread_of(cells, table, pair)
        if not (nll and spread):
            continue
        found["tables"] += 1
        found["splits"] += len(cells[OURS, table].keys() & cells[other, table].keys())
        found["nll_lower_on"] += nll[0] < nll[1]
        found["spread_lower_on"] += spread[0] < spread[1]
        losses[table] = nll[0] - nll[1]
        for point in POINT:
            both = means(cells, table, pair, point)
            if both:
                ratios[point][table] = both[0] / both[1]
    if not losses:
        return {}
    found["nll_median"] = float(np.median([*losses.values()]))
    worst = max(losses, key=losses.__getitem__)
    found["nll_highest"] = [losses[worst], worst]
    for point, of_table in ratios.items():
        if of_table:
            found[f"{point}_ratio"] = float(scipy.stats.gmean([*of_table.values()]))
            choose = max if point == "rmse" else min
            worst = choose(of_table, key=of_table.__getitem__)
            found[f"{point}_ratio_worst"] = [of_table[worst], worst]
    return found


def coverage(cells: Cells, method: str = OURS) -> dict[str, Any]:
    """Coverage of 90% intervals by table, of all its test rows, and how many these are."""
    found = {}
    for table in tables_of(cells, method):
        group = [row for row in cells[method, table].values() if "coverage_90" in row]
        if group:
            number = sum(row["num_test"] for row in group)
            covered = sum(row["coverage_90"] * row["num_test"] for row in group)
            found[table] = [covered / number, number]
    return found


def cpu_ratio(cells: Cells) -> dict[str, Any]:
    """CPU seconds of the defaults by those of the former ones: the median over tables."""
    pairs = [means(cells, table, (OURS, FORMER), "cpu_seconds") for table in REPORTED]
    ratios = [one[0] / one[1] for one in pairs if one]
    if not ratios:
        return {}
    return {"median": float(np.median(ratios)), "low": min(ratios), "high": max(ratios)}


def content(rows: Sequence[Row]) -> dict[str, Any]:
    """The summary as the file has it."""
    cells = by_cell(rows)
    found: dict[str, Any] = {
        "seconds": {
            method: sum(row["cpu_seconds"] for row in rows if row["method"] == method)
            for method in methods_of(cells)
        },
    }
    if tables_of(cells, OURS):
        found |= {
            "tables": len(tables_of(cells, OURS)),
            "fewest_splits": min(len(cells[OURS, table]) for table in tables_of(cells, OURS)),
            "ranks": {score: ranks(cells, score) for score in ("nll", LABELS)},
            "ranks_of_all": {score: ranks(cells, score, True) for score in ("nll", LABELS)},
            "against": {
                other: one
                for other in methods_of(cells)
                if other != OURS and (one := against(cells, other))
            },
            "coverage_90": coverage(cells),
            "cpu_ratio": cpu_ratio(cells),
        }
    return {"summary": found}


def format_all(rows: Sequence[Row]) -> str:
    """The summary as Markdown."""
    cells = by_cell(rows)
    found = content(rows)["summary"]
    if "ranks" not in found:
        return "No reported table has been run."
    parts = [_HOW_MANY.strip()]
    whose = {"ranks": "Methods that have every table"}
    if found["ranks_of_all"] != found["ranks"]:
        whose["ranks_of_all"] = "All methods, over the tables that all have"
    for key, who in whose.items():
        for score, one in found[key].items():
            text = "; ".join(
                f"{name} {mean:.2f} [{low:.2f}, {high:.2f}]"
                for name, (mean, low, high) in one["ranks"].items()
            )
            shown = "NLL" if score == "nll" else score
            if text:
                parts.append(
                    f"{who}: mean rank by {shown} of {len(one['tables'])} tables, "
                    f"with 95% intervals over tables: {text}."
                )
    parts.append(
        "Defaults beside each method, on the splits that both have. Differences are ours less "
        'theirs, and ratios ours by theirs; `former` are the same with `method="sgd"`.'
    )
    head = (
        "| method | tables | splits | lower NLL on | lower CRPS or Brier on | NLL, median | "
        "NLL, highest | RMSE, geometric mean | RMSE, worst | accuracy, geometric mean |"
    )
    lines = []
    for other, one in found["against"].items():
        loss, table = one["nll_highest"]
        ratio, of = one.get("rmse_ratio_worst", (float("nan"), ""))
        cells_ = [other, one["tables"], one["splits"], one["nll_lower_on"], one["spread_lower_on"]]
        cells_ += [f"{one['nll_median']:+.3f}", f"{loss:+.3f} ({table})"]
        cells_ += [_shown(one.get("rmse_ratio")), f"{ratio:.3f} ({of})" if of else ""]
        lines.append([*cells_, _shown(one.get("accuracy_ratio"))])
    parts.append(as_table(head, lines))
    parts.append(_scores(cells))
    covered = ", ".join(
        f"{table} {share:.1%} of {number:,}"
        for table, (share, number) in found["coverage_90"].items()
    )
    parts.append(f"90% intervals cover, of so many test rows: {covered}.")
    if ratio := found["cpu_ratio"]:
        parts.append(
            "CPU seconds by those of the former defaults: median over tables "
            f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})."
        )
    return "\n\n".join(part if part.startswith("|") else _in_lines(part) for part in parts)


def _in_lines(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False)


_HOW_MANY = """
The protocol is the docstring of the program, and was written before the first figure. Each score is
the mean over the splits that have run so far; the second table has their number in parentheses.
"""


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _scores(cells: Cells) -> str:
    """NLL by table and method, and how many splits each is the mean of."""
    methods = methods_of(cells)
    lines = []
    for table in tables_of(cells, OURS):
        values = []
        for method in methods:
            group = cells.get((method, table), {})
            mean = float(np.mean([row["nll"] for row in group.values()])) if group else None
            values.append("" if mean is None else f"{mean:.3f} ({len(group)})")
        lines.append([table, *values])
    head = f"| NLL (splits) | {' | '.join(methods)} |"
    return as_table(head, lines)
