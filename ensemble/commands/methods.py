"""Says which method to use with the time there is: `ensemble methods --config=... --budget=10m`.

The network and the data of `--config` are trained by one method after the other, at equal CPU
seconds: those of one network at first, then four and sixteen times as many, as far as the budget
reaches. A table says how good each is on the test split, and one sentence which one to use.
`--config.KEY=VALUE` sets a key of the experiment. The same command goes on with a comparison that
was interrupted, and with more time to longer training.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

import ensemble
from ensemble.commands import command_line, train
from ensemble.config_rules import validate
from ensemble.errors import shown
from ensemble.search.families import FAMILIES
from ensemble.sharding import signals
from ensemble.storage.paths import user_path


def main(argv: Sequence[str]) -> None:
    """Compares methods as the flags say, and prints what was found."""
    values: Any = flags.FLAGS
    out = str(user_path(values.workdir, "--workdir"))
    validate(values.config, config_flags.get_override_values(flags.FLAGS["config"]).keys())
    found = ensemble.compare_methods(
        values.config, values.budget, out, methods=values.methods or None
    )
    lines = "\n".join(map(shown, repr(found).splitlines()))
    command_line.print_answer(f"{lines}\n\nResults: {out}/methods.json")


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    argv = [argv[0], *command_line.with_bundled_config(argv[1:])]
    train.define_experiment(argv, needs_file=True)
    # Defined here, for a program that imports this module may have flags of these names.
    flags.DEFINE_string("budget", "10m", "The time that it may take, such as 90s, 10m or 2h.")
    flags.DEFINE_string("workdir", None, "Where all runs live, and methods.json.")
    known = ", ".join(one.name for one in FAMILIES)
    flags.DEFINE_list("methods", None, f"Some of {known}, with commas; all unless it is given.")
    return train.parse_experiment(
        argv,
        example="--config=digits_ensemble --budget=10m --workdir=runs/methods",
        required=("config", "workdir"),
    )


def run(program: str = "methods") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    with signals.in_program(program):
        return command_line.run(main, parse_flags, program)
