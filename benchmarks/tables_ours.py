"""Worker of tables.py: this project's ensembles on splits of a table, a line of JSON for each.

    python benchmarks/tables_ours.py METHOD TABLE WHEEL SPLIT... [--held_out=0.1] [--KEY=VALUE ...]

`recipe` is the one recipe for all tables: five members of one hidden layer; on airfoil and bike
sharing the network of bde's paper, with ten. `defaults` is `EnsembleRegressor()`, which has the
values of `configs/tabular.py`.

With --held_out a share of the training rows takes the place of the test rows, and keys of the
configuration can be tried: so settings are chosen.
"""

import argparse
import logging
from collections.abc import Sequence
from typing import Any

import tables_data

import ensemble
from ensemble import metrics

RECIPE = {
    "likelihood": "gaussian",
    "model": "mlp",
    "mlp.activation": "relu",
    "ensemble_size": 5,
    "num_epochs": 500,
    "batch_size": 32,
    "optimizer": "adam",
    "learning_rate": 5e-3,
    "lr_schedule": "cosine",
    "train_on_all": True,
    "num_devices": 1,
}
AT_THE_END = 10**9
NO_LOGS = dict.fromkeys(
    ("log_every_steps", "eval_every_epochs", "checkpoint_every_epochs"),
    AT_THE_END,
)
BDE = {"mlp.widths": "16,16,16,16", "ensemble_size": 10}
"""The network of bde's paper, and as many members as it has chains."""


SCORES = ("rmse", "nll", "nll_by_moments", "crps", "coverage_90")


def score(
    method: str, table: str, split: tables_data.Split, others: Sequence[str]
) -> dict[str, float]:
    """Trains on a split's training rows, and scores its test rows in the targets' units."""
    if method == "defaults":
        regressor = ensemble.EnsembleRegressor(random_state=0, num_devices=1)
        regressor.fit(split.train_inputs, split.train_targets)
        p = regressor.predict_uncertainty(split.test_inputs)
        return metrics.values(p, split.test_targets, SCORES)
    keys: dict[str, Any] = {}
    for key, value in (one.removeprefix("--").split("=", 1) for one in others):
        kind: type[Any] = type(RECIPE.get(key, ""))
        keys[key] = kind(value)
    own = BDE if table in tables_data.BDE_TABLES else {"mlp.widths": "50"}
    if table in tables_data.WIDE:
        own = {"mlp.widths": "100"}
    config = RECIPE | NO_LOGS | own | keys
    result = ensemble.train(config, split._asdict(), show_progress=False)
    return {name: result.report["metrics"]["test"][name]["value"] for name in SCORES}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--held_out", type=float)
    logging.disable(logging.WARNING)  # Copies of rows, few epochs: known of these tables.
    tables_data.work(parser, ("recipe", "defaults"), score)
