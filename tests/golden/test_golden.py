"""Results that a change of the code's structure must not move: bits, fields and old workdirs.

`python tests/golden/test_golden.py` adds the digests of this processor and this jaxlib to
`results.json`; where a change of results is meant, `--renew` begins the file anew. Processors and
compilers without digests round otherwise; by the same jaxlib they are compared up to that.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import record

RESULTS = HERE / "results.json"
ROUNDING = 0.02
"""Relative; of means and root mean squares over an array, on another processor."""
SUMMARISED = "0.10.2"
"""The jaxlib of these means: by another one chains are elsewhere after some draws."""


def machine():
    """What decides how a program rounds: the processor, and the compiler's version."""
    import jaxlib.version

    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    processor = [told.get(name, "?") for name in ("vendor_id", "cpu family", "model", "stepping")]
    return f"{' '.join(processor)}, jaxlib {jaxlib.version.__version__}"


def run(family, num_devices):
    """Outcomes of a family's runs, trained in a process of its own, with a user's XLA flags."""
    names = "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS"
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, str(HERE / "record.py"), family, str(num_devices)],
        env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def with_this_machine(stored):
    """What `results.json` has, with the digests of this machine; all anew where it has nothing."""
    for family in record.FAMILIES:
        for num_devices in record.NUM_DEVICES:
            for name, outcome in run(family, num_devices).items():
                digest, summary = outcome.pop("digest"), outcome.pop("summary")
                entry = stored.setdefault(name, {"on": {}})
                assert entry.setdefault("fields", outcome) == outcome
                on = entry["on"].setdefault(str(num_devices), {"digests": {}, "summary": summary})
                on["digests"][machine()] = digest
    return stored


@pytest.fixture(scope="module")
def stored():
    return json.loads(RESULTS.read_text())


ON = [
    pytest.param(k, marks=pytest.mark.check if k > 1 else pytest.mark.soak)
    for k in record.NUM_DEVICES
]
"""Numbers of devices; that one gives what several do, others test."""


@pytest.mark.parametrize("num_devices", ON)
@pytest.mark.parametrize("family", record.FAMILIES)
def test_every_method_gives_what_it_gave(stored, family, num_devices, capsys):
    found = run(family, num_devices)
    assert set(found) == set(record.FAMILIES[family])
    for name, outcome in found.items():
        expected = stored[name]
        golden = expected["on"][str(num_devices)]
        assert {key: outcome[key] for key in expected["fields"]} == expected["fields"], name
        assert list(outcome["summary"]) == list(golden["summary"]), name
        if machine() in golden["digests"]:
            assert outcome["digest"] == golden["digests"][machine()], f"{name} has other bits"
            continue
        if not machine().endswith(f"jaxlib {SUMMARISED}"):
            continue
        for array, values in golden["summary"].items():
            scale = values[1]  # The root mean square: a mean near zero has no relative error.
            np.testing.assert_allclose(
                outcome["summary"][array], values, atol=ROUNDING * scale, err_msg=f"{name} {array}"
            )
    if machine() not in golden["digests"]:
        with capsys.disabled():
            known = ", ".join(golden["digests"])
            print(f"\nBITS NOT COMPARED: this is {machine()}; digests are of {known}")


if __name__ == "__main__":
    before = {} if "--renew" in sys.argv else json.loads(RESULTS.read_text())
    RESULTS.write_text(json.dumps(with_this_machine(before), indent=1) + "\n")
