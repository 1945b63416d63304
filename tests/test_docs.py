"""The pages under docs/ run as they stand, and print what they say."""

import contextlib
import io
import re

import pytest
from conftest import ROOT

PAGE = ROOT / "docs" / "distributed_inference.md"


@pytest.fixture(scope="module")
def cells():
    """Python blocks of the page with what they are said to print."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    cells = []
    for language, text in blocks:
        if language == "python":
            cells.append([text, ""])
        elif language == "text":
            cells[-1][1] = text
    return cells


def test_the_blocks_run_in_order_and_print_what_follows_them(cells):
    namespace = {}
    assert len(cells) > 10
    for source, expected in cells:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(source, namespace)
        assert printed.getvalue() == expected, source


def test_the_files_it_names_exist():
    named = re.findall(r"`((?:configs/)?\w+\.py)`", PAGE.read_text())
    assert len(named) > 1
    assert [name for name in named if not (ROOT / name).exists()] == []
