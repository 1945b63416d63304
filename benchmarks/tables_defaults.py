"""How the former defaults of tables were chosen: settings side by side on ten tables.

    PYTHONPATH=. python benchmarks/tables_defaults.py --out=benchmarks/results/tables_defaults.json

The tables are in ../shared/tables, and appear in no published figure. Of each, one fold is scored
and at most 1,000 other rows are learned from; a tenth of these stops members early, unless the
setting says otherwise. Numbers are learned as they are, and once more as three classes of equally
many rows. Every fit is written when it is scored, and the same command goes on from there.
"""

import argparse
import logging
import math
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import side_by_side
import tables_summary
from rows import Results
from side_by_side import as_table
from tables_ours import NO_LOGS

import ensemble
from ensemble.config import flatten
from ensemble.configs import tabular
from ensemble.scoring.sections import values_in

FOLDER = side_by_side.ROOT.parent / "shared" / "tables"
MAX_ROWS = 1_000
SHORT = {"num_epochs": 100, "early_stopping_epochs": 20}
ARRAYS = {**SHORT, "mlp.widths": "256,256", "learning_rate": 1e-3, "weight_decay": 3e-3}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "tabular": {},
    "arrays": ARRAYS,
    "arrays on all rows": {**ARRAYS, "early_stopping_epochs": 0},
    "100 epochs": SHORT,
    "100 epochs, beta_nll": {**SHORT, "beta_nll": 0.5},
}
"""What differs from `tabular:sgd`; `arrays` has those of `configs/arrays.py`."""
NUMBERS_ONLY = ("100 epochs", "100 epochs, beta_nll")
REFERENCE = "arrays"


def read_table(name: str, fold: int, kind: str) -> dict[str, np.ndarray]:
    """Arrays by split, of numbers or of three classes."""
    with np.load(FOLDER / f"{name}.npz") as file:
        inputs, targets, folds = file["inputs"], file["targets"], file["test_fold"]
    if kind == "labels":
        targets = np.searchsorted(np.quantile(targets, [1 / 3, 2 / 3]), targets)
    rng = np.random.default_rng(fold)
    learned = rng.permutation(np.flatnonzero(folds != fold))[:MAX_ROWS]
    first = len(learned) // 10
    rows = {
        "train": learned[first:],
        "validation": learned[:first],
        "test": rng.permutation(np.flatnonzero(folds == fold))[:MAX_ROWS],
    }
    return {
        f"{split}_{name}": values[indices]
        for split, indices in rows.items()
        for name, values in (("inputs", inputs), (kind, targets))
    }


def score(data: dict[str, np.ndarray], kind: str, keys: Mapping[str, Any]) -> dict[str, float]:
    """Scores of the test rows in the targets' units."""
    if keys.get("early_stopping_epochs") == 0:
        for name in ("inputs", kind):
            parts = [data[f"train_{name}"], data.pop(f"validation_{name}")]
            data[f"train_{name}"] = np.concatenate(parts)
    likelihood = "categorical" if kind == "labels" else "gaussian"
    own = {"num_devices": 1, "hold_out": False, "likelihood": likelihood}
    config = {**flatten(tabular.get_config("sgd")), **own, **NO_LOGS, **keys}
    report = ensemble.train(config, data, show_progress=False).report
    return values_in(report["test"])


def run(method: str, table: str, split: int) -> dict[str, float]:
    """Scores a setting on a fold of a table."""
    kind, _, name = method.partition(": ")
    start = time.process_time()
    found = score(read_table(table, split, kind), kind, SETTINGS[name])
    line = {key: found[key] for key in ("rmse", "nll", "crps") if key in found}
    return line | {"cpu_seconds": time.process_time() - start}


def compared(rows: list[dict[str, Any]]) -> str:
    """Each setting beside the reference, over tables: a Markdown table."""
    kept = {(row["method"], row["table"], row["split"]): row for row in rows}
    lines = []
    for method in sorted({key[0] for key in kept}):
        kind = method.partition(": ")[0]
        pairs = [
            (row, kept[f"{kind}: {REFERENCE}", *key[1:]])
            for key, row in kept.items()
            if key[0] == method and (f"{kind}: {REFERENCE}", *key[1:]) in kept
        ]
        # Differences of more than a nat are of few outliers: they count as one.
        losses = _mean([np.clip(a["nll"] - b["nll"], -1, 1) for a, b in pairs])
        ratios = _mean([math.log(a["crps"] / b["crps"]) for a, b in pairs if "crps" in a])
        lines.append([method, len(pairs), losses, ratios])
    return as_table("| setting | fits | NLL, nats | log of the ratio of CRPS |", lines)


def _mean(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) / math.sqrt(len(values)):.3f}"


def main() -> None:
    """Scores what is missing, prints the comparison, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    names = sorted(path.stem for path in FOLDER.glob("*.npz"))
    parser.add_argument("--tables", nargs="+", choices=names, default=names)
    parser.add_argument("--folds", type=int, default=1)
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # Few rows, copies of rows: known of these tables.
    results = Results(args.out, lambda rows: {"summary": tables_summary.summarise(rows)})
    keys = (
        {"method": f"{kind}: {name}", "table": table, "split": fold}
        for fold in range(args.folds)
        for kind in ("targets", "labels")
        for table in args.tables
        for name in SETTINGS
        if not (kind == "labels" and name in NUMBERS_ONLY)
    )
    print(compared(results.fill(keys, run)))


if __name__ == "__main__":
    main()
