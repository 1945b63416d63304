"""Networks, data and a configuration that compile and run in a second or two."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ensemble.report import plots


class Tiny(nn.Module):
    """A network that compiles in no time."""

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.tanh(nn.Dense(8)(x.reshape((x.shape[0], -1))))
        return nn.Dense(self.num_classes)(x)


class Explosive(nn.Module):
    """Diverges at a high learning rate; its members start at different scales."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", lambda key: jnp.exp(4 * nn.initializers.normal(1.0)(key, ())))
        return nn.Dense(self.num_classes)(x) ** 3 * scale


TINY = "small_runs:Tiny"
EXPLOSIVE = "small_runs:Explosive"


def make_blobs(num_examples: int = 203, num_classes: int = 3) -> dict[str, np.ndarray]:
    """Noisy clusters of 6 features: easy, but not perfectly; the counts are prime on purpose."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, num_examples)
    centres = rng.normal(size=(num_classes, 6))
    inputs = centres[labels] + rng.normal(size=(num_examples, 6))
    return {"inputs": inputs.astype(np.float32), "labels": labels}


def small_config(**overrides):
    """A configuration on the blobs that runs in a second or two."""
    config = {
        "model": TINY,
        "ensemble_size": 4,
        "num_devices": 2,
        "num_epochs": 3,
        "batch_size": 29,
        "learning_rate": 0.1,
        "log_every_steps": 2,
    }
    return {**config, **overrides}


def regression_config(likelihood, **overrides):
    """Members that learn the waves in seconds."""
    learning = {"optimizer": "adam", "learning_rate": 0.02, "num_epochs": 6, "batch_size": 32}
    learning |= {"eval_every_epochs": 3, "log_every_steps": 50}
    return small_config(likelihood=likelihood, ensemble_size=3, **{**learning, **overrides})


def small_arguments(folder: pathlib.Path, num_members: int = 4) -> list[str]:
    """Arguments of train.py: the blobs, which are written to a folder, and a small network."""
    path = folder / "blobs.npz"
    root = pathlib.Path(__file__).resolve().parents[1]
    arrays: dict[str, Any] = make_blobs()
    np.savez(path, **arrays)
    return [
        f"--config={root / 'configs' / 'digits_ensemble.py'}",
        f"--config.dataset=npz:{path}",
        "--config.model=logistic_regression",
        "--config.augment.shift=0",
        "--config.lr_schedule=constant",
        f"--config.ensemble_size={num_members}",
        "--config.batch_size=16",
        "--config.log_every_steps=3",
    ]


def result_of(workdir: pathlib.Path) -> tuple[list, list]:
    """The predictions, and the metrics but for those of time."""
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("train/member_examples_per_second", None)
    with np.load(workdir / "predictions" / "test.npz") as predictions:
        return predictions["log_probs"].tolist(), records


def leave_pictures_blank(replace: Callable = setattr) -> None:
    """Leaves pictures blank, which take as long as all else in a short run."""
    replace(plots, "pixels", lambda *_: np.zeros((1, 1, 3), np.uint8))
