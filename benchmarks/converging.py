"""What makes chains of networks agree in what they predict, and does it help? At equal gradients.

    PYTHONPATH=. nice python benchmarks/converging.py
    PYTHONPATH=. python benchmarks/converging.py --only gap_energy

The network is one hidden layer of 50, the prior and the sampler are price.py's, on the first five
standard splits of yacht and concrete (../shared/uci). Every posterior starts from members of one
recipe, and has the same number of gradient evaluations over all of its chains, `NUM_GRADIENTS`;
its CPU seconds lie beside. Varied are:

- `chains`: 8 chains, or 32 with a quarter of the draws, each from a member of its own;
- `temperature`: 1, which is Bayes, or .3;
- `heads`: the hidden layer of each of 8 members is fixed, and two chains sample its output layer;
  the predictions are the mixture over all members.

`gap_energy` tests the middle third of the rows by one column, and trains on the rest, for each of
its eight columns (Foong et al. 2019, "In-Between Uncertainty in Bayesian Neural Networks"): there
ensembles are known to fail.

All of it takes less than four CPU hours.

A row has test scores in the targets' units, and R-hat of predictions on test rows. Rows are
written when they are done; the same command goes on where it was interrupted.
"""

import argparse
import logging
import os
import pathlib
import shutil
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import price_problems
import tables_data
from converging_summary import ALL, GAPS, SCORES, STANDARD, format_all
from rows import Results
from tables_ours import NO_LOGS

import ensemble
from ensemble.scoring.sections import values_in, values_of

NUM_BURN_IN, NUM_DRAWS = 100, 400
"""Draws of each of eight chains; each of more chains has fewer."""
NUM_GRADIENTS = 8 * (NUM_BURN_IN + NUM_DRAWS) * 40
POSTERIORS: Mapping[str, Mapping[str, Any]] = {
    "8 chains": {"num_chains": 8, "temperature": 1.0},
    "32 chains": {"num_chains": 32, "temperature": 1.0},
    "8 chains, T = .3": {"num_chains": 8, "temperature": 0.3},
    "32 chains, T = .3": {"num_chains": 32, "temperature": 0.3},
}
HEADS = {"heads": 1.0, "heads, T = .3": 0.3}
"""Temperatures."""
GAP = "gap_"
AFTER_GAPS = ("8 members", "32 members", "8 chains", "32 chains")
"""The entries that are run where rows are missing in the middle."""


def read(table: str, number: int) -> dict[str, np.ndarray]:
    """The arrays of a split, whose inputs have mean 0 and sd 1 over the training rows.

    Args:
        table: its name, after `gap_` where the split is by the column of this number.
        number: of the split.
    """
    name = table.removeprefix(GAP)
    split = tables_data.read_split(name, 0 if name != table else number, "")
    if name != table:
        split = with_gap(split, number)
    arrays = split._asdict()
    loc, scale = arrays["train_inputs"].mean(0), arrays["train_inputs"].std(0)
    for one in ("train_inputs", "test_inputs"):
        arrays[one] = (arrays[one] - loc) / np.where(scale > 0, scale, 1.0)
    return arrays


def with_gap(split: tables_data.Split, column: int) -> tables_data.Split:
    """Tests the middle third of all rows in the order of a column, ties as they come."""
    inputs = np.concatenate([split.train_inputs, split.test_inputs])
    targets = np.concatenate([split.train_targets, split.test_targets])
    order = np.argsort(inputs[:, column], kind="stable")
    third = len(order) // 3
    middle, rest = order[third : 2 * third], np.concatenate([order[:third], order[2 * third :]])
    return tables_data.Split(inputs[rest], targets[rest], inputs[middle], targets[middle])


def num_splits(table: str) -> int:
    """Five, or as many as a table with gaps has columns."""
    return read(table, 0)["train_inputs"].shape[1] if table.startswith(GAP) else 5


