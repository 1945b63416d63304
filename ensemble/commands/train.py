"""Trains an ensemble: `python train.py --config=configs/digits_ensemble.py --workdir=runs/digits`.

The same command resumes a run that was interrupted, and enlarges a finished one whose
configuration asks for more members or epochs.
"""

import re
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

import ensemble
from ensemble.commands import command_line
from ensemble.config import all_keys, flatten, unknown_key
from ensemble.config_rules import refuse, validate
from ensemble.errors import UserError
from ensemble.report import text
from ensemble.sharding import processes, startup


def main(argv: Sequence[str]) -> None:
    """Runs the experiment that the flags describe and prints its table."""
    values: Any = flags.FLAGS
    config = validate(
        values.config, by_hand=config_flags.get_override_values(flags.FLAGS["config"]).keys()
    )
    startup.configure_devices(config.num_devices, config.method)

    processes.start(
        values.coordinator_address,
        values.num_processes,
        values.process_id,
        {key: value for key, value in flatten(config).items() if key != "data_dir"},
        values.join_seconds,
    )
    with processes.losses_noticed():
        result = ensemble.train(config, workdir=values.workdir, started=startup.process_started())
    if not processes.is_main():
        return
    print(f"\n{text.format_table(result.report)}\n\n{text.summary_sentence(result.report)}")
    print(
        f"\nResults: {values.workdir}/report.json, plots/"
        f"{', predictions/' if result.predictor else ''}\n"
        f"Monitor: tensorboard --logdir={values.workdir} --host=localhost"
    )


def _define_flags() -> None:
    # Not at import: a program that imports this module may have flags of these names.
    config_flags.DEFINE_config_file(
        "config", None, "The experiment: a file, or the name of a bundled one.", lock_config=True
    )
    flags.DEFINE_string(
        "coordinator_address", None, "HOST:PORT of process 0, of several processes."
    )
    flags.DEFINE_integer("num_processes", None, "How many processes there are.")
    flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.")
    flags.DEFINE_float("join_seconds", 50.0, "How long to wait for the others.")
    flags.DEFINE_string("workdir", None, "Where the run lives: checkpoints, metrics, results.")


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it, or in the config file, is a `UserError`."""
    argv = [argv[0], *command_line.with_bundled_config(argv[1:])]
    _define_flags()
    known = all_keys()
    overridden = re.findall(r"^--?config\.([\w.]+)", "\n".join(argv), re.MULTILINE)
    refuse([unknown_key(key, known) for key in dict.fromkeys(overridden) if key not in known])
    try:
        rest = command_line.parse(
            argv,
            example="--config=configs/digits_ensemble.py --workdir=runs/digits",
            required=("config", "workdir"),
        )
        flags.FLAGS.config.to_dict()  # A file that is not there fails only when it is used.
    except UserError:
        raise
    except Exception as error:  # A config file is a program, and may raise anything.
        file = next((arg for arg in argv if arg.startswith("--config=")), "--config")
        raise command_line.cannot_load(file, error) from None
    return rest


def run(program: str = "train.py") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
