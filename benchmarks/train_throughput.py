"""Training ensembles of the how-to's CNN, beside the how-to and PyTorch, on CPU.

    python benchmarks/train_throughput.py --out=benchmarks/results/train_throughput.json

Contestants, each measured in a process of its own, in alternating rounds:

- ours: the method that train.py drives, at its default settings;
- how-to: Flax's "Ensembling on multiple devices" as published: M virtual devices, batches
  replicated, two pmapped calls a step;
- pytorch: a loop over the members, channels_last, in float32 and under bfloat16 autocast.
  PyTorch is a requirement of this benchmark alone; --torch_python names an interpreter that has
  it, and without it these rows are left out.

The work: batches of 128 images of 28x28, SGD with momentum .9, float32; member-images per second
after compilation. The compile time is that of the first training step, from the call to the result.
Some two minutes a round.
"""

import argparse
import math
import subprocess
import sys

import side_by_side
from side_by_side import Measurement, Row

SIZES = (4, 8)
RATE = "member-images/s"
OURS, HOWTO, PYTORCH = (f"train_throughput_{name}.py" for name in ("ours", "howto", "pytorch"))


def main() -> None:
    """Measures, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch_python", default=sys.executable)
    args = parser.parse_args()

    with_torch = has_torch(args.torch_python)
    if not with_torch:
        print(f"{args.torch_python} cannot import torch: no PyTorch rows; see --torch_python")
    commands = {}
    for size in SIZES:
        commands[f"ours {size}"] = [sys.executable, OURS, str(size)]
        commands[f"how-to {size}"] = [sys.executable, HOWTO, "train", str(size)]
        if with_torch:
            for dtype in ("float32", "bfloat16"):
                commands[f"pytorch {dtype} {size}"] = [args.torch_python, PYTORCH, dtype, str(size)]
    results = side_by_side.measure_rounds(commands, args.rounds)
    arguments = "--torch_python=PYTHON" if with_torch else ""
    versions = side_by_side.versions_of(args.torch_python, ("torch",))
    side_by_side.report(make_rows(results, with_torch), args.out, arguments, versions)


def has_torch(python: str) -> bool:
    """Whether the interpreter `python` can import torch."""
    command = [python, "-c", "import torch"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def make_rows(results: dict[str, list[Measurement]], with_torch: bool) -> list[Row]:
    """Compares the contestants, where `results` has the rounds of each."""

    def values(name: str, key: str = "rate") -> list[float]:
        return [measurement[key] for measurement in results[name]]

    def over_sizes(name: str) -> list[float]:
        columns = (values(f"{name} {size}") for size in SIZES)
        return [math.prod(rates) ** (1 / len(SIZES)) for rates in zip(*columns, strict=True)]

    rows = [
        side_by_side.compare(
            "training",
            f"M={size}",
            RATE,
            values(f"ours {size}"),
            values(f"how-to {size}"),
            "how-to",
        )
        for size in SIZES
    ]
    for peer in ("pytorch float32", "pytorch bfloat16") if with_torch else ():
        rows += [
            side_by_side.compare(
                "training",
                f"M={size}",
                RATE,
                values(f"ours {size}"),
                values(f"{peer} {size}"),
                peer,
            )
            for size in SIZES
        ]
        setting = f"M={' and '.join(map(str, SIZES))}, geometric mean"
        ours, theirs = over_sizes("ours"), over_sizes(peer)
        rows.append(side_by_side.compare("training", setting, RATE, ours, theirs, peer))
    seconds = values(f"ours {SIZES[-1]}", "compile_seconds")
    rows.append(side_by_side.compare("compile time", f"M={SIZES[-1]}", "s", seconds))
    return rows


if __name__ == "__main__":
    main()
