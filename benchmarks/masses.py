"""Effective draws per gradient by every mass matrix, on posteriors of posteriordb.

    python benchmarks/masses.py
    python benchmarks/masses.py --posteriors sblrc-blr kilpisjarvi_mod-kilpisjarvi

Four chains of nuts with the default settings of `ensemble.sample`, but for the mass. Gradients are
counted, not timed: other programs may run beside. Every run is written when it ends, and the same
command goes on where it was interrupted. The posteriors are expected in ../shared/posteriordb.
"""

import argparse
import json
import pathlib
import sys
from typing import Any

import posteriordb
import side_by_side
from tables import provenance

MASSES = ("diagonal", "low_rank", "dense")
RESULTS = side_by_side.ROOT / "benchmarks" / "results" / "masses.json"


def run(name: str, mass: str) -> dict[str, Any]:
    """Samples a posterior on one device.

    Args:
        name: of the posterior.
        mass: of `MASSES`.
    """
    sys.path.insert(0, str(side_by_side.ROOT))
    import ensemble
    from tests import posteriordb_models as models

    arguments, reference = models.read(name)
    config = {"num_devices": 1, "sampler.mass": mass}
    found = ensemble.sample(models.MODELS[name], arguments, config=config, show_progress=False)
    posterior = found.report["posterior"]
    z_scores = models.z_scores(found.draws, reference)
    sampled = int(found.data.sample_stats["n_steps"].sum())
    return {
        "posterior": name,
        "mass": mass,
        "num_scalars": len(reference),
        "worst_z": round(max(float(z) for one in z_scores.values() for z in one.values()), 2),
        "rhat_max": round(posterior["rhat_max"], 4),
        "ess_bulk_min": round(posterior["ess_bulk_min"]),
        "divergences": posterior["divergences"],
        "gradients_of_warm_up": posterior["num_gradients"] - sampled,
        "gradients_of_draws": sampled,
    }


def ess_per_gradient(row: dict[str, Any]) -> float:
    """The least bulk ESS per 1,000 gradients of the draws that count."""
    return 1000 * row["ess_bulk_min"] / row["gradients_of_draws"]


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each posterior, a column for each mass, in Markdown."""
    found = {(row["posterior"], row["mass"]): row for row in rows}
    lines = [f"| posterior | scalars | {' | '.join(MASSES)} |", "|---" * (2 + len(MASSES)) + "|"]
    for name in sorted({row["posterior"] for row in rows}):
        of_masses = [found.get((name, mass)) for mass in MASSES]
        cells = ["" if row is None else f"{ess_per_gradient(row):.1f}" for row in of_masses]
        scalars = next(row["num_scalars"] for row in of_masses if row)
        lines.append(f"| {name} | {scalars} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Samples what is missing, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--posteriors", nargs="+", default=[])
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    folder = side_by_side.ROOT.parent / "shared" / "posteriordb"
    names = args.posteriors or sorted(path.parent.name for path in folder.glob("*/data.json"))
    commit = provenance()["commit"]  # Before the results are written, which are tracked.
    for name in names:
        for mass in MASSES:
            if any((row["posterior"], row["mass"]) == (name, mass) for row in rows):
                continue
            rows.append(run(name, mass) | provenance() | {"commit": commit})
            posteriordb.write(args.out, rows)
            print(rows[-1], file=sys.stderr, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
