"""What tests of every tenant need of applications: `in_contracts.py` of their folders says it.

A folder of tests without its application is not there either, and its tests are of it alone.
"""

import pathlib
import runpy
from typing import Any

FOLDERS = sorted(pathlib.Path(__file__).parent.glob("*/in_contracts.py"))


def examples(name: str) -> dict[str, Any]:
    """The values of a table that applications have, such as `UNUSED`, joined."""
    found: dict[str, Any] = {}
    for path in FOLDERS:
        found |= runpy.run_path(str(path)).get(name, {})
    return found
