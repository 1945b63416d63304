"""The page of the benchmarks is that of their results; goals are what it says they are."""

import importlib
import os
import re
import shlex
import subprocess
import sys

import numpy as np
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


def test_the_pages_are_those_of_the_results(page):
    stored = page.stored()
    assert page.PAGE.read_text() == page.text(stored), "python benchmarks/page.py"
    assert page.RECORD.read_text() == page.record(stored), "python benchmarks/page.py"


def test_every_row_stands_on_one_page_and_goals_lead_to_their_section(page):
    stored = page.stored()
    text, record = page.text(stored), page.record(stored)
    tables = [line for line in (text + record).splitlines() if line.startswith("| ")]
    for name, content in stored.items():
        if not page.is_side_by_side(content):
            assert f"\n## {name}\n" in record
            continue
        for rows, verdict in zip(page.parts(content), (page.as_good, None), strict=True):
            lines = page.format_table(rows, verdict).splitlines()[2:]
            assert all(tables.count(line) == lines.count(line) for line in lines)
    found = re.findall(r"\]\(([\w./]*)#(\w+)\)", record)
    assert len(found) > 30
    for address, name in found:
        assert f"\n## {name}\n" in (text if address else record)


def test_what_is_at_least_as_good(page):
    rows = [row(1.0, 1.2), row(0.9, 1.1), row(0.8, 0.9), row(0.5, 0.6, peer_name="before")]
    rows.append(row(4.0, 4.0) | {"rounds": 1})
    assert [page.as_good(one) for one in rows] == ["yes", "not in every round", "no", "", ""]
    last = page.format_table(rows, page.as_good).splitlines()[-2:]
    assert [line.split(" | ")[6] for line in last] == [
        "0.55 (0.50 to 0.60)", "4.00",
    ]  # fmt: skip
    content = {"machine": "a machine", "commit": "abc", "date": "2026-01-02T03", "rows": rows}
    text = page.text({"speed": content})
    in_one_line = " ".join(text.split())
    assert "Of 3 comparisons in several rounds, 1 are at least as good" in in_one_line
    assert "1 in some rounds only, and 1 in none. 1 more were measured once" in in_one_line
    stretch = sum(one.is_stretch for one in page.goals.GOALS)
    assert (
        f"0 were missed, and {len(page.goals.GOALS) - stretch} are not measured yet."
        in page.record({"speed": content})
    )
    assert "Date: 2026-01-02." in text


def verdicts(page, **contents):
    """Those of the goals that are measured, by what they are about."""
    found = {
        one.about: one.verdict(one.find(contents[one.file]))
        for one in page.goals.GOALS
        if one.file in contents and not one.is_stretch
    }
    return {about.split(",")[0]: one for about, one in found.items() if one != "not measured"}


def test_goals_of_ratios(page):
    """The better peer counts, and without it the goal is not measured."""
    rows = [row(1.2, 2.0, peer_name="tf.data"), row(0.8, 1.4, peer_name="PyTorch DataLoader")]
    for one in rows:
        one["measure"] = "reading"
    about = "records per second beside tf.data and DataLoader"
    found = verdicts(page, streaming={"rows": rows})
    assert found == {about: "reached, within the interval"}
    rows[1]["ratio"] = {"median": 0.9, "min": 0.8, "max": 0.95}
    assert verdicts(page, streaming={"rows": rows}) == {about: "missed"}
    assert verdicts(page, streaming={"rows": rows[:1]}) == {}


def test_goals_of_several_models(page):
    rows = [row(2.0, 8.0), row(0.5, 2.0), row(99.0, 99.0)]
    for one, chains in zip(rows, (4, 4, 16), strict=True):
        one |= {"measure": "least ESS, sampling", "setting": f"m, {chains} chains, 1 device(s)"}
    find = page.goals.over_models("least ESS, sampling", 1)
    found = find({"rows": rows})
    of = "means of the lowest and of the highest of 5 rounds"
    assert found == (pytest.approx(2.5), pytest.approx((1.0, 4.0)), of, False)
    assert page.goals.over_models("least ESS, sampling", 2)({"rows": rows}) is None


def test_goals_of_own_figures(page):
    rows = [
        {"measure": "waiting", "setting": one, "ours": share}
        for one, share in (("cnn", 0.001), ("mlp", 0.03))
    ]
    rows.append({"measure": "memory", "setting": "100,000 pictures", "ours": 1.4})
    found = verdicts(page, streaming={"rows": [one | {"peer_name": None} for one in rows]})
    assert found == {
        "share of its time that training waits for records": "missed",
        "memory of training from records": "reached",
    }


