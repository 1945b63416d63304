"""Each kind of forbidden name is found in small packages, and nothing else; counts only fall."""

import subprocess
import sys

import pytest
from conftest import ROOT

from scripts import forbidden_names

PACKAGE = {
    "registry": 'METHODS = {"hmc": 1}\nTASKS = {"density": 2}\nSOURCES = {"npz:PATH": 3}\n'
    'LIKELIHOODS: dict = {"gaussian": 4}\n',
    "networks/__init__": 'from ensemble.networks.cnn import CNN\nregister("cnn", CNN)\n',
    "networks/cnn": "import flax.linen as nn\n\n\nclass CNN(nn.Module):\n    num_classes: int\n",
    "sources/movies": "class Movies: ...\n",
    "tasks/watching": 'MODEL = "cnn"\n\n\nclass Watching: ...\n',
    "keys": "class Checked:\n    task: str\n",
}


def found(tmp_path, name, code, kind, package=PACKAGE):
    """Lines of a module in which a kind is found."""
    for module, text in {**package, name: code}.items():
        path = tmp_path / "ensemble" / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    finds = [one for one in forbidden_names.find(tmp_path) if one.kind == kind]
    assert {str(one.path) for one in finds} <= {f"ensemble/{name}.py"}
    return [one.line for one in finds]


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("loop", "from ensemble.sources.movies import Movies\nisinstance(x, Movies)", [2]),
        ("loop", "from ensemble.sources.movies import Movies as M\nisinstance(x, M)", [2]),
        ("loop", "from ensemble import networks\nisinstance(x, int | networks.CNN)", [2]),
        ("loop", "from ensemble.networks import CNN\nK = (int, CNN)\n\nisinstance(x, K)", [4]),
        ("loop", "from ensemble.networks import CNN\nissubclass(x, (int, CNN))", [2]),
        ("loop", "from ensemble.networks import CNN\ntype(x) is CNN", [2]),
        ("loop", "from ensemble.networks import CNN\nmatch x:\n    case CNN():\n        pass", [3]),
        ("loop", "import flax.linen as nn\nisinstance(x, nn.Module)", [2]),
        ("tasks/other", "from ensemble.sources.movies import Movies\nisinstance(x, Movies)", [2]),
        ("sources/own", "from ensemble.sources.movies import Movies\nisinstance(x, Movies)", []),
        ("networks/own", "from flax import nnx\nisinstance(x, nnx.Module)", []),
        ("loop", "class Movies: ...\n\n\nisinstance(x, Movies)", []),
        ("loop", "from ensemble.networks import CNN\nCNN(3)\nisinstance(x, dict | list)", []),
    ],
)
def test_who_asks_for_a_tenant_is_found(tmp_path, name, code, lines):
    assert found(tmp_path, name, code, "isinstance_of_tenant") == lines


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("loop", 'config.method == "hmc"', [1]),
        ("loop", 'if "gaussian" != name:\n    pass', [1]),
        ("loop", 'config.model in ("mine", "cnn")', [1]),
        ("loop", 'name.startswith("npz:")', [1]),
        ("loop", 'name == "arrays"', [1]),
        ("loop", 'match method:\n    case "hmc":\n        pass', [2]),
        ("loop", "from ensemble.tasks.watching import MODEL\nmodel == MODEL", [2]),
        ("loop", "from ensemble.tasks import watching\nmodel == watching.MODEL", [2]),
        ("loop", 'SAMPLERS = ("hmc",)\nALL = (*SAMPLERS, "mine")\nmethod not in ALL', [3]),
        ("methods/own", 'method == "hmc"', [1]),
        ("commands/train", 'method == "hmc"', []),
        ("configs/blobs", 'method == "hmc"', []),
        (
            "loop",
            'from ensemble import registry\nmethod in registry.METHODS or mass == "dense"',
            [],
        ),
        ("loop", 'config.method = "hmc"\nmake("hmc")', []),
    ],
)
def test_comparisons_with_a_name_are_found(tmp_path, name, code, lines):
    assert found(tmp_path, name, code, "comparison_with_name") == lines


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("loop", "num_classes = 3\n\nprint(data.num_classes)", [1, 3]),
        ("loop", "def f(num_classes): ...", [1]),
        ("loop", "f(num_classes=3)", [1]),
        ("loop", 'description["num_classes"]', [1]),
        ("loop", '"""Of num_classes."""\nnumber = 3  # num_classes', []),
        ("likelihoods/categorical", "num_classes = 3", []),
        ("likelihoods/gaussian", "num_classes = 3", [1]),
        ("metrics/scores", "num_classes = 3", []),
    ],
)
def test_numbers_of_classes_are_found(tmp_path, name, code, lines):
    assert found(tmp_path, name, code, "num_classes") == lines


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("method", "class Method:\n    task: Any", [2]),
        ("method", "def finished(state: Any): ...", [1]),
        ("method", "def finished(\n    old_state: Any | None\n): ...", [2]),
        ("method", "def finished(info): ...", [1]),
        ("method", "def init(key: Key) -> Any: ...", [1]),
        ("task", "def advance(of: S) -> tuple[S, Any]: ...", [1]),
        ("method", "def advance(state: S) -> tuple[S, I]: ...", []),
        ("method", "def parameters(state: S, statement: Any) -> Any: ...", []),
        ("network", "def init(key: Key) -> dict[str, Any]: ...", []),
        ("loop", "def finished(state: Any): ...", []),
    ],
)
def test_contracts_without_types_are_found(tmp_path, name, code, lines):
    assert found(tmp_path, name, code, "any_in_contract") == lines


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("loop", "\ndef f(task): ...\ndef g(task): ...", [2]),
        ("loop", "def f(what: Watching): ...\ndef g(task: Watching): ...", [1]),
        ("loop", "class Method:\n    task: Task", [2]),
        ("loop", "print(method.task)", [1]),
        ("loop", "task = create()\nprint(task.sizes)", [2]),
        ("loop", "f(lambda task: 1)", [1]),
        ("loop", "def f(task: str, tasks: list[str]): ...", []),
        ("loop", "def f(checked):\n    return checked.task", []),
        ("tasks/other", "def f(task: Watching): ...", []),
        ("task", "class Task: ...\n\n\ndef f(task: Task): ...", []),
    ],
)
def test_files_that_a_task_passes_through_are_found(tmp_path, name, code, lines):
    assert found(tmp_path, name, code, "task_files") == lines


