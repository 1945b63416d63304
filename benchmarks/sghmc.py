"""Stochastic gradient HMC on the how-to's CNN, beside the PyTorch library `posteriors`, on CPU.

    python benchmarks/sghmc.py --posteriors_python=PYTHON --out=benchmarks/results/sghmc.json

Contestants, each measured in a process of its own, in alternating rounds:

- ours: the method `sghmc` that train.py drives, four chains;
- baoa and sghmc: the transforms of these names of `posteriors`, in place, a loop over four chains.
  The first takes the same steps as ours. `posteriors` is a requirement of this benchmark alone;
  --posteriors_python names an interpreter that has it, and without it these rows are left out.

The work: batches of 128 images of 28x28, float32, no draws; steps of single chains per second after
compilation. Half a minute a round.
"""

import argparse
import subprocess
import sys

import side_by_side

RATE = "steps/s"
OURS, POSTERIORS = "sghmc_ours.py", "sghmc_posteriors.py"
PEERS = ("baoa", "sghmc")
NUM_CHAINS = 4


def main() -> None:
    """Measures, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--posteriors_python", default=sys.executable)
    args = parser.parse_args()

    commands = {"ours": [sys.executable, OURS, str(NUM_CHAINS)]}
    if has_posteriors(args.posteriors_python):
        for peer in PEERS:
            commands[peer] = [args.posteriors_python, POSTERIORS, peer, str(NUM_CHAINS)]
    else:
        python = args.posteriors_python
        print(f"{python} cannot import posteriors: no rows of it; see --posteriors_python")
    results = side_by_side.measure_rounds(commands, args.rounds)
    rates = {name: [one["rate"] for one in found] for name, found in results.items()}
    rows = [
        side_by_side.compare(
            "sampling",
            f"{NUM_CHAINS} chains",
            RATE,
            rates["ours"],
            rates[peer],
            f"posteriors {peer}",
        )
        for peer in PEERS
        if peer in rates
    ]
    own = side_by_side.compare("sampling", f"{NUM_CHAINS} chains", RATE, rates["ours"])
    arguments, versions = "", {}
    if rows:
        arguments = "--posteriors_python=PYTHON"
        versions = side_by_side.versions_of(args.posteriors_python, ("posteriors", "torch"))
    side_by_side.report(rows or [own], args.out, arguments, versions)


def has_posteriors(python: str) -> bool:
    """Whether the interpreter `python` can import posteriors."""
    command = [python, "-W", "ignore", "-c", "import posteriors"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main()