class Split:
    """The runs on one split.

    Args:
        folder: of the workdirs.
        table: its name.
        number: of the split.

    Attributes:
        data: arrays by `train_inputs` and so on.
    """

    def __init__(self, folder: pathlib.Path, table: str, number: int):
        self._problem = price_problems.PROBLEMS[table.removeprefix(GAP)]
        self.data = read(table, number)
        self._folder = folder / table / str(number)

    def run(self, name: str) -> dict[str, Any]:
        """Runs one of `ALL`, and returns its row."""
        if name in POSTERIORS:
            start = self._members(POSTERIORS[name]["num_chains"])
            clock = time.process_time()
            found = self._sample({**POSTERIORS[name], "init_from": str(start)}, self.data)
        elif name in HEADS:
            start = self._members(8)
            clock = time.process_time()
            found = self._heads(start, HEADS[name])
        else:
            number = int(name.split()[0])
            shutil.rmtree(self._folder / str(number), ignore_errors=True)
            clock = time.process_time()
            found = {"scores": self._scores(self._members(number))}
        return {**found, "cpu_seconds": time.process_time() - clock}

    def _members(self, number: int) -> pathlib.Path:
        """The workdir of members, which are trained unless they are there."""
        workdir = self._folder / str(number)
        if not (workdir / "report.json").exists():
            problem = self._problem
            keys = {**problem.common, **problem.members, **problem.recipes["recipe"]}
            keys |= {**problem.shapes["50"], **NO_LOGS, "hold_out": False, "ensemble_size": number}
            ensemble.train(keys, self.data, workdir=str(workdir), show_progress=False)
        return workdir

    def _sample(
        self, keys: Mapping[str, Any], data: Mapping[str, np.ndarray], share: float = 1.0
    ) -> dict[str, Any]:
        """A posterior that takes a share of `NUM_GRADIENTS`: its workdir, scores and R-hat."""
        problem = self._problem
        leapfrog = problem.chains["sampler.num_leapfrog_steps"]
        draws = round(NUM_GRADIENTS * share / leapfrog / keys["num_chains"])
        burn_in = round(draws * NUM_BURN_IN / (NUM_BURN_IN + NUM_DRAWS))
        own = {"sampler.num_burn_in": burn_in, "sampler.num_samples": draws - burn_in}
        shape = {**problem.shapes["50"], "prior": price_problems.HE}
        config = {**problem.common, **problem.chains, "hold_out": False, **shape, **own, **keys}
        if config["model"] != "mlp":
            config = {name: one for name, one in config.items() if not name.startswith("mlp.")}
        workdir = self._folder / "posterior"
        shutil.rmtree(workdir, ignore_errors=True)
        ensemble.train(config, data, workdir=str(workdir), show_progress=False)
        found = ensemble.evaluate(workdir, datasets=[], data=data, show_progress=False)
        return {
            "scores": {one: float(values_in(found["test"])[one]) for one in SCORES},
            "rhat_max": found["posterior"]["predictive"]["rhat_max"],
        }

    def _heads(self, start: pathlib.Path, temperature: float) -> dict[str, Any]:
        """Samples the output layers of members, two chains each, over their hidden layers."""
        params = ensemble.load(start).fitted.sets["params"]["Dense_0"]
        number = len(params["bias"])
        said, rhats = [], []
        for k in range(number):
            hidden = {
                f"{split}_inputs": np.asarray(
                    jax.nn.silu(
                        self.data[f"{split}_inputs"] @ params["kernel"][k] + params["bias"][k]
                    )
                )
                for split in ("train", "test")
            }
            keys = {"model": "logistic_regression", "num_chains": 2, "temperature": temperature}
            keys |= {"init_from": "prior", "sampler.step_size": 0.1}
            found = self._sample(keys, {**self.data, **hidden}, share=1 / number)
            rhats.append(found["rhat_max"])
            predictor = ensemble.load(self._folder / "posterior")
            said.append(predictor.member_arrays(hidden["test_inputs"]))
        mixture = {one: np.concatenate([arrays[one] for arrays in said]) for one in said[0]}
        scores = values_of(predictor.likelihood.view(mixture, self.data["test_targets"]))
        return {"scores": {one: float(scores[one]) for one in SCORES}, "rhat_max": max(rhats)}

    def _scores(self, workdir: pathlib.Path) -> dict[str, float]:
        predictor = ensemble.load(workdir)
        arrays = predictor.member_arrays(self.data["test_inputs"])
        scores = values_of(predictor.likelihood.view(arrays, self.data["test_targets"]))
        return {one: float(scores[one]) for one in SCORES}


def main() -> None:
    """Runs what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default="benchmarks/results/converging.json")
    parser.add_argument("--workdirs", type=pathlib.Path, default="/tmp/converging")
    parser.add_argument("--only", nargs="+", choices=(*STANDARD, *GAPS), default=STANDARD + GAPS)
    args = parser.parse_args()
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    logging.disable(logging.WARNING)  # Copies of rows, chains that mix slowly: in the rows.
    results = Results(
        args.out, rule=f"{NUM_GRADIENTS:,} gradients, over all chains of a posterior."
    )

    def run(table: str, split: int, name: str) -> dict[str, Any]:
        one = Split(args.workdirs, table, split)
        sizes = {which: len(one.data[f"{which}_inputs"]) for which in ("train", "test")}
        return {"test_share": sizes["test"] / sizes["train"], **one.run(name)}

    keys = [
        {"table": table, "split": split, "name": name}
        for split in range(max(map(num_splits, args.only)))
        for table in args.only
        if split < num_splits(table)
        for name in (AFTER_GAPS if table in GAPS else ALL)
    ]
    print(format_all(results.fill(keys, run)))


if __name__ == "__main__":
    main()
