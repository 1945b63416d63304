"""What the programs share: flags, logs, and one line and an exit status for what goes wrong."""

import contextlib
import errno
import importlib.util
import inspect
import logging as std_logging
import os
import pathlib
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags, logging

from ensemble import configs
from ensemble.config import RENAMED, all_keys, unknown_key
from ensemble.errors import (
    Interrupted,
    PeerLost,
    RunFailed,
    UserError,
    in_own_code,
    place_in_own_code,
    shown,
)
from ensemble.own_modules import importable


def run(
    main: Callable[[Sequence[str]], None],
    parse_flags: Callable[[Sequence[str]], list[str]],
    program: str,
) -> int:
    """Runs a program: what ends it early becomes one line on stderr and an exit status.

    Args:
        main: called with what `parse_flags` returns.
        parse_flags: called with the command line; sets `absl.flags.FLAGS`. `--help` prints the text
            of its module, and the flags.
        program: its name, for messages.

    Returns:
        The exit status of an early end. Otherwise `SystemExit` is raised, as by `absl.app.run`.
    """
    logging.set_verbosity(logging.INFO)
    logging.get_absl_handler().addFilter(_is_worth_showing)
    if sys.stderr is not None and sys.stderr.isatty():  # Who logged it when, is for files.
        logging.get_absl_handler().setFormatter(_OnTerminal())
    sys.unraisablehook = _print_unraisable
    warnings.filterwarnings("ignore", _OF_LARGE_IMAGES)
    try:
        app.run(main, flags_parser=lambda argv: _parse_or_help(parse_flags, argv))
    except (UserError, RunFailed, Interrupted, PeerLost) as error:
        logging.flush()
        _print_line(f"{program}: {error}")
        return _leave(error.exit_status)
    except MemoryError as error:
        _print_line(
            f"{program}: this machine's memory is too small ({error}); lower the numbers of "
            "members, chains or examples at once"
        )
        return _leave(1)
    except OSError as error:
        if error.errno is None:  # Not of the system.
            traceback.print_exc()
            return _leave(1)
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or str(error)
        _print_line(f"{program}: {where}{reason}; fix that and run the same command")
        return _leave(2)
    except KeyboardInterrupt:
        print(f"{program}: interrupted; the same command starts again", file=sys.stderr)
        return _leave(130)  # 128 + SIGINT, as shells have it.
    except Exception as error:
        if str(error).startswith("Unable to initialize backend"):  # JAX's, wherever it is started.
            _print_line(
                f"{program}: JAX cannot start: {error}; correct JAX_PLATFORMS or XLA_FLAGS in the "
                "environment, or leave them out"
            )
            return _leave(2)
        if place_in_own_code(error):
            logging.debug("%s", "".join(traceback.format_exception(error)))
            _print_line(
                f"{program}: your code failed {in_own_code(error)}; repair it (--verbosity=1 shows "
                "how it was called)"
            )
            return _leave(2)
        traceback.print_exc()
        return _leave(1)
    return 0


_OF_LARGE_IMAGES = r"Image size \(\d+ pixels\) exceeds limit"
"""Pillow's warning: what memory cannot hold is refused in a line of this project's."""
_HELP = ("--help", "-help", "-h", "-?")


def _parse_or_help(parse_flags: Callable[[Sequence[str]], list[str]], argv: list[str]) -> list[str]:
    """Parses a command line; if it asks for help, prints that and ends the program.

    absl's own help has the flags of the main module alone, and an exit status of 1.
    """
    if not any(arg in _HELP for arg in argv[1:]):
        return parse_flags(argv)
    with contextlib.suppress(UserError):  # What else is missing.
        parse_flags(argv[:1])
    text = inspect.cleandoc(sys.modules[parse_flags.__module__].__doc__ or "")
    print_answer("\n".join([text, "", "Flags:", *map(_flag_help, _own_flags())]))
    sys.exit(0)


def _own_flags() -> list[flags.Flag]:
    by_module = flags.FLAGS.flags_by_module_dict()
    return [one for name, own in by_module.items() if _is_own_module(name) for one in own]


def _is_own_module(name: str) -> bool:
    return name.partition(".")[0] == __name__.partition(".")[0]


def _flag_help(flag: flags.Flag) -> str:
    value = "" if flag.boolean else "=..."
    is_said = bool(flag.default) and isinstance(flag.default, str | int | float)
    default = f" Default: {flag.default}." if is_said else ""
    return f"  --{flag.name}{value}\n      {flag.help}{default}"


def _print_line(line: str) -> None:
    """Prints one line to stderr, whatever the text of strangers in it would do to a terminal."""
    print(shown(" ".join(line.splitlines())), file=sys.stderr)


def _leave(status: int) -> int:
    """Ends a process of several at once, and hands the status of any other back."""
    processes = sys.modules.get("ensemble.sharding.processes")
    if processes is not None:
        processes.end(status)
    return status


def parse(
    argv: Sequence[str], example: str, required: Sequence[str] = (), arguments: Sequence[str] = ()
) -> list[str]:
    """Parses a command line into `absl.flags.FLAGS`; flags may stand before and after arguments.

    Args:
        argv: the program and what was given to it.
        example: flags and arguments that work, for messages.
        required: flags that must have a value.
        arguments: names of the arguments beside flags, all of which must be given; of a last one
            with `...` behind its name there may be many.

    Returns:
        The program and its arguments.

    Raises:
        UserError: a flag is unknown, bad or missing, or there are too many or few arguments.
    """
    flags.FLAGS.set_gnu_getopt()
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        raise UserError(_line(str(error))) from None
    takes_many = bool(arguments) and arguments[-1].endswith("...")
    if len(rest) > 1 + len(arguments) and not takes_many:
        allowed = f" beside {' '.join(arguments)}" if arguments else ""
        raise UserError(
            f"{rest[1 + len(arguments)]!r} is not a flag; every argument{allowed} has the form "
            "--name=value"
        )
    missing = [f"--{name}" for name in required if not flags.FLAGS[name].value]
    missing += arguments[len(rest) - 1 :]
    if missing:
        raise UserError(f"{missing[0]} is missing; try {example}")
    return rest


