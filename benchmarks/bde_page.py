"""A section of docs/results.md, drawn from benchmarks/results/bde.json."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import price_summary
import tables_data
from side_by_side import as_table

Row = Mapping[str, Any]

NAMES = {
    "posterior_24000": "our posterior, 24,000 steps",
    "posterior_8000": "our posterior, 8,000 steps",
    "ensemble": "our ensemble",
    "ensemble_300": "our ensemble, of 300 networks",
    "bde_51000": "bde, 51,000 steps",
    "bde_5000": "bde, 5,000 steps",
    "hist_gradient_boosting": "HistGradientBoosting",
    "least_squares": "least squares",
}
SCORES = {"rmse": "RMSE", "nll_by_moments": "NLL by moments", "nll": "NLL"}
OURS = "posterior_24000"
"""What the others are compared with."""
PUBLISHED = {
    "airfoil": (
        ("bde, 51,000 steps", ".1215 ± .0042", "-.9126 ± .0131", "241"),
        ("bde's deep ensemble", ".3650 ± .0038", ".1760 ± .0043", "20"),
        ("TabPFN v2", ".1359 ± .0028", "-.9338 ± .0195", "9"),
        ("XGBoost", ".2025 ± .0055", "", "1"),
        ("CatBoost", ".2393 ± .0036", ".1479 ± .1414", "1"),
    ),
    "bike": (
        ("bde, 51,000 steps", ".2261 ± .0016", "-.7315 ± .0098", "2,555"),
        ("bde's deep ensemble", ".2880 ± .0052", "-.4550 ± .0173", "40"),
        ("TabPFN v2", ".2103 ± .0008", "-.6856 ± .0063", "1,246"),
        ("XGBoost", ".2143 ± .0010", "", "2"),
        ("CatBoost", ".2652 ± .0021", "-.3737 ± .0229", "3"),
    ),
}
"""Mean and sd over five seeds, and mean seconds on 10 cores, as the paper of bde and its results
have them."""
TEST_SHARE = 0.25
"""Test rows for each training row."""


def of(rows: Sequence[Row], method: str, table: str) -> list[Row]:
    """The rows of a method on a table."""
    return [row for row in rows if (row["method"], row["table"]) == (method, table)]


def published(rows: Sequence[Row], method: str, table: str) -> list[Row]:
    """The rows of the published split."""
    return [row for row in of(rows, method, table) if row["split"] == 0]


def shown(values: Sequence[float], digits: int = 4) -> str:
    """Mean, and the standard deviation where there are several."""
    text = f"{np.mean(values):.{digits}f}"
    return f"{text} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else text


def published_split(rows: Sequence[Row], table: str) -> str:
    """A line for each method: what it scored on the published split, and what it cost."""
    lines = []
    for method, name in NAMES.items():
        mine = published(rows, method, table)
        if not mine:
            continue
        cells = [shown([row[score] for row in mine]) for score in SCORES]
        cells += [
            f"{np.mean([row[key] for row in mine]):,.0f}" for key in ("seconds", "cpu_seconds")
        ]
        cells.append(spread([row["rhat_max"] for row in mine if row.get("rhat_max")]))
        lines.append([name, len(mine), *cells])
    head = "| | seeds | RMSE | NLL by moments | NLL | seconds | CPU seconds | R-hat |"
    others = [
        f"| *published:* {name} | 5 | {rmse} | {nll} | | {seconds} | | |"
        for name, rmse, nll, seconds in PUBLISHED[table]
    ]
    return "\n".join([as_table(head, lines), *others])


def spread(values: Sequence[float]) -> str:
    """The smallest and the largest value."""
    ends = sorted({f"{value:.2f}" for value in values}, key=float)
    return " to ".join(ends[:1] + ends[1:][-1:])


def paired(rows: Sequence[Row], table: str) -> str:
    """`OURS` less each method, over the splits that both have; empty without two of them."""
    lines = []

    def by_split(method: str, score: str) -> dict[int, float]:
        mine = of(rows, method, table)
        return {
            split: float(np.mean([row[score] for row in mine if row["split"] == split]))
            for split in {row["split"] for row in mine}
        }

    for method, name in NAMES.items():
        cells = []
        for score in ("rmse", "nll_by_moments"):
            ours, theirs = by_split(OURS, score), by_split(method, score)
            common = sorted(ours.keys() & theirs.keys())
            if method == OURS or len(common) < 2:
                break
            differences = [ours[split] - theirs[split] for split in common]
            low, high = price_summary.over_splits(differences, TEST_SHARE)
            cells.append(f"{np.mean(differences):+.4f} [{low:+.4f}, {high:+.4f}]")
        else:
            lines.append([name, len(common), *cells])
    head = f"| {NAMES[OURS]}, less | splits | RMSE | NLL by moments |"
    return as_table(head, lines) if lines else ""


def cost(rows: Sequence[Row], table: str) -> str:
    """What the methods cost on the published split, beside bde; empty without bde's seconds."""
    every = {method: published(rows, method, table) for method in NAMES}
    found = {method: mine for method, mine in every.items() if mine}
    theirs = found.pop("bde_51000", None)
    if theirs is None or not found:
        return ""

    def mean(mine: Sequence[Row], key: str) -> float:
        return float(np.mean([row[key] for row in mine]))

    whole = mean(theirs, "seconds")
    shares = [
        f"{NAMES[method]} {mean(mine, 'seconds') / whole:.3f}" for method, mine in found.items()
    ]
    text = f"Seconds as a share of those of bde at 51,000 steps: {'; '.join(shares)}."
    if OURS in found and len(found[OURS]) != len(theirs):
        text += (
            f" Of model seeds, {len(found[OURS])} of {NAMES[OURS]}, stand beside {len(theirs)} of "
            "bde at 51,000 steps."
        )
    if {OURS, "ensemble"} <= found.keys():
        text += (
            f" {mean(found[OURS], 'cpu_seconds'):,.0f} CPU seconds of our posterior, with its "
            f"start, stand beside {mean(found['ensemble'], 'cpu_seconds'):,.0f} of our ensemble."
        )
    return _wrapped(text)


