"""What strangers do with data and modules of their own, and how each attempt ends.

    python benchmarks/strangers.py --out=strangers.json

A case is good input, which has to end in a result above what always answering the same gives, or
it holds a mistake, which has to end in one line or in a note that names it. `judge` decides. The
cases in Python and scikit-learn share this process, the others run the programs of the clone. The
file is written after each case, and the same command goes on where it was interrupted. It takes
ten minutes on two cores.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import io
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator

import side_by_side

FINE = ("result", "note", "line")
"""Outcomes that are as they should be.

The others: `refused` is good input with an error, `vague` an error or a note that does not name
the mistake, `silent` a bad result without a note, `traceback` any other error.
"""

MAX_LINE = 900  # Characters; a longer one is not read, and names nothing.


@dataclasses.dataclass(frozen=True)
class Score:
    """How good a result is, on examples that the case has drawn for it.

    Attributes:
        value: accuracy, or R squared of numbers; higher is better.
        floor: of always answering the most frequent class, or the mean.
    """

    value: float
    floor: float


@dataclasses.dataclass(frozen=True)
class Case:
    """One attempt.

    Attributes:
        name: unique.
        way: 'python', 'scikit-learn' or 'terminal'.
        attempt: of an empty folder; gives its score, or the score and the notes that a program
            printed; None where there is nothing to score.
        says: a regular expression for what a line or a note has to say of the mistake; empty for
            good input.
        works: whether a result above the floor is right although nothing is said.
    """

    name: str
    way: str
    attempt: Callable[[pathlib.Path], Score | None]
    says: str
    works: bool


CASES: dict[str, Case] = {}


def case(name: str, way: str = "python", says: str = "", works: bool | None = None):
    """Makes a function a case; as of `Case`."""

    def add(attempt: Callable[[pathlib.Path], Score | None]):
        if name in CASES:
            raise ValueError(f"two cases are called {name!r}")
        CASES[name] = Case(name, way, attempt, says, not says if works is None else works)
        return attempt

    return add


class Ended(Exception):
    """A program that failed: its exit status, and what it printed on stderr."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status, self.text = status, text