def with_bundled_config(argv: Sequence[str]) -> list[str]:
    """Replaces `--config=NAME` by the path of the bundled configuration of that name.

    Args:
        argv: flags; NAME may have a variant behind a colon, and what looks like a file is one.

    Raises:
        UserError: there is neither a file nor a bundled configuration of that name.
    """
    replaced = []
    for before, arg in zip([None, *argv], argv, strict=False):
        flag, equals, value = arg.partition("=")
        if equals and flag in ("--config", "-config"):
            arg = f"{flag}={config_path(value)}"
        elif before in ("--config", "-config"):
            arg = config_path(arg)
        replaced.append(arg)
    return replaced


def config_path(value: str) -> str:
    """The file that `--config` means, with its variant: a path, or a bundled one by its name.

    Raises:
        UserError: as `with_bundled_config`.
    """
    name, colon, variant = value.partition(":")
    if name.endswith(".py") and not pathlib.Path(name).is_file():
        raise UserError(f"--config={value}: there is no file {pathlib.Path(name).absolute()}")
    if not re.fullmatch(r"\w+", name) or pathlib.Path(name).is_file():
        return value
    folder = pathlib.Path(configs.__file__).parent
    names = sorted(path.stem for path in folder.glob("[a-z]*.py"))
    if name not in names:
        raise UserError(
            f"--config={value} is neither a file nor one of the bundled configurations: "
            f"{', '.join(names)}"
        )
    return f"{folder / name}.py{colon}{variant}"


def define_config_flag() -> None:
    """Defines `--config` for a program that needs the file only for the networks in it."""
    flags.DEFINE_string(
        "config", None, "The run's config file; needed where it registers your own network."
    )


def define_abstain_flag() -> None:
    """Defines `--abstain` for a program that predicts."""
    flags.DEFINE_string(
        "abstain",
        None,
        "When not to answer: max_error=0.02, at most this error among accepted examples with 95% "
        "confidence, or coverage=0.9, the share to accept.",
    )


def run_config_file(path: str | None) -> None:
    """Executes a config file, so that the networks which it registers are known.

    Args:
        path: as `ensemble train` takes it, a variant after a colon included; None does nothing.

    Raises:
        UserError: it cannot be executed.
    """
    if path is None:
        return
    file = config_path(path).partition(":")[0]
    spec = importlib.util.spec_from_file_location("config_file", file)
    try:
        if spec is None or spec.loader is None:
            raise ValueError("it is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules["config_file"] = module  # As dataclasses and their annotations expect.
        with importable(file):
            spec.loader.exec_module(module)
    except Exception as error:  # A config file is a program, and may raise anything.
        raise cannot_load(f"--config={file}", error) from None


def cannot_load(what: str, error: BaseException) -> UserError:
    """The line for a config file that raised an error, with the place in it where it did."""
    place = place_in_own_code(error)
    says = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    # By ml_collections: a block that has another name now.
    former = re.match(r"""["']+(?:Key ")?(\w+)""", str(error))
    if former and former[1] in RENAMED and isinstance(error, AttributeError | KeyError):
        says = unknown_key(former[1], all_keys())
    return UserError(f"{what} cannot be loaded{f' (at {place})' if place else ''}: {_line(says)}")


def _line(text: str) -> str:
    """A message without its line breaks."""
    return " ".join(text.split())


def print_answer(text: str) -> None:
    """Prints to stdout; ends the program quietly where the reader, such as `head`, has enough.

    Raises:
        UserError: stdout cannot be written, such as on a full disk.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        # Python flushes what is left once more at exit, and would complain of the same again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        raise UserError(
            f"standard output cannot be written: {error.strerror}; send it elsewhere"
        ) from None


def _print_unraisable(args: Any) -> None:
    """Prints an error that nobody can catch, but for the echoes of a failed save.

    The first write that fails ends Orbax's event loop; of that each later one then complains, from
    a thread of TensorStore. Where a disk is full, Python 3.13 says so again of each file that it
    closes at the end.
    """
    error = args.exc_value
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG)
    if not is_full and str(error) != "Event loop is closed":
        sys.__unraisablehook__(args)


class _OnTerminal(std_logging.Formatter):
    """The message alone; a warning says that it is one."""

    def format(self, record: std_logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno < std_logging.WARNING else f"Warning: {text}"


def _is_worth_showing(record: std_logging.LogRecord) -> bool:
    """Lets through what this project logs, as a terminal may have it, and others' warnings.

    Orbax reports each failure from several threads, and asyncio that of each of its tasks, with
    tracebacks; then it is raised: the raised one becomes a line of ours.
    """
    if record.name == "asyncio" and "was never retrieved" in record.getMessage():
        return False
    is_own = record.name.partition(".")[0] == "ensemble"  # Wherever the package is installed.
    if is_own or "site-packages" not in record.pathname:
        # A table is information; a warning is one line, whatever it quotes.
        joint = "\n" if record.levelno < std_logging.WARNING else " "
        lines = map(shown, record.getMessage().splitlines())
        record.msg, record.args = joint.join(lines), None
        return True
    return record.levelno >= std_logging.WARNING and "orbax" not in record.pathname
