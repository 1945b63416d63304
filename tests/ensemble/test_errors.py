"""Where in a user's code an error is."""

import json
import runpy

import pytest

from ensemble import configs
from ensemble.errors import in_own_code


def caught(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("source", "line", "says"),
    [
        ("\n\nmissing", 3, "(NameError: name 'missing' is not defined)"),
        ("import json\njson.loads('{')", 2, "(JSONDecodeError: Expecting property name"),
        (
            "import jax.numpy as jnp\n\njnp.ones(2) @ jnp.ones(3)",
            3,
            "(TypeError: dot_general requires contracting dimensions",
        ),
    ],
)
def test_the_line_is_the_users_and_not_that_of_a_library(tmp_path, source, line, says):
    file = tmp_path / "mine.py"
    file.write_text(source)
    message = in_own_code(caught(lambda: runpy.run_path(str(file))))
    assert message.startswith(f"at {file}:{line} {says}")
    assert "\n" not in message


def test_a_file_among_the_configurations_is_the_users(tmp_path):
    path = f"{configs.__path__[0]}/mine.py"
    error = caught(lambda: exec(compile("1 / 0", path, "exec")))
    assert in_own_code(error) == f"at {path}:1 (ZeroDivisionError: division by zero)"


def test_without_a_line_of_the_users_there_is_no_place():
    error = caught(lambda: json.loads("{"))
    deeper = error.__traceback__.tb_next.tb_next  # Without the frames of this file.
    assert in_own_code(error.with_traceback(deeper)).startswith("(JSONDecodeError: ")


def test_an_error_that_another_was_raised_for_has_its_place(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("x = 1\n1 / 0")
    error = ValueError("wrapped")
    error.__cause__ = caught(lambda: runpy.run_path(str(file)))
    assert in_own_code(error) == f"at {file}:2 (ValueError: wrapped)"


def test_a_long_message_is_cut():
    assert len(in_own_code(ValueError("x" * 1000))) < 220
