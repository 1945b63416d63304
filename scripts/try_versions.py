"""Tries the Pythons and the package versions that are allowed: installs, trains, samples, tests.

    python -m scripts.try_versions                # All, one after another: a gigabyte each.
    python -m scripts.try_versions 3.13:lowest    # One.

`lowest` is the lowest version of each line of requirements.txt, `highest` what a user gets today.
Exit status: 0 all that could be had work, 1 one does not; what cannot be had is said.
"""

import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RESOLUTIONS = {"lowest": "lowest-direct", "highest": "highest"}
COMBINATIONS = tuple(
    f"{python}:{name}"
    for python, name in itertools.product(PYTHONS, RESOLUTIONS)
    if (python, name) != ("3.14", "lowest")  # The lowest NumPy has no wheel for it.
)
_SMALL = ("--config.num_devices=1",)
_TESTS = (
    "metrics", "test_predictor.py", "storage/test_checkpoint.py",
    "../public/test_records.py", "../public/test_tfds.py",
    "draws/test_diagnostics.py", "networks/test_precision.py",
    "../public/test_pmapped.py",
)  # fmt: skip
"""Tests of tests/ensemble: what stands on packages whose ways change most between versions."""
FOR_TESTS = ("pytest>=9,<10", "pytest-xdist>=3.6,<4", "pandas>=2.2.3,<4", "pyarrow>=18,<27")
"""What they need beside requirements.txt; pandas 2.2.3 is the first with wheels for 3.13."""

NO_COMPILER = ("--only-binary=:all:", "--no-binary=promise")
"""Wheels alone, but for promise, which TFDS needs: it is Python alone, and has none."""


class CannotBeHad(Exception):
    """A Python, or the package index, that cannot be reached from here."""


def attempt(combination: str, folder: pathlib.Path) -> str | None:
    """Installs one combination and uses it.

    Args:
        combination: of `COMBINATIONS`.
        folder: for the environment and its runs; what is in it stays.

    Returns:
        What failed, with the end of its output; None if all worked.

    Raises:
        CannotBeHad: as said.
    """
    version, name = combination.split(":")
    python = folder / "venv" / "bin" / "python"
    made = _run(["uv", "venv", "--quiet", f"--python={_python(version)}", str(folder / "venv")])
    if made.returncode:
        raise CannotBeHad(f"Python {version}: {_last_line(made.stderr)}")
    installed = _run(
        [
            "uv", "pip", "install", "--quiet", f"--python={python}", *NO_COMPILER,
            f"--resolution={RESOLUTIONS[name]}", "--requirement=requirements.txt",
            *FOR_TESTS,
        ]
    )  # fmt: skip
    if installed.returncode:
        if any(words in installed.stderr for words in ("Failed to fetch", "Connect", "dns error")):
            raise CannotBeHad(f"the package index: {_last_line(installed.stderr)}")
        return f"uv pip install\n{installed.stderr[-2000:]}"
    members = f"--workdir={folder / 'members'}"
    chains = f"--workdir={folder / 'chains'}"
    for arguments in (
        ["train.py", "--config=configs/clutter_ensemble.py", "--config.num_epochs=1",
         "--config.model=mlp", "--config.ensemble_size=2", *_SMALL, members],
        ["evaluate.py", members, "--extra_datasets="],
        ["train.py", "--config=configs/digits_logreg_hmc.py", "--config.num_chains=2",
         "--config.sampler.num_warmup=20", "--config.sampler.num_samples=20", *_SMALL, chains],
        # Old packages are deprecated by new ones: their warnings are no errors here.
        ["-m", "pytest", "-q", "-n0", "-o", "filterwarnings=default", "-p", "no:cacheprovider",
         f"--basetemp={folder / 'tests'}", *(f"tests/ensemble/{one}" for one in _TESTS)],
    ):  # fmt: skip
        done = _run([str(python), *arguments])
        if done.returncode:
            output = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
            return f"{' '.join(arguments)}: exit status {done.returncode}\n{output}"
    return None


def _python(version: str) -> str:
    """A Python of this machine's pyenv, which uv does not find; else uv looks, or fetches one."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    found = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    return str(found[-1]) if found else version


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    beside = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": beside, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it does not say why"])[-1].strip()


def main(argv: Sequence[str]) -> int:
    """Tries the combinations that are named, or all; returns the exit status."""
    if (
        shutil.which("uv", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
        is None
    ):
        print("try_versions: there is no uv; pip install -r requirements-dev.txt", file=sys.stderr)
        return 2
    unknown = [name for name in argv if name not in COMBINATIONS]
    if unknown:
        print(f"try_versions: {unknown[0]} must be one of {COMBINATIONS}", file=sys.stderr)
        return 2
    has_failed = False
    for combination in argv or COMBINATIONS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                failure = attempt(combination, pathlib.Path(folder))
            except CannotBeHad as error:
                print(f"{combination}: NOT TRIED, it cannot be had: {error}", flush=True)
                continue
        print(f"{combination}: {'works' if failure is None else failure}", flush=True)
        has_failed |= failure is not None
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
