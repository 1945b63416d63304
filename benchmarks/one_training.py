"""Methods that make several predictions of one training, beside the trainings themselves.

    python benchmarks/one_training.py --workdir=runs/one_training \
        --out=benchmarks/results/one_training.json

4,000 images of Fashion-MNIST, 800 to validate, 10,000 to test; the how-to's CNN; five seeds. For
each seed: a deep ensemble of 8, MultiSWAG of 4 by the same epochs, MC dropout, snapshots, and
Laplace approximations of the last layer around the 8. Member k of a method is laid beside member k
of the ensemble, which has the same seed. Seconds are of the CPU, of one thread, imports and
compilation included. The same command goes on where it was interrupted; it takes two hours on one
core. `--jobs=15` runs as many cells side by side.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import queue
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
from rows import Results, Row

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEEDS = range(5)
RECIPE = {
    "model": "cnn",
    "num_devices": 1,
    "num_epochs": 12,
    "batch_size": 128,
    "learning_rate": 0.05,
    "weight_decay": 1e-4,
    "schedule": "cosine",
    "eval_every_epochs": 1000,
    "plot_every_epochs": 1000,
    "checkpoint_every_epochs": 1000,
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"ensemble_size": 8},
    "laplace": {"ensemble_size": 8},
    "swag_of_4_draws": {"method": "swag", "ensemble_size": 4, "swag.num_draws": 4},
    "swag": {"ensemble_size": 4},
    "laplace_draws": {"method": "laplace", "ensemble_size": 8, "laplace.predictive": "draws"},
    "varied": {"ensemble_size": 8, "varied.learning_rate_factor": "0.5,2"},
    "mc_dropout": {"ensemble_size": 2, "cnn.dropout": 0.2},
    "snapshots": {"ensemble_size": 2},
}
"""In this order: those of `laplace` begin with the members of `sgd`."""
_OF_LAPLACE = ("model", "num_devices", "batch_size")


def keep_data(seed: int, folder: pathlib.Path) -> None:
    """Writes the images of a seed by split, the training ones another 4,000 for each."""
    if (folder / "data.npz").exists():
        return
    from ensemble.sources.catalogue import load_dataset

    source = load_dataset("fashion_mnist", os.environ.get("TFDS_DATA_DIR"))
    rng, found = np.random.default_rng(seed), dict[str, Any]()
    sizes = {"train": 4000, "validation": 800, "test": None}
    for split, size in sizes.items():
        rows = rng.permutation(source.sizes[split])[:size]
        read = source.read(split, np.sort(rows))
        found |= {f"{split}_inputs": read.inputs, f"{split}_labels": read.targets}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "data.npz", **found)


def config_of(method: str, seed: int, folder: pathlib.Path) -> dict[str, Any]:
    """The configuration of a cell."""
    own = METHODS[method]
    name = own.get("method", method)
    if name == "laplace":
        shared = {key: RECIPE[key] for key in _OF_LAPLACE}
        start = {"init_from": str(folder / "sgd")}
        return {**shared, **own, "method": name, "seed": seed, **start}
    shared = dict(RECIPE)
    if name in ("swag", "snapshots"):  # Their rates have a course of their own.
        del shared["schedule"]
    return {**shared, **own, "method": name, "seed": seed}


def work(method: str, seed: int, folder: pathlib.Path) -> None:
    """Trains and scores one cell, and prints it as JSON."""
    import ensemble

    config = config_of(method, seed, folder)
    config["checkpoint_every_epochs"] = config.get("checkpoint_every_epochs", 1000)
    data = dict(np.load(folder / "data.npz"))
    result = ensemble.train(config, data, str(folder / method), show_progress=False)
    used = resource.getrusage(resource.RUSAGE_SELF)
    scores = result.report["test"]["scores"]
    found = {
        name: {"ensemble": scores[name]["value"], "members": scores[name]["members"]}
        for name in ("nll", "accuracy")
    }
    print(json.dumps({**found, "cpu_seconds": used.ru_utime + used.ru_stime}))


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Differences to the ensemble, with 95% intervals over seeds, by Student's t."""
    by = {(row["method"], row["seed"]): row for row in rows}
    found: dict[str, Any] = {}
    for method in METHODS:
        seeds = [s for s in SEEDS if {(method, s), ("sgd", s)} <= by.keys()]
        if len(seeds) < 2 or method == "sgd":
            continue
        ours = [by[method, s] for s in seeds]
        theirs = [by["sgd", s] for s in seeds]
        size = len(ours[0]["nll"]["members"])
        of_members = [
            np.mean(np.subtract(a["nll"]["members"], b["nll"]["members"][:size]))
            for a, b in zip(ours, theirs, strict=True)
        ]
        whole = [
            a["nll"]["ensemble"] - b["nll"]["ensemble"] for a, b in zip(ours, theirs, strict=True)
        ]
        found[method] = {
            "seeds": len(seeds),
            "member_less_member": _interval(of_members),
            f"ensemble_of_{size}_less_8": _interval(whole),
            "cpu_share": float(
                np.mean(
                    [a["cpu_seconds"] / b["cpu_seconds"] for a, b in zip(ours, theirs, strict=True)]
                )
            ),
        }
    return {"summary": found}


