"""Shows on generated data what is known to be true there: `python -m ensemble demo coverage`.

`coverage` learns many data sets by a network, an ensemble and a posterior, and finds where in the
inputs their 90% intervals hold 90% of new targets. It writes `coverage.png` and `coverage.json`.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from ensemble.commands import command_line
from ensemble.errors import UserError, shown
from ensemble.pictures.plot_style import figure_to_png
from ensemble.run.display import open_display
from ensemble.run.progress import Progress
from ensemble.sharding import startup
from ensemble.storage.files import write_together
from ensemble.storage.paths import user_path
from ensemble.storage.schema import to_json

DEMOS = ("coverage",)
_MIN, _MAX = 20, 10_000  # Data sets: fewer give no interval over data sets.


def main(argv: Sequence[str]) -> None:
    """Runs the demo that the command line names, and prints what it found."""
    values: Any = flags.FLAGS
    if argv[1] not in DEMOS:
        raise UserError(f"{argv[1]!r} is no demo; use {', '.join(DEMOS)}")
    out = user_path(values.out, "--out")
    out.mkdir(parents=True, exist_ok=True)  # What cannot be written is said before the work.
    startup.configure()
    from ensemble.demos import coverage  # After XLA's flags.

    total = coverage.num_jobs(values.data_sets)
    with (
        open_display() as display,
        Progress(0, total, "learning", "data set", display) as progress,
    ):
        found = coverage.run(values.seed, values.data_sets, progress.update)
    content = coverage.report(found, values.seed)
    picture = figure_to_png(coverage.draw(found, content))
    write_together({out / "coverage.json": to_json(content), out / "coverage.png": picture})
    files = shown(f"Picture: {out}/coverage.png, and every number in {out}/coverage.json")
    command_line.print_answer(f"{coverage.text(content)}\n\n{files}")


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    flags.DEFINE_string("out", "runs/demo", "Where the picture and the numbers go.")
    flags.DEFINE_integer(
        "seed", 0, "Of everything that is drawn.", lower_bound=0, upper_bound=2**31 - 1
    )
    flags.DEFINE_integer(
        "data_sets", 200, "To draw of each truth.", lower_bound=_MIN, upper_bound=_MAX
    )
    return command_line.parse(argv, example="demo coverage", arguments=("coverage",))


def run(program: str = "demo") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
