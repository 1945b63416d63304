"""Is a posterior worth its price? Beside what it starts from, and two ensembles that cost as much.

    PYTHONPATH=. python benchmarks/price.py
    PYTHONPATH=. python benchmarks/price.py --only mnist fashion_mnist

`price_problems.py` has the data and the settings: three UCI tables (../shared/uci) with their first
five standard splits, and 2,000 images of MNIST or 10,000 of Fashion-MNIST. For each split, settings
are chosen on a fifth of its training rows, which is held out: network and prior of the posterior,
network and recipe of the ensemble, among as many candidates, each at about the same CPU seconds.
Then four runs learn all training rows, and `ensemble.evaluate` scores the test rows:

- `start`: the members that the posterior starts from;
- `posterior`: chains from them, at temperature 1;
- `equal_seconds`: an ensemble of the same network and recipe, with as many members as the CPU
  seconds of start and posterior together allow, but at most 100;
- `best_network`: the chosen ensemble, with as many members as these seconds allow.

Every run is written to the JSON when it is done, with commit and date; the same command goes on
where it was interrupted. Several may write to one JSON, each with problems of its own. CPU seconds
are those of the process while it trains, with compiling.
"""

import argparse
import logging
import os
import pathlib
import shutil
import time
from collections.abc import Mapping
from typing import Any

import price_summary
from price_problems import HELD_OUT, PROBLEMS, Problem
from rows import Results
from tables_data import held_out
from tables_ours import NO_LOGS

import ensemble
from ensemble.scoring.sections import values_in

TABLES = ("yacht", "energy", "concrete")
MAX_MEMBERS = 100
"""The comparison by CRPS takes time with the third power of the members."""
RULE = (
    f"Candidates of both sides are as many, scored by NLL on {HELD_OUT:.0%} of the training rows "
    "of each split at temperature 1; the lowest is taken. Candidates of the ensemble have as many "
    f"members, but at most {MAX_MEMBERS}, as the mean CPU seconds of the posterior's candidates "
    "allow."
)


