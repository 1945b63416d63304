"""Applications can be removed: the core neither needs them nor knows of them."""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import xml.etree.ElementTree

import pytest
from conftest import ROOT

from ensemble import __main__ as program
from ensemble.applications import ROOMS
from ensemble.applications import applications as joined

PAGES = (
    *("test_docs", "test_readme", "test_reference", "test_benchmarks_page", "test_configs"),
    "simulations/test_statements_page",
)
"""Tests of pages and lists, which name each other: whoever removes one edits those."""
ABSENT = r"not installed|NOT CHECKED|NOT tested"
"""What is said of a tool or data that a machine has not."""
RENEWED = {
    "tests/golden/names.json": "tests.golden.test_names",
    "tests/words.json": "tests.words",
    "docs/configuration.md": "tests.ensemble.test_explain",
}
"""Files that a command writes, and its module."""
QUICK = (
    *("contracts", "golden", "public", "ensemble/report", "ensemble/storage", "test_words.py"),
    *("ensemble/test_config.py", "ensemble/test_explain.py", "ensemble/test_main.py"),
    "ensemble/methods/mcmc",
)
"""What runs in a copy without any application; `make soak` runs all without each."""


def belongings(room: str) -> list[str]:
    """Paths of what is of an application alone."""
    own = runpy.run_path(str(ROOT / "tests" / room / "in_contracts.py"))["BELONGS"]
    return [f"ensemble/{room}", f"tests/{room}", *own]


ALONE = """
import sys

sys.meta_path[:] = [
    one for one in sys.meta_path if not getattr(one, "__module__", "").startswith("__editable__")
]
"""
"""A `sitecustomize.py`: where this repository is installed as it is, nothing is found in it."""


def run_in(folder: pathlib.Path, *command: str) -> str:
    """Runs Python in a copy of the repository, which alone it imports."""
    path = folder.parent / "alone"
    path.mkdir(exist_ok=True)
    (path / "sitecustomize.py").write_text(ALONE)
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={
            "TFDS_DATA_DIR": str(ROOT.parent / "shared" / "tensorflow_datasets"),
            **os.environ,
            "PYTHONPATH": f"{path}:{folder / 'tests'}:{folder}",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout


def without(rooms, folder: pathlib.Path) -> pathlib.Path:
    """A copy of the repository from which applications have been removed."""
    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    gone = [path for room in rooms for path in belongings(room)]
    for name in files.splitlines():
        is_gone = any(name == one or name.startswith(f"{one}/") for one in gone)
        if is_gone or not (ROOT / name).exists():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    for path in ("requirements.txt", "pyproject.toml"):
        lines = (folder / path).read_text().splitlines(keepends=True)
        kept = [line for line in lines if not any(one in line for one in gone)]
        (folder / path).write_text("".join(kept))
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "A copy"]):
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *author, *command], cwd=folder, check=True)
    return folder


def collected(folder: pathlib.Path, *ignored: str) -> set[str]:
    """The names of all tests, slow ones included, with their parameters."""
    ignore = [f"--ignore=tests/{name}" for name in ignored]
    listed = run_in(folder, "-m", "pytest", "--collect-only", "-q", "-m", "", *ignore, "tests")
    found = {line for line in listed.splitlines() if "::" in line}
    assert len(found) > 3000
    return found


def names_of(rooms) -> set[str]:
    """What tests have as parameters because of applications."""
    found = set()
    for room, one in zip(ROOMS, joined(), strict=True):
        if room in rooms:
            own = runpy.run_path(str(ROOT / "tests" / room / "in_contracts.py"))
            tables = [value for name, value in own.items() if name.isupper()]
            found |= {name for table in [*one.tenants.values(), *tables] for name in table}
            found |= {pathlib.PurePath(path).stem for path in own["BELONGS"]}
            words = ROOT.glob(f"tests/{room}/words_of_*.py")
            found |= {name for path in words for name in runpy.run_path(str(path))["FOUND"]}
            found |= {str(path.relative_to(ROOT)) for path in ROOT.glob(f"ensemble/{room}/*.py")}
    return found


