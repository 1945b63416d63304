"""`ensemble`: its commands, the bundled configurations, and an installed copy alone."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

import ensemble
from ensemble import __main__ as program
from ensemble.commands import command_line

DECOYS = ("models", "configs", "input_pipeline", "input_sources", "scripts", "tests")


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["ensemble", *arguments])
    return program.main()


def test_every_command_is_listed_and_exists(monkeypatch, capsys):
    assert run(monkeypatch) == 0
    listed = capsys.readouterr().out
    files = {path.stem for path in (ROOT / "ensemble" / "commands").glob("[a-z]*.py")}
    own = {name for name, command in program.COMMANDS.items() if not command.module}
    assert own == files - {"command_line"}
    assert all(f"  {name} " in listed for name in program.COMMANDS)


def test_an_unknown_command_is_one_line(monkeypatch, capsys):
    assert run(monkeypatch, "traim") == 2
    known = ", ".join(program.COMMANDS)
    assert known.startswith(
        "train, fit, methods, convert, distill, evaluate, select, predict, list, export"
    )
    told = capsys.readouterr().err
    assert told == f"ensemble: 'traim' is not a command; use one of {known}\n"


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("JAX_ENABLE_X64", "maybe", "JAX cannot be imported: invalid truth value 'maybe' for env"),
        ("JAX_DEFAULT_MATMUL_PRECISION", "bogus", 'JAX cannot be imported: Invalid value "bogus"'),
        ("JAX_PLATFORMS", "nonsense", "JAX cannot start: Unable to initialize backend 'nonsense'"),
    ],
)
def test_what_jax_cannot_read_in_the_environment_is_one_line(tmp_path, name, value, line):
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", "--config=digits_ensemble", f"--workdir={tmp_path}"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (found,) = done.stderr.splitlines()
    assert found.startswith(f"train.py: {line}")
    assert list(tmp_path.iterdir()) == []


def test_a_bundled_configuration_goes_by_its_name(tmp_path, monkeypatch):
    bundled = str(ROOT / "ensemble" / "configs" / "mnist_ensemble.py")
    assert command_line.config_path("mnist_ensemble") == bundled
    assert command_line.config_path("mnist_ensemble:small") == f"{bundled}:small"
    assert command_line.config_path(f"{bundled}:small") == f"{bundled}:small"
    assert command_line.with_bundled_config(
        ["--config", "mnist_ensemble", "--config=mnist_ensemble", "--workdir=mnist_ensemble"]
    ) == ["--config", bundled, f"--config={bundled}", "--workdir=mnist_ensemble"]
    with pytest.raises(ensemble.UserError, match=r"--config=mnist is neither.*mnist_ensemble"):
        command_line.config_path("mnist")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist_ensemble").touch()  # A file of one's own comes first.
    assert command_line.config_path("mnist_ensemble") == "mnist_ensemble"


def test_dir_shows_the_api():
    assert dir(ensemble) == sorted(ensemble.__all__)
    assert all(hasattr(ensemble, name) for name in dir(ensemble))


@pytest.mark.soak
def test_an_installed_copy_is_one_name_and_meets_no_folder_of_the_user(tmp_path):
    """Installed outside the clone, beside a user's own folders of the repository's names."""
    source, site, user = tmp_path / "source", tmp_path / "site", tmp_path / "user"
    left_out = shutil.ignore_patterns(".*", "build", "runs", "*.egg-info", "tests", "benchmarks")
    shutil.copytree(ROOT, source, ignore=left_out)  # pip builds in place, over what was built.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--target", str(site), str(source)], check=True, timeout=300)
    found = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert found == {"bin", "ensemble"}
    for name in DECOYS:
        (user / name).mkdir(parents=True)
        (user / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the user')\n")
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    inputs = labels[:, None] + rng.normal(size=(90, 4)).astype(np.float32)
    np.savez(user / "data.npz", inputs=inputs, labels=labels)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def ensemble_(*arguments):
        command = [sys.executable, str(site / "bin" / "ensemble"), *arguments]
        done = subprocess.run(
            command, cwd=user, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    flags = ["dataset=npz:data.npz", "model=mlp", "num_epochs=2", "ensemble_size=2"]
    flags += ["augment.shift=0"]
    config = [f"--config.{flag}" for flag in flags]
    table = ensemble_("train", "--config=digits_ensemble", "--workdir=run", *config)
    assert "ensemble" in table
    assert "report.html" in ensemble_("evaluate", "--workdir=run", "--datasets=none")
    ensemble_("export", "--workdir=run", "--out=model.bin")
    assert (user / "model.bin").stat().st_size > 1000
    every_module = (
        "import ensemble, importlib, pkgutil\n"
        "for module in pkgutil.walk_packages(ensemble.__path__, 'ensemble.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
        "print(ensemble.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", every_module],
        cwd=user,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip().startswith(str(site)), done.stderr
