"""The command line: one table of commands, one parser, one place where errors become a line.

Flags are absl's. `--config` names a Python file with a function `get_config`, or a bundled
configuration, with a variant after a colon; `--config.KEY=VALUE` sets any key of it.
"""

import ast
import importlib
import logging as std_logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags, logging

from ensemble.config import Run, build, flatten, pieces
from ensemble.config.build import all_fields, listing, refuse, unknown_key
from ensemble.errors import InputError, in_own_code, place_in_own_code, printable

FLAGS: Mapping[str, tuple[Any, str]] = {
    "config": (str, "Config file, or name of a bundled one; --config.KEY=VALUE sets a key."),
    "workdir": (str, "Directory of the run, search or comparison."),
    "out": (
        str,
        "New file or directory to write; of predictions NAME.csv, .jsonl or .parquet; of an "
        "evaluation by default `evaluation` in the run.",
    ),
    "trust": (False, "Import the code that the run names by a path."),
    "print_config": (False, "Print every key of the run; train nothing."),
    "coordinator_address": (str, "HOST:PORT where process 0 of several listens."),
    "num_processes": (int, "Number of processes."),
    "process_id": (int, "Number of this process, from 0."),
    "initialization_timeout": (50.0, "Seconds that processes wait for all to start."),
    "progress_timeout": (600.0, "Seconds that processes wait for one that is behind."),
    "extra_datasets": (
        list,
        "Additional data sets to score: shift, uniform, constant, of tables box and outside, names "
        "of sets of the same shape, or none. Default: installed sets that suit the run.",
    ),
    "compare": ([], "Workdirs to compare with."),
    "max_error": (
        str,
        "Abstain so that accepted examples have at most this error: 0.02, or of numbers 0.1@5 if "
        "errors above 5 count. An evaluation takes several.",
    ),
    "coverage": (str, "Abstain on all but this share of the examples: 0.9."),
    "metrics": (
        [],
        "Additional metrics: of classes cost:FILE, a matrix of the cost of each decision, "
        "auprc:CLASS and auroc:CLASS; or your own as module:Name or file.py:Name.",
    ),
    "data": (
        str,
        "Data of a search: csv:FILE, parquet:FILE, or another data set; or npz file of the arrays "
        "that an evaluated run has learned.",
    ),
    "allow_empty_sets": (
        False,
        "Let conformal sets be empty, for the guaranteed coverage and no more.",
    ),
    "num_devices": (int, "Devices to predict on; default: all."),
    "data_dir": (str, "Directory of TFDS sets; default: that of the run."),
    "json": (False, "Print one JSON document."),
    "calibrated": (False, "Temper the probabilities by the calibration split."),
    "id_columns": ([], "Columns of the table to repeat: id,name."),
    "target": (str, "Column to predict."),
    "time_limit": ("10m", "Total time, such as 90s, 10m or 2h."),
    "methods": (list, "Names of methods to compare; default: all."),
    "resize": (str, "Size of images from files, such as 64 or 64x48."),
    "skip_damaged": (False, "Count and omit examples that cannot be read."),
    "user": (str, "User, by the name in the data."),
    "item": (str, "Id or title of the only item to answer for."),
    "top": (20, "Number of items."),
    "verbosity": (0, "1 logs more, -1 warnings only."),
}
"""Default, or the type of a flag without one, and meaning, by name."""


class Command(NamedTuple):
    """A command, whose module in `ensemble.commands` has a function `main(call)`.

    Attributes:
        does: Half a sentence that begins with a verb.
        flags: Names in `FLAGS`, all but `verbosity`.
        example: Flags and arguments that work, for messages.
        required: Flags that must be set.
        arguments: Names of arguments other than flags, all required; of a last one with `...`
            there may be many.
        has_keys: Whether `--config.KEY=VALUE` is allowed.
    """

    does: str
    flags: str
    example: str
    required: str = "workdir"
    arguments: str = ""
    has_keys: bool = False


COMMANDS: Mapping[str, Command] = {
    "train": Command(
        "trains an ensemble, or samples a posterior or a density",
        "config workdir trust print_config coordinator_address num_processes process_id "
        "initialization_timeout progress_timeout",
        "--config=digits_ensemble --workdir=runs/digits",
        "config workdir",
        has_keys=True,
    ),
    "evaluate": Command(
        "scores a run and writes its report",
        "workdir trust data_dir out extra_datasets compare max_error coverage metrics data "
        "allow_empty_sets num_devices",
        "--workdir=runs/digits",
    ),
    "predict": Command(
        "predicts files, the least certain first",
        "workdir trust json calibrated max_error coverage out id_columns",
        "--workdir=runs/digits pictures",
        arguments="INPUTS...",
    ),
    "export": Command(
        "writes an ensemble as one file that runs without this package",
        "workdir trust calibrated max_error coverage out",
        "--workdir=runs/digits --out=model.bin",
        "workdir out",
    ),
    "distill": Command(
        "trains one network to predict what an ensemble predicts",
        "config workdir out trust",
        "--workdir=runs/digits --out=runs/digits_distilled",
        "workdir out",
        has_keys=True,
    ),
    "search": Command(
        "finds the best ensemble for a table within a time",
        "data target time_limit workdir",
        "--data=csv:mine.csv --target=price --time_limit=10m --workdir=runs/best",
        has_keys=True,
    ),
    "compare-methods": Command(
        "compares methods at equal training steps",
        "config time_limit workdir methods",
        "--config=digits_ensemble --time_limit=10m --workdir=runs/methods",
        "config workdir",
        has_keys=True,
    ),
    "convert": Command(
        "writes data as records, which training reads from disk in batches",
        "resize data_dir skip_damaged",
        "pictures/ records/",
        "",
        "SOURCE FOLDER",
    ),
    "recommend": Command(
        "recommends items, such as movies, to a user",
        "workdir json data_dir user item top",
        "--workdir=runs/movielens --user=u7",
        "workdir user",
    ),
}


