"""Draws what more devices and processes of one machine cost, as `compare.py scaling` measured it.

python benchmarks/compare.py scaling --out=benchmarks/results/scaling.json
PYTHONPATH=. python benchmarks/scaling.py --image=docs/images/scaling.png
"""

import argparse
import json
import pathlib

import side_by_side
from comparisons import LAYOUTS

from ensemble.report import plots
from ensemble.report.svg import Axis, Chart


def draw(rows: list[dict], path: str) -> None:
    """Draws rates relative to one device, over the devices, a line for each number of processes."""
    charts = []
    for measure in ("training", "sampling"):
        shares = {
            row["setting"]: row["ratio"]["median"] for row in rows if row["measure"] == measure
        }
        most = max(processes * devices for processes, devices in LAYOUTS)
        chart = Chart(
            measure,
            Axis("devices in all", (0, 1.05 * most)),
            Axis(f"{measure}, relative to one device", (0, 1.1 * max(shares.values()))),
        )
        for k, count in enumerate(sorted({layout[0] for layout in LAYOUTS})):
            points = sorted(
                (count * devices, shares[f"{count} x {devices}"])
                for processes, devices in LAYOUTS
                if processes == count
            )
            label = "one process" if count == 1 else f"{count} processes"
            devices, speeds = zip(*points, strict=True)
            chart.curve(devices, speeds, f"chain-{k}", label)
        charts.append(chart)
    pathlib.Path(path).write_bytes(plots.png(charts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", required=True)
    stored = side_by_side.ROOT / "benchmarks" / "results" / "scaling.json"
    draw(json.loads(stored.read_text())["rows"], parser.parse_args().image)
