"""The page of the benchmarks is that of their results; goals are what it says they are."""

import importlib

import pytest
from conftest import ROOT


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("page")


def row(low, high, peer=1.0, peer_name="peer"):
    ratio = {"median": (low + high) / 2, "min": low, "max": high}
    named = {"measure": "training", "setting": "M=4", "unit": "s", "rounds": 5}
    return named | {"ours": 2.0, "peer": peer, "peer_name": peer_name, "ratio": ratio}


def test_the_page_is_that_of_the_results(page):
    assert (ROOT / "docs" / "benchmarks.md").read_text() == page.text(page.stored()), (
        "python benchmarks/page.py --page=docs/benchmarks.md"
    )


def test_goals(page):
    rows = [row(1.0, 1.2), row(0.9, 1.1), row(0.8, 0.9), row(0.5, 0.6, peer_name="before")]
    assert [page.goal(one) for one in rows] == ["reached", "not in every round", "missed", ""]
    text = page.text({"speed": {"machine": "a machine", "rows": rows}})
    assert "Of 3 comparisons with a peer, 1 reached the goal in every round, 1 in some" in text
    assert "Date: not recorded." in text


def test_what_a_file_says_of_itself_is_shown(page):
    content = {"machine": "m", "command": "python x.py", "commit": "abc", "date": "2026-01-02T03"}
    shown = page.provenance("speed", content | {"rows": [row(1, 2)]})
    assert shown == "Machine: m.\nCommand: `python x.py`.\nDate: 2026-01-02.\nCommit: abc."
    rows = [{"commit": str(i), "date": f"2026-01-0{i}"} for i in range(1, 6)]
    shown = page.provenance("tables", {"machine": "m", "rows": rows})
    assert "Date: 2026-01-01 to 2026-01-05." in shown
    assert "Commit: 1, 2, 3 and 2 more." in shown


def test_a_report_says_where_it_comes_from(page, tmp_path):
    side_by_side = importlib.import_module("side_by_side")
    side_by_side.report([side_by_side.compare("a", "b", "s", [1.0])], str(tmp_path / "x.json"))
    (content,) = [page.json.loads((tmp_path / "x.json").read_text())]
    assert {"machine", "command", "commit", "date", "rows"} == set(content)