class Call(NamedTuple):
    """A parsed command line.

    Attributes:
        flags: Values by name, but for `--verbosity`.
        arguments: The others.
        overrides: Texts of `--config.KEY=VALUE`, by key.
    """

    flags: dict[str, Any]
    arguments: Sequence[str]
    overrides: dict[str, str]

    def build(self) -> Run:
        """Builds the run of `--config` and the overrides.

        Raises:
            InputError: The file cannot be loaded; or all mistakes.
        """
        return build(read_config(self.flags["config"]), self.overrides)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `ensemble COMMAND ...`; returns the exit status."""
    name, *rest = (sys.argv if argv is None else argv)[1:] or ["help"]
    if name in COMMANDS:
        return run(name, [f"ensemble {name}", *rest], f"ensemble {name}")
    if name in (*_HELP, "help"):
        rows = [f"  {one:<16} {command.does}" for one, command in COMMANDS.items()]
        print("\n".join(["ensemble COMMAND --help, or --version", "", *rows]))
    elif name == "--version":
        from ensemble import __version__

        print(__version__)
    else:
        _print_line(f"ensemble: unknown command {name!r}. {_nearest(name, COMMANDS)}")
        return 2
    return 0


_HELP = ("--help", "-help", "-h", "-?")


def _nearest(name: str, names: Iterable[str]) -> str:
    """The end of a line on an unknown name."""
    return pieces.near_miss(name, names).strip() or f"Use one of {', '.join(names)}"


def run(name: str, argv: Sequence[str], program: str) -> int:
    """Runs a command; whatever ends it early becomes one line on stderr and an exit status.

    Args:
        name: In `COMMANDS`.
        argv: The program, and its command line.
        program: Its name in messages.

    Returns:
        The exit status.
    """
    _start_logging()
    if "" not in sys.path:
        sys.path.insert(0, "")  # Your own modules may be in the current directory.
    try:
        _run(name, argv, program)
    except SystemExit as ended:
        return int(ended.code or 0)
    except (KeyboardInterrupt, Exception) as error:
        status, line = _line_of(error)
        logging.flush()
        if line:
            _print_line(f"{program}: {line}")
        else:
            traceback.print_exc()
        processes = sys.modules.get("ensemble.sharding.processes")
        if processes is not None:
            processes.end(status)  # Of several at once.
        return status
    return 0


def _run(name: str, argv: Sequence[str], program: str) -> None:
    """Runs a command, whose keys are checked before JAX is imported."""
    command = COMMANDS[name]
    if any(one in _HELP for one in argv[1:]):
        return print_answer(_help(argv[0], name))
    call = parse(command, argv)
    if "config" not in command.required:
        refuse([unknown_key(one) for one in call.overrides if one not in all_fields()])
    elif (built := call.build()) and call.flags.get("print_config"):
        return print_answer(listing(built))
    try:
        from ensemble.sharding import signals  # It imports JAX.
    except Exception as error:
        raise InputError(f"JAX cannot start: {error}; correct the environment") from error
    signals.program = program
    importlib.import_module(f"ensemble.commands.{name.replace('-', '_')}").main(call)


def _line_of(error: BaseException) -> tuple[int, str]:
    """Exit status and line of an error; without a line it is one of this package."""
    if status := getattr(error, "exit_status", 0):
        return status, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; the same command starts again"  # 128 + SIGINT, as of shells.
    if isinstance(error, MemoryError):
        return 1, f"this machine's memory is too small ({error})"
    if isinstance(error, OSError) and error.errno is not None:  # Of the system.
        return 2, f"{error.filename or 'a file'}: {error.strerror or error}"
    if str(error).startswith("Unable to initialize backend"):
        return 2, f"JAX cannot start: {error}; correct the environment"
    if place_in_own_code(error):
        logging.debug("%s", "".join(traceback.format_exception(error)))
        return 2, f"your code failed {in_own_code(error)}; repair it (--verbosity=1 shows more)"
    return 1, ""


_ABSL = {str: "string", int: "integer"}
"""Names of types in absl that are not Python's."""


