"""Trains an ensemble: `python train.py --config=configs/digits_ensemble.py --workdir=runs/digits`.

The same command resumes a run that was interrupted, and enlarges a finished one whose
configuration asks for more members or epochs.
"""

import re
import sys
from collections.abc import Sequence

from absl import flags
from ml_collections import config_flags

import ensemble
from ensemble.commands import command_line
from ensemble.config import default_config, flatten, unknown_key
from ensemble.errors import UserError
from ensemble.sharding import startup

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The experiment: a file of configs/, or your own.", lock_config=True
)
_COORDINATOR_ADDRESS = flags.DEFINE_string(
    "coordinator_address", None, "HOST:PORT of process 0, of several processes."
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many processes there are.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.")
_JOIN_SECONDS = flags.DEFINE_float("join_seconds", 50.0, "How long to wait for the others.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where the run lives: checkpoints, metrics, results."
)


def main(argv: Sequence[str]) -> None:
    """Runs the experiment that the flags describe and prints its table."""
    config = _CONFIG.value
    method = config.get("method", default_config().method)
    startup.configure_devices(config.get("num_devices"), method)
    from ensemble.report import report
    from ensemble.sharding import processes

    processes.start(
        _COORDINATOR_ADDRESS.value,
        _NUM_PROCESSES.value,
        _PROCESS_ID.value,
        {key: value for key, value in flatten(_CONFIG.value).items() if key != "data_dir"},
        _JOIN_SECONDS.value,
    )
    with processes.losses_noticed():
        result = ensemble.train(
            _CONFIG.value, workdir=_WORKDIR.value, started=startup.process_started()
        )
    if not processes.is_main():
        return
    print(f"\n{report.format_table(result.report)}\n\n{report.summary_sentence(result.report)}")
    print(
        f"\nResults: {_WORKDIR.value}/report.json, plots/"
        f"{', predictions/' if result.predictor else ''}\n"
        f"Monitor: tensorboard --logdir={_WORKDIR.value} --host=localhost"
    )


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it, or in the config file, is a `UserError`."""
    known = flatten(default_config())
    for key in re.findall(r"^--?config\.([\w.]+)", "\n".join(argv), re.MULTILINE):
        if key not in known:
            raise UserError(unknown_key(key, known))
    try:
        rest = command_line.parse(
            argv,
            example="--config=configs/digits_ensemble.py --workdir=runs/digits",
            required=("config", "workdir"),
        )
        _CONFIG.value.to_dict()  # A file that is not there fails only when it is used.
    except UserError:
        raise
    except Exception as error:  # A config file is a program, and may raise anything.
        file = next((arg for arg in argv if arg.startswith("--config=")), "--config")
        raise command_line.cannot_load(file, error) from None
    return rest


def run() -> int:
    """Runs `main`; returns the exit status."""
    return command_line.run(main, parse_flags, "train.py")


if __name__ == "__main__":
    sys.exit(run())
