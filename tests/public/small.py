"""What the tables of these tests share: a small run, commands, and refusals of one line."""

import pathlib
from collections.abc import Callable
from typing import Any

import names
import pytest
from programs import Done, run_here

MEMBERS = names.config(
    {
        "model": "mlp",
        "mlp.widths": "8",
        "ensemble_size": 2,
        "num_devices": 1,
        "num_epochs": 2,
        "batch_size": 32,
        "learning_rate": 0.1,
        "log_every_steps": 100,
    }
)
"""Two networks that any process knows, and that learn 200 rows in a second."""


def train(values: Any, data: Any, workdir: Any = None) -> Any:
    """`ensemble.train` of `MEMBERS` with other keys beside, by 3.0's names."""
    config = {**MEMBERS, **names.config(values)}
    workdir = None if workdir is None else str(workdir)
    return names.train(config, data, workdir, show_progress=False)


def files_in(folder: pathlib.Path) -> set[str]:
    """All files but locks, which a run that is refused may leave, and what Python compiles."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    left_out = (".lock", ".pyc")
    return {str(path.relative_to(folder)) for path in paths if not path.name.endswith(left_out)}


def refused(call: Callable[[], object], *words: str) -> str:
    """Expects an error of one line with some words in it; returns the line."""
    with pytest.raises(names.InputError) as caught:
        call()
    return _checked(str(caught.value), words)


def run_command(command: str, *arguments: object) -> Done:
    """Runs a command in this process; it succeeds."""
    done = run_here(*names.command(command), *arguments)
    assert done.returncode == 0, done.stderr
    return done


def refused_command(command: str, arguments: list[object], words: tuple[str, ...]) -> str:
    """Expects status 2, an error whose last line has some words, and nothing on stdout."""
    done = run_here(*names.command(command), *arguments)
    assert done.returncode == 2, done.stderr
    assert not done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.isprintable()
    return _checked(line, words)


def _checked(line: str, words: tuple[str, ...]) -> str:
    assert "\n" not in line
    for word in words:
        assert word in line, line
    return line
