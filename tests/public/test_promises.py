"""The tests of this folder import what users import: a redesign edits `names.py` alone."""

import ast
import pathlib

import ensemble

HERE = pathlib.Path(__file__).parent


def test_nothing_here_imports_an_inner_module():
    for path in set(HERE.glob("*.py")) - {HERE / "names.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            public = {f"ensemble.{name}" for name in ensemble.__all__}
            inner = [name for name in names if name.startswith("ensemble.") and name not in public]
            assert not inner, f"{path.name}:{node.lineno} imports {inner[0]}"
