"""What a newcomer relies on: one name for one thing, short files, tests that mirror the code."""

import ast
import collections

from conftest import ROOT

MODULES = [path for path in (ROOT / "ensemble").rglob("*.py") if path.stem != "__init__"]
MAX_LINES = 400
MAX_LINES_OF_A_FUNCTION = 80


def test_no_two_modules_have_one_name():
    """A command is called as what it runs."""
    counts = collections.Counter(
        path.stem for path in MODULES if path.parent.name not in ("commands", "configs")
    )
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_module_is_longer_than_a_reader_s_patience():
    lengths = {str(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_function_is_longer_than_a_screen():
    lengths = {
        f"{path}:{node.name}": node.end_lineno - node.lineno + 1
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {k: n for k, n in lengths.items() if n > MAX_LINES_OF_A_FUNCTION} == {}


def test_tests_stand_where_their_module_stands():
    places = {path.stem: path.parent.relative_to(ROOT) for path in MODULES}
    stems = places | {
        path.stem: path.parent.relative_to(ROOT)
        for path in MODULES
        if path.parent.name != "configs"
    }
    tests = (ROOT / "tests" / "ensemble").rglob("test_*.py")
    wrong = [
        path.relative_to(ROOT)
        for path in tests
        if (room := stems.get(path.stem.removeprefix("test_")))
        and room.parts[-1] != "commands"
        and path.parent.relative_to(ROOT / "tests") != room
    ]
    assert wrong == []
