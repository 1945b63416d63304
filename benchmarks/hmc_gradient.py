"""Gradients of HMC on MNIST's logistic regression, beside BlackJAX's HMC over plain JAX, on CPU.

    python benchmarks/hmc_gradient.py --out=benchmarks/results/hmc_gradient.json

Contestants, each measured in a process of its own, in alternating rounds, on two virtual devices:

- ours: `make_sampler` over `make_log_density`, as `train.py` samples; eight chains lie on the two
  devices, four on each, as the loop lays them out;
- peer: BlackJAX's HMC over one float32 product and log-softmax in `shard_map(check_vma=True)`,
  examples over the devices, differentiated by JAX.

The work: trajectories of 20 leapfrog steps over all 60,000 images, unit mass, a fixed step size;
gradients of one chain per second, times the chains, after compilation. MNIST must be prepared:
see docs/your_data.md.

Then, once: the mean acceptance of the fast gradient and of float64's over the same trajectories.

With --run and --notebook, two finished workdirs on the same data, their bulk effective sample size
per gradient is compared as their reports state it: the least over the log density and 100
predictive probabilities. Some two minutes a round.
"""

import argparse
import json
import pathlib
import sys

import side_by_side
from side_by_side import Measurement, Row

OURS, PEER = "hmc_gradient_ours.py", "hmc_gradient_peer.py"
ACCEPTANCE = "hmc_gradient_acceptance.py"
SIZES = {1: 1, 8: 2}
"""Numbers of chains, with the groups of devices over which ours spreads them."""
MAX_RHAT = 1.05


def main() -> None:
    """Measures, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", help="finished workdir of mnist_logreg_hmc")
    parser.add_argument("--notebook", help="finished workdir of mnist_logreg_hmc:notebook")
    args = parser.parse_args()
    if (args.run is None) != (args.notebook is None):
        parser.error("--run and --notebook go together")
    # First: what has not converged is said before anything is measured.
    ess = (
        None
        if args.run is None
        else compare_ess(pathlib.Path(args.run), pathlib.Path(args.notebook))
    )
    commands = {}
    for size, groups in SIZES.items():
        commands[f"ours {size}"] = [sys.executable, OURS, str(size), str(groups)]
        commands[f"peer {size}"] = [sys.executable, PEER, str(size)]
    results = side_by_side.measure_rounds(commands, args.rounds)
    results |= side_by_side.measure_rounds({"acceptance": [sys.executable, ACCEPTANCE]}, 1)
    rows = make_rows(results)
    if ess is not None:
        rows.append(ess)
    arguments = "" if ess is None else "--run=WORKDIR --notebook=WORKDIR"
    versions = side_by_side.versions_of(sys.executable, ("blackjax",))
    side_by_side.report(rows, args.out, arguments, versions)


def make_rows(results: dict[str, list[Measurement]]) -> list[Row]:
    """Makes the table of the rounds of each contestant."""

    def values(name: str, key: str = "rate") -> list[float]:
        return [measurement[key] for measurement in results[name]]

    rows = []
    for size in SIZES:
        setting, ours, peer = f"{size} chain(s)", f"ours {size}", f"peer {size}"
        unit = "chain-gradients/s"
        rows.append(
            side_by_side.compare(
                "HMC, MNIST", setting, unit, values(ours), values(peer), "BlackJAX"
            )
        )
        seconds = values(ours, "compile_seconds"), values(peer, "compile_seconds")
        rows.append(
            side_by_side.compare(
                "compile and first draw", setting, "s", *seconds, "BlackJAX", higher_is_better=False
            )
        )
    fast, exact = values("acceptance", "fast"), values("acceptance", "float64")
    rows.append(side_by_side.compare("mean acceptance", "1 chain", "", fast, exact, "float64"))
    return rows


def compare_ess(run: pathlib.Path, notebook: pathlib.Path) -> Row:
    """Compares two finished runs, which any machine may have made.

    Raises:
        ValueError: a run has not converged, so that its effective sample size means nothing.
    """

    def ess_per_gradient(workdir: pathlib.Path) -> float:
        posterior = json.loads((workdir / "report.json").read_text())["posterior"]
        if not posterior["rhat_max"] < MAX_RHAT:
            raise ValueError(f"{workdir}: R-hat {posterior['rhat_max']} must be below {MAX_RHAT}")
        return posterior["ess_bulk_min"] / posterior["num_gradients"]

    return side_by_side.compare(
        "least bulk ESS",
        "both as run",
        "1/gradient",
        [ess_per_gradient(run)],
        [ess_per_gradient(notebook)],
        "notebook's HMC",
    )


if __name__ == "__main__":
    main()
