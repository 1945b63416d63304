"""Chooses members of several runs that predict best together: `ensemble select RUN RUN ...`.

`--workdir` gets references to the chosen members and their weights. `ensemble evaluate`, `predict`
and `export` take it as they take any run; the runs that it refers to must stay where they are.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

import ensemble
from ensemble.commands import command_line
from ensemble.errors import shown
from ensemble.evaluation.greedy import lines_of
from ensemble.storage.paths import user_path


def main(argv: Sequence[str]) -> None:
    """Selects what the flags say, and prints what was chosen."""
    values: Any = flags.FLAGS
    out = user_path(values.workdir, "--workdir")
    command_line.run_config_file(values.config)
    found = ensemble.select(list(argv[1:]), out, values.by)
    lines = "\n".join(map(shown, lines_of(found)))
    command_line.print_answer(f"{lines}\n\nResults: {out}/report.json")


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    # Defined here, for a program that imports this module may have flags of these names.
    flags.DEFINE_string("workdir", None, "Where the selection goes.")
    flags.DEFINE_string(
        "by",
        "validation",
        "What to choose by: the split validation or calibration, or held_out, the training rows "
        "that cross-fitted members hold out.",
    )
    command_line.define_config_flag()
    return command_line.parse(
        argv,
        example="runs/digits runs/varied --workdir=runs/selected",
        required=("workdir",),
        arguments=("RUN...",),
    )


def run(program: str = "select") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
