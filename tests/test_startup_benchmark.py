"""Where the time goes until the first step: parts do not count what lies within them twice."""

import importlib
import time

import pytest
from conftest import ROOT


@pytest.fixture
def startup(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("startup")


def test_a_part_stops_while_another_is_within_it(startup, monkeypatch):
    now = iter([0.0, 1.0, 1.0, 4.0, 4.0, 5.0])
    monkeypatch.setattr(time, "process_time", lambda: next(now))
    monkeypatch.setattr(startup, "_spent", dict.fromkeys(startup.PARTS, 0.0))
    with startup.part("data"), startup.part("imports"), startup.part("imports"):
        pass
    assert startup._spent["imports"] == pytest.approx(3.0)
    assert startup._spent["data"] == pytest.approx(2.0)


def test_the_table_has_medians_with_least_and_most(startup):
    rounds = [dict.fromkeys(startup.PARTS, float(one)) for one in (3, 1, 2)]
    row = {"setting": "digits", "mode": "cold", "rounds": 3, "seconds": startup.summary(rounds)}
    shown = startup.format_all([row]).splitlines()
    assert shown[-1].startswith("| digits | cold | 2.0 (1.0-3.0) |")
    assert shown[-1].count("|") == shown[-3].count("|")
