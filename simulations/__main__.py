"""Simulates how often intervals cover and findings are false; takes minutes on two cores.

    python -m simulations
    python -m simulations --replications=100    # quick

Writes benchmarks/results/simulations.json and prints what is beyond its limits. Exit status 1: an
interval covers less, or a rule speaks falsely more often, than it may.
"""

import argparse
import concurrent.futures
import datetime
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> int:
    """Simulates everything in parallel, prints tables and faults, writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replications", type=int, default=600)
    parser.add_argument(
        "--out", type=pathlib.Path, default=ROOT / "benchmarks" / "results" / "simulations.json"
    )
    arguments = parser.parse_args()
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # Processes share the cores.
    from simulations import alarms, chains, coverage, suite

    jobs: list[tuple[str, str]] = [("coverage", name) for name in [*coverage.WORLDS][::-1]]
    jobs += [("alarms", name) for name in alarms.NULLS] + [("chains", n) for n in chains.CLAIMS]
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        **{part: [] for part, _ in jobs},
    }
    context = multiprocessing.get_context("spawn")  # Threads of JAX do not survive a fork.
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context) as pool:
        running = [pool.submit(suite.simulate, *job, arguments.replications) for job in jobs]
        for (part, name), future in zip(jobs, running, strict=True):
            results[part] += future.result()
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{part}: {name}", file=sys.stderr, flush=True)
    found = list(suite.faults(results))
    print(suite.table(results), *(f"BEYOND ITS LIMIT: {line}" for line in found), sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
