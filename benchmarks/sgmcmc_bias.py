"""The bias of sgld and sghmc on a logistic regression, whose posterior hmc tells.

    nice -n 10 python benchmarks/sgmcmc_bias.py

490 examples of six numbers in three classes, 21 parameters, prior normal(0.3), 8 chains. Each run
is written to benchmarks/results/sgmcmc_bias.json when it ends, and the same command goes on where
it was interrupted. Nothing is timed, so other programs may run beside. `docs/benchmarks.md` has the
table.
"""

import argparse
import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import side_by_side
from rows import Results
from side_by_side import as_table

RESULTS = side_by_side.ROOT / "benchmarks" / "results" / "sgmcmc_bias.json"
COMMON = {
    "model": "logistic_regression",
    "prior": "normal(0.3)",
    "num_chains": 8,
    "num_devices": 1,
    "eval_every_epochs": 10**5,
    "plot_every_epochs": 10**5,
    "checkpoint_every_epochs": 10**5,
}
HMC = {
    "method": "hmc",
    "sampler.mass": "kronecker",
    "sampler.step_size": 0.3,
    "sampler.num_leapfrog_steps": 8,
    "sampler.num_warmup": 200,
    "sampler.num_samples": 1500,
    "sampler.thin": 3,
}
BATCHES = {
    "batch_size": 50,
    "log_every_steps": 10_000,
    "sgmcmc.num_burn_in": 10_000,
    "sgmcmc.num_samples": 400,
    "sgmcmc.steps_per_draw": 500,
}
CYCLES = {"num_cycles": 8, "num_burn_in": 2500, "num_samples": 50}
SLOW, FAST = 0.003, 0.03


def _keys(method: str, rate: float, **keys: Any) -> dict[str, Any]:
    own = {f"sgmcmc.{name}": value for name, value in keys.items()}
    return {"method": method, "learning_rate": rate, **own}


RUNS: Mapping[str, Mapping[str, Any]] = {
    "`hmc`, half of its chains against all": HMC,
    "`sghmc`, .003": _keys("sghmc", SLOW),
    "`sghmc`, .003, `rmsprop`": _keys("sghmc", SLOW, preconditioner="rmsprop"),
    "`sgld`, .03": _keys("sgld", FAST),
    "`sghmc`, .03": _keys("sghmc", FAST),
    "`sghmc`, .03, `polynomial`": _keys("sghmc", FAST, schedule="polynomial"),
    "`sghmc`, .03, `cyclical`": _keys("sghmc", FAST, schedule="cyclical", **CYCLES),
}
"""Keys by the names of the table's rows; the first is what the others are compared with."""
Row = Mapping[str, Any]


def sample(config: Mapping[str, Any]) -> tuple[np.ndarray, Mapping[str, Any]]:
    """Runs a configuration; returns all draws that are kept, [C, T, P], and its `posterior`."""
    sys.path[:0] = [str(side_by_side.ROOT), str(side_by_side.ROOT / "tests")]
    import jax
    from small_runs import make_blobs

    import ensemble
    from ensemble.draws.store import Draws
    from ensemble.storage.workdir import Workdir

    with tempfile.TemporaryDirectory() as folder:
        result = ensemble.train(config, make_blobs(700), folder, show_progress=False)
        positions, _ = Draws(Workdir(pathlib.Path(folder)).draws).positions()
    leaves = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(positions)]
    return np.concatenate(leaves, axis=-1), result.report["posterior"]


def moments(draws: np.ndarray) -> dict[str, list[float]]:
    """Mean and standard deviation of each parameter, over draws [C, T, P]."""
    flat = draws.reshape(-1, draws.shape[-1]).astype(np.float64)
    return {"mean": flat.mean(axis=0).tolist(), "sd": flat.std(axis=0).tolist()}


def bias(found: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, float]:
    """How far moments are off: the worst mean, in sd, and the extreme ratios of the sd."""
    sd = np.asarray(known["sd"])
    ratios = np.asarray(found["sd"]) / sd
    return {
        "mean_off": float(np.max(np.abs(np.subtract(found["mean"], known["mean"])) / sd)),
        "sd_low": float(ratios.min()),
        "sd_high": float(ratios.max()),
    }


def measure(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """A row of the table, by the moments that the first of `RUNS` has."""
    start, is_known = time.process_time(), RUNS[name] is HMC
    config = {**COMMON, **({} if is_known else BATCHES), **RUNS[name]}
    draws, posterior = sample(config)
    found = moments(draws)
    if is_known:
        known, found = found, moments(draws[: len(draws) // 2])
        row: dict[str, Any] = {"moments": known}
    else:
        (known,) = (one["moments"] for one in rows if "moments" in one)
        row = {"temperature": posterior["draw_temperature"]}
    return {
        "config": config,
        "draws_of_a_chain": draws.shape[1],
        "ess_bulk_min": posterior["ess_bulk_min"],
        "rhat_max": posterior["rhat_max"],
        **bias(found, known),
        **row,
        "cpu_seconds": time.process_time() - start,
    }


def decimals(value: float) -> str:
    """Two digits after the point, without a zero before it."""
    return f"{value:.2f}".removeprefix("0")


def format_table(rows: Sequence[Row]) -> str:
    """The table, in Markdown."""
    head = (
        "| method, learning rate | temperature | mean off by at most, in sd "
        "| sd over the posterior's | least bulk ESS |"
    )
    lines = []
    for row in rows:
        heat = f"{row['temperature']:.3f}" if "temperature" in row else ""
        ratios = f"{decimals(row['sd_low'])} to {decimals(row['sd_high'])}"
        cells = [row["name"], heat, decimals(row["mean_off"]), ratios]
        lines.append([*cells, f"{row['ess_bulk_min']:,.0f}"])
    return as_table(head, lines)


def main() -> None:
    """Samples what is missing, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    results = Results(args.out)
    keys = ({"name": name} for name in RUNS)
    print(format_table(results.fill(keys, lambda name: measure(name, results.rows()))))


if __name__ == "__main__":
    main()
