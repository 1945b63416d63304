"""Measures how the cost of a run grows with members, examples, rows, draws and devices.

    python benchmarks/growth.py --out=benchmarks/results/growth.json
    python benchmarks/growth.py --out=growth.json --parts rows draws

Each point is a whole fresh process, without compiled programs: its seconds, its CPU seconds of all
threads, and its largest resident size; of several processes, that of the largest. The rate is that
of steady training or sampling in examples of members per second, without start-up, compilation,
evaluation and report. Each point is compared with the one before: a cost that grows faster than the
work is a fault. CPU seconds of one more unit are differences of two points, so that start-up does
not hide a fault; small differences are noise.

`results/scaling.json` has rates over more layouts of devices, in alternating rounds. Points are
written when they end, and the same command resumes with the next one. A whole run takes eight
minutes on two cores.
"""

import argparse
import itertools
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import side_by_side
import train_ours
from rows import Results, Row

TENFOLD = (1000, 10_000, 100_000, 1_000_000)
PARTS: Mapping[str, tuple[int, ...]] = {
    "members, CNN": (1, 4, 16, 64),
    "members, MLP": (1, 4, 16, 64),
    "images": TENFOLD[:3],
    "rows": TENFOLD,
    "rows of csv": TENFOLD,
    "draws": (100, 1000, 10_000),
    "devices": (1, 2, 4, 8),
    "processes": (1, 4),
}
"""Sizes, from small to large, of what is varied."""
FIXED = {"devices": "1 {}", "processes": "{} 1"}
"""Processes and devices of parts whose points share the same work, that of `scaling_worker.py`."""
STEPS = {"num_epochs": None, "num_steps": 12, "log_every_steps": 4}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "members, CNN": {"model": "cnn", "batch_size": 32, **STEPS},
    "members, MLP": {**train_ours.TABLE, **STEPS, "num_steps": 200, "log_every_steps": 50},
    "images": {"model": "mlp", "ensemble_size": 4, "num_epochs": 1, "log_every_steps": 4},
    "rows": {"num_epochs": 1},
    "draws": {
        "model": "logistic_regression",
        "method": "hmc",
        "prior": "normal(1)",
        "init_from": "prior",
        "num_chains": 4,
        "log_every_steps": 50,
        "sampler.step_size": 0.05,
        "sampler.num_leapfrog_steps": 8,
        "sampler.num_warmup": 100,
        "sampler.thinning": 1,
        "max_draws_per_chain": 10_000,
    },
}
"""Keys of the configuration of parts that call `ensemble.train`."""
COSTS = ("seconds", "cpu_seconds", "mib")
MEASURED = (*COSTS, "rate")
TOLERANCE = 1.1
"""Growth of a cost relative to that of its work, above which it is a fault."""


