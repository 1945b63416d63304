"""Defaults of tables beside the former ones, a linear model and a constant, on twelve tables.

    PYTHONPATH=. python benchmarks/cross_fitted.py --out=benchmarks/results/cross_fitted.json

Ten tables are in ../shared/tables; settings were chosen on them, so that the figures say how the
methods compare and not what other tables will show. Two are made: few rows of noisy classes, and
128 log-normal columns. Of each, one fold or more is scored, and at most 1,000 other rows are
learned from, or 400 and 2,052 of the made ones. Numbers are learned as they are, and once more as
three classes of equally many rows. Every fit is written when it is scored, and the same command
goes on from there.
"""

import argparse
import logging
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tables_defaults
from rows import Results, Row
from sklearn.linear_model import LogisticRegressionCV, Ridge, RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler
from tables_data import MADE, make_table
from tables_ours import NO_LOGS

import ensemble
from ensemble.config import flatten
from ensemble.configs import tabular
from ensemble.scoring.sections import values_in

METHODS = {"cross-fitted": "", "former": "sgd"}
"""Variants of `configs/tabular.py`."""
SCORES = ("nll", "rmse", "crps", "coverage_90", "accuracy", "brier")
Arrays = dict[str, np.ndarray]


def data_of(table: str, kind: str, split: int) -> Arrays:
    """Arrays by split; a tenth of the rows to learn is the validation split."""
    if table not in MADE:
        return tables_defaults.read_table(table, split, kind)
    data = make_table(table, split)
    first = len(data["train_inputs"]) // 10
    for key in ("inputs", kind):
        whole = data[f"train_{key}"]
        data[f"validation_{key}"], data[f"train_{key}"] = whole[:first], whole[first:]
    return data


def joined(data: Arrays, kind: str) -> Arrays:
    """The same without a validation split: who holds out rows itself learns from them too."""
    found = dict(data)
    for key in ("inputs", kind):
        parts = [found.pop(f"validation_{key}"), found[f"train_{key}"]]
        found[f"train_{key}"] = np.concatenate(parts)
    return found


def run(method: str, table: str, kind: str, split: int) -> dict[str, Any]:
    """Scores a method on the test rows of a table, in the targets' units."""
    data = data_of(table, kind, split)
    start = time.process_time()
    if method in METHODS:
        found = networks(data if method == "former" else joined(data, kind), kind, method, split)
    else:
        found = simple(joined(data, kind), kind, method)
    return {**found, "cpu_seconds": time.process_time() - start}


def networks(data: Arrays, kind: str, method: str, seed: int) -> dict[str, Any]:
    """Eight networks."""
    likelihood = "categorical" if kind == "labels" else "gaussian"
    own = {"num_devices": 1, "hold_out": False, "likelihood": likelihood, "seed": seed}
    config = {**flatten(tabular.get_config(METHODS[method])), **own, **NO_LOGS}
    report = ensemble.train(config, data, show_progress=False).report
    scores = values_in(report["test"])
    return {name: scores[name] for name in SCORES if name in scores}


def simple(data: Arrays, kind: str, method: str) -> dict[str, float]:
    """A linear model, whose penalty is chosen by cross-validation, or a constant."""
    scaler = StandardScaler().fit(data["train_inputs"])
    seen, told = (scaler.transform(data[f"{split}_inputs"]) for split in ("train", "test"))
    learned, wanted = data[f"train_{kind}"], data[f"test_{kind}"]
    if kind == "labels":
        probs = np.tile(np.bincount(learned) / len(learned), (len(wanted), 1))
        if method == "linear":
            fit = LogisticRegressionCV(
                Cs=np.logspace(-3, 2, 6),
                cv=5,
                scoring="neg_log_loss",
                max_iter=1_000,
                l1_ratios=(0,),
                use_legacy_attributes=False,
            )
            probs = fit.fit(seen, learned).predict_proba(told)
        of_label = probs[np.arange(len(wanted)), wanted]
        return {
            "nll": float(-np.log(of_label).mean()),
            "accuracy": float((probs.argmax(axis=1) == wanted).mean()),
        }
    means, spread = np.full(len(wanted), learned.mean()), learned.std()
    if method == "linear":
        fit = RidgeCV(alphas=np.logspace(-2, 5, 15)).fit(seen, learned)
        others = cross_val_predict(Ridge(alpha=fit.alpha_), seen, learned, cv=5)
        means, spread = fit.predict(told), np.sqrt(np.mean((others - learned) ** 2))
    z = (wanted - means) / spread
    return {
        "nll": float(np.mean(z**2) / 2 + np.log(spread) + math.log(2 * math.pi) / 2),
        "rmse": float(np.sqrt(np.mean((wanted - means) ** 2))),
        "coverage_90": float(np.mean(np.abs(z) < 1.6449)),
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Cross-fitted members less each other method, over tables, of which splits are averaged."""
    found: dict[str, Any] = {}
    for kind in ("targets", "labels"):
        for other in ("former", "linear", "constant"):
            losses, ratios = [], []
            for table in dict.fromkeys(row["table"] for row in rows):
                ours, theirs = (
                    {
                        row["split"]: row
                        for row in rows
                        if (row["method"], row["table"], row["kind"]) == (method, table, kind)
                    }
                    for method in ("cross-fitted", other)
                )
                both = ours.keys() & theirs.keys()
                if both:
                    losses.append(np.mean([ours[i]["nll"] - theirs[i]["nll"] for i in both]))
                    of_error = [ours[i].get("rmse", 1) / theirs[i].get("rmse", 1) for i in both]
                    ratios.append(np.mean(of_error))
            if losses:
                found[f"{kind}: less {other}"] = {
                    "tables": len(losses),
                    "nll_median": float(np.median(losses)),
                    "nll_highest": float(np.max(losses)),
                    "nll_lower_on": int(np.sum(np.array(losses) < 0)),
                    **({"rmse_ratio_highest": float(np.max(ratios))} if kind == "targets" else {}),
                }
    seconds = {
        method: [row["cpu_seconds"] for row in rows if row["method"] == method]
        for method in METHODS
    }
    if all(seconds.values()):
        found["cpu_seconds_median"] = {name: float(np.median(s)) for name, s in seconds.items()}
    covered = [r["coverage_90"] for r in rows if r["method"] == "cross-fitted" and "rmse" in r]
    if covered:
        found["coverage_90_mean"] = float(np.mean(covered))
    return {"summary": found}


def main() -> None:
    """Scores what is missing, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--splits", type=int, default=2)
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # Few rows, copies of rows: known of these tables.
    names = sorted(path.stem for path in tables_defaults.FOLDER.glob("*.npz"))
    cases = [*MADE.items(), *((name, kind) for name in names for kind in ("targets", "labels"))]
    keys = [
        {"method": method, "table": table, "kind": kind, "split": split}
        for split in range(args.splits)
        for table, kind in cases
        for method in (*METHODS, "linear", "constant")
    ]
    rows = Results(args.out, summary).fill(keys, run)
    for name, found in summary(rows)["summary"].items():
        print(name, found)


if __name__ == "__main__":
    main()
