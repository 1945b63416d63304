"""A configuration: mistakes are told at once, pieces go by their path, runs name what they need."""

import importlib.metadata
import json
import os
import subprocess
import sys

import names
import numpy as np
import pytest
from conftest import ROOT
from flax import linen as nn
from flax import nnx
from names import InputError, load
from programs import run_here
from runs import classes
from small import MEMBERS, files_in, refused, refused_command, train


class Net(nn.Module):
    num_outputs: int
    scale: float = 1.0

    @nn.compact
    def __call__(self, inputs):
        return self.scale * nn.Dense(self.num_outputs)(inputs)


PIECES = """
from flax import linen as nn


class Net(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(self.num_outputs)(inputs)


number = 3


def same(rng_key, inputs):
    return inputs


def nothing(step, metrics):
    pass


def steady(config, num_steps):
    return lambda step: 0.1
"""
CONFIG = """
import ensemble


def get_config(variant=""):
    config = ensemble.default_config()
    config.learning_rate = {{"": 0.1, "slow": 0.01}}[variant]
    config.num_epochs, config.momentum, config.sampler.thinning = 2, 0.5, 3
    {method}
    return config
"""


OWN = {key: value for key, value in MEMBERS.items() if key != "mlp.widths"}
"""`MEMBERS` without the keys of their network."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory: a config file, a module with pieces, one that raises, data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pieces.py").write_text(PIECES)
    (tmp_path / "raising.py").write_text("import os\n\nos.no_such_name\n")
    (tmp_path / "mine.py").write_text(CONFIG.format(method="config.method = 'hmc'"))
    (tmp_path / "members.py").write_text(
        CONFIG.format(method="").replace(", config.sampler.thinning = 2, 0.5, 3", " = 2, 0.5")
    )
    np.savez(tmp_path / "data.npz", **classes())
    return tmp_path


def listing(*flags):
    """What `--print_config` says of a run; nothing is trained."""
    done = run_here(*names.command("train"), "--print_config", *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


FIVE = {
    "batchsize": ("3", "config.batch_size"),
    "learning_rate": ("-1", "a positive number"),
    "ensemble_size": ("0", "a whole number above 0"),
    "optimizer": ("lion", "adamw"),
    "prior": ("normal(1", "normal(1)"),
}
"""Values that are wrong, and what the line says of each."""


def test_five_mistakes_are_one_line(folder):
    flags = [f"--config.{key}={value}" for key, (value, _) in FIVE.items()]
    says = [f"config.{key}" for key in FIVE] + [word for _, word in FIVE.values()]
    before = files_in(folder)
    command = ["--config=digits_ensemble", "--workdir=run", *flags]
    refused_command("train", command, ("5 settings", *says))
    assert files_in(folder) == before
    values = {key: value for key, (value, _) in FIVE.items()}
    refused(lambda: names.train({**MEMBERS, **values}, classes()), "5 settings", *says)


WRONG = {
    "a module that raises": (["--config.model=raising.py:Net"], "raising.py:3", "no_such_name"),
    "a name that is absent": (["--config.model=pieces.py:Nett"], "'Nett'", "'Net'"),
    "a file that is absent": (["--config.model=nothing.py:Net"], "nothing.py"),
    "a module that is absent": (["--config.likelihood=no_such_module.of:Mine"], "no_such_module"),
    "a number for a network": (["--config.model=pieces.py:number"], "int", "network"),
    "a module for a method": (["--config.method=os:path"], "os:path", "method"),
    "a function for a likelihood": (["--config.likelihood=math:sqrt"], "from_data", "likelihood"),
    "a word for an augmentation": (["--config.augment.function=shift"], "shift", "file.py:Name"),
    "a block": (["--config.augment=shift"], "config.augment.shift=2", "horizontal_flip=True"),
    "a key that the method lacks": (
        ["--config.method=packed_ensemble", "--config.label_smoothing=0.1"],
        "label_smoothing=0.1 is for config.method='deep_ensemble'",
        "labels as they are",
    ),
    "two keys": (["--config.method=hmc", "--config.sampler.thinning=9999"], "9999", "1000 draws"),
    "a number that is no choice": (["--config.num_devices=0x2"], "num_devices='0x2'", "positive"),
    "two variants": (["--config=members.py:slow:fast"], "slow:fast", "members.py"),
    "half a number": (["--config.ensemble_size=2.5"], "ensemble_size=2.5", "whole"),
    "a truth": (["--config.augment.horizontal_flip=maybe"], "maybe", "True"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line_and_leaves_nothing(case, folder):
    flags, *words = WRONG[case]
    own = [] if "--config=" in flags[0] else ["--config=members.py"]
    before = files_in(folder)
    command = [*own, "--config.dataset=npz:data.npz", "--workdir=run", *flags]
    refused_command("train", command, tuple(words))
    assert files_in(folder) == before


def test_a_config_file_that_raises_says_where(folder):
    (folder / "broken.py").write_text("def get_config():\n    return 1 / 0\n")
    refused_command("train", ["--config=broken.py", "--workdir=run"], ("broken.py:2", "division"))


def test_modules_beside_a_config_file_come_first(folder):
    (folder / "sub").mkdir()
    for rate, path in ((0.25, "settings_of_mine.py"), (0.125, "sub/settings_of_mine.py")):
        (folder / path).write_text(f"RATE = {rate}\n")
    text = "import settings_of_mine\n\n\ndef get_config():\n"
    text += '    return {"num_epochs": 1, "learning_rate": settings_of_mine.RATE}\n'
    (folder / "sub/its.py").write_text(text)
    sys.path.insert(0, str(folder))
    try:
        assert "learning_rate = 0.125" in listing("--config=sub/its.py")
    finally:
        sys.path.remove(str(folder))


def test_values_are_read_by_the_type_of_their_key(folder):
    flags = ("--config.learning_rate=1", "--config.class_weights=none", "--config.clip_norm=1e1")
    said = listing("--config=members.py", "--config.mlp.widths=8,4", "--config.model=mlp", *flags)
    for line in ("learning_rate = 1.0", "  class_weights = none", "clip_norm = 10.0", "[8, 4]"):
        assert line in said
    assert "learning_rate = 0.01" in listing("--config=mine.py:slow", "--config.method=swag")


def test_a_swapped_method_drops_the_keys_of_the_file_alone(folder):
    said = listing("--config=mine.py", "--config.method=deep_ensemble")
    assert "Dropped" in said
    assert "sampler.thinning=3" in said
    assert "momentum = 0.5" in said
    swapped = ["--config=mine.py", "--config.method=deep_ensemble", "--config.sampler.thinning=2"]
    refused_command("train", [*swapped, "--workdir=run"], ("sampler.thinning=2", "hmc"))


def test_another_piece_does_not_hide_the_mistakes_of_a_file(folder):
    flags = ["--config=mine.py", "--config.model=mlp", "--workdir=run"]
    refused_command("train", flags, ("num_epochs=2", "momentum=0.5", "config.method='hmc'"))


def test_unknown_pieces_are_told_with_all_other_mistakes(folder):
    wrong = {"method": "hcm", "model": "cnnn", "lerning_rate": "0.1", "num_epochs": "1.5"}
    flags = [f"--config.{key}={value}" for key, value in wrong.items()]
    says = ("4 settings", "'hcm'", "'cnnn'", "config.learning_rate", "num_epochs=1.5")
    refused_command("train", ["--config=members.py", "--workdir=run", *flags], says)


def test_none_for_a_piece_is_its_default(folder):
    (folder / "none.py").write_text(
        "def get_config():\n    return {'method': None, 'model': None, 'num_epochs': 2}\n"
    )
    said = listing("--config=none.py", "--config.on_metrics=none")
    assert "method = deep_ensemble" in said
    assert "model = cnn" in said
    assert "on_metrics = None" in said


def test_a_mistake_is_told_before_jax_is_imported(folder):
    program = (
        "import sys; from ensemble.cli import main\n"
        "status = main(['ensemble', 'train', *sys.argv[1:]])\n"
        "assert not {'jax', 'flax', 'optax', 'orbax'} & sys.modules.keys(), [*sys.modules]\n"
        "sys.exit(status)\n"
    )
    flags = ["--config=members.py", "--workdir=run", "--config.batch_sise=3"]
    command = [sys.executable, "-c", program, *flags]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "config.batch_size" in done.stderr


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_nnx_instances_are_refused_with_what_to_write():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.layer = nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, inputs):
            return self.layer(inputs)

    for given in (Net, Net(nnx.Rngs(0))):
        refused(
            lambda given=given: names.train({**OWN, "model": given}, classes()),
            "from_nnx",
            "lambda rngs",
        )


INPUTS = classes()["inputs"][:5]


def alone(folder, *lines):
    """Runs lines in a process that has imported nothing; returns what it prints."""
    program = "\n".join(["import ensemble, numpy as np", *lines])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.check
def test_a_path_of_a_run_is_imported_with_trust_alone(folder):
    result = names.train({**OWN, "model": "pieces.py:Net"}, classes(), folder / "run")
    expected = result.predictor(INPUTS).probs
    recorded = json.loads((folder / "run/config.json").read_text())["config"]["model"]
    assert recorded == f"{folder}/pieces.py:Net"
    np.savez(folder / "new.npz", inputs=INPUTS)
    lines = (
        "inputs = np.load('new.npz')['inputs']",
        "try: ensemble.load('run')",
        "except ensemble.InputError as error: print(error)",
        "print(ensemble.load('run', trust=True)(inputs).probs.tolist())",
    )
    line, probs = alone(folder, *lines).splitlines()
    assert "pieces.py:Net" in line
    assert "trust=True" in line
    np.testing.assert_allclose(json.loads(probs), expected, atol=1e-5)
    given = alone(
        folder,
        "import pieces",
        "found = ensemble.load('run', model=pieces.Net)",
        "print(found(np.load('new.npz')['inputs']).probs.tolist())",
    )
    np.testing.assert_allclose(json.loads(given), expected, atol=1e-5)
    program = [sys.executable, "-m", "ensemble", "predict", "--workdir=run", "new.npz", "--json"]
    for flags, status in (((), 2), (("--trust",), 0)):
        done = subprocess.run(
            [*program, *flags], cwd=folder, env=environment(), capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
        assert ("--trust" in done.stderr) == (status == 2)


OF_PIECES = {"augment.function": "same", "on_metrics": "nothing", "lr_schedule": "steady"}


@pytest.mark.check
@pytest.mark.parametrize("key", OF_PIECES)
def test_no_piece_of_a_run_is_imported_without_trust(key, folder):
    train({key: f"pieces.py:{OF_PIECES[key]}"}, classes(), folder / "run")
    lines = (
        "import sys",
        "try: ensemble.load('run')",
        "except ensemble.InputError as error: print(error)",
        "print(any('pieces.py' in name for name in sys.modules))",
        "ensemble.load('run', trust=True)",
    )
    line, is_imported = alone(folder, *lines).splitlines()
    assert f"config.{key}" in line
    assert "trust=True" in line
    assert is_imported == "False"


@pytest.mark.check
def test_a_function_of_python_is_not_called_for_a_workdir(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:  # As somebody may forge it.
        names.forge(patch, "os:getcwd", Net)
        names.train({**OWN, "model": "os:getcwd"}, classes(), tmp_path)
    with pytest.raises(InputError, match=r"'os:getcwd' names code, which is not run .* trust=True"):
        load(tmp_path)


@pytest.mark.check
def test_pieces_that_have_no_names_stay_apart(tmp_path):
    """Lambdas of two runs, and what is given for one call of `load` alone."""
    models = (lambda n: Net(n), lambda n: Net(2 * n // 2, 3.0))
    for name, model in zip("ab", models, strict=True):
        names.train({**OWN, "model": model}, classes(), tmp_path / name)
    probs = load(tmp_path / "a")(INPUTS).probs
    assert not np.allclose(load(tmp_path / "a", model=models[1])(INPUTS).probs, probs)
    np.testing.assert_array_equal(load(tmp_path / "a")(INPUTS).probs, probs)


@pytest.mark.check
def test_a_class_of_this_process_needs_no_trust_and_says_how_to_give_it(tmp_path, caplog):
    class Net(nn.Module):
        num_outputs: int

        @nn.compact
        def __call__(self, inputs):
            return nn.Dense(self.num_outputs)(inputs)

    config = {**OWN, "model": Net}
    result = names.train(config, classes(), tmp_path / "run")
    assert "exists in this process only" in caplog.text
    again = load(tmp_path / "run")(INPUTS)
    np.testing.assert_allclose(again.probs, result.predictor(INPUTS).probs, rtol=1e-5)
    resumed = names.train({**config, "num_epochs": 3}, classes(), tmp_path / "run")
    assert resumed.predictor(INPUTS).probs.shape == (5, 3)


@pytest.mark.check
def test_a_run_records_the_package_of_a_piece(tmp_path):
    names.train({**OWN, "model": "flax.linen:Dense"}, classes(), tmp_path / "run")
    recorded = json.loads((tmp_path / "run/config.json").read_text())
    assert recorded["config"]["model"] == "flax.linen:Dense"
    assert recorded["config"]["augment.shift"] == 0  # Flat.
    assert recorded["packages"] == {"flax": importlib.metadata.version("flax")}


@pytest.mark.check
def test_a_run_keeps_what_may_not_change(tmp_path):
    train({}, classes(), tmp_path / "run")
    with pytest.raises(InputError, match=r"learning_rate: 0\.1 -> 0\.2") as found:
        train({"learning_rate": 0.2, "num_epochs": 3}, classes(), tmp_path / "run")
    assert "\n" not in str(found.value)
    assert "num_epochs" not in str(found.value)
