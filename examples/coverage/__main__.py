"""Finds where in the inputs 90% intervals hold 90% of new targets: `python -m examples.coverage`.

Many data sets are learned by a network, an ensemble and a posterior. The program prints a table and
writes `coverage.png` and `coverage.json`.
"""

import argparse
import inspect
import sys
from typing import NoReturn

from ensemble.errors import UserError, shown
from ensemble.pictures.plot_style import figure_to_png
from ensemble.run.progress import Progress, open_display
from ensemble.sharding import startup
from ensemble.storage.files import write_together
from ensemble.storage.paths import user_path
from ensemble.storage.schema import to_json

_DATA_SETS = range(20, 10_001)  # Fewer give no interval over data sets.
_SEEDS = range(2**31)


class _Parser(argparse.ArgumentParser):
    """A parser to which a mistake is one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m examples.coverage", description=inspect.cleandoc(__doc__))
    parser.add_argument("--out", default="runs/coverage", help="where picture and numbers go")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    parser.add_argument("--data_sets", type=int, default=200, help="to draw of each truth")
    values = parser.parse_args(arguments)
    for name, allowed in (("seed", _SEEDS), ("data_sets", _DATA_SETS)):
        value = getattr(values, name)
        if value not in allowed:
            raise UserError(f"--{name}={value}: use {allowed[0]} to {allowed[-1]}")
    return values


def _learn_and_write(values: argparse.Namespace) -> None:
    """Learns all data sets, prints what was found and writes the picture and the numbers."""
    out = user_path(values.out, "--out")
    out.mkdir(parents=True, exist_ok=True)  # A folder that cannot be written is no surprise later.
    startup.configure()
    from examples.coverage import intervals  # After XLA's flags.

    total = intervals.num_jobs(values.data_sets)
    with (
        open_display() as display,
        Progress(0, total, "learning", "data set", display) as progress,
    ):
        found = intervals.run(values.seed, values.data_sets, progress.update)
    content = intervals.report(found, values.seed)
    picture = figure_to_png(intervals.draw(found, content))
    write_together({out / "coverage.json": to_json(content), out / "coverage.png": picture})
    files = shown(f"Picture: {out}/coverage.png, and every number in {out}/coverage.json")
    print(f"{intervals.text(content)}\n\n{files}")


def main(arguments: list[str] | None = None) -> int:
    """Runs the program; returns the exit status."""
    try:
        _learn_and_write(_parse(arguments))
    except (UserError, OSError) as error:
        print(shown(f"coverage: {error}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
