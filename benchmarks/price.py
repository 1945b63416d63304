"""Is a posterior worth its price? Beside the ensemble that it starts from, and two that cost as much.

    python benchmarks/price.py --out=benchmarks/results/price.json

On the standard splits of three UCI tables (../shared/uci). For each split, settings are chosen on
a fifth of its training rows, which is held out: network and prior of the posterior, network and
recipe of the ensemble, among as many candidates, each at about the same CPU seconds. Then four runs
learn all training rows, and the test rows are scored by `ensemble.evaluate`:

- `start`: the members that the posterior starts from;
- `posterior`: MCLMC from them, at temperature 1;
- `equal_seconds`: an ensemble of the same network and recipe, with as many members as the CPU
  seconds of start and posterior together allow;
- `best_network`: the chosen ensemble, with as many members as these seconds allow.

Every run is written to the JSON when it is done, with commit and date; the same command goes on
where it was interrupted. CPU seconds are of the process while it trains, with compiling.
"""

import argparse
import datetime
import json
import logging
import os
import pathlib
import subprocess
import time
from typing import Any

import price_summary
import side_by_side
import tables_data

import ensemble

TABLES = ("yacht", "energy", "concrete")
NUM_SPLITS = 5
HELD_OUT = 0.2
"""Share of the training rows on which settings are chosen."""
NUM_MEMBERS = 8
MAX_MEMBERS = 400
NETWORKS = ("50", "16,16")
"""Widths of the hidden layers; the literature has one of 50."""
PRIORS = (
    "normal(1)",
    "*kernel=normal(1.4142/sqrt(fan_in)), *=normal(1)",
    "*kernel=student_t(1/sqrt(fan_in), df=4), *=normal(1)",
)
RECIPES: dict[str, dict[str, Any]] = {
    "recipe": {"num_epochs": 500},
    "weight_decay": {"num_epochs": 500, "weight_decay": 1e-3},
    "long": {"num_epochs": 2000},
}
"""What ensembles choose from, as posteriors do from PRIORS; the first starts the posteriors."""

COMMON = {
    "likelihood": "gaussian",
    "model": "mlp",
    "mlp.activation": "silu",
    "hold_out": False,
}
MEMBERS = {
    "batch_size": 32,
    "optimizer": "adam",
    "learning_rate": 5e-3,
    "schedule": "cosine",
    "beta_nll": 0.5,
    "log_every_steps": 10**9,
    "eval_every_epochs": 10**9,
    "plot_every_epochs": 10**9,
    "checkpoint_every_epochs": 10**9,
}
CHAINS = {
    "method": "mclmc",
    "num_chains": NUM_MEMBERS,
    "hmc.num_leapfrog_steps": 20,
    "hmc.num_warmup": 2000,
    "hmc.num_burn_in": 100,
    "hmc.thin": 20,
}
NUM_DRAWS = {"candidate": 100, "final": 500}
RULE = (
    f"Candidates of either side: {len(NETWORKS) * len(PRIORS)}, scored by NLL on {HELD_OUT:.0%} of "
    "the training rows of each split at temperature 1; the lowest is taken. Candidates of the "
    "ensemble have as many members as the mean CPU seconds of the posterior's candidates allow."
)