def program(*command: str) -> str:
    """Runs a program of the clone; what it warns of becomes a note.

    Returns:
        What it printed on stdout.

    Raises:
        Ended: it failed.
    """
    done = subprocess.run(
        [sys.executable, *command], cwd=side_by_side.ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise Ended(done.returncode, done.stderr)
    for line in done.stderr.splitlines():
        if re.match(r"W\d{4} ", line):
            logging.getLogger("ensemble").warning("%s", line)
    return done.stdout


@contextlib.contextmanager
def notes_taken() -> Iterator[list[str]]:
    """Within it, the warnings of the package, and notes of runs; the list grows."""
    from ensemble import notes

    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ensemble")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with notes.collected() as noted:
            yield lines
            lines += [line for line in noted if line not in lines]
    finally:
        logger.propagate = True
        logger.removeHandler(handler)


def attempt(one: Case) -> dict[str, str | float]:
    """Runs one case and judges it.

    Returns:
        `case`, `way`, `outcome`, `line` and `seconds`.
    """
    started = time.monotonic()
    outcome: Score | BaseException | None
    with (
        tempfile.TemporaryDirectory() as folder,
        notes_taken() as notes,
        contextlib.redirect_stderr(io.StringIO()),
    ):
        try:
            outcome = one.attempt(pathlib.Path(folder))
        except Exception as error:  # What a stranger runs into is what is measured.
            outcome = error
    kind, line = judge(one, outcome, notes)
    line = line.replace(folder, "FOLDER").replace(f"{side_by_side.ROOT}/", "")
    seconds = round(time.monotonic() - started, 1)
    return {"case": one.name, "way": one.way, "outcome": kind, "line": line, "seconds": seconds}


def judge(one: Case, outcome: Score | BaseException | None, notes: list[str]) -> tuple[str, str]:
    """Says how a case ended.

    Args:
        one: the case.
        outcome: what it gave or raised.
        notes: that were said.

    Returns:
        One of `FINE` or of the bad outcomes, and the line that is to be read of it.
    """
    if isinstance(outcome, BaseException):
        return _judge_error(one, outcome)
    fitting = [line for line in notes if one.says and re.search(one.says, line, re.IGNORECASE)]
    value = "" if outcome is None else f"{outcome.value:.3f} against {outcome.floor:.3f}"
    if fitting:
        return "note", f"{value}; {fitting[0]}"
    if one.works and (outcome is None or outcome.value > outcome.floor):
        return "result", value
    return ("vague" if notes and one.says else "silent"), "; ".join([value, *notes])


def _judge_error(one: Case, error: BaseException) -> tuple[str, str]:
    line = _one_line(one, error)
    if not line:
        text = "".join(traceback.format_exception(error))
        text = error.text if isinstance(error, Ended) else text
        return "traceback", " | ".join(text.strip().splitlines()[-6:])
    if not one.says:
        return "refused", line
    named = re.search(one.says, line, re.IGNORECASE) and len(line) <= MAX_LINE
    return ("line" if named else "vague"), line


def _one_line(one: Case, error: BaseException) -> str:
    """The line in which an attempt ended; empty if it ended in anything else."""
    import sklearn.exceptions

    import ensemble

    if isinstance(error, Ended):
        lines = [line for line in error.text.strip().splitlines() if line.strip()]
        ended = [line for line in lines if re.match(r"\w+\.py: ", line)]
        whole = error.status in (1, 2) and len(ended) == 1 and "Traceback" not in error.text
        return ended[0] if whole and lines[-1] == ended[0] else ""
    told: tuple[type[BaseException], ...] = (ensemble.UserError, ensemble.RunFailed)
    if one.way == "scikit-learn":  # Its own checks have their own errors.
        told += (ValueError, TypeError, sklearn.exceptions.NotFittedError)
        return str(error).splitlines()[0] if isinstance(error, told) else ""
    return str(error) if isinstance(error, told) and "\n" not in str(error) else ""


def main() -> None:
    """Runs what was not run yet, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="JSON file to write, or to go on with")
    parser.add_argument("--only", default="", help="regular expression for names of cases")
    parser.add_argument("--again", action="store_true", help="repeat what is not as it should be")
    args = parser.parse_args()
    sys.path.insert(0, str(side_by_side.ROOT))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    import strangers_arrays  # noqa: F401 - Each adds its cases.
    import strangers_estimators  # noqa: F401
    import strangers_modules  # noqa: F401
    import strangers_programs  # noqa: F401
    import strangers_settings  # noqa: F401

    rows = json.loads(args.out.read_text())["cases"] if args.out and args.out.exists() else []
    rows = [row for row in rows if row["case"] in CASES]
    if args.again:
        rows = [row for row in rows if row["outcome"] in FINE]
    known = {row["case"] for row in rows}
    for name, one in CASES.items():
        if name in known or not re.search(args.only, name):
            continue
        rows.append(attempt(one))
        print(_row(rows[-1]), flush=True)
        if args.out:
            content = {
                "machine": side_by_side.describe_machine(),
                **side_by_side.provenance(),
                "cases": rows,
            }
            args.out.write_text(json.dumps(content, indent=2) + "\n")
    print("\n".join(summary(rows)))


@functools.cache
def _width() -> int:
    return max(map(len, CASES))


def _row(row: dict[str, str | float]) -> str:
    name, way = str(row["case"]), str(row["way"])
    return f"{row['outcome']:<9}  {way:<12}  {name:<{_width()}}  {row['seconds']:>5}  {row['line']}"


def summary(rows: list[dict[str, str | float]]) -> list[str]:
    """The number of cases by outcome, and the cases that are not as they should be."""
    counts = collections.Counter(str(row["outcome"]) for row in rows)
    bad = [row for row in rows if row["outcome"] not in FINE]
    seconds = sum(float(row["seconds"]) for row in rows)
    told = ", ".join(f"{number} {kind}" for kind, number in counts.most_common())
    return ["", f"{len(rows)} cases in {seconds:.0f} s: {told}", *map(_row, bad)]


if __name__ == "__main__":
    sys.modules["strangers"] = sys.modules["__main__"]  # For the files of cases, which import it.
    main()
