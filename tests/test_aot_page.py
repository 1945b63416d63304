"""The table of programs that were compiled ahead of time is that of the results."""

import importlib
import json

from conftest import ROOT


def test_the_page_has_the_rows_of_the_results(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    aot = importlib.import_module("aot")
    page, copy = ROOT / "docs" / "scaling.md", tmp_path / "page.md"
    copy.write_text(page.read_text())
    rows = json.loads(aot.RESULTS.read_text())["rows"]
    aot.write_table(copy, rows)
    assert copy.read_text() == page.read_text(), "python -m benchmarks.aot --page=docs/scaling.md"
    assert {row["program"] for row in rows} == {*aot.aot_programs.FULL}
