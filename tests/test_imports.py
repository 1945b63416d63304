"""Imports inside functions hide what a module needs: each says why it is there."""

import ast

import pytest
from conftest import ROOT

FILES = sorted((ROOT / "ensemble").rglob("*.py"))


def unexplained(path):
    """Lines of imports inside functions without a comment there or right above the group."""
    source = path.read_text()
    lines = source.splitlines()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    imports = {
        node.lineno: node.end_lineno
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    found = []
    for first, last in imports.items():
        above = first - 1
        while lines[above - 1].strip().startswith(("import ", "from ", "if ", "return ")):
            above -= 1
        explained = "#" in "".join(lines[first - 1 : last]) or "#" in lines[above - 1]
        found += [] if explained else [f"{path.relative_to(ROOT)}:{first} {lines[first - 1]}"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_import_inside_a_function_says_why(path):
    assert unexplained(path) == []


def test_one_that_does_not_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "module.py").write_text(
        "def f():\n    import jax\n\n\ndef g():\n    import jax  # Slow.\n\n\ndef h():\n"
        "    # Slow.\n    import jax\n    import flax\n"
    )
    assert unexplained(tmp_path / "module.py") == ["module.py:2     import jax"]
