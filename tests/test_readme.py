"""The README's Python runs as it stands, and its shell commands name what exists."""

import pathlib
import re

import flax.linen as nn
import numpy as np
import pytest
from conftest import ROOT

import ensemble
from ensemble import networks
from ensemble.export import export

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


class MyModule(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(x.reshape((len(x), -1)))


def names_of_a_reader():
    """What a reader of the README is expected to have."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    inputs = (labels[:, None] + rng.normal(size=(200, 5))).astype(np.float32)
    return {
        "inputs": inputs,
        "labels": labels,
        "new_inputs": inputs[:7],
        "X_train": inputs[:150],
        "y_train": np.array(list("abcd"))[labels[:150]],
        "X_test": inputs[150:],
        "y_test": np.array(list("abcd"))[labels[150:]],
        "MyModule": MyModule,
    }


def test_the_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    predicting, exported, tabular, training, registering, by_hand = blocks("python")
    images = np.random.default_rng(0).random((16, 28, 28, 1), np.float32)
    labels = np.arange(16) % 10
    config = {"model": "mlp", "num_epochs": 1, "ensemble_size": 2, "hold_out": False}
    data = {"inputs": images, "labels": labels}
    predictor = ensemble.train(config, data=data, workdir="runs/digits").predictor
    pathlib.Path("model.bin").write_bytes(export(predictor))
    namespace = {"images": images}
    exec(predicting, namespace)
    assert namespace["p"].member_log_probs.shape == (2, 16, 10)
    probs = namespace["p"].probs
    exec(exported, namespace)
    np.testing.assert_allclose(namespace["p"]["probs"], probs, atol=1e-5)

    namespace = names_of_a_reader()
    exec(tabular, namespace)
    assert namespace["classifier"].score(namespace["X_test"], namespace["y_test"]) > 0.5
    exec(training, namespace)
    exec(registering, namespace)
    assert isinstance(networks.create("mine", 3), MyModule)
    namespace |= {"images": images, "labels": labels}
    exec(by_hand, namespace)
    assert namespace["accuracy"].shape == (8,)


@pytest.mark.parametrize(
    "command", re.findall(r"^python train\.py .*$", README, re.MULTILINE) or ["none"]
)
def test_the_training_commands_are_valid(command, monkeypatch):
    """Config files exist, and the overrides are accepted; CI runs the commands themselves."""
    config = re.search(r"--config=(\S+?)(:\w+)?(\s|$)", command)
    assert config, command
    assert (ROOT / config[1]).is_file()
    keys = re.findall(r"--config\.(\S+?)=", command)
    known = ensemble.default_config()
    assert all(key in known for key in keys), command


def test_every_link_into_the_repository_leads_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_config_is_listed():
    for path in (ROOT / "configs").glob("*_ensemble.py"):
        assert f"configs/{path.name}" in README