def work(part: str, size: int) -> float | None:
    """Runs a point in this process.

    Args:
        part: A name of `PARTS`, but of no file and not of `FIXED`.
        size: Size of the point.

    Returns:
        Steady rate; None if the run is too short to measure it.
    """
    import ensemble

    inputs, targets = train_ours.generate_table(max(size, 10_000), 10).values()
    settings = {"num_devices": 1, **SETTINGS[part]}
    if part == "rows":
        fitted = ensemble.EnsembleRegressor(**settings, config={"log_every_steps": size // 128})
        report = fitted.fit(inputs[:size], targets[:size]).report_
    else:
        data = {"inputs": inputs, "targets": targets}
        if part == "draws":
            settings["sampler.num_samples"] = size
            data = {"inputs": inputs[:1000], "labels": (targets[:1000] > 0).astype(int)}
        elif part != "members, MLP":
            data = train_ours.generate_images(train=max(size, 1000), validation=200, test=500)
        if "members" in part:
            settings["ensemble_size"] = size
        report = ensemble.train(settings, data, "run", show_progress=False).report
    return report["timing"]["member_examples_per_second"]


def read_file(size: int) -> None:
    """Runs `ensemble train` on a file, and ends the process at its first step."""
    from ensemble import cli
    from ensemble.runtime.run import Run

    Run.advanced = lambda *_: os._exit(0)  # type: ignore
    keys = (f"dataset=csv:{size}.csv", "target=y", "num_devices=1", "log_every_steps=1")
    command = ["ensemble", "train", "--config=tabular:deep_ensemble", "--workdir=run"]
    sys.exit(cli.main([*command, *(f"--config.{key}" for key in keys)]) or "no step was taken")


def write_file(size: int, folder: str) -> None:
    """Writes a table of ten numbers, a category and a target."""
    import pandas as pd

    inputs, targets = train_ours.generate_table(size, 10).values()
    frame = pd.DataFrame(inputs.round(2)).add_prefix("x")
    kinds = np.resize(["red", "green", "blue"], size)
    frame.assign(kind=kinds, y=targets.round(4)).to_csv(f"{folder}/{size}.csv", index=False)


def run(part: str, size: int) -> dict[str, Any]:
    """Measures a point in a fresh process.

    Args:
        part: A name of `PARTS`.
        size: Size of the point.

    Returns:
        Its `COSTS`, and its `rate` if the part has one.
    """
    folder = pathlib.Path(__file__).resolve().parent
    words = ["growth.py", "--work", part, str(size)]
    if part in FIXED:
        words = ["scaling_worker.py", "sgd", *FIXED[part].format(size).split(), "whole"]
    command = [sys.executable, "-W", "ignore", f"{folder}/{words[0]}", *words[1:]]
    with tempfile.TemporaryDirectory() as place:
        if part == "rows of csv":
            write_file(size, place)
        output, costs = side_by_side.run_child(command, place, PYTHONPATH=f"{folder.parent}")
    last = output.strip().rpartition("\n")[2]
    return costs | (json.loads(last) if last.startswith("{") else {})


def growth(rows: Iterable[Row]) -> dict[str, Any]:
    """Compares each point with the one before.

    Args:
        rows: Points, in any order.

    Returns:
        `growth`, an entry of each point: its costs, and from the second point of a part on ratios
        of `work` and of `COSTS`, `one_more`, CPU seconds of a unit that was added, and `faults`,
        the costs that grow faster than the work.
    """
    found = []
    ordered = sorted(rows, key=lambda row: (list(PARTS).index(row["part"]), row["size"]))
    for before, row in itertools.pairwise([{"part": None}, *ordered]):
        part, size = row["part"], row["size"]
        entry = {"part": part, "size": f"{size:,}", **{key: row.get(key) for key in MEASURED}}
        if before["part"] == part:
            entry["work"] = 1 if part in FIXED else size / before["size"]
            ratios = {f"{key} x": row[key] / before[key] for key in COSTS}
            more = row["cpu_seconds"] - before["cpu_seconds"]
            entry |= {**ratios, "one_more": more / (size - before["size"])}
            faults = [key for key in ratios if ratios[key] > TOLERANCE * entry["work"]]
            entry["faults"] = ", ".join(faults)
        found.append(entry)
    return {"growth": found}


def table(rows: Iterable[Row]) -> str:
    """Lays points and their growth out in Markdown."""
    head = "| part | size | s | CPU s | MiB | examples/s | work x | s x | CPU s x | MiB x |"
    lines = [
        [one if isinstance(one, str) else side_by_side.number(one) for one in entry.values()]
        for entry in growth(rows)["growth"]
    ]
    return side_by_side.as_table(f"{head} CPU s of one more | faults |", lines)


def main() -> None:
    """Measures what is missing, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default="growth.json", help="JSON file")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--work", nargs=2, help="part and size to run in this process")
    args = parser.parse_args()
    if not args.work:
        keys = [{"part": part, "size": size} for part in args.parts for size in PARTS[part]]
        results = Results(args.out, growth, command="python benchmarks/growth.py --out=FILE.json")
        print(table(results.fill(keys, run)))
    elif args.work[0] == "rows of csv":
        read_file(int(args.work[1]))
    else:
        print(json.dumps({"rate": work(args.work[0], int(args.work[1]))}))


if __name__ == "__main__":
    main()
