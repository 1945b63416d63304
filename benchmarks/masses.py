"""Effective draws per gradient by every mass matrix, on posteriors of posteriordb.

    python benchmarks/masses.py
    python benchmarks/masses.py --posteriors sblrc-blr kilpisjarvi_mod-kilpisjarvi

Four chains of nuts with the default settings of `ensemble.sample`, but for the mass. Gradients are
counted, not timed: other programs may run beside. Every run is written when it ends, and the same
command goes on where it was interrupted. The posteriors are expected in ../shared/posteriordb.
"""

import argparse
import pathlib
from typing import Any

import posteriordb
import side_by_side
from rows import Results
from side_by_side import as_table

MASSES = ("diagonal", "low_rank", "dense")
RESULTS = side_by_side.ROOT / "benchmarks" / "results" / "masses.json"
_CAPTION = """
Effective draws, by the least bulk ESS of all parameters, per 1,000 gradients after the warm-up:
""".strip()


def run(posterior: str, mass: str) -> dict[str, Any]:
    """Samples a posterior with one of `MASSES`."""
    found, row, z_scores = posteriordb.sample(posterior, **{"sampler.mass_matrix": mass})
    sampled = int(found.data.sample_stats["n_steps"].sum())
    num_gradients = found.report["posterior"]["num_gradients"]
    return row | {
        "worst_z": round(max(float(z) for one in z_scores.values() for z in one.values()), 2),
        "gradients_of_warm_up": num_gradients - sampled,
        "gradients_of_draws": sampled,
    }


def ess_per_gradient(row: dict[str, Any]) -> float:
    """The least bulk ESS per 1,000 gradients of the draws that count."""
    return 1000 * row["ess_bulk_min"] / row["gradients_of_draws"]


def table(rows: list[dict[str, Any]]) -> str:
    """What is counted, and a line for each posterior with a column for each mass, in Markdown."""
    found = {(row["posterior"], row["mass"]): row for row in rows}
    lines = []
    for name in sorted({row["posterior"] for row in rows}):
        of_masses = [found.get((name, mass)) for mass in MASSES]
        cells = ["" if row is None else f"{ess_per_gradient(row):.1f}" for row in of_masses]
        lines.append([name, next(row["num_scalars"] for row in of_masses if row), *cells])
    return f"{_CAPTION}\n\n" + as_table(f"| posterior | scalars | {' | '.join(MASSES)} |", lines)


def main() -> None:
    """Samples what is missing, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--posteriors", nargs="+", default=[])
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    names = posteriordb.names_of(args.posteriors)
    keys = [{"posterior": name, "mass": mass} for name in names for mass in MASSES]
    print(table(Results(args.out).fill(keys, run)))


if __name__ == "__main__":
    main()