class Split:
    """The runs on one split, those that are in the JSON and those that are yet to be.

    Args:
        results: of all splits.
        folder: of the workdirs.
        problem: its name.
        number: of the split.

    Attributes:
        first: the recipe of ensembles that posteriors start from.
    """

    def __init__(self, results: Results, folder: pathlib.Path, problem: str, number: int):
        self._results = results
        self._key = {"problem": problem, "split": number}
        self._problem: Problem = PROBLEMS[problem]
        self.first = next(iter(self._problem.recipes))
        self._folder = folder / problem / str(number)
        whole = self._problem.read(number)
        self._data = {"candidate": held_out(whole, HELD_OUT, number), "final": whole}

    def workdir(self, stage: str, name: str) -> pathlib.Path:
        """The workdir of one run."""
        return self._folder / f"{stage}_{name}"

    def train(self, stage: str, name: str, keys: dict[str, Any], start: str = "") -> dict[str, Any]:
        """Trains, unless it is done, and returns the row.

        Args:
            stage: 'candidate' or 'final'.
            name: of the run.
            keys: of the configuration.
            start: name of the run whose members the chains start from; empty: members.
        """
        config = {**self._problem.common, "hold_out": False, **keys}
        key = {**self._key, "stage": stage, "name": name, "config": config}
        row, workdir = self._results.find(key), self.workdir(stage, name)
        is_read_again = stage == "final" or name.startswith("start")
        if row and (workdir.exists() or not is_read_again):
            return row
        shutil.rmtree(workdir, ignore_errors=True)  # Of a run that ended early: whole ones count.
        if start:
            config = config | {"init_from": str(self.workdir(stage, start))}
        clock, cpu = time.perf_counter(), time.process_time()
        data = self._data[stage]
        report = ensemble.train(config, data, workdir=str(workdir), show_progress=False).report
        if row:  # Its workdir was lost; its own seconds count.
            return row
        scores, posterior = values_in(report["test"]), report.get("posterior") or {}
        found = {
            "scores": {one: value for one, value in scores.items() if isinstance(value, float)},
            "seconds": time.perf_counter() - clock,
            "cpu_seconds": time.process_time() - cpu,
            **{name: posterior.get(name) for name in ("rhat_max", "ess_bulk_min") if posterior},
        }
        return self._add(key, found)

    def _add(self, key: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        row = self._results.add(key, found)
        shown = [row[name] for name in ("problem", "split", "stage", "name")]
        score = f"NLL {row['scores']['nll']:.4f}"
        print(*shown, score, *row.get("verdict", ()), flush=True)
        return row

    def members(self, stage: str, name: str, shape: str, recipe: str, number: int) -> Any:
        """An ensemble of a number of members."""
        own = {**self._problem.shapes[shape], **self._problem.recipes[recipe]}
        keys = {**self._problem.members, **NO_LOGS, **own, "ensemble_size": number}
        return self.train(stage, name, keys)

    def chains(
        self, stage: str, name: str, shape: str, target: Mapping[str, Any], start: str
    ) -> Any:
        """A posterior."""
        own = {**self._problem.shapes[shape], "num_chains": self._problem.num_members, **target}
        keys = {**self._problem.chains, **self._problem.by_stage[stage], **own}
        return self.train(stage, name, keys, start)

    def choose(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The best candidates: network and target of a posterior, network and recipe of members."""
        posteriors, ensembles, problem, stage = [], [], self._problem, "candidate"
        starts = {shape: self.start(stage, shape) for shape in problem.shapes}
        for shape in problem.shapes:
            for k, target in enumerate(problem.densities):
                row = self.chains(stage, f"posterior_{shape}_{k}", shape, target, f"start_{shape}")
                cost = row["cpu_seconds"] + starts[shape]["cpu_seconds"]
                posteriors.append((row["scores"]["nll"], cost, shape, k))
        mean_cost = sum(cost for _, cost, _, _ in posteriors) / len(posteriors)
        for shape in problem.shapes:
            for recipe in problem.recipes:
                number = self.as_many(stage, mean_cost, shape, recipe)
                row = self.members(stage, f"{recipe}_{shape}", shape, recipe, number)
                ensembles.append((row["scores"]["nll"], shape, recipe))
        (_, _, shape, k), (_, other, recipe) = min(posteriors), min(ensembles)
        return {"network": shape, **problem.densities[k]}, {"network": other, "recipe": recipe}

    def start(self, stage: str, shape: str) -> Any:
        """The members that chains start from."""
        return self.members(stage, f"start_{shape}", shape, self.first, self._problem.num_members)

    def as_many(self, stage: str, seconds: float, shape: str, recipe: str) -> int:
        """How many members cost so many CPU seconds, by what candidates cost for each row.

        What a run costs beside its epochs is that of a run of one epoch. Of more members each costs
        less: the final runs go by the candidate that had most.
        """
        problem, candidate, few = self._problem, "candidate", self._problem.num_members
        own = {**problem.shapes[shape], "num_epochs": 1, "ensemble_size": few}
        keys = {**problem.members, **NO_LOGS, **own}
        beside = self.train(candidate, f"one_epoch_{shape}", keys)["cpu_seconds"]
        epochs = problem.recipes[recipe]["num_epochs"] / problem.recipes[self.first]["num_epochs"]
        of_few = max(self.start(candidate, shape)["cpu_seconds"] - beside, 0.1) * epochs
        per_member = of_few / few
        if stage != candidate:
            name = {"stage": candidate, "name": f"{recipe}_{shape}"}
            known = self._results.find({**self._key, **name})
            assert known
            more = known["config"]["ensemble_size"] - few
            if more > 0:
                per_member = max(known["cpu_seconds"] - beside - of_few, 0.1) / more
        rows = [len(self._data[one]["train_inputs"]) for one in (stage, candidate)]
        left = (seconds - beside) * rows[1] / rows[0] - of_few
        return min(MAX_MEMBERS, max(few, few + round(left / per_member)))

    def compare(self) -> None:
        """The four runs on all training rows, and what the evaluation says of the posterior."""
        key = {**self._key, "stage": "evaluation"}
        if self._results.find(key):
            return
        chosen, best = self.choose()
        shape, first = chosen["network"], self.first
        target = {name: value for name, value in chosen.items() if name != "network"}
        start = self.members("final", "start", shape, first, self._problem.num_members)
        posterior = self.chains("final", "posterior", shape, target, "start")
        cost = start["cpu_seconds"] + posterior["cpu_seconds"]
        others, more = {"start": start}, {"equal_seconds": (shape, first)}
        if (best["network"], best["recipe"]) != (shape, first):  # Else these are the same members.
            more["best_network"] = (best["network"], best["recipe"])
        for name, of in more.items():
            number = self.as_many("final", cost, *of)
            others[name] = self.members("final", name, *of, number)
        found = ensemble.evaluate(
            self.workdir("final", "posterior"),
            compare=[str(self.workdir("final", one)) for one in others],
            datasets=[],
            data=self._data["final"],
            show_progress=False,
        )
        kept = ("num_members", "recipe", "recipe_by_nll")
        against = {
            pathlib.Path(one["workdir"]).name.removeprefix("final_"): {
                "ensemble": values_in(one),
                "difference": values_in(one, "difference"),
                **{name: one[name] for name in kept if name in one},
            }
            for one in found["compare"]
        }
        shares = {name: one["cpu_seconds"] / cost for name, one in others.items()}
        for found_of in (against, shares):
            found_of.setdefault("best_network", found_of["equal_seconds"])
        sizes = {name: len(one) for name, one in self._data["final"].items() if "inputs" in name}
        row = {"name": "posterior", "chosen": chosen, "best_network": best, "sizes": sizes}
        row |= {
            "scores": values_in(found["test"]),
            "rhat_max": found["posterior"]["predictive"]["rhat_max"],
            "share_of_seconds": shares,
        }
        verdict = [one["text"] for one in found["findings"] if one["code"].startswith("start.")]
        self._add(key, {**row, "against": against, "verdict": verdict})


def main() -> None:
    """Runs what is missing, and prints the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default="benchmarks/results/price.json")
    parser.add_argument("--workdirs", type=pathlib.Path, default="/tmp/price")
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=TABLES)
    parser.add_argument("--splits", type=int, default=5, help="at most so many of each")
    args = parser.parse_args()
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # Every run costs what it costs alone.
    logging.disable(logging.WARNING)  # Copies of rows, chains that mix slowly: in the reports.
    results = Results(args.out, lambda rows: {"summary": price_summary.summarise(rows)}, rule=RULE)
    for number in range(args.splits):
        for problem in args.only:
            if number < PROBLEMS[problem].num_splits:
                Split(results, args.workdirs, problem, number).compare()
    print(price_summary.format_all(results.rows()))


if __name__ == "__main__":
    main()
