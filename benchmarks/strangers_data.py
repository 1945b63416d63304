"""Small data sets that are easy to learn, and the score of what was learned from them."""

from typing import Any

import numpy as np
from strangers import Score

import ensemble

QUICK = {"ensemble_size": 2, "num_epochs": 30, "learning_rate": 5e-3, "optimizer": "adam"}
"""Settings for these data, which train in seconds."""

PICTURES = QUICK | {"num_epochs": 8}


def vectors(seed: int, count: int = 200, size: int = 5, classes: int = 3) -> tuple[Any, Any]:
    """Clouds, one per class: [N, F] float64, and [N] whole numbers from 0."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % classes)
    centres = 2.0 * np.random.default_rng(99).normal(size=(classes, size))
    return centres[labels] + rng.normal(size=(count, size)), labels


def pictures(
    seed: int, count: int = 150, side: int = 12, channels: int = 1, classes: int = 3
) -> tuple[Any, Any]:
    """Noise with a bright bar, whose height is the class: [N, H, W, C] uint8 and [N]."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % classes)
    images = rng.integers(0, 100, size=(count, side, side, channels), dtype=np.uint8)
    thickness = side // classes
    for image, label in zip(images, labels, strict=True):
        image[label * thickness : (label + 1) * thickness] += 120
    return images, labels


def numbers(seed: int, count: int = 200) -> tuple[Any, Any]:
    """A curve with noise: [N, 2] and [N]."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-2, 2, size=(count, 2))
    return inputs, np.sin(inputs[:, 0]) + inputs[:, 1] + 0.1 * rng.normal(size=count)


def learn(
    data: Any, new_inputs: Any, truth: Any, config: Any = None, workdir: str | None = None
) -> Score:
    """Trains on data, and scores predictions of new ones.

    Args:
        data: as `ensemble.train` takes them.
        new_inputs: [N, ...].
        truth: [N], labels as the data have them.
        config: what differs from `QUICK`, or all where it has a method.
        workdir: of the run.
    """
    config = config or {}
    settings = config if "method" in config else QUICK | config
    result = ensemble.train(settings, data=data, workdir=workdir, show_progress=False)
    return score(result.predictor(new_inputs), truth)


def score(prediction: Any, truth: Any) -> Score:
    """The accuracy of a prediction, by the names of its classes, against the most frequent."""
    names = prediction.class_names
    said = [str(index) if names is None else str(names[index]) for index in prediction.label]
    truth = [_plain(one) for one in np.asarray(truth).ravel()]
    right = np.mean([_plain(one) == other for one, other in zip(said, truth, strict=True)])
    return Score(float(right), max(map(truth.count, truth)) / len(truth) + 0.1)


def _plain(label: Any) -> str:
    """A label as text: 1, '1' and 1.0 are the same class."""
    if isinstance(label, bytes):
        return label.decode()
    try:
        return f"{float(label):g}"
    except ValueError:
        return str(label)


def learn_numbers(data: Any, new_inputs: Any, truth: Any, config: Any = None) -> Score:
    """As `learn`, of numbers."""
    settings = QUICK | {"likelihood": "gaussian"} | (config or {})
    result = ensemble.train(settings, data=data, show_progress=False)
    return r_squared(result.predictor(new_inputs).mean, truth)


def r_squared(mean: Any, truth: Any) -> Score:
    """The share of the variance that predictions explain, against a tenth."""
    truth = np.asarray(truth, np.float64).ravel()
    error = np.mean((np.asarray(mean, np.float64).ravel() - truth) ** 2)
    return Score(1 - float(error / truth.var()), 0.1)
