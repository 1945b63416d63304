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
from concurrent.futures import ThreadPoolExecutor

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
"""What runs in a copy without any application; `make soak` runs all, without each and all."""
DIGITS = (
    "train --config=digits_ensemble --workdir={run} --config.model=mlp --config.num_epochs=1",
    "evaluate --workdir={run} --datasets=none",
    "export --workdir={run} --out={run}/model.bin",
)
"""Commands that a user gives one after the other, in short."""


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


def check_names(rooms, before: set[str], left: set[str], keys: set[str]) -> None:
    """Every test of the core is there; parameters that have gone name what was removed.

    Args:
        rooms: that were removed.
        before: names of the core's tests where nothing is removed.
        left: names of the tests of a copy.
        keys: and statements that the copy has lost.
    """
    functions = [{one.partition("[")[0] for one in some} for some in (before, left)]
    assert functions[0] == functions[1]
    assert left <= before
    names = names_of(rooms) | keys
    pattern = re.compile(rf"(^|[-/ ])({'|'.join(map(re.escape, names))})($|[-/ ])")
    unexplained = [one for one in before - left if not pattern.search(one.partition("[")[2][:-1])]
    assert unexplained == []


NOT_OF_COPIES = [f"{name}.py" for name in (*PAGES, "test_applications")]
"""Files of tests that are left out."""


def checked_copy(rooms, folder: pathlib.Path) -> pathlib.Path:
    """A copy without applications, which imports, renews its lists, and has all the core's tests.

    Args:
        rooms: that are removed.
        folder: for the copy.
    """
    with ThreadPoolExecutor() as pool:
        before = pool.submit(collected, ROOT, *rooms, *NOT_OF_COPIES)
        copy = without(rooms, folder)
        shown = run_in(copy, "-c", "import ensemble; print(*map(repr, map(ensemble.__getattr__, "
                       "ensemble.__all__)), ensemble.__file__)")  # fmt: skip
        assert str(copy) in shown
        assert not any(f"ensemble.{room}" in shown for room in rooms)
        find = "import sys, importlib.util as of; print(*map(of.find_spec, sys.argv[1:]))"
        gone = run_in(copy, "-c", find, *(f"ensemble.{room}" for room in rooms))
        assert gone.split() == ["None"] * len(rooms)
        for path, module in RENEWED.items():
            lines = (copy / path).read_text().splitlines()
            run_in(copy, "-m", module)
            if path.endswith(".json"):  # They have lost entries, and nothing else.
                left = {line.rstrip(",") for line in (copy / path).read_text().splitlines()}
                assert left <= {line.rstrip(",") for line in lines}, path
        keys = pool.submit(keys_in, ROOT)
        found = collected(copy, *NOT_OF_COPIES)
        check_names(rooms, before.result(), found, keys.result() - keys_in(copy))
    return copy


def skipped_in(copy: pathlib.Path, *paths: str, marks: str = "") -> list[str]:
    """Runs tests of a copy, which pass; returns why some are skipped."""
    ignore = [f"--ignore=tests/{page}" for page in NOT_OF_COPIES]
    options = [
        "-q",
        "-n2",
        "--dist=loadfile",
        "--junitxml=tests.xml",
        *(["-m", marks] if marks else []),
    ]
    run_in(copy, "-m", "pytest", *options, *ignore, *(f"tests/{path}" for path in paths))
    cases = list(xml.etree.ElementTree.parse(copy / "tests.xml").getroot().iter("testcase"))
    assert len(cases) > 500
    return [one.get("message") or "" for case in cases for one in case.iter("skipped")]


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
def test_without_applications_the_core_is_whole(tmp_path):
    """What of the core is proved without all three applications.

    All public names import, and none comes from an application. The lists of names, words and keys
    are written anew and lose nothing but what was removed. All modules of tests import, no test
    function is missing, and each parameter that is missing names what was removed. Tests of
    contracts, public names, reports, workdirs and samplers pass, and none is skipped. Digits are
    learned, evaluated and exported by commands. Whether all of the core's tests pass, `make soak`
    tells.
    """
    copy = checked_copy(ROOMS, tmp_path / "copy")
    with ThreadPoolExecutor() as pool:
        skipped = pool.submit(skipped_in, copy, *QUICK)
        for command in DIGITS:
            run_in(copy, "-m", "ensemble", *command.format(run=tmp_path / "run").split())
        assert skipped.result() == []
    assert (tmp_path / "run" / "model.bin").stat().st_size > 10_000


@pytest.mark.soak
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("removed", [*ROOMS, "all"])
def test_without_applications_all_other_tests_pass(removed, tmp_path):
    """Slow tests run too, and may be skipped for what this machine has not."""
    copy = checked_copy(ROOMS if removed == "all" else [removed], tmp_path / "copy")
    skipped = skipped_in(copy, "", marks="not soak")
    assert [why for why in skipped if not re.search(ABSENT, why)] == []
