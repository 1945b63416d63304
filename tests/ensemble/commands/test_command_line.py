"""The command line: where flags may stand, and every mistake in one line."""

import asyncio
import gc
import logging as std_logging
import os
import subprocess
import sys

import pytest
from absl import app, flags
from conftest import ROOT

from ensemble import UserError
from ensemble.commands import command_line


@pytest.fixture
def own_flags(monkeypatch):
    """Flags `--place` and `--fast` of a program, unknown to all other tests."""
    values = flags.FlagValues()
    flags.DEFINE_string("place", None, "Where.", flag_values=values)
    flags.DEFINE_bool("fast", False, "How.", flag_values=values)
    monkeypatch.setattr(flags, "FLAGS", values)
    return values


def parse(*arguments):
    return command_line.parse(
        ["program", *arguments], example="--place=here FILE", required=("place",),
        arguments=("FILE",),
    )  # fmt: skip


def test_a_config_file_that_is_not_there_is_named(tmp_path):
    file = tmp_path / "mine.py"
    with pytest.raises(UserError, match=f"--config={file}:small.*{file}"):
        command_line.config_path(f"{file}:small")


@pytest.mark.parametrize(
    "arguments",
    [["--place=here", "--fast", "a.npz"], ["a.npz", "--fast", "--place=here"]],
)
def test_flags_stand_before_or_after_arguments(own_flags, arguments):
    assert parse(*arguments) == ["program", "a.npz"]
    assert own_flags.place == "here"
    assert own_flags.fast


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["a.npz"], "--place"),
        (["a.npz", "--place="], "--place"),
        (["--place=here"], "FILE is"),
        (["--place=here", "a", "b"], "'b'"),
        (["--place=here", "a", "--plaice=x"], "'plaice'"),
        (["--place=here", "a", "--fast=perhaps"], "--fast=perhaps"),
    ],
)
def test_a_mistake_is_one_line(own_flags, arguments, line):
    with pytest.raises(UserError) as caught:
        parse(*arguments)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("x\x1b[2J\x07\nprogram: all is well"), 2, r"x\x1b[2J\x07 program: all is well"),
        (UserError("a plain one"), 2, "program: a plain one"),
        (MemoryError("Unable to allocate 3 TiB"), 1, "memory is too small (Unable to allocate"),
    ],
)
def test_what_ends_a_program_is_one_line_that_steers_no_terminal(
    monkeypatch, capsys, error, status, line
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(app, "run", fail)
    assert command_line.run(fail, fail, "program") == status
    errors = capsys.readouterr().err
    assert line in errors
    assert len(errors.splitlines()) == 1
    assert errors.removesuffix("\n").isprintable()


def test_what_is_logged_steers_no_terminal():
    for level, joined in ((std_logging.INFO, "\n"), (std_logging.WARNING, " ")):
        record = std_logging.LogRecord(
            "ensemble.x", level, "ensemble/x.py", 1, "at %s\nand", ("\x1b[2J",), None
        )
        assert command_line._is_worth_showing(record)
        assert record.getMessage() == f"'at \\x1b[2J'{joined}and"


def test_echoes_of_a_failed_save_are_not_shown():
    """It is raised, too; a task of its own would come after the line, with a traceback."""

    async def fail():
        raise ValueError("NOT_FOUND")

    shown = []
    handler = std_logging.Handler()
    handler.emit = shown.append
    handler.addFilter(command_line._is_worth_showing)
    loop = asyncio.new_event_loop()
    logger = std_logging.getLogger()
    logger.addHandler(handler)
    try:
        task = loop.create_task(fail())
        loop.run_until_complete(asyncio.wait([task]))
        del task  # asyncio complains where nobody has asked for its exception.
        gc.collect()
        std_logging.error("of our own")
        std_logging.getLogger("asyncio").warning("a slow callback")
    finally:
        logger.removeHandler(handler)
        loop.close()
    assert [record.getMessage() for record in shown] == ["of our own", "a slow callback"]


@pytest.mark.parametrize(("level", "text"), [("INFO", "saved"), ("WARNING", "Warning: saved")])
def test_a_terminal_has_messages_alone(level, text):
    record = std_logging.LogRecord(
        "ensemble", getattr(std_logging, level), "x.py", 1, "saved", None, None
    )
    assert command_line._OnTerminal().format(record) == text


PROGRAM = """
import json
import sys

from absl import flags
from ensemble.commands import command_line

def main(argv):
    {main}

sys.exit(command_line.run({called}, flags.FLAGS, "program"))
"""


@pytest.mark.parametrize(
    ("main", "called", "status", "last"),
    [
        (
            "[][0]",
            "main",
            2,
            "program: your code failed at PATH:9 (IndexError: list index out of range); repair it "
            "(--verbosity=1 shows how it was called)",
        ),
        (
            "pass",
            "json.loads",
            1,
            "TypeError: the JSON object must be str, bytes or bytearray, not list",
        ),
    ],
)
def test_a_fault_of_ones_own_code_is_a_line_and_any_other_a_traceback(
    tmp_path, main, called, status, last
):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(main=main, called=called))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment)
    assert done.returncode == status, done.stderr
    assert done.stderr.splitlines()[-1] == last.replace("PATH", str(path))
    assert ("Traceback" in done.stderr) == (status == 1)