def _interval(values: Sequence[float]) -> dict[str, float]:
    mean, error = float(np.mean(values)), scipy.stats.sem(values)
    margin = float(scipy.stats.t.ppf(0.975, len(values) - 1) * error)
    return {"mean": mean, "low": mean - margin, "high": mean + margin}


def main() -> None:
    """Works on the cells that are not there yet, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True, type=pathlib.Path, help="folder of the runs")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file to write")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, of a core each")
    parser.add_argument("--cell", nargs=2, metavar=("METHOD", "SEED"), help="of one process")
    args = parser.parse_args()
    if args.cell:
        method, seed = args.cell[0], int(args.cell[1])
        return work(method, seed, args.workdir / str(seed))
    results = Results(args.out, summarise, benchmark=__doc__.splitlines()[0])
    cores = queue.SimpleQueue[int]()
    for core in sorted(os.sched_getaffinity(0))[: args.jobs]:
        cores.put(core)
    with concurrent.futures.ThreadPoolExecutor(cores.qsize()) as pool:
        started: dict[tuple[str, int], concurrent.futures.Future[None]] = {}
        for method, seed in itertools.product(METHODS, SEEDS):
            keep_data(seed, args.workdir / str(seed))
            before = started["sgd", seed] if method.startswith("laplace") else None
            started[method, seed] = pool.submit(
                run_cell, method, seed, args.workdir, results, cores, before
            )
        for one in concurrent.futures.as_completed(started.values()):
            one.result()
    return None


def run_cell(
    method: str,
    seed: int,
    workdir: pathlib.Path,
    results: Results,
    cores: "queue.SimpleQueue[int]",
    before: "concurrent.futures.Future[None] | None",
) -> None:
    """Runs one cell in a process of its own, on a core of its own, unless its row is there.

    Args:
        method: of `METHODS`.
        seed: of `SEEDS`.
        workdir: of all cells.
        results: that get its row.
        cores: that are free.
        before: the cell that must have ended.
    """
    key = {"method": method, "seed": seed}
    if before is not None:
        before.result()
    if results.find(key) is not None:
        return
    core = cores.get()
    command = ["taskset", "-c", str(core), sys.executable, __file__, f"--workdir={workdir}"]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [*command, "--cell", method, str(seed)],
            env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        cores.put(core)
    found = results.add(key, json.loads(done.stdout.splitlines()[-1]))
    print(method, seed, found["nll"], round(found["cpu_seconds"]), flush=True)


if __name__ == "__main__":
    main()
