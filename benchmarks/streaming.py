"""Training from records on disk: memory, waiting, and records per second beside other loaders.

    PYTHONPATH=. python benchmarks/streaming.py --out=benchmarks/results/streaming.json

Generated pictures of 64x64x3 are written as records to FOLDER, unless they are there from before:
100,000 take 1.2 GB of disk, `--num_examples=1000000` 12 GB. Each figure is of a process of its own,
in alternating rounds:

- reading: records per second of shuffled batches of 128, as uint8 arrays, from the same files: by
  what training reads with, by PyTorch's DataLoader with two workers, and by tf.data. Both peers get
  a reader of whole batches (`ArrayRecordDataSource.__getitems__`). --torch_python and --tf_python
  name interpreters that have PyTorch or TensorFlow, and array_record; rows of others are left out.
- waiting: the share of its time that training waits for records, with the how-to's CNN and an MLP.
- training: examples of members per second from records, beside the same from arrays in memory, if
  the pictures take at most a tenth of it.
- memory: the largest resident size of a process that trains, in GB; `--memory` measures it alone.
  The MLP sees 64,000 examples, the how-to's CNN 6,400.
- predicting: the largest resident size and the seconds of `python -m ensemble predict --out`, which
  writes the predictions of two MLPs for all pictures to the disk.

Read the files once before (`cat FOLDER/*/* >/dev/null`) if the disk is not to be measured.
"""

import argparse
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import side_by_side
from side_by_side import Row

from ensemble.sources.given_data import OwnData
from ensemble.sources.records.conversion import write_records
from ensemble.sources.splitting import POOL

SHAPE = (64, 64, 3)
MODELS = ("cnn", "mlp")
STEPS = {"cnn": 50, "mlp": 500}
"""Batches that training takes for its memory."""
OURS, PEERS = "streaming_ours.py", {"torch": "streaming_torch.py", "tf": "streaming_tf.py"}
NAMES = {"torch": "PyTorch DataLoader", "tf": "tf.data"}


class Pictures:
    """Pictures [N, 64, 64, 3] that are generated as they are read: a pattern of a class, noise."""

    dtype = np.dtype(np.uint8)

    def __init__(self, labels: np.ndarray):
        self._labels = labels
        self._patterns = np.random.default_rng(0).integers(0, 192, (10, *SHAPE), np.uint8)
        self.shape = (len(labels), *SHAPE)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, where: slice) -> np.ndarray:
        labels = self._labels[where]
        rng = np.random.default_rng(where.start or 0)
        return self._patterns[labels] + rng.integers(0, 64, (len(labels), *SHAPE), np.uint8)


def write(folder: pathlib.Path, num_examples: int) -> None:
    """Writes the records."""
    labels = np.random.default_rng(1).integers(0, 10, num_examples, np.int32)
    classes = tuple(map(str, range(10)))
    pictures: Any = Pictures(labels)  # It has what of an array is needed.
    given = OwnData({POOL: pictures}, {POOL: labels}, Pictures.dtype, classes)
    write_records(given, folder)


def can_import(python: str, module: str) -> bool:
    """Whether an interpreter has a module, and what reads records."""
    command = [python, "-c", f"import array_record, {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def fits_in_memory(num_examples: int) -> bool:
    """Whether the pictures take at most a tenth of the memory, since training has copies."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 10 * num_examples * int(np.prod(SHAPE)) <= whole


def main() -> None:  # noqa: C901 (one table after the other)
    """Measures, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="/tmp/streaming")
    parser.add_argument("--num_examples", type=int, default=100_000)
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    without = ["predicting", *(f"memory {model}" for model in MODELS)]
    parser.add_argument("--without", nargs="+", choices=without, default=[], help="the slow ones")
    parser.add_argument("--torch_python", default=sys.executable)
    parser.add_argument("--tf_python", default=sys.executable)
    args = parser.parse_args()

    folder = pathlib.Path(args.folder) / str(args.num_examples)
    if not folder.is_dir():
        write(folder, args.num_examples)
    commands = {
        f"memory {model}": [sys.executable, OURS, "memory", str(folder), model, str(STEPS[model])]
        for model in MODELS
        if f"memory {model}" not in args.without
    }
    peers = []
    if not args.memory:
        if "predicting" not in args.without:
            commands["predicting"] = [sys.executable, OURS, "predicting", str(folder)]
        for model in MODELS:
            commands[model] = [sys.executable, OURS, "waiting", str(folder), model]
            if fits_in_memory(args.num_examples):
                commands[f"{model} in memory"] = [
                    sys.executable, OURS, "in_memory", str(folder), model
                ]  # fmt: skip
        commands["ours"] = [sys.executable, OURS, "reading", str(folder)]
        pythons = {"torch": (args.torch_python, "torch"), "tf": (args.tf_python, "tensorflow")}
        for peer, (python, module) in pythons.items():
            if can_import(python, module):
                peers.append(peer)
                commands[peer] = [python, PEERS[peer], str(folder)]
            else:
                print(f"{python} cannot import {module} and array_record: no rows of {peer}")
    results = side_by_side.measure_rounds(commands, args.rounds)

    def found(name: str, value: str) -> list[float]:
        return [one[value] for one in results[name]]

    setting = f"{args.num_examples:,} pictures"
    rows: list[Row] = []
    for model in MODELS:
        if f"memory {model}" not in results:
            continue
        size, seen = found(f"memory {model}", "gigabytes"), found(f"memory {model}", "examples")[0]
        name = f"{setting}, {model}, {seen:,.0f} examples seen"
        rows.append(side_by_side.compare("memory", name, "GB", size))
    if not args.memory:
        for value, unit in (("gigabytes", "GB"), ("seconds", "s")) * ("predicting" in results):
            figures = found("predicting", value)
            rows.append(side_by_side.compare("predicting to disk", setting, unit, figures))
        for model in MODELS:
            share = found(model, "share")
            rows.append(side_by_side.compare("waiting", model, "share of the time", share))
            if f"{model} in memory" in results:
                rows.append(
                    side_by_side.compare(
                        "training", f"{setting}, {model}", "member-examples/s",
                        found(model, "rate"), found(f"{model} in memory", "rate"), "in memory",
                    )
                )  # fmt: skip
        for peer in peers:
            rows.append(
                side_by_side.compare(
                    "reading", setting, "records/s", found("ours", "rate"), found(peer, "rate"),
                    NAMES[peer],
                )
            )  # fmt: skip
        if not peers:
            rows.append(
                side_by_side.compare("reading", setting, "records/s", found("ours", "rate"))
            )
    missing = f" --without {' '.join(map(repr, args.without))}" if args.without else ""
    side_by_side.report(rows, args.out, f"--num_examples={args.num_examples}{missing}")


if __name__ == "__main__":
    main()
