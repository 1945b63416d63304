"""Imports inside functions hide what a module needs: each says why it is there.

What a run does not use is not imported: no other methods, sources and networks, nothing slow.
"""

import ast
import importlib.util
import json
import subprocess
import sys

import pytest
from applications import examples
from conftest import ROOT

FILES = sorted((ROOT / "ensemble").rglob("*.py"))


def unexplained(path):
    """Lines of imports inside functions without a comment there or right above the group."""
    source = path.read_text()
    lines = source.splitlines()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    imports = {
        node.lineno: node.end_lineno
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    found = []
    for first, last in imports.items():
        above = first - 1
        while lines[above - 1].strip().startswith(("import ", "from ", "if ", "return ")):
            above -= 1
        explained = "#" in "".join(lines[first - 1 : last]) or "#" in lines[above - 1]
        found += [] if explained else [f"{path.relative_to(ROOT)}:{first} {lines[first - 1]}"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_import_inside_a_function_says_why(path):
    assert unexplained(path) == []


def test_one_that_does_not_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "module.py").write_text(
        "def f():\n    import jax\n\n\ndef g():\n    import jax  # Slow.\n\n\ndef h():\n"
        "    # Slow.\n    import jax\n    import flax\n"
    )
    assert unexplained(tmp_path / "module.py") == ["module.py:2     import jax"]


DIGITS = {"dataset": "digits", "num_devices": 1}
RUNS = {
    "sgd": {"model": "cnn", "ensemble_size": 1, "num_steps": 2},
    "hmc": {
        "model": "logistic_regression",
        "num_chains": 1,
        "sampler.num_warmup": 10,
        "sampler.step_size": 1e-4,
        "sampler.num_samples": 20,
    },
}
UNUSED = {
    "sgd": ["ensemble.methods.mcmc.sampling", "ensemble.draws.diagnostics", "blackjax"],
    "hmc": ["ensemble.methods.members.engine", "ensemble.methods.mcmc.tempering"],
}
"""Methods, and what belongs to them, beside those of `OTHERS`."""
OTHERS = [
    "ensemble.calibrated",
    "ensemble.configs.arrays",
    "ensemble.evaluation",
    "ensemble.explain",
    "ensemble.export",
    "ensemble.likelihoods.gaussian",
    "ensemble.likelihoods.mixture_density",
    "ensemble.likelihoods.numbers",
    "ensemble.methods.members.given_weights",
    "ensemble.methods.minibatch.langevin",
    "ensemble.networks.backbone",
    "ensemble.networks.functions",
    "ensemble.networks.mlp",
    "ensemble.networks.nnx_modules",
    "ensemble.networks.resnet",
    "ensemble.networks.resnet50",
    "ensemble.networks.vit",
    "ensemble.pictures.number_plots",
    "ensemble.pictures.tabular",
    "ensemble.sharding.rendezvous",
    "ensemble.sklearn",
    "ensemble.sources.data_forms",
    "ensemble.sources.features",
    "ensemble.sources.folders",
    "ensemble.sources.own_arrays",
    "ensemble.sources.records.index",
    "ensemble.sources.tables.frames",
    "ensemble.sources.tables.table_form",
    "ensemble.sources.tables.table_source",
    "ensemble.sources.tfds_records",
    "ensemble.tasks.distillation.distilled",
    "ensemble.tasks.faults",
    "tensorflow_datasets",
    *examples("UNUSED"),
]
"""Methods, sources, networks and packages that a run on digits has no use for."""


def test_what_a_run_has_no_use_for_is_there():
    for name in [*OTHERS, *UNUSED["sgd"], *UNUSED["hmc"]]:
        assert importlib.util.find_spec(name), name


@pytest.mark.check
@pytest.mark.parametrize("method", RUNS)
def test_a_run_on_digits_imports_nothing_of_others(method, tmp_path):
    config = {**DIGITS, "method": method, **RUNS[method]}
    code = (
        "import json, sys, ensemble\n"
        "config, workdir, unused = map(json.loads, sys.argv[1:])\n"
        "ensemble.train(config, workdir=workdir)\n"
        "print(json.dumps([name for name in unused if name in sys.modules]))\n"
    )
    assert imported(code, config, str(tmp_path / "run"), [*OTHERS, *UNUSED[method]]) == []


AT_FIRST_STEP = """
import json, sys
import ensemble
from ensemble.run.monitor import Monitor

config, workdir, slow = map(json.loads, sys.argv[1:])
found = []
write_previous = Monitor.write_previous  # Called when the first step has been dispatched.

def looked(self, *arguments):
    found.append([name for name in slow if name in sys.modules])
    return write_previous(self, *arguments)

Monitor.write_previous = looked
ensemble.train(config, workdir=workdir, show_progress=False)
print(json.dumps([found[0], [name for name in slow if name in sys.modules]]))
"""
SLOW = ["orbax", "tensorstore", "tensorboardX", "cryptography", "matplotlib", "arviz"]
"""Packages that take long to import: what is written needs them, or nothing does."""


@pytest.mark.check
@pytest.mark.parametrize("writes", [True, False])
def test_what_writes_is_imported_after_the_first_step(writes, tmp_path):
    config = {**DIGITS, "method": "sgd", **RUNS["sgd"], "model": "logistic_regression"}
    workdir = str(tmp_path / "run") if writes else None
    at_first_step, at_end = imported(AT_FIRST_STEP, config, workdir, SLOW)
    assert at_first_step == []
    assert [name in at_end for name in ("orbax", "tensorboardX")] == [writes, writes]


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
