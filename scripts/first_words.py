"""Finds docstrings that do not begin with a sentence: `make lint` runs it.

    python -m scripts.first_words

A sentence has a subject and a verb. A docstring whose first word is one of `FORBIDDEN` is a
fragment that a reader has to complete.
"""

import ast
import pathlib
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORBIDDEN = {"Of", "As", "Those", "That", "Where"}
FOLDERS = ("ensemble", "models", "scripts", "benchmarks", "simulations", "examples")


def fragments(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the first line of each docstring that begins with a forbidden word.

    Args:
        source: of a module. The text below an assignment is a docstring, too.
    """
    for node in ast.walk(ast.parse(source)):
        for one in (
            getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []
        ):
            if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
                continue
            text = one.value.value
            if isinstance(text, str) and text.strip() and text.split()[0] in FORBIDDEN:
                yield one.lineno, text.strip().splitlines()[0]


def main() -> int:
    """Prints what is found; returns whether anything was."""
    paths = [*ROOT.glob("*.py"), *(one for name in FOLDERS for one in (ROOT / name).rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(paths)
        for line, text in fragments(path.read_text())
    ]
    print("\n".join(found), end="\n" * bool(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
