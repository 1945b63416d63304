"""Files with bytes that somebody has changed: one line, or the answer that was there before.

    PYTHONPATH=.:tests python tests/public/test_strangers_files.py FIRST END

tries the changes of these numbers, and prints how each ended. Each is made by its number alone, so
that a run that was ended goes on with the next number.
"""

import contextlib
import logging
import logging.handlers
import pathlib
import queue
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import names
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from runs import RUNS, classes
from small import MEMBERS, train

COUNT = 64
"""How many changes a test tries."""
PARTS = {
    "config": "config.json",
    "results": names.file("", "results.json").name,
    "checkpoint": "checkpoints/**/*",
    "draws": "draws/*.npz",
    "predictions": "predictions/test.npz",
}
"""Files of a workdir."""
DATA = ("npz", "csv", "parquet", "npy", "folder")
INPUTS = classes()["inputs"]


def write_runs(folder: pathlib.Path) -> None:
    """Writes an ensemble and a posterior."""
    train({}, classes(), folder / "members")
    config = RUNS["hmc"].config(size=2, num_devices=1)
    names.train(config, classes(), str(folder / "chains"), show_progress=False)


def write_data(folder: pathlib.Path) -> None:
    """Writes the same examples in each form."""
    arrays = {"inputs": INPUTS, "labels": classes()["labels"]}
    folder = folder / "data"
    folder.mkdir()
    np.savez(folder / "all.npz", **arrays)
    (folder / "npy").mkdir()
    for name, array in arrays.items():
        np.save(folder / "npy" / f"{name}.npy", array)
    table = pd.DataFrame(INPUTS, columns=list("abcdef")).assign(y=arrays["labels"])
    table.to_csv(folder / "all.csv", index=False)
    table.to_parquet(folder / "all.parquet")
    for k, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)):
        path = folder / "images" / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


def answer(run: pathlib.Path, is_scored: bool) -> dict[str, Any]:
    """What a run says: of inputs, or of its test split, whose predictions are stored."""
    if is_scored:
        with tempfile.TemporaryDirectory() as out:
            found = names.evaluate(run, out, datasets=(), show_progress=False, data=classes())
        return names.numbers({"metrics": {"test": found.json()["metrics"]}})
    return {"probs": names.load(run)(INPUTS[:9]).probs}


def learn(folder: pathlib.Path, form: str) -> None:
    """Reads data by a run of one step."""
    place = {"npy": "npy", "folder": "images"}.get(form, f"all.{form}")
    own = {"dataset": f"{form}:{folder / 'data' / place}", "ensemble_size": 1, "batch_size": 8}
    own |= {"target": "y"} if form in ("csv", "parquet") else {}
    values = {key: one for key, one in MEMBERS.items() if key != "num_epochs"}
    names.train({**values, **names.config({**own, "num_steps": 1})}, show_progress=False)


@contextlib.contextmanager
def changed(path: pathlib.Path, rng: random.Random):
    """A file with up to four other bytes, and sometimes without its end, for a while."""
    before = path.read_bytes()
    content = bytearray(before)
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content[: rng.randrange(len(content))] if rng.random() < 0.1 else content)
    try:
        yield
    finally:
        path.write_bytes(before)


def ended(use: Callable[[], Any]) -> Any:
    """What a use returns; None where it is refused in one line."""
    line = ""
    try:
        return use()
    except names.InputError as error:
        line = str(error)
    assert "\n" not in line, line
    return None


@contextlib.contextmanager
def heard():
    """What is logged meanwhile, in a queue of records."""
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    logging.getLogger("ensemble").addHandler(handler)
    try:
        yield records
    finally:
        logging.getLogger("ensemble").removeHandler(handler)


def try_change(number: int, folder: pathlib.Path, expected: dict[Any, Any]) -> str:
    """Makes a change, uses the file, and says what came of it."""
    rng = random.Random(number)
    if number % 8 == 0:
        form = rng.choice(DATA)
        files = [path for path in (folder / "data").rglob("*") if form_of(path) == form]
        with changed(rng.choice(sorted(files)), rng):
            ended(lambda: learn(folder, form))
        return "data"
    part = rng.choice(list(PARTS))
    run = folder / ("chains" if part == "draws" else rng.choice(("members", "chains")))
    files = [path for path in run.glob(PARTS[part]) if path.is_file() and path.stat().st_size]
    path = rng.choice(sorted(files))
    is_scored = part == "predictions"
    with changed(path, rng), heard() as records:
        found = ended(lambda: answer(run, is_scored))
    if found is None:
        return "refused"
    while not records.empty():
        if "the one before is used" in records.get().getMessage():
            return "the checkpoint before"
    for name, value in expected[run.name, is_scored].items():
        np.testing.assert_array_equal(found[name], value, f"change {number}, {path}")
    return "the same"


def form_of(path: pathlib.Path) -> str:
    """The form of data that a file is of."""
    return {"png": "folder"}.get(path.suffix[1:], path.suffix[1:])


def try_changes(numbers: Iterable[int], folder: pathlib.Path) -> Iterator[str]:
    """Tries changes, and says how each ended, one by one."""
    write_runs(folder)
    write_data(folder)
    expected = {
        (name, is_scored): answer(folder / name, is_scored)
        for name in ("members", "chains")
        for is_scored in (False, True)
    }
    return (try_change(number, folder, expected) for number in numbers)


@pytest.mark.check
def test_changed_bytes_are_refused_in_one_line_or_change_nothing(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    found = list(try_changes(range(COUNT), tmp_path))
    assert found.count("refused") > COUNT / 3
    assert found.count("data") == COUNT / 8


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        first, end = map(int, sys.argv[1:])  # It goes on after the last number that is printed.
        numbers = range(first, end)
        for number, outcome in zip(
            numbers, try_changes(numbers, pathlib.Path(scratch)), strict=True
        ):
            print(number, outcome, flush=True)
