"""Programs are compiled for TPUs that are not here, by `benchmarks/aot.py`.

It needs an environment of requirements.txt and requirements-tpu.txt, whose Python
`LIBTPU_PYTHON` names; `REQUIRE_LIBTPU=1` makes its absence a failure.
"""

import json
import os
import runpy
import subprocess

import pytest
from conftest import ROOT

TOPOLOGY = "v5e:2x4"
COMPILED = (
    "cnn", "cnn_independent", "mlp", "predict", "hmc", "hmc_cnn", "mclmc", "sghmc", "free_nuts",
    "free_mclmc", "walks", "factorisation",
)  # fmt: skip
MEMBERS = ("cnn", "mlp")
ALONE = (
    "cnn_independent", "predict", "hmc", "hmc_cnn", "mclmc", "sghmc", "free_nuts", "free_mclmc",
    "walks",
)  # fmt: skip
SAMPLERS = ("hmc", "hmc_cnn", "mclmc", "free_nuts", "free_mclmc", "factorisation")
DONATED = (*MEMBERS, "cnn_independent", "sghmc", "hmc", "hmc_cnn", "mclmc", "walks")
MOST_TEMPORARY = {
    "cnn": 2.9, "cnn_independent": 2.8, "mlp": 2.1, "predict": 0.5, "hmc": 6.5, "hmc_cnn": 8.1,
    "mclmc": 5,
    "sghmc": 3.4, "free_nuts": 4.5, "free_mclmc": 4.2, "walks": 2.7, "factorisation": 9.2,
}  # fmt: skip
"""MB of one chip: 1.3 times what libtpu of JAX 0.12.0.1 takes."""


def compile_here(python, topology, *options):
    command = [python, "-m", "benchmarks.aot", "--here", "--topology", topology, *options]
    own = runpy.run_path(str(ROOT / "benchmarks" / "aot_devices.py"))["environment"](topology)
    environment = {**os.environ, "XLA_FLAGS": "", **own}  # Not those of the tests' own devices.
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def compile_small(python, *programs):
    return compile_here(python, TOPOLOGY, "--small", "--programs", *programs)


@pytest.fixture(scope="module")
def python():
    found = os.environ.get("LIBTPU_PYTHON")
    if not found:
        assert not os.environ.get("REQUIRE_LIBTPU"), "LIBTPU_PYTHON names no Python"
        pytest.skip("no LIBTPU_PYTHON: programs for TPUs were NOT COMPILED")
    return found


@pytest.fixture(scope="module")
def compiled(python):
    """What each program takes, by name."""
    done = compile_small(python, *COMPILED)
    assert not done.returncode, done.stderr[-2000:]
    rows = map(json.loads, done.stdout.splitlines())
    return dict(zip(COMPILED, rows, strict=True))


def exchanged(row):
    return {one["name"] for one in row["exchanged"]}


@pytest.mark.check
@pytest.mark.timeout(600)
def test_programs_compile_and_exchange_little(compiled):
    for name in MEMBERS:
        assert exchanged(compiled[name]) == {"all-reduce"}
        assert sum(one["count"] for one in compiled[name]["exchanged"]) <= 3
        assert sum(one["num_bytes"] for one in compiled[name]["exchanged"]) <= 2**14
    for name in ALONE:
        assert not exchanged(compiled[name]), name
    assert "all-gather" not in exchanged(compiled["factorisation"])


@pytest.mark.check
def test_what_is_donated_is_reused_and_no_host_is_called(compiled):
    for name in DONATED:
        row = compiled[name]
        assert row["aliased_bytes"] >= 0.5 * row["output_bytes"], name
    assert not any(row["callbacks"] for row in compiled.values())


@pytest.mark.check
def test_log_densities_are_computed_in_float32(compiled):
    assert {
        name: compiled[name]["default_precision_products"] for name in SAMPLERS
    } == dict.fromkeys(SAMPLERS, 0)
    assert compiled["cnn"]["default_precision_products"]  # So the count counts.


@pytest.mark.check
def test_temporaries_stay_small(compiled):
    for name, row in compiled.items():
        assert row["temporary_bytes"] < 1e6 * MOST_TEMPORARY[name], name


@pytest.mark.check
def test_what_is_too_large_is_refused_before_it_is_compiled(python):
    done = compile_small(python, "many_cnns")
    assert done.returncode
    line = done.stderr.splitlines()[-1]
    assert "config.ensemble_size=40000 members" in line
    assert "; use " in line
