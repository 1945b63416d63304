"""One run over more devices and processes of the same machine: what do they cost?

    python benchmarks/scaling.py --out=benchmarks/results/scaling.json \\
        --image=docs/images/scaling.png

Eight members of the CNN train, and eight chains of a logistic regression sample, on 1 to 8 virtual
CPU devices in 1 to 4 processes. The cores stay the same, so no more work can be done: what is lost
against one device is what members pay for their collectives, their processes and each other.
docs/scaling.md says what follows for machines that bring cores of their own. --quick does one round
of small runs, to see that it runs.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys

import side_by_side

WORKER = "scaling_worker.py"
LAYOUTS = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 4), (4, 1), (4, 2)]
"""Processes, and devices of each."""
KINDS = {"sgd": ("training", "member-images/s"), "hmc": ("sampling", "gradients/s")}


def main() -> None:
    """Measures, prints the table, writes the JSON and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--image", help="figure to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small runs, one round")
    args = parser.parse_args()
    layouts = [(1, 1), (2, 2)] if args.quick else LAYOUTS
    commands = {
        name(kind, layout): [
            sys.executable, WORKER, kind, *map(str, layout), "small" if args.quick else "whole"
        ]
        for kind in KINDS
        for layout in layouts
    }  # fmt: skip
    results = side_by_side.measure_rounds(commands, 1 if args.quick else args.rounds)
    rows = [
        side_by_side.compare(
            measure,
            f"{processes} x {devices}",
            unit,
            [run["rate"] for run in results[name(kind, (processes, devices))]],
            [run["rate"] for run in results[name(kind, (1, 1))]],
            "one device",
        )
        for kind, (measure, unit) in KINDS.items()
        for processes, devices in layouts
    ]
    side_by_side.report(rows, args.out)
    if args.out:
        path = pathlib.Path(args.out)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"runs": results}, indent=2))
    if args.image:
        draw(results, layouts, args.image)


def name(kind: str, layout: tuple[int, int]) -> str:
    """What a contestant is called."""
    return f"{kind} {layout[0]} x {layout[1]}"


def draw(
    results: dict[str, list[side_by_side.Measurement]], layouts: list[tuple[int, int]], path: str
) -> None:
    """Draws rates relative to one device, over the devices, a line for each number of processes."""
    sys.path.insert(0, str(side_by_side.ROOT))
    from ensemble.pictures.plot_style import PALETTE, legend, new_figure, style

    figure = new_figure("The same two cores, shared by more devices and processes", 10, 4)
    for axes, (kind, (measure, _)) in zip(figure.subplots(1, 2), KINDS.items(), strict=True):
        alone = [run["rate"] for run in results[name(kind, (1, 1))]]
        for color, count in zip(PALETTE, sorted({layout[0] for layout in layouts}), strict=False):
            shares = {}
            for layout in (layout for layout in layouts if layout[0] == count):
                runs = zip(results[name(kind, layout)], alone, strict=True)
                shares[math.prod(layout)] = statistics.median(
                    run["rate"] / one for run, one in runs
                )
            label = "one process" if count == 1 else f"{count} processes"
            axes.plot(*zip(*sorted(shares.items()), strict=True), "o-", color=color, label=label)
        axes.set_ylim(bottom=0)
        style(axes, xlabel="devices in all", ylabel=f"{measure}, relative to one device")
        legend(axes)
    figure.savefig(path)


if __name__ == "__main__":
    main()