def test_goals_of_scores(page):
    def seed(method, nll, seconds, split=0):
        named = {"method": method, "table": "airfoil", "split": split, "rmse": 0.13}
        return named | {"nll_by_moments": nll, "seconds": seconds}

    rows = [seed("posterior_24000", -0.9, 30), seed("posterior_24000", -1.2, 30)]
    rows += [seed("posterior_24000", 9.0, 1, split=3), seed("posterior_8000", -0.5, 1)]
    (time,) = [one for one in page.goals.GOALS if "share of bde's" in one.about]
    assert [one.threshold for one in page.goals.GOALS if one.find is time.find] == [0.2, 0.1]
    assert time.find({"rows": rows}) is None
    assert time.find({"rows": [*rows, seed("bde_51000", -0.9, 100)]}).value == 0.3
    (nll, rmse) = [one for one in page.goals.GOALS if one.about.startswith("airfoil, ")][:2]
    measured = nll.find({"rows": rows})
    assert measured == (pytest.approx(-1.05), (-1.2, -0.9), "24,000 steps, 2 seeds", False)
    assert nll.find({"rows": rows[-1:]}).of == "8,000 steps, 1 seed"
    alone = {"rows": [seed("posterior_8000", -1.1, 1)]}
    assert nll.verdict(nll.find(alone)) == "reached, on one seed"
    assert " 1 were reached, 1 of them on one seed and one split, 1 were" in page.goals.counts(
        {"bde": alone}
    )
    assert nll.verdict(measured) == "reached, within the interval"
    assert rmse.verdict(rmse.find({"rows": rows})) == "missed"


def test_stretch_goals_are_marked_and_counted_apart(page):
    rows = [row(2.1, 2.1, peer_name=one) for one in ("tf.data", "PyTorch DataLoader")]
    contents = {"streaming": {"rows": [one | {"measure": "reading"} for one in rows]}}
    assert "| the same (stretch) | ≥\u00a02 | 2.1 (5 rounds) |" in page.goals.table(contents)
    found = page.goals.counts(contents)
    assert "goals, 1 were reached, 0 of them on one seed" in found
    assert "stretch goals beyond these, 1 were reached." in found


def test_what_a_file_says_of_itself_is_shown(page):
    content = {"machine": "m", "command": "python x.py", "commit": "abc", "date": "2026-01-02T03"}
    shown = page.provenance("speed", content | {"rows": [row(1, 2)]})
    assert shown == "Machine: m.\nCommand: `python x.py`.\nDate: 2026-01-02.\nCommit: abc."
    rows = [{"commit": str(i), "date": f"2026-01-0{i}"} for i in range(1, 6)]
    shown = page.provenance("speed", content | {"versions": {"torch": "2.1"}})
    assert "Versions of peers: torch 2.1." in shown
    shown = page.provenance("tables", {"machine": "m", "rows": rows})
    assert "Date: 2026-01-01 to 2026-01-05." in shown
    assert "Commit: 1, 2, 3 and 2 more." in shown


def test_a_file_without_a_command_has_that_of_its_script(page):
    content = {"machine": "m", "commit": "abc", "date": "2026-01-02T03"}
    assert "`python benchmarks/distillation.py --workdir=" in page.provenance(
        "distillation", content
    )
    shown = page.provenance("member_bytes", content | {"command": "python benchmarks/x.py"})
    assert "Command: `PYTHONPATH=. python benchmarks/x.py`." in shown
    shown = page.provenance("streaming", content | {"command": "python benchmarks/streaming.py"})
    assert "Command: `python benchmarks/compare.py streaming`." in shown
    assert all(one.get("command") or page.documented(name) for name, one in page.stored().items())


def test_a_report_says_where_it_comes_from(page, tmp_path):
    side_by_side = importlib.import_module("side_by_side")
    side_by_side.report([side_by_side.compare("a", "b", "s", [1.0])], str(tmp_path / "x.json"))
    (content,) = [page.json.loads((tmp_path / "x.json").read_text())]
    assert {"machine", "command", "commit", "date", "rows"} == set(content)
    versions = side_by_side.versions_of(sys.executable, ("numpy", "no-such-package"))
    side_by_side.report([], str(tmp_path / "x.json"), "--python=PYTHON", versions)
    content = page.json.loads((tmp_path / "x.json").read_text())
    assert content["command"].endswith(" --python=PYTHON --out=FILE.json")
    assert content["versions"] == {"numpy": np.__version__}
    assert side_by_side.versions_of(sys.executable, ["typing-extensions"]), "typing_extensions"


def identity(row):
    return tuple(row[name] for name in ("measure", "setting", "unit", "peer_name"))


class AnyKey(dict):
    """A measurement that has every key."""

    def __missing__(self, key):
        return 2.0


def test_the_registry_makes_the_rows_that_are_stored(page, monkeypatch):
    compare, comparisons = map(importlib.import_module, ("compare", "comparisons"))
    monkeypatch.setattr(comparisons, "fits_in_memory", lambda num_examples: False)
    for name in compare.COMPARISONS:
        stored = page.stored()[name]
        _, program, *argv = shlex.split(page.command_of(name, stored))
        assert program == "benchmarks/compare.py"
        args, comparison = compare.parse(argv)
        results = {contestant: [AnyKey()] for contestant in comparison.commands}
        rows = compare.make_rows(comparison.lines, results)
        found = [identity(one) for one in stored["rows"] if one["measure"] != "least bulk ESS"]
        assert sorted(identity(vars(one)) for one in rows) == sorted(found)
        assert args.name == name
        assert {*comparison.once} <= {*comparison.commands}
        for _, script, *_ in [*comparison.commands.values(), *comparison.before]:
            assert (ROOT / "benchmarks" / script).is_file()


