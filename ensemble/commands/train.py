"""Trains an ensemble: `ensemble train --config=digits_ensemble --workdir=runs/digits`.

`--config.KEY=VALUE` sets a key of the experiment, such as `--config.num_epochs=20`. `--explain`
prints every key with its value, meaning and rule, and trains nothing.
The same command resumes a run that was interrupted, and enlarges a finished one whose
configuration asks for more members or epochs.
"""

import contextlib
import re
from collections.abc import Collection, Sequence
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags

import ensemble
from ensemble.commands import command_line
from ensemble.config import add_missing, all_keys, ask_for, blank, flatten, unknown_key
from ensemble.config_rules import check, log_choices, refuse, validate
from ensemble.errors import UserError
from ensemble.notes import shown_with_the_result
from ensemble.own_modules import importable
from ensemble.report import text
from ensemble.run.resume import missing_packages_named
from ensemble.sharding import processes, signals, startup
from ensemble.storage import packages


def main(argv: Sequence[str]) -> None:
    """Runs the experiment that the flags describe and prints its table."""
    values: Any = flags.FLAGS
    by_hand = config_flags.get_override_values(flags.FLAGS["config"]).keys()
    if values.explain:
        _explain(values.config, by_hand, has_file=values["config"].present)
        return
    with missing_packages_named(values.workdir):
        config = validate(values.config, by_hand)
    startup.configure_devices(config.num_devices, config.method)

    processes.start(
        values.coordinator_address,
        values.num_processes,
        values.process_id,
        {"method": config.method}  # First, for other keys follow from it.
        | {key: value for key, value in flatten(config).items() if key != "data_dir"},
        values.join_seconds,
        {one["package"]: one["version"] for one in packages.of_config(config.to_dict())},
    )
    alive: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if processes.count() > 1:
        from ensemble.sharding import heartbeats  # One process has no other to listen to.

        alive = heartbeats.heard(signals.program())
    with processes.losses_noticed(), alive, shown_with_the_result():
        result = ensemble.train(config, workdir=values.workdir, started=startup.process_started())
    if processes.is_main():
        show(result, values.workdir)


def show(result: Any, workdir: str) -> None:
    """Prints the table of a run, what is to be noted of it, and where its results are."""
    report = result.report
    parts = [text.format_table(report), text.summary_sentence(report), text.notes(report)]
    print("\n" + "\n\n".join(part for part in parts if part))
    print(
        f"\nResults: {workdir}/report.json, plots/"
        f"{', predictions/' if result.predictor else ''}\n"
        f"Monitor: tensorboard --logdir={workdir} --host=localhost"
    )


def _explain(config: Any, by_hand: Collection[str], has_file: bool) -> None:
    """Prints every key of a configuration; what would be refused then ends the program.

    Without a file it is the default one, which does not say how long to train: that may be so.
    """
    from ensemble import explain  # Seldom asked for.

    checked = check(config, by_hand)
    if not checked.task:
        refuse(checked.conflicts)
    log_choices(checked)
    command_line.print_answer(explain.table(checked))
    allowed = [] if has_file else check({"method": checked.config.method}).conflicts
    refuse([line for line in checked.conflicts if line not in allowed])


class _FailedFile(Exception):
    """A config file raised an error, which is the cause of this one."""


class _WholeConfig(flags.ArgumentParser):
    """Reads a config file as `inner` does, and adds the keys that the file leaves out.

    So each of them can be overridden, those of a method that the command line chooses too.
    """

    def __init__(self, inner: flags.ArgumentParser):
        self._inner = inner

    def parse(self, argument: str) -> Any:
        """Returns the configuration."""
        with importable(argument.partition(":")[0]):
            try:
                config: Any = self._inner.parse(argument)
            except (TypeError, ValueError) as error:  # absl would lose its place in the file.
                raise _FailedFile from error.__context__ or error
        is_frozen = isinstance(config, ml_collections.FrozenConfigDict)
        if isinstance(config, ml_collections.ConfigDict) and not is_frozen:
            ask_for(flatten(config))
            with config.unlocked():
                add_missing(config, all_keys())
        return config

    def flag_type(self) -> str:
        """What `--help` calls it."""
        return self._inner.flag_type()


