"""The table of the library bde in one run on this machine: our ensemble, our posteriors, and peers.

    python -m venv ../venv-bde
    ../venv-bde/bin/pip install sklearn-contrib-bde==1.0.2
    python benchmarks/bde.py --bde_python=../venv-bde/bin/python
    python benchmarks/bde.py --page

A cell is one method on one split of one table with one seed, in processes of its own that may use
all cores. It is written when it ends, with the commit and the date, and the same command goes on
where it was interrupted; --methods, --tables, --splits and --seeds take a part. The cells that tell
most come first. Ours are the commands of configs/tabular_posterior.py; the cost of a posterior
includes the ensemble that it starts from. Run nothing else meanwhile: seconds are part of the
result.

The tables are those of bde's package. Split 0 is the published one; the others are ten more, made
in the same way. Everything is standardised on the training rows, and scored so.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import bde_page
import numpy as np
import side_by_side
import tables_data
from rows import Results

from ensemble.scoring.sections import values_in

POSTERIORS = {"posterior_8000": ("num_burn_in=200", "num_samples=200"), "posterior_24000": ()}
"""Our posteriors by their steps, and what is not as in the configuration; a draw has 20 steps."""
ENSEMBLES = {"ensemble": 10, "ensemble_300": 300}
"""Ours by their members; 300 cost about as much as the ten with the posterior of 24,000 steps."""
STEP_SIZES = {"airfoil": 0.05, "bike": 0.05 / 12**0.5}
"""By the rule of the configuration: bike sharing has twelve times airfoil's rows."""
METHODS = (
    "least_squares",
    "hist_gradient_boosting",
    *ENSEMBLES,
    *POSTERIORS,
    "bde_5000",
    "bde_51000",
)
"""In the order in which they are run."""
RESULTS = side_by_side.ROOT / "benchmarks" / "results" / "bde.json"
PAGE = side_by_side.ROOT / "docs" / "results.md"
CONFIG = "configs/tabular_posterior.py"
NUM_SEEDS = 5
UNSEEDED = ("least_squares",)


class Cell(NamedTuple):
    """What one row of the results is of."""

    method: str
    table: str
    split: int
    seed: int


def plan(
    methods: Sequence[str], tables: Sequence[str], splits: Sequence[int], seeds: Sequence[int]
) -> list[Cell]:
    """All cells, those that tell most first.

    Of a table that is the published split with one seed; then its other seeds, then one seed of the
    other splits. All else follows when every table has had that.
    """

    def rank(cell: Cell) -> tuple[Any, ...]:
        stage = 2 * (cell.split > 0) + (cell.seed > 0)
        place = METHODS.index(cell.method)
        table = tables_data.BDE_TABLES.index(cell.table)
        return stage == 3, table, stage, cell.split, cell.seed, place

    cells = [
        Cell(method, table, split, seed)
        for method in methods
        for table in tables
        for split in splits
        for seed in seeds
        if not (seed and method in UNSEEDED)
    ]
    return sorted(cells, key=rank)


def run(commands: Sequence[Sequence[str]]) -> tuple[str, dict[str, float]]:
    """Runs commands one after another.

    Returns:
        The output of the last one, and the seconds of all: wall clock and CPU.
    """
    runs = [side_by_side.run_child(command, side_by_side.ROOT) for command in commands]
    costs = ("seconds", "cpu_seconds")
    return runs[-1][0], {key: round(sum(cost[key] for _, cost in runs), 2) for key in costs}


def our_commands(cell: Cell, data: pathlib.Path, folder: pathlib.Path) -> list[list[str]]:
    """What a user types for our ensemble, or for a posterior from it."""

    def command(variant: str, workdir: str, *keys: str) -> list[str]:
        return [
            sys.executable,
            "train.py",
            f"--config={CONFIG}{variant}",
            f"--workdir={folder / workdir}",
            f"--config.dataset=npz:{data}",
            f"--config.seed={cell.seed}",
            "--config.hold_out=False",
            *keys,
        ]

    if cell.method in ENSEMBLES:
        size = ENSEMBLES[cell.method]
        return [command(":start", cell.method, f"--config.ensemble_size={size}")]
    start = command(":start", "ensemble")
    keys = (*POSTERIORS[cell.method], f"step_size={STEP_SIZES[cell.table]:.4f}")
    steps = [f"--config.sampler.{one}" for one in keys]
    return [start, command("", cell.method, f"--config.init_from={folder / 'ensemble'}", *steps)]


def measure(cell: Cell, packages: str, bde_python: str) -> dict[str, Any]:
    """Runs a cell.

    Args:
        cell: to run.
        packages: folder of the library bde, which has the tables.
        bde_python: the interpreter of bde's environment.
    """
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        data = folder / "split.npz"
        np.savez(data, **tables_data.read_split(cell.table, cell.split, packages)._asdict())
        if cell.method in (*ENSEMBLES, *POSTERIORS):
            _, cost = run(our_commands(cell, data, folder))
            report = json.loads((folder / cell.method / "report.json").read_text())
            test = values_in(report["test"])
            row = {name: test[name] for name in ("rmse", "nll_by_moments", "nll")}
            if "posterior" in report:
                row |= {name: report["posterior"][name] for name in ("rhat_max", "num_gradients")}
        else:
            python = bde_python if cell.method.startswith("bde") else sys.executable
            script = str(side_by_side.ROOT / "benchmarks" / "bde_work.py")
            output, cost = run([[python, script, cell.method, str(data), str(cell.seed)]])
            row = json.loads(output.splitlines()[-1])
    return row | cost | {"cores": side_by_side.num_cores()}


def main() -> None:
    """Runs what is missing, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bde_python", default="", help="interpreter that has bde, and its tables")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    tables = tables_data.BDE_TABLES
    splits, seeds = range(tables_data.NUM_BDE_SPLITS), range(NUM_SEEDS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--tables", nargs="+", choices=tables, default=tables)
    parser.add_argument("--splits", nargs="+", type=int, choices=splits, default=splits)
    parser.add_argument("--seeds", nargs="+", type=int, choices=seeds, default=seeds)
    parser.add_argument("--anew", action="store_true", help="forget earlier runs of these")
    parser.add_argument("--page", action="store_true", help="only write its part of a page")
    args = parser.parse_args()
    if args.page:
        side_by_side.write_section(PAGE, bde_page.text(json.loads(args.out.read_text())))
        return
    if not args.bde_python:
        parser.error("--bde_python is needed: its package has the tables")
    python = os.path.abspath(shutil.which(args.bde_python) or args.bde_python)
    packages = tables_data.packages_of(python)
    keys = (one._asdict() for one in plan(args.methods, args.tables, args.splits, args.seeds))
    Results(args.out).fill(keys, lambda **key: measure(Cell(**key), packages, python), args.anew)


if __name__ == "__main__":
    main()
