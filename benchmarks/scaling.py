"""Draws what more devices and processes of one machine cost, as `compare.py scaling` measured it.

python benchmarks/compare.py scaling --out=benchmarks/results/scaling.json
PYTHONPATH=. python benchmarks/scaling.py --image=docs/images/scaling.png
"""

import argparse
import json

import side_by_side
from comparisons import LAYOUTS

from ensemble.pictures.plot_style import PALETTE, legend, new_figure, style


def draw(rows: list[dict], path: str) -> None:
    """Draws rates relative to one device, over the devices, a line for each number of processes."""
    figure = new_figure("The same two cores, shared by more devices and processes", 10, 4)
    for axes, measure in zip(figure.subplots(1, 2), ("training", "sampling"), strict=True):
        shares = {
            row["setting"]: row["ratio"]["median"] for row in rows if row["measure"] == measure
        }
        for color, count in zip(PALETTE, sorted({layout[0] for layout in LAYOUTS}), strict=False):
            points = sorted(
                (count * devices, shares[f"{count} x {devices}"])
                for processes, devices in LAYOUTS
                if processes == count
            )
            label = "one process" if count == 1 else f"{count} processes"
            axes.plot(*zip(*points, strict=True), "o-", color=color, label=label)
        axes.set_ylim(bottom=0)
        style(axes, xlabel="devices in all", ylabel=f"{measure}, relative to one device")
        legend(axes)
    figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", required=True)
    stored = side_by_side.ROOT / "benchmarks" / "results" / "scaling.json"
    draw(json.loads(stored.read_text())["rows"], parser.parse_args().image)
