"""What `benchmarks/member_bytes.py` reads out of a compiled program."""

import json
import sys

import pytest
from conftest import ROOT

PROGRAM = """
ENTRY %main (x: f32[2,8]) -> f32[9] {
  %all-gather.1 = f32[16,8]{1,0} all-gather(f32[2,8]{1,0} %x), dimensions={0}
  %all-reduce = (f32[4]{0}, bf16[2,3]{1,0}) all-reduce(f32[4]{0} %a, bf16[2,3]{1,0} %b)
  %start = f32[] all-reduce-start(f32[] %c)
  %fusion = f32[9] fusion(%all-reduce), calls=%body
}
"""


def test_collectives_are_counted_with_the_bytes_that_they_put_out(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import member_bytes  # It lies where programs do, and is found now.

    assert member_bytes.exchanged(PROGRAM) == {"all-gather": [1, 512], "all-reduce": [2, 32]}


def test_the_page_has_the_measured_numbers():
    """Those that `benchmarks/member_bytes.py --out=benchmarks/results/member_bytes.json` writes."""
    path = ROOT / "benchmarks" / "results" / "member_bytes.json"
    if not path.exists():
        pytest.skip(
            "benchmarks/results/member_bytes.json is not measured: the page was NOT COMPARED"
        )
    found = json.loads(path.read_text())
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert found["settings"]["size"] == "L"
    for row in found["rows"]:
        state, arguments = row["predicted_state_bytes"] / 1e6, row["argument_bytes"] / 1e6
        mesh = ", ".join(map(str, row["mesh"].values()))
        line = f"| {row['devices']} | {mesh} | {state:.1f} MB | {arguments:.1f} MB "
        assert f"{line}| {row['temporary_bytes'] / 1e6:,.0f} MB |" in page
        assert f"{row['parameters']:,} parameters" in page
        gathered, reduced = (row["exchanged_bytes"][name] for name in ("all-gather", "all-reduce"))
        assert f"puts out {gathered[1] / 1e9:.2f} GB" in page.replace("\n", " ")
        assert f"in {gathered[0]} all-gathers and {reduced[1] / 1e9:.2f} GB in {reduced[0]}" in page
