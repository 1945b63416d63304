"""The table."""

from words.reports import make_report

from ensemble.report.text import format_table


def test_the_table_shows_members_their_mean_and_sd_and_the_ensemble():
    rows = {
        line[:15].strip(): line[15:].split() for line in format_table(make_report()).split("\n")
    }
    assert rows["member 0"] == ["90.00%", "0.2000", "0.1000", "0.0100"]
    assert rows["member 3"] == ["80.00%", "0.4000", "0.3000", "0.0300"]
    assert rows["average member"] == ["85.00%", "0.3000", "0.2000", "0.0200"]
    assert rows["sd of members"] == ["7.07%", "0.1414", "0.1414", "0.0141"]
    assert rows["ensemble"] == ["92.00%", "0.1500", "0.0900", "0.0200"]
    assert "member 1: non-finite" in format_table(make_report())


def test_a_single_member_has_no_spread():
    table = format_table(make_report(members=1))
    (row,) = (line for line in table.split("\n") if line.startswith("sd of members"))
    assert row.split()[3:] == ["0.00%", "0.0000", "0.0000", "0.0000"]


def test_other_splits():
    report = make_report()
    report["validation"] = report.pop("test")
    assert format_table(report).startswith("validation ")
