"""What `benchmarks/member_bytes.py` reads out of a compiled program."""

import sys

from conftest import ROOT

PROGRAM = """
  %all-gather.1 = f32[16,8]{1,0} all-gather(f32[2,8]{1,0} %x), dimensions={0}
  %all-reduce = (f32[4]{0}, bf16[2,3]{1,0}) all-reduce(f32[4]{0} %a, bf16[2,3]{1,0} %b)
  %start = f32[] all-reduce-start(f32[] %c)
  %fusion = f32[9] fusion(%all-reduce), calls=%body
"""


def test_collectives_are_counted_with_the_bytes_that_they_put_out(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import member_bytes  # It lies where programs do, and is found now.

    assert member_bytes.exchanged(PROGRAM) == {"all-gather": [1, 512], "all-reduce": [2, 32]}