def project(tmp_path, most):
    """A repository with one forbidden name, and `most` that may be there."""
    found(tmp_path, "loop", "num_classes = 3", "num_classes")
    counts = dict.fromkeys(forbidden_names.KINDS, 0) | {"num_classes": most}
    table = "".join(f"{kind} = {count}\n" for kind, count in counts.items())
    path = tmp_path / "pyproject.toml"
    path.write_text(f"[a]\nb = 1\n\n[tool.forbidden_names]\n{table}\n[c]\nnum_classes = 7\n")
    return path


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("loop", "import jax\n\njax.device_put(x)", [3]),
        ("loop", "from jax.sharding import PartitionSpec as P\nP()", [2]),
        ("methods/own", "from jax.sharding import NamedSharding\nNamedSharding(mesh, spec)", [2]),
        ("sharding/transfer", "import jax\n\njax.device_put(x)", []),
        ("loop", "from ensemble.sharding import transfer\ntransfer.put(x)", []),
    ],
)
def test_placing_elsewhere_is_found(tmp_path, name, code, lines):
    assert found(tmp_path, name, code, "placing") == lines


@pytest.mark.parametrize(("most", "status"), [(0, 1), (1, 0), (2, 1)])
def test_the_count_must_be_that_of_the_table(tmp_path, capsys, most, status):
    project(tmp_path, most)
    assert forbidden_names.main([], tmp_path) == status
    out, err = capsys.readouterr()
    assert "ensemble/loop.py:1: num_classes: num_classes\n" in out
    assert err.count("\n") == status
    assert "--renew" in err or most < 2
    assert "must be at most 0" in err or most > 0


@pytest.mark.parametrize(("most", "renewed"), [(0, 0), (1, 1), (5, 1)])
def test_the_table_is_lowered_and_never_raised(tmp_path, most, renewed):
    path = project(tmp_path, most)
    before = path.read_text()
    assert forbidden_names.main(["--renew"], tmp_path) == int(most == 0)
    assert path.read_text() == before.replace(
        f"num_classes = {most}\n", f"num_classes = {renewed}\n"
    )


def test_it_starts_no_jax():
    code = "import sys, scripts.forbidden_names; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
