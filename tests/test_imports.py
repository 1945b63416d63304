"""Imports inside functions hide what a module needs: each says why it is there.

What a run does not use is not imported: no other methods, sources and networks, nothing slow.
"""

import json
import subprocess
import sys

import pytest
from applications import examples
from conftest import ROOT

DIGITS = {"dataset": "digits", "num_devices": 1}
RUN = {"model": "cnn", "ensemble_size": 1, "num_steps": 2}
OTHERS = [
    "blackjax",
    "ensemble.configs.arrays",
    "ensemble.report.evaluate",
    "ensemble.export",
    "ensemble.draws.diagnostics",
    "ensemble.likelihoods.numbers",
    "ensemble.methods.chains",
    "ensemble.likelihoods.several",
    "ensemble.methods.given_weights",
    "ensemble.methods.sgmcmc",
    "ensemble.networks.functions",
    "ensemble.networks.mlp",
    "ensemble.networks.nnx_modules",
    "ensemble.networks.resnet",
    "ensemble.networks.vit",
    "ensemble.sklearn",
    "ensemble.data.data_forms",
    "ensemble.data.folders",
    "ensemble.data.own_arrays",
    "ensemble.data.records",
    "ensemble.data.tables.columns",
    "ensemble.data.tables.table",
    "ensemble.data.tfds_sets",
    "ensemble.tasks.distillation",
    "pandas",
    "pyarrow",
    "tensorflow_datasets",
    *examples("UNUSED"),
]
"""Methods, sources, networks and packages that a run on digits has no use for."""


@pytest.mark.check
def test_a_run_on_digits_imports_nothing_of_others(tmp_path):
    config = {**DIGITS, "method": "deep_ensemble", **RUN}
    code = (
        "import json, sys, ensemble\n"
        "config, workdir, unused = map(json.loads, sys.argv[1:])\n"
        "ensemble.train(config, workdir=workdir)\n"
        "print(json.dumps([name for name in unused if name in sys.modules]))\n"
    )
    assert imported(code, config, str(tmp_path / "run"), OTHERS) == []


AT_FIRST_STEP = """
import json, sys
import ensemble
from ensemble.runtime.run import Run

config, workdir, slow = map(json.loads, sys.argv[1:])
found = []
advanced = Run.advanced  # Called when the first step has come back.

def looked(self, *arguments):
    found.append([name for name in slow if name in sys.modules])
    return advanced(self, *arguments)

Run.advanced = looked
ensemble.train(config, workdir=workdir, show_progress=False)
print(json.dumps([found[0], [name for name in slow if name in sys.modules]]))
"""
SLOW = ["orbax", "tensorstore", "tensorboardX", "cryptography", "matplotlib", "arviz"]
"""Packages that take long to import: what is written needs them, or nothing does."""


@pytest.mark.check
def test_what_writes_is_imported_after_the_first_step(tmp_path):
    config = {**DIGITS, "method": "deep_ensemble", **RUN, "model": "logistic_regression"}
    at_first_step, at_end = imported(AT_FIRST_STEP, config, str(tmp_path / "run"), SLOW)
    assert at_first_step == []
    assert {"orbax", "tensorboardX"} <= set(at_end)


@pytest.mark.check
def test_estimators_are_imported_without_what_trains_and_what_reads_workdirs():
    slow = ["jax", "flax", "ensemble.run.loop", "tensorboardX", "orbax", "optax", "matplotlib"]
    code = (
        "import json, sys, ensemble\n"
        "ensemble.EnsembleRegressor(), ensemble.EnsembleClassifier()\n"
        "print(json.dumps([name for name in json.loads(sys.argv[1]) if name in sys.modules]))\n"
    )
    assert imported(code, slow) == []


def imported(code, *arguments):
    """What a program prints last, as JSON."""
    given = map(json.dumps, arguments)
    done = subprocess.run(
        [sys.executable, "-c", code, *given], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