def keys_in(folder: pathlib.Path) -> set[str]:
    """The keys of the configuration that a copy lists, and names that simulations state."""
    names = json.loads((folder / "tests" / "golden" / "names.json").read_text())
    code = "from simulations import suite; print(*(one.name for one in suite.STATEMENTS))"
    return {*names["config"], *run_in(folder, "-c", code).split()}


def check_names(rooms, copy: pathlib.Path, pages: list[str]) -> None:
    """Every test of the core is there; parameters that have gone name what was removed."""
    before, left = collected(ROOT, *rooms, *pages), collected(copy, *pages)
    functions = [{one.partition("[")[0] for one in some} for some in (before, left)]
    assert functions[0] == functions[1]
    assert left <= before
    names = names_of(rooms) | (keys_in(ROOT) - keys_in(copy))
    pattern = re.compile(rf"(^|[-/ ])({'|'.join(map(re.escape, names))})($|[-/ ])")
    unexplained = [one for one in before - left if not pattern.search(one.partition("[")[2][:-1])]
    assert unexplained == []


def check_without(
    rooms, folder: pathlib.Path, paths: tuple[str, ...], is_whole: bool = False
) -> None:
    """Removes applications from a copy; what is left of the tests passes, and none is skipped.

    Args:
        rooms: that are removed.
        folder: for the copy.
        paths: of tests that run.
        is_whole: whether slow ones run too; tools that this machine has not may be missing then.
    """
    copy = without(rooms, folder)
    shown = run_in(copy, "-c", "import ensemble; print(*map(repr, map(ensemble.__getattr__, "
                   "ensemble.__all__)), ensemble.__file__)")  # fmt: skip
    assert str(copy) in shown
    assert not any(f"ensemble.{room}" in shown for room in rooms)
    find = "import sys, importlib.util as of; print(*map(of.find_spec, sys.argv[1:]))"
    gone = run_in(copy, "-c", find, *(f"ensemble.{room}" for room in rooms))
    assert gone.split() == ["None"] * len(rooms)
    pages = [f"{name}.py" for name in (*PAGES, "test_applications")]
    for path, module in RENEWED.items():
        before = (copy / path).read_text().splitlines()
        run_in(copy, "-m", module)
        if path.endswith(".json"):  # They have lost entries, and nothing else.
            left = {line.rstrip(",") for line in (copy / path).read_text().splitlines()}
            assert left <= {line.rstrip(",") for line in before}, path
    check_names(rooms, copy, pages)
    ignore = [f"--ignore=tests/{page}" for page in pages]
    tests = [f"tests/{path}" for path in paths]
    marks = ["-m", "not soak"] if is_whole else []
    options = ["-q", "-n2", "--dist=loadfile", "--junitxml=tests.xml", *marks]
    run_in(copy, "-m", "pytest", *options, *ignore, *tests)
    found = list(xml.etree.ElementTree.parse(copy / "tests.xml").getroot().iter("testcase"))
    assert len(found) > 500
    skipped = [one.get("message") or "" for case in found for one in case.iter("skipped")]
    assert [why for why in skipped if not is_whole or not re.search(ABSENT, why)] == []


def test_all_rooms_have_joined():
    assert len(joined()) == len(ROOMS) == len({one.section for one in joined()})
    assert {"recommend"} == {name for one in joined() for name in one.commands}
    assert program.COMMANDS["recommend"].module == "ensemble.recommendation.command"


@pytest.mark.parametrize("room", ROOMS)
def test_what_belongs_to_an_application_is_there(room):
    for path in belongings(room):
        assert (ROOT / path).exists(), path


@pytest.mark.check
@pytest.mark.timeout(1500)
def test_without_applications_the_core_passes_its_tests(tmp_path):
    check_without(ROOMS, tmp_path / "copy", QUICK)


@pytest.mark.soak
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("room", ROOMS)
def test_without_one_application_all_other_tests_pass(room, tmp_path):
    check_without([room], tmp_path / "copy", ("",), is_whole=True)