def _defined(command: Command) -> flags.FlagValues:
    """The flags of a command, without values."""
    values = flags.FlagValues()
    for name in f"{command.flags} verbosity".split():
        default, meaning = FLAGS[name]
        kind = default if isinstance(default, type) else type(default)
        define = getattr(flags, f"DEFINE_{_ABSL.get(kind, kind.__name__)}")
        define(name, None if default is kind else default, meaning, flag_values=values)
    return values


_KEY = re.compile(r"--?config\.([\w.]+)=(.*)", re.DOTALL)


def parse(command: Command, argv: Sequence[str]) -> Call:
    """Parses a command line.

    Raises:
        InputError: A flag is unknown, bad or missing, or there are too many or few arguments.
    """
    keys = [word for word in argv if command.has_keys and _KEY.fullmatch(word)]
    overrides = {found[1]: found[2] for found in map(_KEY.fullmatch, keys) if found}
    values = _defined(command)
    values.set_gnu_getopt()
    try:
        rest = values([word for word in argv if word not in keys])[1:]
    except flags.Error as error:
        name = getattr(error, "flagname", "")
        hint = f"; write --config.{name}=VALUE" * (command.has_keys and name in all_fields())
        raise InputError(" ".join(str(error).split()) + hint) from None
    found = values.flag_values_dict()
    logging.set_verbosity(found.pop("verbosity"))
    arguments = command.arguments.split()
    needed = "config" if found.get("print_config") else command.required
    missing = [f"--{name}" for name in needed.split() if not found[name]] + arguments[len(rest) :]
    if missing:
        raise InputError(f"{missing[0]} is missing; try {command.example}")
    if "..." not in command.arguments and rest[len(arguments) :]:
        raise InputError(f"{rest[len(arguments)]!r} is not a flag; try {command.example}")
    return Call(found, rest, overrides)


def _help(program: str, name: str) -> str:
    """The text of `--help`, with the docstring of a module that is not imported."""
    source = Path(__file__).parent / "commands" / f"{name.replace('-', '_')}.py"
    text = ast.get_docstring(ast.parse(source.read_text()))
    of_flags = _defined(COMMANDS[name]).get_help(include_special_flags=False).partition(":\n")[2]
    return f"{text}\n\n{program} {COMMANDS[name].example}\n\nFlags:\n{of_flags}"


def read_config(value: str) -> dict[str, Any]:
    """Reads the keys that a config file sets, flat.

    Args:
        value: Path, or name of a bundled configuration; with a variant after a colon.

    Raises:
        InputError: There is no such file or bundled configuration, or it fails.
    """
    name, _, variant = value.partition(":")
    files = sorted((Path(__file__).parent / "configs").glob("[a-z]*.py"))
    bundled = {path.stem: path for path in files}
    file = bundled.get(name, Path(name))
    if not file.is_file():
        raise InputError(
            f"--config={value}: there is no file {file.absolute()}, and no bundled configuration "
            f"of this name. {_nearest(name, bundled)}"
        )
    try:
        get_config = pieces.module_of_file(file).get_config
        return flatten(get_config(variant) if variant else get_config())
    except InputError as error:
        raise InputError(f"--config={value}: {error}") from None
    except (Exception, SystemExit) as error:  # A config file is a program, and may raise anything.
        raise InputError(f"--config={value} cannot be loaded {in_own_code(error)}") from None


# Output.


def print_answer(text: str) -> None:
    """Prints to stdout, as a terminal may have it.

    The program ends quietly if the reader, such as `head`, has closed it.

    Raises:
        InputError: stdout cannot be written, such as on a full disk.
    """
    try:
        print(printable(text), flush=True)
    except OSError as error:
        # Python flushes what is left once more at exit, and would complain of the same again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        raise InputError(f"standard output cannot be written: {error.strerror}") from None


def _print_line(line: str) -> None:
    """Prints one line to stderr, whatever the text of strangers in it would do to a terminal."""
    print(printable(line, " "), file=sys.stderr)


def _start_logging() -> None:
    flags.FLAGS.mark_as_parsed()
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    handler = logging.get_absl_handler()
    handler.addFilter(_is_worth_showing)
    if sys.stderr is not None and sys.stderr.isatty():  # Who logged it when, is for files.
        handler.setFormatter(std_logging.Formatter())
    # Errors that nobody can catch are echoes of what is raised as well, such as of a full disk.
    sys.unraisablehook = lambda args: logging.debug("%r", args.exc_value)
    warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\) exceeds limit")  # Pillow's.


def _is_worth_showing(record: std_logging.LogRecord) -> bool:
    """Lets through what this project logs, as a terminal may have it, and others' warnings.

    Orbax reports each failure from several threads, and asyncio that of each of its tasks, with
    tracebacks; then it is raised: the raised one becomes a line of ours.
    """
    if record.name == "asyncio" or "/orbax/" in record.pathname:
        return False
    # Wherever the package is installed.
    if not record.name.startswith("ensemble") and "site-packages" in record.pathname:
        return record.levelno >= std_logging.WARNING
    # A table is information; a warning is one line, whatever it quotes.
    is_warning = record.levelno >= std_logging.WARNING
    record.msg = printable(record.getMessage(), " " if is_warning else "\n")
    record.args = None
    return True
