"""Trains an ensemble: `python train.py --config=configs/digits_ensemble.py --workdir=runs/digits`.

The same command resumes a run that was interrupted, and enlarges a finished one whose
configuration asks for more members or epochs.
"""

import logging as std_logging
import re
import sys
from collections.abc import Sequence

from absl import app, flags, logging
from ml_collections import config_flags

import ensemble
from ensemble import startup
from ensemble.config import default_config, flatten, unknown_key
from ensemble.errors import Interrupted, RunFailed, UserError

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The experiment: a file of configs/, or your own.", lock_config=True
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where the run lives: checkpoints, metrics, results."
)


def main(argv: Sequence[str]) -> None:
    """Runs the experiment that the flags describe and prints its table."""
    from ensemble import report

    result = ensemble.train(
        _CONFIG.value, workdir=_WORKDIR.value, started=startup.process_started()
    )
    print(f"\n{report.format_table(result.report)}\n\n{report.summary_sentence(result.report)}")
    print(
        f"\nResults: {_WORKDIR.value}/report.json, plots/, predictions/\n"
        f"Monitor: tensorboard --logdir={_WORKDIR.value} --host=localhost"
    )


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it, or in the config file, is a `UserError`."""
    known = flatten(default_config())
    for key in re.findall(r"^--?config\.([\w.]+)", "\n".join(argv), re.MULTILINE):
        if key not in known:
            raise UserError(unknown_key(key, known))
    try:
        rest = flags.FLAGS(argv)
        if _CONFIG.value is not None:
            _CONFIG.value.to_dict()  # A file that is not there fails only when it is used.
    except flags.Error as error:
        raise UserError(str(error)) from None
    except Exception as error:  # A config file is a program, and may raise anything.
        file = next((arg for arg in argv if arg.startswith("--config=")), "--config")
        raise UserError(f"{file} cannot be loaded: {_reason(error)}") from None
    if len(rest) > 1:
        raise UserError(f"{rest[1]!r} is not a flag; every argument has the form --name=value")
    for name, value in (("config", _CONFIG.value), ("workdir", _WORKDIR.value)):
        if not value:
            raise UserError(
                f"--{name} is missing; try --config=configs/digits_ensemble.py "
                "--workdir=runs/digits"
            )
    return rest


def _is_worth_showing(record: std_logging.LogRecord) -> bool:
    """Lets through what this project logs, and others' warnings.

    Orbax reports each failure from several threads, with tracebacks, and then raises it: the
    raised one becomes a line of ours.
    """
    if "site-packages" not in record.pathname:
        return True
    return record.levelno >= std_logging.WARNING and "orbax" not in record.pathname


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def run() -> int:
    """Runs `main` and turns what ends a run early into one line and an exit status."""
    logging.set_verbosity(logging.INFO)
    logging.get_absl_handler().addFilter(_is_worth_showing)
    try:
        app.run(main, flags_parser=parse_flags)
    except (UserError, RunFailed, Interrupted) as error:
        logging.flush()
        print(f"train.py: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(run())
