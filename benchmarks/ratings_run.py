"""Whole runs of a million ratings, and of watches of that size: seconds and peak memory.

    PYTHONPATH=. python benchmarks/ratings_run.py --out=benchmarks/results/ratings_run.json

1,000,209 ratings of 6,040 users and 3,706 items are made, in a CSV file as MovieLens 1M has them;
they are learned with 20 factors from training to the report. The generated watches of as many users
and items stand beside them. There are few draws: what takes memory is the same with many. A setting
that the file has already is not run again. --quick takes few ratings, to see that it runs.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import side_by_side

USERS = 6040
ITEMS = 3706
RATINGS = 1_000_209
SETTINGS = {
    "ratings:FILE": ["--config.likelihood=gaussian_homoscedastic", "--config.prior=normal(0.4)"],
    "watches:6040x3706": [],
}
COMMON = {
    "num_factors": 20,
    "num_chains": 2,
    "log_every_steps": 10,
    "max_draws_per_chain": 10,
    "sampler.num_leapfrog_steps": 5,
    "sampler.num_warmup": 20,
    "sampler.num_samples": 20,
    "sampler.thinning": 2,
}


def main() -> None:
    """Runs each setting, prints it, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--quick", action="store_true", help="few ratings")
    args = parser.parse_args()
    out = args.out and pathlib.Path(args.out)
    found = json.loads(out.read_text())["settings"] if out and out.is_file() else {}
    size = (60, 37, 1000) if args.quick else (USERS, ITEMS, RATINGS)
    for name, flags in SETTINGS.items():
        if name not in found:
            found[name] = run(name, flags, *size)
            print(name, json.dumps(found[name]), flush=True)
            rows = [
                side_by_side.compare(measure, one, unit, [values[measure]])
                for measure, unit in (("seconds", "s"), ("peak memory", "MiB"))
                for one, values in found.items()
            ]
            side_by_side.report(rows, args.out, more={"settings": found})


def run(name: str, flags: list[str], users: int, items: int, ratings: int) -> dict[str, Any]:
    """Trains in a process of its own; returns its seconds and its peak memory."""
    with tempfile.TemporaryDirectory() as root:
        dataset = f"watches:{users}x{items}"
        if name.startswith("ratings:"):
            dataset = f"ratings:{root}/ratings.csv"
            write_ratings(pathlib.Path(root, "ratings.csv"), users, items, ratings)
        command = [sys.executable, "-m", "ensemble", "train", "--config=movielens_hmc"]
        command += [f"--workdir={root}/run", f"--config.dataset={dataset}", *flags]
        command += [f"--config.{key}={value}" for key, value in COMMON.items()]
        start = time.perf_counter()
        process = subprocess.Popen(command)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        if status or not pathlib.Path(root, "run", "results.json").is_file():
            raise SystemExit(f"a run has failed: {name}")
        report = json.loads(pathlib.Path(root, "run", "results.json").read_text())
    scores = report["recommendation"]["held_out"]
    return {"seconds": seconds, "peak memory": usage.ru_maxrss / 1024, "held_out": scores}


def write_ratings(path: pathlib.Path, users: int, items: int, ratings: int) -> None:
    """Writes ratings from 1 to 5, of few popular items and few active users most."""
    rng = np.random.default_rng(0)
    activity = rng.lognormal(size=users)
    popularity = rng.lognormal(sigma=1.3, size=items)
    shares = np.outer(activity, popularity).ravel()
    # The largest of these are a sample without replacement, by the shares.
    order = np.argpartition(np.log(rng.random(len(shares))) / shares, -ratings)[-ratings:]
    user, item = np.divmod(rng.permutation(order), items)
    of_users = rng.normal(size=(users, 4))
    of_items = rng.normal(size=(items, 4))
    means = 3.6 + 0.4 * rng.normal(size=users)[user] + 0.6 * rng.normal(size=items)[item]
    means += 0.25 * (of_users[user] * of_items[item]).sum(axis=1)
    stars = np.clip(np.rint(means + 0.8 * rng.normal(size=ratings)), 1, 5)
    with open(path, "w") as file:
        file.write("user,item,rating,timestamp\n")
        for k, (one, other, value) in enumerate(zip(user, item, stars, strict=True)):
            file.write(f"u{one},i{other},{value:.0f},{k}\n")


if __name__ == "__main__":
    main()
