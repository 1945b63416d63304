"""Fits a table within a time: `ensemble fit --data=csv:mine.csv --target=price --budget=10m`.

Families of networks are tried, and the best are mixed. `--config.KEY=VALUE` sets a key that all of
them have, such as `--config.split=group:patient`. `--workdir` gets all that is tried, and
`ensemble evaluate`, `predict` and `export` take it as they take any run. The same command goes on
with a search that was interrupted, and with more time on one that has ended.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

import ensemble
from ensemble.commands import command_line, train
from ensemble.errors import Interrupted, shown
from ensemble.search.fit import lines_of
from ensemble.sharding import signals
from ensemble.storage.paths import user_path


def main(argv: Sequence[str]) -> None:
    """Searches as the flags say, and prints what was tried and chosen."""
    values: Any = flags.FLAGS
    out = str(user_path(values.workdir, "--workdir"))
    config = dict(config_flags.get_override_values(flags.FLAGS["config"]))
    given = {"dataset": values.data, "target": values.target}
    config |= {key: one for key, one in given.items() if one is not None}
    found = ensemble.fit(None, values.budget, out, config)
    lines = "\n\n".join("\n".join(map(shown, part.splitlines())) for part in lines_of(found.report))
    command_line.print_answer(f"{lines}\n\nResults: {out}/report.json")
    if found.report["search"]["is_interrupted"]:
        raise Interrupted(signals.resume_line())


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    train.define_experiment(argv, needs_file=False)
    # Defined here, for a program that imports this module may have flags of these names.
    flags.DEFINE_string("data", None, "The table: csv:FILE, parquet:FILE, or another data set.")
    flags.DEFINE_string("target", None, "The column to predict.")
    flags.DEFINE_string("budget", "10m", "The time that it may take, such as 90s, 10m or 2h.")
    flags.DEFINE_string("workdir", None, "Where all that is tried lives, and what is chosen.")
    return train.parse_experiment(
        argv,
        example="--data=csv:mine.csv --target=price --budget=10m --workdir=runs/best",
        required=("workdir",),
    )


def run(program: str = "fit") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    with signals.in_program(program):
        return command_line.run(main, parse_flags, program)