def define_experiment(argv: Sequence[str], needs_file: bool) -> None:
    """Defines `--config`, and `--config.KEY` for every key.

    Args:
        argv: what was given to the program.
        needs_file: whether `--config` is a file, and not every key with its default.

    Raises:
        UserError: keys are set that there are not.
    """
    given = re.findall(r"^--?config\.([\w.]+)(?:[=\n](.*))?", "\n".join(argv), re.MULTILINE)
    ask_for(dict(given))
    known, overridden = all_keys(), [key for key, _ in given]
    refuse([unknown_key(key, known) for key in dict.fromkeys(overridden) if key not in known])
    what = "This is the experiment: a file, or the name of a bundled one."
    if needs_file:
        config_flags.DEFINE_config_file("config", None, what, lock_config=True)
        flag = flags.FLAGS["config"]
        flag.parser = _WholeConfig(flag.parser)
    else:
        config_flags.DEFINE_config_dict("config", blank(all_keys()), what, lock_config=True)


def _define_flags() -> None:
    # Not at import: a program that imports this module may have flags of these names.
    flags.DEFINE_bool(
        "explain", False, "This prints every key of the experiment, and trains nothing."
    )
    flags.DEFINE_string(
        "coordinator_address", None, "Of several processes, number 0 listens at this HOST:PORT."
    )
    flags.DEFINE_integer("num_processes", None, "So many processes train together.")
    flags.DEFINE_integer("process_id", None, "This is the process's number, from 0.")
    flags.DEFINE_float("join_seconds", 50.0, "Processes wait so long for each other.")
    flags.DEFINE_string(
        "workdir", None, "The run keeps its checkpoints, metrics and results in this folder."
    )


def parse_experiment(argv: Sequence[str], example: str, required: Sequence[str]) -> list[str]:
    """Parses a command line with `--config`; a mistake in it, or in the file, is a `UserError`.

    Args:
        argv: the program and what was given to it, with the path of a bundled file.
        example: as of `command_line.parse`.
        required: as of `command_line.parse`.
    """
    try:
        rest = command_line.parse(argv, example, required)
        flags.FLAGS.config.to_dict()  # A file that is not there fails only when it is used.
    except UserError as error:
        raise _with_key(error) from None
    except Exception as error:  # A config file is a program, and may raise anything.
        file = next((arg for arg in argv if arg.startswith("--config=")), "--config")
        cause = error.__cause__ if isinstance(error, _FailedFile) else error
        raise command_line.cannot_load(file, cause or error) from None
    return rest


def _with_key(error: UserError) -> UserError:
    """An error; of a flag that is unknown but a key, with the flag that sets the key."""
    unknown = re.match(r"Unknown command line flag '([\w.]+)'", str(error))
    if unknown and unknown[1] in all_keys():
        return UserError(f"{unknown[0]}; it is a key: write --config.{unknown[1]}=...")
    return error


def has_config_file(argv: Sequence[str]) -> bool:
    """Whether a command line names a configuration."""
    return any(re.match("--?config(=|$)", arg) for arg in argv)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it, or in the config file, is a `UserError`."""
    argv = [argv[0], *command_line.with_bundled_config(argv[1:])]
    explains = any(re.fullmatch("--?explain(=true)?", arg) for arg in argv)
    define_experiment(argv, needs_file=has_config_file(argv) or not explains)
    _define_flags()
    return parse_experiment(
        argv,
        example="--config=configs/digits_ensemble.py --workdir=runs/digits",
        required=() if explains else ("config", "workdir"),
    )


def run(program: str = "train.py") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    with signals.in_program(program):
        return command_line.run(main, parse_flags, program)
