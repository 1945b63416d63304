"""A billion samples by random-walk Metropolis, beside those who did it before, on CPU.

    python benchmarks/rwm.py --out=benchmarks/results/rwm.json --images=docs/images

"Massively parallel MCMC with JAX" (https://rlouf.github.io/post/jax-random-walk-metropolis/) drew a
billion samples of a mixture of four normals in 25 s. Here its two figures are redrawn: time against
samples of 1,000 chains, and against chains of 1,000 samples. TensorFlow Probability's curves are
replaced by BlackJAX's, for it does not import beside current JAX. `rwm_peers.py` has the samplers.

Each is measured in a process of its own, in alternating rounds, after compilation unless said; ours
counts moments, histogram and R-hat in. The rates are of 1e9 samples of ours and of 1e8 of the
peers, whose time is proportional to the samples by then. --quick takes hundredths of all that, to
see that it runs.
"""

import argparse
import json
import pathlib
import statistics
import sys
from typing import Any

import side_by_side
from side_by_side import Measurement, Row

WORKER = "rwm_peers.py"
OURS_CHAINS, PEER_CHAINS = 16_384, 10_000
PEERS = {"scan": "lax.scan", "jax": "published JAX", "blackjax": "BlackJAX", "numpy": "NumPy"}
MEAN, VARIANCE = 0.92, 9.7016
"""Of the mixture."""
MAX_ERRORS = 4.0
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
    """Measures, prints the table, writes the JSON and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--images", help="directory of the figures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--curve_rounds", type=int, default=3, help="0 keeps the curves of --out")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    args = parser.parse_args()
    divisor = 100 if args.quick else 1
    rounds, curve_rounds = (1, 1) if args.quick else (args.rounds, args.curve_rounds)

    results = side_by_side.measure_rounds(contestants(divisor), rounds)
    errors = check_moments(results)
    samples = [10**k for k in range(1, 5 if args.quick else 7)]
    chains = [10, 100, 1000, 3000, 10_000, 30_000, 100_000, 1_000_000][: 5 if args.quick else None]
    curves = read_curves(args.out)
    if curve_rounds:
        curves = {
            "seconds_by_samples": measure_curves([(1000, k) for k in samples], curve_rounds),
            "seconds_by_chains": measure_curves([(k, 1000) for k in chains], curve_rounds),
        }
    versions = side_by_side.versions_of(sys.executable, ("blackjax", "numpyro"))
    side_by_side.report(make_rows(results, divisor), args.out, versions=versions)
    print(f"\nWithin {errors:.1f} standard errors of the exact moments.")
    if args.out:
        path = pathlib.Path(args.out)
        content = json.loads(path.read_text())
        content |= {"largest_error_in_mcse": errors, "runs": results, **curves}
        path.write_text(json.dumps(content, indent=2) + "\n")
    if args.images and curves:
        titles = ("samples of each of 1,000 chains", "chains of 1,000 samples each")
        for title, (name, points) in zip(titles, curves.items(), strict=True):
            draw(points, title, f"{args.images}/rwm_{name.rpartition('_')[2]}.png")


def read_curves(out: str | None) -> dict[str, list[dict[str, Any]]]:
    """The curves of an earlier run that `--curve_rounds=0` keeps."""
    if out is None or not pathlib.Path(out).exists():
        return {}
    content = json.loads(pathlib.Path(out).read_text())
    return {name: content[name] for name in ("seconds_by_samples", "seconds_by_chains")}


def contestants(divisor: int) -> dict[str, list[str]]:
    """Commands of workers, by name."""
    ours = 10**9 // divisor // OURS_CHAINS // 2 * 2
    peers = 10**8 // divisor // PEER_CHAINS
    return {
        **{name: command(name, OURS_CHAINS, ours) for name in ("ours", "ours_256", "ours_untuned")},
        **{
            name: command(name, OURS_CHAINS, ours // 40 * 2)
            for name in ("ours_correlated", "density_alone")
        },
        **{name: command(name, PEER_CHAINS, peers) for name in ("scan", "jax", "blackjax")},
        "numpy": command("numpy", PEER_CHAINS, max(peers // 10, 2)),
    }


def command(name: str, num_chains: int, num_samples: int) -> list[str]:
    """The command of one worker."""
    return [sys.executable, WORKER, name, str(num_chains), str(num_samples)]


def num_samples(command: list[str]) -> int:
    """Samples of all chains that a command draws."""
    return int(command[-2]) * int(command[-1])


def check_moments(results: dict[str, list[Measurement]]) -> float:
    """The largest distance of a moment of ours from the exact one, in its standard errors.

    Raises:
        ValueError: it is over 4.
    """
    errors = [
        abs(run[name] - exact) / run[f"mcse_{name}"]
        for contestant in ("ours", "ours_256")
        for run in results[contestant]
        for name, exact in (("mean", MEAN), ("variance", VARIANCE))
    ]
    if not max(errors) < MAX_ERRORS:
        raise ValueError(f"a moment is {max(errors):.1f} standard errors from the exact one")
    return max(errors)


def make_rows(results: dict[str, list[Measurement]], divisor: int) -> list[Row]:
    """Makes the table of the rounds of each contestant."""
    counts = {name: num_samples(line) for name, line in contestants(divisor).items()}

    def rates(name: str, key: str = "seconds") -> list[float]:
        return [counts[name] / run[key] / 1e6 for run in results[name]]

    def ess_rates(name: str) -> list[float]:
        return [run["ess"] / run["seconds"] / 1e6 for run in results[name]]

    rows = []
    for ours, setting in (("ours", "512-bit vectors if there are"), ("ours_256", "XLA's default")):
        seconds = [1e9 / rate / 1e6 for rate in rates(ours)]
        rows.append(side_by_side.compare("a billion samples", setting, "s", seconds))
        for peer, name in PEERS.items():
            rows.append(
                side_by_side.compare("mixture", setting, "M/s", rates(ours), rates(peer), name)
            )
    first = rates("jax", "first_seconds")
    rows.append(
        side_by_side.compare(
            "mixture", "with compilation", "M/s", rates("ours", "first_seconds"), first, "published"
        )
    )
    correlated, alone = rates("ours_correlated"), rates("density_alone")
    rows.append(
        side_by_side.compare(
            "normal of 10 dimensions", "tuned", "M/s", correlated, alone, "its log density alone"
        )
    )
    tuned, untuned = ess_rates("ours"), ess_rates("ours_untuned")
    rows.append(
        side_by_side.compare("effective samples", "tuned", "M/s", tuned, untuned, "scale .1")
    )
    return rows


def measure_curves(sizes: list[tuple[int, int]], num_rounds: int) -> list[dict[str, Any]]:
    """Measures the samplers of the figures at (chains, samples), the slow ones not at all sizes."""
    going = sorted({name for name, _ in CURVES.values()})
    points = []
    for num_chains, count in sizes:
        results = side_by_side.measure_rounds(
            {name: command(name, num_chains, count) for name in going}, num_rounds
        )
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
    from ensemble.pictures.plot_style import PALETTE, legend, new_figure, style

    varies = "samples" if points[0]["chains"] == points[-1]["chains"] else "chains"
    figure = new_figure("Random-walk Metropolis on a mixture of four normals", 8, 5)
    axes = figure.subplots()
    colors = dict(zip(("numpy", "jax", "blackjax", "ours"), PALETTE[3::-1], strict=True))
    for label, (name, key) in CURVES.items():
        curve = [
            (point[varies], point["medians"][name][key])
            for point in points
            if name in point["medians"]
        ]
        is_whole = key == "first_seconds" or name == "numpy"
        axes.loglog(
            *zip(*curve, strict=True),
            marker="o",
            markersize=3,
            linestyle="-" if is_whole else "--",
            color=colors[name],
            label=label,
        )
    style(axes, xlabel=xlabel, ylabel="seconds")
    legend(axes, fontsize=9)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
