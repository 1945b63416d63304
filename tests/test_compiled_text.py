"""What `benchmarks/compiled_text.py` reads out of compiled programs."""

import importlib

import jax
import jax.numpy as jnp
import pytest
from conftest import ROOT
from run_parts import mesh_of

from ensemble.sharding.mesh import DATA, spec

PROGRAM = """HloModule steps
%condition (state: (s32[], f32[4])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}
%inner (x: f32[4]) -> f32[4] {
  %sum = f32[4]{0} all-reduce(f32[4]{0} %x), to_apply=%add
}
%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {
  %work = f32[4] fusion(%x), kind=kLoop, backend_config={"estimated_cycles":"10"}
  %called = f32[4] call(%work), to_apply=%inner
}
%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %c = f32[] add(%a, %b)
}
ENTRY %main (p: f32[2,8]) -> f32[] {
  %all-gather.1 = f32[16,8]{1,0} all-gather(f32[2,8]{1,0} %x), dimensions={0}
  %all-reduce = (f32[4]{0}, bf16[2,3]{1,0}) all-reduce(f32[4]{0} %a, bf16[2,3]{1,0} %b)
  %long = (f32[1], f32[1], f32[1], f32[1], f32[1], /*index=5*/f32[3]{0}) all-reduce(f32[1] %a)
  %start = f32[] all-reduce-start(f32[] %c)
  %sent = (f32[4]{0}, f32[8]{0:T(8)}) all-gather-start(f32[4]{0} %c), dimensions={0}
  %loop = (s32[], f32[4]) while(%t), condition=%condition, body=%body, TRIPS
  %host = f32[] custom-call(%c), custom_call_target="xla_python_cpu_callback"
  %fusion = f32[9] fusion(%all-reduce), calls=%add, backend_config={"estimated_cycles":"7"}
}
""".replace("TRIPS", 'backend_config={"known_trip_count":{"n":"5"}}')


@pytest.fixture
def compiled_text(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("compiled_text")


def test_collectives_are_counted_by_how_deep_in_loops_they_are(compiled_text):
    found = compiled_text.read(PROGRAM)
    assert [(one.name, one.depth, one.count, one.num_bytes) for one in found.exchanged] == [
        ("all-gather", 0, 2, 512 + 32),
        ("all-reduce", 0, 3, 32 + 32),
        ("all-reduce", 1, 1, 16),
    ]
    assert found.cycles == 7 + 5 * 10
    assert found.callbacks == 1
    unknown = PROGRAM.replace('"estimated_cycles":"7"', f'"estimated_cycles":"{2**63 - 1}"')
    assert compiled_text.read(unknown).cycles == 0
    with pytest.raises(ValueError, match="ENTRY"):
        compiled_text.read("HloModule empty")


def test_what_jax_compiles_here_is_read(compiled_text):
    mesh, part = mesh_of(1, 4), spec("example")

    def sums(x):
        return jax.lax.fori_loop(0, 3, lambda i, s: s + jax.lax.psum(s * x, DATA), x)

    mapped = jax.jit(jax.shard_map(sums, mesh=mesh, in_specs=part, out_specs=part))
    compiled = mapped.lower(jnp.ones(8)).compile()
    [one] = compiled_text.read(compiled.as_text()).exchanged
    assert (one.name, one.depth, one.count, one.num_bytes) == ("all-reduce", 1, 1, 8)


def test_products_that_may_be_rounded_are_counted(compiled_text):
    def products(x):
        with jax.default_matmul_precision("highest"):
            exact = x @ x
        return exact @ x, (x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16))

    lowered = jax.jit(products).lower(jnp.ones((4, 4)))
    assert compiled_text.rounded_products(lowered.as_text()) == 1