class Split:
    """The runs on one split of a table, those that are in the JSON and those that are yet to be.

    Args:
        results: of all splits.
        folder: of the workdirs.
        table: its name.
        number: of the split.
    """

    def __init__(self, results: "Results", folder: pathlib.Path, table: str, number: int):
        self._results, self._table, self._number = results, table, number
        self._folder = folder / table / str(number)
        whole = tables_data.read_split(table, number, "")
        self._data = {
            "candidate": tables_data.held_out(whole, HELD_OUT, number)._asdict(),
            "final": whole._asdict(),
        }

    def workdir(self, stage: str, name: str) -> pathlib.Path:
        """Of one run."""
        return self._folder / f"{stage}_{name}"

    def train(self, stage: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
        """Trains, unless it is done, and returns the row."""
        key = {"table": self._table, "split": self._number, "stage": stage, "name": name}
        workdir = self.workdir(stage, name)
        if (row := self._results.find(key)) and (stage == "candidate" or workdir.exists()):
            return row
        start, cpu = time.perf_counter(), time.process_time()
        config = COMMON | config
        data, where = self._data[stage], str(workdir)
        report = ensemble.train(config, data, workdir=where, show_progress=False).report
        seconds = {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu,
        }
        if row:  # Its workdir was lost; its first seconds count, and these may be a resumption's.
            return row
        posterior = report.get("posterior") or {}
        scores = report["test"]["ensemble"]
        row = key | {
            "config": config | {"init_from": config.get("init_from", "")},
            **{one: scores[one] for one in ("nll", "rmse", "crps", "nll_by_moments")},
            **seconds,
            **{f"posterior_{one}": posterior.get(one) for one in ("rhat_max", "ess_bulk_min")},
        }
        self._results.add(row)
        return row

    def members(self, stage: str, name: str, network: str, recipe: str, number: int) -> Any:
        """An ensemble."""
        own = {"mlp.widths": network, "ensemble_size": number}
        return self.train(stage, name, MEMBERS | RECIPES[recipe] | own)

    def chains(self, stage: str, name: str, network: str, prior: str, start: str) -> Any:
        """A posterior."""
        own = {
            "mlp.widths": network,
            "prior": prior,
            "hmc.num_samples": NUM_DRAWS[stage],
            "init_from": str(self.workdir(stage, start)),
        }
        return self.train(stage, name, CHAINS | own)

    def choose(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The best candidates: network and prior of a posterior, network and recipe of members."""
        posteriors, ensembles = [], []
        first = next(iter(RECIPES))
        starts = {
            network: self.members("candidate", f"start_{network}", network, first, NUM_MEMBERS)
            for network in NETWORKS
        }
        for network in NETWORKS:
            for k, prior in enumerate(PRIORS):
                name, start = f"posterior_{network}_{k}", f"start_{network}"
                row = self.chains("candidate", name, network, prior, start)
                cost = row["cpu_seconds"] + starts[network]["cpu_seconds"]
                posteriors.append((row["nll"], cost, network, prior))
        mean_cost = sum(cost for _, cost, _, _ in posteriors) / len(posteriors)
        for network in NETWORKS:
            for recipe, keys in RECIPES.items():
                longer = keys["num_epochs"] / RECIPES[first]["num_epochs"]
                number = as_many(mean_cost, longer * starts[network]["cpu_seconds"])
                row = self.members("candidate", f"{recipe}_{network}", network, recipe, number)
                ensembles.append((row["nll"], network, recipe))
        _, _, network, prior = min(posteriors)
        _, other, recipe = min(ensembles)
        return {"network": network, "prior": prior}, {"network": other, "recipe": recipe}

    def compare(self) -> None:
        """The four runs on all training rows, and what the evaluation says of the posterior."""
        key = {"table": self._table, "split": self._number, "stage": "evaluation"}
        if self._results.find(key):
            return
        chosen, best = self.choose()
        network, first = chosen["network"], next(iter(RECIPES))
        start = self.members("final", "start", network, first, NUM_MEMBERS)
        posterior = self.chains("final", "posterior", network, chosen["prior"], "start")
        cost = start["cpu_seconds"] + posterior["cpu_seconds"]
        number = as_many(cost, start["cpu_seconds"])
        self.members("final", "equal_seconds", network, first, number)
        longer = RECIPES[best["recipe"]]["num_epochs"] / RECIPES[first]["num_epochs"]
        number = as_many(cost, longer * start["cpu_seconds"])
        self.members("final", "best_network", best["network"], best["recipe"], number)
        others = [self.workdir("final", one) for one in ("start", "equal_seconds", "best_network")]
        found = ensemble.evaluate(
            self.workdir("final", "posterior"),
            compare=[str(one) for one in others],
            datasets=[],
            data=self._data["final"],
            show_progress=False,
        )
        against = {
            path.name: {
                "nll": one["ensemble"]["nll"],
                "recipe_by_nll": one["recipe_by_nll"],
                "rmse": one["ensemble"]["rmse"],
                "num_members": one["num_members"],
            }
            for path, one in zip(others, found["compare"], strict=True)
        }
        scores = {name: found["test"]["ensemble"][name] for name in ("nll", "rmse", "crps")}
        sizes = {split: len(one) for split, one in self._data["final"].items() if "inputs" in split}
        self._results.add(
            key
            | {"name": "posterior", "chosen": chosen, "best_network": best, "scores": scores}
            | {"rhat_max": found["posterior"]["rhat_max"], "against": against, "sizes": sizes}
            | {"verdict": [line for line in found["verdict"] if "starts from" in line]}
        )


class Results:
    """The rows of the JSON, on disk after every run."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self.content: dict[str, Any] = {"rows": []}
        if path.exists():
            self.content = json.loads(path.read_text())
        self.content |= {"machine": side_by_side.describe_machine(), "rule": RULE}
        self._commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=side_by_side.ROOT, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The row that has these values."""
        rows = self.content["rows"]
        return next((row for row in rows if key.items() <= {**row, "config": ""}.items()), None)

    def add(self, row: dict[str, Any]) -> None:
        """Adds a row, and the summary that follows from all of them."""
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.content["rows"].append(row | {"commit": self._commit, "date": date})
        self.content["summary"] = price_summary.summarise(self.content["rows"])
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1) + "\n")
        part.replace(self._path)
        shown = {name: one for name, one in row.items() if name not in ("config", "against")}
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in shown.items()}, flush=True)


def as_many(seconds: float, of_members: float) -> int:
    """How many members cost so many CPU seconds, if `NUM_MEMBERS` cost `of_members`."""
    return min(MAX_MEMBERS, max(NUM_MEMBERS, round(NUM_MEMBERS * seconds / of_members)))


def main() -> None:
    """Runs what is missing, and prints the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default="benchmarks/results/price.json")
    parser.add_argument("--workdirs", type=pathlib.Path, default="/tmp/price")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--splits", nargs="+", type=int, default=range(NUM_SPLITS))
    args = parser.parse_args()
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    logging.disable(logging.WARNING)  # Copies of rows, chains that mix slowly: in the reports.
    results = Results(args.out)
    for number in args.splits:
        for table in args.tables:
            Split(results, args.workdirs, table, number).compare()
    print(price_summary.format_all(results.content["rows"]))


if __name__ == "__main__":
    main()
