"""Fourteen posteriors of posteriordb by every sampler with default settings, beside Stan's draws.

    python benchmarks/posteriordb.py
    python benchmarks/posteriordb.py --only nuts --posteriors sblrc-blr --anew

Every run is written when it ends, with the commit and the date, and the same command goes on where
it was interrupted; --anew forgets the runs that are named. The posteriors are expected in
../shared/posteriordb; tests/numpyro_models/posteriordb_models.py has them as NumPyro models.
"""

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import side_by_side
from rows import Results, Row

METHODS = ("nuts", "hmc", "adjusted_mclmc")
RESULTS = side_by_side.ROOT / "benchmarks" / "results" / "posteriordb.json"


def sample(name: str, **options: Any) -> tuple[Any, dict[str, Any], dict[str, dict[str, float]]]:
    """Samples a posterior on one device, and compares it.

    Args:
        name: of the posterior.
        **options: of the configuration.

    Returns:
        What `ensemble.sample` returns, a row of its diagnostics, and z scores by statistic.
    """
    sys.path.insert(0, str(side_by_side.ROOT))
    import ensemble
    from tests.numpyro_models import posteriordb_models as models

    arguments, reference = models.read(name)
    config = {"num_devices": 1, **options}
    found = ensemble.sample(models.MODELS[name], arguments, config=config, show_progress=False)
    posterior = found.report["posterior"]
    row = {
        "num_scalars": len(reference),
        "rhat_max": round(posterior["rhat_max"], 4),
        "ess_bulk_min": round(posterior["ess_bulk_min"]),
        "divergences": posterior["divergences"],
    }
    return found, row, models.z_scores(found.draws, reference)


def run(posterior: str, method: str) -> dict[str, Any]:
    """Samples a posterior by a method with default settings."""
    started = time.process_time()
    found, row, z_scores = sample(posterior, method=method)
    seconds = time.process_time() - started
    for statistic, of_names in z_scores.items():
        worst = max(of_names, key=of_names.__getitem__)
        row[f"z_{statistic}"] = {"value": round(float(of_names[worst]), 3), "of": worst}
    kept = ("converged", "num_gradients")
    row |= {key: found.report["posterior"][key] for key in kept}
    return row | {"cpu_seconds": round(seconds, 1)}


def names_of(given: Sequence[str]) -> list[str]:
    """The posteriors that are given, or all that there are."""
    folder = side_by_side.ROOT.parent / "shared" / "posteriordb"
    return list(given) or sorted(path.parent.name for path in folder.glob("*/data.json"))


def cells(row: Row) -> list[object]:
    """A line of the table that is printed: a z below 4 agrees."""
    scores = [row["z_mean"]["value"], row["z_sd"]["value"]]
    return [row["posterior"], row["method"], row["rhat_max"], row["converged"], *scores]


def main() -> None:
    """Samples what is missing, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS, help="methods")
    parser.add_argument("--posteriors", nargs="+", default=[])
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--anew", action="store_true", help="forget earlier runs of these")
    args = parser.parse_args()
    results = Results(args.out)
    names = names_of(args.posteriors)
    keys = [{"posterior": name, "method": method} for method in args.only for name in names]
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # Every run costs what it costs alone.
    head = "| posterior | method | R-hat | converged | z of a mean | z of a sd |"
    print(side_by_side.as_table(head, map(cells, results.fill(keys, run, args.anew))))


if __name__ == "__main__":
    main()