def test_contestants_that_are_left_out_are_known(page, capsys):
    compare = importlib.import_module("compare")
    with pytest.raises(SystemExit):
        compare.parse(["sghmc", "--without", "nuts"])
    assert "--without 'nuts': must be of ours, baoa, sghmc" in capsys.readouterr().err


def test_moments_that_are_wrong_are_found(page):
    rwm = importlib.import_module("compare").COMPARISONS["rwm"]()
    right = {"mean": 0.93, "mcse_mean": 0.01, "variance": 9.7016, "mcse_variance": 0.1}
    found = rwm.more({"ours": [right], "numpy": [{}]})
    assert found["largest_error_in_mcse"] == pytest.approx(1)
    with pytest.raises(ValueError, match=r"4\.0 standard errors from the exact"):
        rwm.more({"ours": [right | {"mean": 0.9604}]})


def test_peers_that_did_not_run_leave_ours_alone(page):
    compare = importlib.import_module("compare")
    lines = compare.COMPARISONS["mclmc_steps"]().lines
    one = {"rate": 1.0, "cpu_rate": 1.0}
    seconds = {"ours": 10.0, "BlackJAX": 5.0, "bde": 2.5}
    results = {
        name: [{**one, "compile_seconds": 1.0, "cold_seconds": value}]
        for name, value in seconds.items()
    }
    rows = compare.make_rows(lines, results)
    found = {row.peer_name: row.ratio["median"] for row in rows if "first draws" in row.measure}
    assert found == {"BlackJAX": 0.5, "bde": 0.25}
    rows = compare.make_rows(lines, {"ours": results["ours"]})
    assert [(row.unit, row.ours, row.peer) for row in rows] == [
        ("steps/s", 1.0, None), ("steps/s of CPU", 1.0, None), ("s", 1.0, None), ("s", 10.0, None),
    ]  # fmt: skip


def test_a_comparison_goes_on_where_it_was_interrupted(page, tmp_path, monkeypatch):
    compare = importlib.import_module("compare")
    ran = []

    def run_worker(command):
        if len(ran) == 4:
            ran.append("interrupted")
            raise KeyboardInterrupt
        ran.append(" ".join(command[1:]))
        return {"rate": float(len(ran))}

    monkeypatch.setattr(compare.side_by_side, "run_worker", run_worker)
    commands = {"a": ("ours", "a.py", "{round}"), "b": ("ours", "b.py"), "c": ("none", "c.py")}
    comparison = compare.Comparison(commands, (), once=("b",), before=(("ours", "make.py"),))
    measure = lambda: compare.measure(comparison, {"ours": "python"}, 3, str(tmp_path / "x.json"))  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        measure()
    results = measure()
    assert ran == ["make.py", "a.py 0", "b.py", "a.py 1", "interrupted", "make.py", "a.py 2"]
    assert {name: len(done) for name, done in results.items()} == {"a": 3, "b": 1, "c": 0}
    assert list(tmp_path.iterdir()) == []


def test_runs_of_the_soak_are_rows_and_their_counts_are_added(page):
    def run(**counted):
        ended = {"passed": 5, "failed": 1, "error": 1, "skipped": 0, "counted": counted}
        row = {"date": "2026-01-02T03", "commit": "abc", "tests": ["tests/a", "tests/b"]}
        return row | ended | {"seconds": 3600, "cpu_seconds": 7190}

    rows = [run(**{"kills of sgd": {"saving": 1000, "starting": 2}}), run()]
    rows.append(run(**{"kills of sgd": {"saving": 5}}))
    shown = page.record({"soak": {"machine": "m", "command": "make soak", "rows": rows}})
    assert shown.count("| 2026-01-02 | abc | tests/a tests/b | 5 | 2 | 0 | 60 | 120 |") == 3
    assert "| kills of sgd | saving 1,005, starting 2 |" in shown
    assert "Command: `make soak`." in shown


def test_a_run_of_the_soak_is_read_from_junit(tmp_path, monkeypatch):
    (tmp_path / "test_them.py").write_text(
        "import json, pytest\n"
        "def test_one(record_property):\n"
        "    record_property('counted', json.dumps({'kills of sgd': {'saving': 3}}))\n"
        "def test_two(record_property):\n"
        "    record_property('counted', json.dumps({'kills of nuts': {'saving': 5}}))\n"
        "    assert False\n"
        "def test_three():\n"
        "    pytest.skip('no')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    junit = tmp_path / "soak.xml"
    subprocess.run([*command, f"--junitxml={junit}", tmp_path], capture_output=True, cwd=tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    soak_summary = importlib.import_module("soak_summary")
    row = soak_summary.row_of(junit, ["tests/fuzz"])
    assert row["counted"] == {"kills of sgd": {"saving": 3}}  # Of tests that passed.
    assert (row["passed"], row["failed"], row["skipped"], row["error"]) == (1, 1, 1, 0)
    assert (row["tests"], len(row["commit"]) > 6) == (["tests/fuzz"], True)
    assert "| 1 | 1 | 1 | 0 |  |" in soak_summary.format_all([row])
