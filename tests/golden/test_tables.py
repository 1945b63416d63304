"""The tables that the README and the docs print are those that their commands print."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from applications import examples
from conftest import ROOT

from ensemble.report.text import format_table, summary_sentence

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from test_golden import machine

NUMBER = r"[-+]?[\d,]*\.?\d+"
PRINTED = {
    "clutter_ensemble": "README.md",
    "digits_ensemble": "docs/results.md",
    "digits_logreg_hmc": "docs/posteriors.md",
    **examples("PRINTED"),
}
"""Pages by the configuration whose table they print."""
PRINTED_ON = "AuthenticAMD 26 2 1, jaxlib 0.10.2"
"""The machine whose figures the pages print, but for those of `ELSEWHERE`."""
ELSEWHERE = {"README.md": "AuthenticAMD 25 17 1, jaxlib 0.10.2"}


def printed_lines(page):
    """The lines of a page's fenced blocks that hold a rule of dashes, but for rules."""
    blocks = re.findall(r"```\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "\n-----" in block]
    return [line for line in block.splitlines() if line and set(line) != {"-"}]


def check(page, output):
    """Fails where a line of a page is not in the output, up to rounding of other processors."""
    found = [line.rstrip() for line in output.splitlines()]
    same_machine = machine() == ELSEWHERE.get(page, PRINTED_ON)
    for line in printed_lines(page):
        if line in found:
            continue
        assert not same_machine, f"{page} prints what its command does not:\n{line}\n{output}"
        words = re.sub(NUMBER, "", line).split()
        alike = [one for one in found if re.sub(NUMBER, "", one).split() == words]
        assert alike, f"{page} has a line that its command has not: {line}"
        expected, *others = (
            [float(number.replace(",", "")) for number in re.findall(NUMBER, one)]
            for one in (line, *alike)
        )
        assert any(other == pytest.approx(expected, rel=0.1, abs=0.8) for other in others), line


@pytest.mark.check
@pytest.mark.skipif(
    "README_WORKDIR" not in os.environ, reason="make soak compares the README's table, or give "
    "README_WORKDIR, where make train has left its run"
)  # fmt: skip
def test_the_readme_s_table_is_that_of_make_train():
    report = json.loads((pathlib.Path(os.environ["README_WORKDIR"]) / "report.json").read_text())
    check("README.md", f"{format_table(report)}\n{summary_sentence(report)}")


@pytest.mark.parametrize(
    "config",
    [pytest.param(name, marks=pytest.mark.soak) for name in PRINTED],
)
def test_a_page_s_table_is_that_of_its_command(config, tmp_path):
    names = "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR"
    done = subprocess.run(
        [sys.executable, "train.py", f"--config={config}", f"--workdir={tmp_path / 'run'}"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in names},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    check(PRINTED[config], done.stdout)


def test_a_wrong_figure_is_found():
    lines = printed_lines("README.md")
    check("README.md", "\n".join(lines))
    with pytest.raises(AssertionError, match="ensemble "):
        check("README.md", "\n".join(line.replace("87.60", "37.60") for line in lines))
