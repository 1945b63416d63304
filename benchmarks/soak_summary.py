"""Notes how the tests of `make soak` ended, and what they counted, for the page of benchmarks.

python benchmarks/soak_summary.py JUNIT.xml [TESTS ...]    # Adds a row to results/soak.json.
"""

import collections
import json
import pathlib
import sys
import xml.etree.ElementTree
from collections.abc import Mapping, Sequence
from typing import Any

import side_by_side
from side_by_side import as_table

Row = Mapping[str, Any]
RESULTS = pathlib.Path(__file__).parent / "results" / "soak.json"


def row_of(junit: pathlib.Path, tests: Sequence[str]) -> dict[str, Any]:
    """Reads what pytest has written of a run.

    Args:
        junit: the file of `--junitxml`.
        tests: files and folders whose tests ran; none: all.
    """
    suite = next(xml.etree.ElementTree.parse(junit).iter("testsuite"))
    number = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    counted: dict[str, Any] = {}
    for case in suite.iter("testcase"):
        if case.find("failure") is None and case.find("error") is None:
            for one in case.iter("property"):
                if one.get("name") == "counted":
                    counted |= json.loads(one.get("value", "{}"))
    lost = number["failures"] + number["errors"] + number["skipped"]
    return {
        **side_by_side.provenance(),
        "tests": list(tests) or ["tests"],
        "passed": number["tests"] - lost,
        "failed": number["failures"],
        "error": number["errors"],
        "skipped": number["skipped"],
        "counted": counted,
        "seconds": round(float(suite.get("time", 0))),
    }


def format_all(rows: Sequence[Row]) -> str:
    """A table of the runs, and one of what their tests have counted in all.

    Args:
        rows: those of `benchmarks/results/soak.json`, a run each.
    """
    lines = []
    for row in rows:
        cells = [row["date"][:10], row["commit"], " ".join(row["tests"]), row["passed"]]
        cells += [row["failed"] + row["error"], row["skipped"], f"{row['seconds'] / 60:.0f}"]
        cells += [f"{row['cpu_seconds'] / 60:.0f}" if "cpu_seconds" in row else ""]
        lines.append(cells)
    head = "| date | commit | tests of | passed | failed | skipped | minutes | minutes of CPU |"
    runs = as_table(head, lines)
    totals: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        for name, counts in row["counted"].items():
            totals[name].update(counts)
    if not totals:
        return runs
    counted = (
        (name, ", ".join(f"{one} {number:,}" for one, number in totals[name].items()))
        for name in sorted(totals)
    )
    table = as_table("| what | of these |", counted)
    return f"{runs}\n\nTests that passed have counted:\n\n{table}"


def main(junit: str, *tests: str) -> None:
    """Adds a row for a run of `make soak`."""
    content = json.loads(RESULTS.read_text())
    content["rows"].append(row_of(pathlib.Path(junit), tests))
    RESULTS.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
