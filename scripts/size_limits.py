"""Checks that no folder has more code than `tests/size_limits.json` allows, in syntax nodes.

    python -m scripts.size_limits            # fails above a limit
    python -m scripts.size_limits --lower    # lowers limits to the present sizes

Docstrings and comments do not count. To raise a limit, write a decision record and cut as much
elsewhere (docs/decisions/0096-a-ratchet.md).
"""

import ast
import collections
import json
import pathlib
import subprocess
import sys

LIMITS = pathlib.Path("tests/size_limits.json")


def count_nodes(text: str) -> int:
    """Returns the number of syntax nodes of a module, without those of its docstrings."""
    tree = ast.parse(text)
    count = sum(1 for _ in ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            alone = 1 if len(node.body) == 1 else 0  # It counts as a `pass`.
            count -= 0 if ast.get_docstring(node, clean=False) is None else 2 - alone
    return count


def count_folders() -> dict[str, int]:
    """Returns the nodes by folder: of `ensemble` and `tests` also by their own folders."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    sizes: collections.Counter[str] = collections.Counter()
    for path in map(pathlib.Path, names):
        if path.is_symlink() or not path.exists():
            continue
        nodes = count_nodes(path.read_text())
        parts = path.parts
        sizes[parts[0] if len(parts) > 1 else "."] += nodes
        if parts[0] in ("ensemble", "tests") and len(parts) > 2:
            sizes["/".join(parts[:2])] += nodes
    return dict(sorted(sizes.items()))


def main(argv: list[str]) -> str | None:
    """Compares sizes with limits.

    Returns:
        The folders that are too large, one a line; None if there are none.
    """
    sizes = count_folders()
    limits = json.loads(LIMITS.read_text())
    if argv == ["--lower"]:
        lowered = {name: min(size, limits.get(name, size)) for name, size in sizes.items()}
        LIMITS.write_text(json.dumps(lowered, indent=2) + "\n")
        return None
    return "\n".join(
        f"{name}/ has {size:,} nodes; {LIMITS} allows {limits.get(name, 0):,}"
        for name, size in sizes.items()
        if size > limits.get(name, 0)
    ) or None  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