def not_run(rows: Sequence[Row], table: str) -> str:
    """What is missing of a table."""
    if not any(row["table"] == table for row in rows):
        return "Nothing of this was run on this machine yet."
    missing = []
    for method, name in NAMES.items():
        mine = of(rows, method, table)
        seeds = len({row["seed"] for row in mine if row["split"] == 0})
        others = len({row["split"] for row in mine} - {0})
        few = [f"{seeds} of 5 seeds"] if seeds < (1 if method == "least_squares" else 5) else []
        few += [f"{others} of 10 other splits"] if others < 10 else []
        if not mine:
            missing.append(f"{name} was not run")
        elif few:
            missing.append(f"{name} has {' and '.join(few)}")
    return _wrapped(f"Incomplete: {'; '.join(missing)}.") if missing else ""


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 100, break_on_hyphens=False))


def text(content: Mapping[str, Any]) -> str:
    """The section of the page."""
    rows = content["rows"]
    parts = [_INTRODUCTION.strip()]
    for table in tables_data.BDE_TABLES:
        difference = paired(rows, table)
        parts += [f"### {table.capitalize()}", published_split(rows, table), cost(rows, table)]
        parts += [_PAIRED * bool(difference), difference, not_run(rows, table)]
    if rows:
        commits = ", ".join(sorted({row["commit"] for row in rows}))
        dates = sorted(row["date"][:10] for row in rows)
        parts.append(f"{content['machine']}; {dates[0]} to {dates[-1]}; commits {commits}.")
    return "\n\n".join(filter(None, parts)) + "\n"


_INTRODUCTION = """
## Beside the library bde

The library [bde](https://github.com/scikit-learn-contrib/bde) samples the posterior of small
networks, as [a configuration of ours](posteriors.md#on-tables) does. `benchmarks/bde.py` runs the
table of its paper on one machine: bde with its published settings, our posterior and the ensemble
that it starts from, boosting and least squares. A fifth of the rows are test rows
(`train_test_split` with `random_state` 0). Scores are in standardised units, mean ± standard
deviation over model seeds.

- NLL by moments scores a normal distribution with the mean and the variance of the prediction, as
  the published table does. NLL scores the prediction itself, a mixture over draws.
- Our posterior is ten chains of MCLMC, and its seconds include those of the ensemble. The first
  8,000 of 24,000 steps are dropped, of 8,000 steps the first 4,000. Of bde's 5,000 steps, 4,000
  tune. Our settings were chosen on a fifth of the training rows, when one test score of an earlier
  setting was known.
- R-hat is the largest of our posterior's scalars, over seeds. Far above 1.01, it says that the
  chains do not agree. bde's was not computed.
- HistGradientBoosting has default settings and one standard deviation for all rows: that of its
  errors on a tenth of the training rows.
- Seconds are wall clock of whole processes with a cold compilation cache; published seconds are of
  `fit` and `predict` on 10 cores. Tests ran beside most rows of 2026-11-23, beside bde's 51,000
  steps and the 300 networks too, so these seconds are upper bounds; seed 0 of the other methods on
  airfoil ran without them.
"""

_PAIRED = """Differences over splits, the published one among them, with 95% intervals that allow
for training rows in common (Nadeau and Bengio 2003). Below 0, ours is better."""
