"""Worker of tables.py: this project's ensembles on splits of a table, a line of JSON for each.

    python benchmarks/tables_ours.py METHOD TABLE WHEEL SPLIT... [--held_out=0.1] [--KEY=VALUE ...]

`recipe` is the one recipe for all tables: five members of one hidden layer; on airfoil and bike
sharing the network of bde's paper, with ten. `defaults` is `EnsembleRegressor()`, which has the
values of `configs/tabular.py`.

With --held_out a share of the training rows takes the place of the test rows, and keys of the
configuration can be tried: so settings are chosen.
"""

import argparse
import json
import logging
import time
from typing import Any

import tables_data

import ensemble

RECIPE = {
    "likelihood": "gaussian",
    "model": "mlp",
    "mlp.activation": "relu",
    "ensemble_size": 5,
    "num_epochs": 500,
    "batch_size": 32,
    "optimizer": "adam",
    "learning_rate": 5e-3,
    "schedule": "cosine",
    "beta_nll": 0.5,
    "hold_out": False,
    "num_devices": 1,
}
AT_THE_END = 10**9
NO_LOGS = dict.fromkeys(
    ("log_every_steps", "eval_every_epochs", "plot_every_epochs", "checkpoint_every_epochs"),
    AT_THE_END,
)
BDE = {"mlp.widths": "16,16,16,16", "ensemble_size": 10}
"""The network of bde's paper, and as many members as it has chains."""


def score(method: str, table: str, split: tables_data.Split, keys: dict) -> dict[str, float]:
    """Trains on a split's training rows, and scores its test rows in the targets' units."""
    if method == "defaults":
        regressor = ensemble.EnsembleRegressor(random_state=0, num_devices=1)
        regressor.fit(split.train_inputs, split.train_targets)
        predictor = regressor.predictor_
        arrays = predictor.member_arrays(split.test_inputs)
        return predictor.likelihood.summarise(arrays, split.test_targets)["ensemble"]
    own = BDE if table in tables_data.BDE_TABLES else {"mlp.widths": "50"}
    if table in tables_data.WIDE:
        own = {"mlp.widths": "100"}
    config = RECIPE | NO_LOGS | own | keys
    result = ensemble.train(config, split._asdict(), show_progress=False)
    return result.report["test"]["ensemble"]


def main() -> None:
    """Scores the splits that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", choices=("recipe", "defaults"))
    parser.add_argument("table")
    parser.add_argument("wheel")
    parser.add_argument("splits", type=int, nargs="+")
    parser.add_argument("--held_out", type=float, default=0)
    args, others = parser.parse_known_args()
    keys = {}
    for one in others:
        key, _, value = one.removeprefix("--").partition("=")
        kind: type[Any] = type(RECIPE.get(key, ""))
        keys[key] = kind(value)
    if keys and not args.held_out:
        parser.error("settings are tried on held-out training rows: give --held_out")
    logging.disable(logging.WARNING)  # Copies of rows, few epochs: known of these tables.
    for number in args.splits:
        split = tables_data.read_split(args.table, number, args.wheel)
        if args.held_out:
            split = tables_data.held_out(split, args.held_out, number)
        start, cpu = time.perf_counter(), time.process_time()
        scores = score(args.method, args.table, split, keys)
        line = {name: scores[name] for name in ("rmse", "nll", "nll_by_moments", "crps")} | {
            "split": number,
            "coverage_90": scores["coverage_90"],
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
