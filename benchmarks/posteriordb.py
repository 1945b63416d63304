"""Fourteen posteriors of posteriordb by every sampler with default settings, beside Stan's draws.

    python benchmarks/posteriordb.py
    python benchmarks/posteriordb.py --only nuts --posteriors sblrc-blr --anew
    python benchmarks/posteriordb.py --page

Every run is written when it ends, with the commit and the date, and the same command goes on where
it was interrupted; --anew forgets the runs that are named. The posteriors are expected in
../shared/posteriordb; tests/posteriordb_models.py has them as NumPyro models.
"""

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import posteriordb_page
import side_by_side
from tables import provenance

METHODS = ("nuts", "hmc", "adjusted_mclmc")
RESULTS = side_by_side.ROOT / "benchmarks" / "results" / "posteriordb.json"
PAGE = side_by_side.ROOT / "docs" / "posteriordb.md"


def run(name: str, method: str) -> dict[str, Any]:
    """Samples a posterior on one device, and compares it.

    Args:
        name: of the posterior.
        method: with default settings.
    """
    sys.path.insert(0, str(side_by_side.ROOT))
    import ensemble
    from tests import posteriordb_models as models

    arguments, reference = models.read(name)
    started = time.process_time()
    found = ensemble.sample(
        models.MODELS[name],
        arguments,
        method=method,
        config={"num_devices": 1},
        show_progress=False,
    )
    seconds = time.process_time() - started
    row: dict[str, Any] = {"posterior": name, "method": method, "num_scalars": len(reference)}
    for statistic, of_names in models.z_scores(found.draws, reference).items():
        worst = max(of_names, key=of_names.__getitem__)
        row[f"z_{statistic}"] = {"value": round(float(of_names[worst]), 3), "of": worst}
    posterior = found.report["posterior"]
    return row | {
        "converged": posterior["converged"],
        "rhat_max": round(posterior["rhat_max"], 4),
        "ess_bulk_min": round(posterior["ess_bulk_min"]),
        "divergences": posterior["divergences"],
        "num_gradients": posterior["num_gradients"],
        "cpu_seconds": round(seconds, 1),
    }


def write(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes all rows, whole or not at all."""
    content = {"machine": side_by_side.describe_machine(), "rows": rows}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(path)


def main() -> None:
    """Samples what is missing, prints the table, writes the JSON or the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS, help="methods")
    parser.add_argument("--posteriors", nargs="+", default=[])
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--anew", action="store_true", help="forget earlier runs of these")
    parser.add_argument("--page", action="store_true", help="write docs/posteriordb.md only")
    args = parser.parse_args()
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    if args.page:
        PAGE.write_text(posteriordb_page.text(rows))
        return
    folder = side_by_side.ROOT.parent / "shared" / "posteriordb"
    names = args.posteriors or sorted(path.parent.name for path in folder.glob("*/data.json"))
    wanted = [(name, method) for method in args.only for name in names]
    if args.anew:
        rows = [row for row in rows if (row["posterior"], row["method"]) not in wanted]
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # Every run costs what it costs alone.
    commit = provenance()["commit"]  # Before the results are written, which are tracked.
    for name, method in wanted:
        if any((row["posterior"], row["method"]) == (name, method) for row in rows):
            continue
        rows.append(run(name, method) | provenance() | {"commit": commit})
        write(args.out, rows)
        print(rows[-1], file=sys.stderr, flush=True)
    print(posteriordb_page.table(rows))


if __name__ == "__main__":
    main()
