"""Evaluating and predicting with an ensemble of the how-to's CNN, beside the how-to, on CPU.

    python benchmarks/evaluation.py --out=benchmarks/results/evaluation.json

Each contestant is measured in a process of its own, in alternating rounds, without compiled
programs from earlier ones:

- prediction: `load` of a workdir and then 10,000 images, M = 2, beside the how-to's evaluation as
  published (through its gradient function, in one batch); and the seconds from the start of the
  process to the first prediction;
- evaluation: `ensemble.evaluate`, M = 8, 10,000 test images: scores, bootstrap intervals, pictures
  and report, with the predictions still to be made, and from stored ones. From the start of the
  process; the peak memory is that of the process.

Images are generated, of MNIST's shape and number. Some two minutes a round, of which the how-to
takes most.
"""

import argparse
import pathlib
import sys
import tempfile

import side_by_side
from side_by_side import Measurement, Row

OURS, HOWTO = "evaluation_ours.py", "train_throughput_howto.py"
RATE = "member-images/s"


def main() -> None:
    """Measures, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        for num_members in (2, 8):
            prepare = [sys.executable, OURS, "prepare", str(folder / str(num_members))]
            side_by_side.run_worker([*prepare, str(num_members)])
        commands = {
            "ours": [sys.executable, OURS, "predict", str(folder / "2")],
            "how-to": [sys.executable, HOWTO, "evaluate", "2"],
            "evaluate": [sys.executable, OURS, "evaluate", str(folder / "8")],
            "rescore": [sys.executable, OURS, "rescore", str(folder / "8")],
        }
        results = side_by_side.measure_rounds(commands, args.rounds)
    side_by_side.report(make_rows(results), args.out)


def make_rows(results: dict[str, list[Measurement]]) -> list[Row]:
    """Makes the table of the rounds of each contestant."""

    def values(name: str, key: str) -> list[float]:
        return [measurement[key] for measurement in results[name]]

    rows = [
        side_by_side.compare(
            "prediction",
            "M=2, 10000 images",
            unit,
            values("ours", key),
            values("how-to", key),
            "how-to",
            higher_is_better=key == "rate",
        )
        for key, unit in (("rate", RATE), ("peak_memory", "GB"))
    ]
    seconds = values("ours", "first_prediction_seconds")
    rows.append(side_by_side.compare("process start to first prediction", "M=2", "s", seconds))
    for name, setting in (("evaluate", "from a checkpoint"), ("rescore", "stored predictions")):
        for key, unit in (("seconds", "s"), ("peak_memory", "GB")):
            measure = f"evaluation, {setting}"
            rows.append(side_by_side.compare(measure, "M=8, 10000 images", unit, values(name, key)))
    return rows


if __name__ == "__main__":
    main()
