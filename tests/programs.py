"""The programs, run in the process of the tests: a start of an interpreter takes seconds.

What is the same in a process of its own, flags, messages, exit status, files, is tested here; a few
tests start real ones.
"""

import contextlib
import dataclasses
import importlib.util
import io
import os
import runpy
import sys
import warnings
from collections.abc import Iterator
from unittest import mock

import array_record.python.array_record_data_source  # noqa: F401 - It defines flags, once.
from absl import app, flags, logging
from conftest import ROOT


@dataclasses.dataclass
class Done:
    """What a program has left, as `subprocess.CompletedProcess` has it."""

    returncode: int
    stdout: str
    stderr: str


def run_here(program: str, *arguments: object) -> Done:
    """Runs a program as its own process would, `SystemExit` included.

    Args:
        program: a file of the repository's root, such as train.py, or a module, which has a dot.
        arguments: of its command line.
    """
    spec = None if program.endswith(".py") else importlib.util.find_spec(program)
    path = spec.origin if spec else str(ROOT / program)
    out = io.StringIO()
    err = io.StringIO()
    with (
        as_new(),
        mock.patch.object(sys, "argv", [path, *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(logging.get_absl_handler().python_handler, "stream", err),
    ):
        try:
            runpy.run_path(path, run_name="__main__")
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
    return Done(status, out.getvalue(), err.getvalue())


def _copied(value: object) -> object:
    """A copy of what absl keeps of flags: of its dicts of lists the lists too."""
    if not isinstance(value, dict):
        return value
    return {key: list(one) if isinstance(one, list) else one for key, one in value.items()}


@contextlib.contextmanager
def as_new() -> Iterator[None]:
    """Hides what a process keeps: flags, networks, logging, the environment."""
    values = flags.FLAGS
    handler = logging.get_absl_handler()
    level = logging.get_absl_logger().level  # Which flags settle when they are parsed, or not.
    app.define_help_flags()
    state = {key: _copied(value) for key, value in vars(values).items()}
    states = [(flag, dict(vars(flag))) for flag in map(values.__getitem__, values)]
    for module, defined in values.flags_by_module_dict().items():
        if not module.startswith(("absl", "array_record")):
            for flag in list(defined):
                delattr(values, flag.name)
    values.unparse_flags()
    verbosity = logging.get_verbosity()
    root = list(logging.logging.root.handlers)
    try:
        with (
            mock.patch.dict(os.environ),
            mock.patch.object(sys, "unraisablehook", sys.unraisablehook),
            mock.patch.object(app._run_init, "done", False, create=True),
            mock.patch.object(app._register_and_parse_flags_with_usage, "done", False, create=True),
            mock.patch.object(handler, "filters", list(handler.filters)),
            warnings.catch_warnings(),
        ):
            # Of ml_collections, which loads config files so.
            warnings.filterwarnings("ignore", "the load_module", DeprecationWarning)
            yield
    finally:
        vars(values).clear()
        vars(values).update(state)
        for flag, fields in states:
            vars(flag).clear()
            vars(flag).update(fields)
        logging.set_verbosity(verbosity)
        logging.get_absl_logger().setLevel(level)
        logging.logging.root.handlers[:] = root
