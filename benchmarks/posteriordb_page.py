"""A section of docs/statements.md and a CSV, drawn from benchmarks/results/posteriordb.json."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import scipy.stats
from side_by_side import as_table

LIMIT = 4.0
"""Joint Monte Carlo errors within which a mean and a sd agree."""


def agrees(row: Mapping[str, Any]) -> bool:
    """Whether all means and sds are those of the reference."""
    return all(row[f"z_{one}"]["value"] < LIMIT for one in ("mean", "sd"))


def has_converged(row: Mapping[str, Any]) -> bool:
    """Whether the run says so. When the rows were measured, divergences did not count yet."""
    return bool(row["converged"]) and not row["divergences"]


def by_chance(num_scalars: int) -> float:
    """What the largest |z| of a right sampler stays below in 95% of runs, of so many scalars.

    For independent means and sds; correlated ones stay below less.
    """
    return float(scipy.stats.norm.isf((1 - 0.95 ** (1 / (2 * num_scalars))) / 2))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each posterior and method."""
    head = (
        "| posterior | method | worst z of a mean | of a sd | by chance | R-hat | bulk ESS | "
        "divergent | converged | CPU s |"
    )
    lines = []
    for row in sorted(rows, key=lambda one: (one["posterior"], one["method"])):
        of = [f"{row[key]['value']:.2f} ({row[key]['of']})" for key in ("z_mean", "z_sd")]
        cells = [row["posterior"], row["method"], *of, f"{by_chance(row['num_scalars']):.2f}"]
        cells += [f"{row['rhat_max']:.3f}", f"{row['ess_bulk_min']:,}", row["divergences"]]
        cells.append("yes" if has_converged(row) else "no, and says so")
        lines.append([*cells, f"{row['cpu_seconds']:.0f}"])
    return as_table(head, lines)


def rows_as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each posterior and method."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    names = ("rhat_max", "ess_bulk_min", "divergences", "cpu_seconds", "commit", "date")
    z = ("z_mean", "z_mean_of", "z_sd", "z_sd_of", "z_by_chance")
    writer.writerow(("posterior", "method", *z, "converged", *names))
    for row in sorted(rows, key=lambda one: (one["posterior"], one["method"])):
        worst = [row[key][part] for key in ("z_mean", "z_sd") for part in ("value", "of")]
        chance = f"{by_chance(row['num_scalars']):.2f}"
        cells = [row["posterior"], row["method"], *worst, chance, has_converged(row)]
        writer.writerow([*cells, *(row[name] for name in names)])
    return written.getvalue()


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """How often each method agrees, and says that it has converged."""
    head = (
        "| method | posteriors | agree | of these, converged | differ, and say so | "
        "differ silently | which differ |"
    )
    lines = []
    for method in sorted({row["method"] for row in rows}):
        mine = [row for row in rows if row["method"] == method]
        right = [row for row in mine if agrees(row)]
        differ = [row for row in mine if not agrees(row)]
        silent = sum(map(has_converged, differ))
        cells = [method, len(mine), len(right), sum(map(has_converged, right))]
        lines.append([*cells, len(differ) - silent, silent, "; ".join(map(_difference, differ))])
    return as_table(head, lines)


def _difference(row: Mapping[str, Any]) -> str:
    worst = max(row["z_mean"]["value"], row["z_sd"]["value"])
    return f"{row['posterior']}: z {worst:.1f}, R-hat {row['rhat_max']:.2f}"


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The section of the page."""
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    last = max(row["date"] for row in rows)[:10]
    return f"""## Beside Stan's reference draws

[posteriordb](https://github.com/stan-dev/posteriordb) has posteriors with 10,000 reference draws
each. Fourteen of them are written as NumPyro models, and sampled by `ensemble.sample` with default
settings: four chains, 1,000 draws of warm-up and 1,000 that count. Every parameter's mean and sd is
compared with the reference. *z* is the distance divided by the joint Monte Carlo error of both; the
error of a sd is by the effective sample size of squares. A posterior agrees if all z are below
{LIMIT:g}. If one does not, the run must say itself that its chains have not converged: it says that
they have if the largest R-hat is below 1.01, the least bulk ESS and the least tail ESS above 400,
and no draw diverged.

{summary(rows)}

[Every row](../benchmarks/results/posteriordb.csv) has the worst z of a mean and of a sd, and what
the worst of a right sampler stays below in 95% of runs. CPU seconds there include compilation, and
other programs ran beside. `python benchmarks/posteriordb.py` runs what is missing in
[the results](../benchmarks/results/posteriordb.json); with `--page` it draws this section and the
CSV. Commit {commits}, {last}.
"""
