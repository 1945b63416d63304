"""Draws what random-walk Metropolis takes, against samples and against chains, beside its peers.

    python benchmarks/compare.py rwm --out=benchmarks/results/rwm.json
    python benchmarks/rwm.py --out=benchmarks/results/rwm.json --images=docs/images

These are the two figures of "Massively parallel MCMC with JAX", redrawn: time against samples of
1,000 chains, and against chains of 1,000 samples. TensorFlow Probability's curves are replaced by
BlackJAX's, for it does not import beside current JAX. `rwm_peers.py` has the samplers. The curves
are added to the file. --quick takes few sizes, to see that it runs.
"""

import argparse
import json
import pathlib
import statistics
import sys
from typing import Any

import compare
import numpy as np
import side_by_side
from comparisons import Comparison

WORKER = "rwm_peers.py"
MAX_SECONDS = 20.0
"""A curve ends with the first point that takes longer."""
CURVES = {
    "NumPy, as published": ("numpy", "seconds"),
    "JAX, as published": ("jax", "first_seconds"),
    "JAX, without compilation": ("jax", "seconds"),
    "BlackJAX": ("blackjax", "first_seconds"),
    "BlackJAX, without compilation": ("blackjax", "seconds"),
    "ours": ("ours", "first_seconds"),
    "ours, without compilation": ("ours", "seconds"),
}


def main() -> None:
    """Measures, writes the JSON and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="JSON file of `compare.py rwm`")
    parser.add_argument("--images", help="directory of the figures")
    parser.add_argument("--rounds", type=int, default=3, help="0 keeps the curves of --out")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    args = parser.parse_args()
    path = pathlib.Path(args.out)
    if not path.exists():
        parser.error(f"--out={path} is not there: benchmarks/compare.py rwm --out={path} writes it")
    content = json.loads(path.read_text())
    rounds = 1 if args.quick else args.rounds
    samples = [10**k for k in range(1, 5 if args.quick else 7)]
    chains = [10, 100, 1000, 3000, 10_000, 30_000, 100_000, 1_000_000][: 5 if args.quick else None]
    sizes = {
        "seconds_by_samples": [(1000, k) for k in samples],
        "seconds_by_chains": [(k, 1000) for k in chains],
    }
    if rounds:
        content |= {name: measure_curves(sizes[name], rounds) for name in sizes}
        path.write_text(json.dumps(content, indent=2) + "\n")
    titles = ("samples of each of 1,000 chains", "chains of 1,000 samples each")
    for title, name in zip(titles, sizes, strict=True):
        if args.images:
            draw(content[name], title, f"{args.images}/rwm_{name.rpartition('_')[2]}.png")


def measure_curves(sizes: list[tuple[int, int]], num_rounds: int) -> list[dict[str, Any]]:
    """Measures the samplers of the figures at (chains, samples), the slow ones not at all sizes."""
    going = sorted({name for name, _ in CURVES.values()})
    points = []
    for num_chains, count in sizes:
        commands = {name: ("ours", WORKER, name, f"{num_chains}", f"{count}") for name in going}
        pythons = {"ours": sys.executable}
        results = compare.measure(Comparison(commands, ()), pythons, num_rounds, None)
        medians = {
            name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for name, runs in results.items()
        }
        points.append({"chains": num_chains, "samples": count, "medians": medians})
        going = [name for name in going if medians[name]["seconds"] < MAX_SECONDS]
    return points


def draw(points: list[dict[str, Any]], xlabel: str, path: str) -> None:
    """Draws seconds against what varies, samples or chains, on logarithmic axes."""
    sys.path.insert(0, str(side_by_side.ROOT))
    from ensemble.report import plots
    from ensemble.report.svg import Axis, Chart

    varies = "samples" if points[0]["chains"] == points[-1]["chains"] else "chains"
    powers = np.log10([point[varies] for point in points])
    curves = {
        label: [point["medians"].get(name, {}).get(key, np.nan) for point in points]
        for label, (name, key) in CURVES.items()
    }

    def axis(label: str, values: Any) -> Axis:
        """Returns a logarithmic axis of decimal logarithms."""
        ends = int(np.floor(np.nanmin(values))), int(np.ceil(np.nanmax(values)))
        return Axis(label, ends, [(k, f"{10.0**k:g}") for k in range(ends[0], ends[1] + 1)])

    x = axis(xlabel, powers)
    y = axis("seconds", np.log10([*curves.values()]))
    chart = Chart("Random-walk Metropolis on a mixture of four normals", x, y)
    for k, (label, curve) in enumerate(curves.items()):
        chart.curve(powers, np.log10(curve), f"chain-{k}", label)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_bytes(plots.png([chart]))


if __name__ == "__main__":
    main()
