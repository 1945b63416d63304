"""Leapfrog steps of the matrix factorisation, beside its log density as written down, on CPU.

    python benchmarks/movielens_gradient.py --out=benchmarks/results/movielens_gradient.json

Contestants, each measured in a process of its own, in alternating rounds, on two virtual devices:

- ours: the value and gradient of `ensemble/tasks/factorisation/watch_likelihood.py`;
- peer: softplus of the whole matrix of logits in `shard_map(check_vma=True)`, differentiated by
  JAX.

The work: leapfrog steps of two chains with 20 latents, on watches of MovieLens 1M's size and rate,
drawn at random; in one layout of the devices users are split over both, in the other each has a
chain. A step moves both chains. Peak memory is that of the whole process, the making of the data
included. The error is that of the change of the log likelihood over five steps, against float64.

Then, once: ours alone on 20,000 users and 10,000 movies.
"""

import argparse
import sys

import side_by_side
from side_by_side import Measurement, Row

OURS, PEER = "movielens_gradient_ours.py", "movielens_gradient_peer.py"
LAYOUTS = {1: "users split", 2: "chains split"}
"""Groups of devices over which chains are spread, out of two devices."""


def main() -> None:
    """Measures, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, one round")
    args = parser.parse_args()
    size, large = ("604", "370"), ("2000", "1000")
    seconds, rounds = "1", 1
    if not args.quick:
        size, large = ("6040", "3706"), ("20000", "10000")
        seconds, rounds = "5", args.rounds
    commands = {
        f"{name} {groups}": [sys.executable, script, *size, str(groups), seconds]
        for groups in LAYOUTS
        for name, script in (("ours", OURS), ("peer", PEER))
    }
    results = side_by_side.measure_rounds(commands, rounds)
    alone = {"large": [sys.executable, OURS, *large, "1", seconds]}
    results |= side_by_side.measure_rounds(alone, 1)
    rows = make_rows(results, " x ".join(size), " x ".join(large))
    side_by_side.report(rows, args.out)


def make_rows(results: dict[str, list[Measurement]], size: str, large: str) -> list[Row]:
    """Makes the table of the rounds of each contestant."""

    def row(measure: str, setting: str, unit: str, key: str, *names: str) -> Row:
        scale = 2**20 if unit == "MiB" else 1
        ours, *peers = ([one[key] / scale for one in results[name]] for name in names)
        peer, peer_name = (peers[0], "naive") if peers else (None, None)
        return side_by_side.compare(
            measure, setting, unit, ours, peer, peer_name, higher_is_better=key == "rate"
        )

    rows = []
    settings = {f"{size}, {layout}": (f"ours {k}", f"peer {k}") for k, layout in LAYOUTS.items()}
    for setting, names in {**settings, f"{large}, users split": ("large",)}.items():
        rows += [
            row("leapfrog, 2 chains", setting, "steps/s", "rate", *names),
            row("peak memory", setting, "MiB", "peak_bytes", *names),
            row("error of a change", setting, "nats", "error", *names),
        ]
    return rows


if __name__ == "__main__":
    main()
