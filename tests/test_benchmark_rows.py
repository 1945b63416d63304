"""Rows of benchmarks are on disk after each run, and what is there is not run again."""

import importlib
import json

import pytest
from conftest import ROOT


@pytest.fixture
def results(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    rows = importlib.import_module("rows")
    summarise = lambda rows: {"summary": sum(row["score"] for row in rows)}  # noqa: E731
    return rows.Results(tmp_path / "new" / "x.json", summarise, rule="a rule")


def test_what_is_missing_is_run(results, tmp_path, capsys):
    ran = []

    def run(name):
        ran.append(name)
        if name == "b" and ran.count("b") == 1:
            raise RuntimeError("no memory")
        return {"score": len(ran)}

    keys = [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    with pytest.raises(SystemExit, match="1 runs have failed; the same command"):
        results.fill(keys, run)
    assert "RuntimeError: no memory" in capsys.readouterr().err
    assert [row["name"] for row in results.fill(keys, run)] == ["a", "c", "b"]
    assert ran == ["a", "b", "c", "b"]
    results.fill(keys[:1], run, anew=True)
    content = json.loads((tmp_path / "new" / "x.json").read_text())
    assert [*content] == ["machine", "rule", "rows", "summary"]
    assert {"name": "a", "score": 5}.items() <= content["rows"][-1].items()
    assert {"commit", "date"} <= content["rows"][-1].keys()
    assert content["summary"] == 5 + 3 + 4
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.json"]
