"""Trains one network to an ensemble: `ensemble distill --workdir=W --out=W2`.

The network has the ensemble's configuration. `--config.KEY=VALUE` sets what is to differ, such as
`--config.model=mlp`, `--config.num_epochs=20`, or `--config.likelihood=dirichlet`, which learns the
ensemble's split of uncertainty too. With `--config=FILE` the whole configuration is that of a file,
as of train.py. The same command resumes a run that was interrupted.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

import ensemble
from ensemble.commands import command_line, train
from ensemble.config_rules import validate
from ensemble.notes import shown_with_the_result
from ensemble.run.distill import check_apart
from ensemble.sharding import signals, startup
from ensemble.storage.paths import user_path


def main(argv: Sequence[str]) -> None:
    """Trains what the flags describe, and prints it beside the ensemble."""
    values: Any = flags.FLAGS
    teacher, out = str(user_path(values.workdir, "--workdir")), str(user_path(values.out, "--out"))
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    began = startup.process_started()
    if values["config"].present:
        check_apart(teacher, out)
        with values.config.unlocked():
            values.config.teacher = teacher
        config = validate(values.config, [*overrides, "teacher"])
        with shown_with_the_result():
            result = ensemble.train(config, workdir=out, started=began)
    else:
        with shown_with_the_result():
            result = ensemble.distill(teacher, out, overrides, started=began)
    train.show(result, out)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it, or in the config file, is a `UserError`."""
    argv = [argv[0], *command_line.with_bundled_config(argv[1:])]
    train.define_experiment(argv, needs_file=train.has_config_file(argv))
    # Defined here, for a program that imports this module may have flags of these names.
    flags.DEFINE_string("workdir", None, "The run whose ensemble to learn from.")
    flags.DEFINE_string("out", None, "Where the new run lives: checkpoints, metrics, results.")
    return train.parse_experiment(
        argv,
        example="--workdir=runs/digits --out=runs/digits_distilled",
        required=("workdir", "out"),
    )


def run(program: str = "distill") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    with signals.in_program(program):
        return command_line.run(main, parse_flags, program)
