"""Small data sets, what strangers try with them, and how each attempt has to end.

Good input ends in a result above what always answering the same gives. A mistake ends in one line,
or in a note, that names it.
"""

import contextlib
import logging
import re

import numpy as np
import pytest
from conftest import ROOT
from programs import run_here

import ensemble
from ensemble import notes

MARKS = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]
MAX_LINE = 900
"""Characters; a longer line is not read, and names nothing."""

QUICK = {"ensemble_size": 2, "num_epochs": 30, "learning_rate": 5e-3, "optimizer": "adam"}
PICTURES = QUICK | {"num_epochs": 8}


def check(attempt, says="", works=False):
    """Fails unless an attempt ends as it should.

    Args:
        attempt: gives a score and its floor, or None where there is nothing to score.
        says: a regular expression for what is to be said of the mistake; empty for good input.
        works: whether a result above the floor is right although nothing is said of a mistake.
    """
    with _notes_taken() as lines:
        try:
            found = attempt()
        except (ensemble.UserError, ensemble.RunFailed) as error:
            line = str(error)
            assert says, f"good input was refused: {line}"
            assert re.search(says, line, re.IGNORECASE), line
            assert len(line) <= MAX_LINE
            assert "\n" not in line
            return
    if says and any(re.search(says, line, re.IGNORECASE) for line in lines):
        return
    assert works or not says, f"no note says {says}: {found}, {lines}"
    assert found is None or found[0] > found[1], (found, lines)


@contextlib.contextmanager
def _notes_taken():
    """Within it, the warnings of the package, and notes of runs; the list grows."""
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("ensemble")
    logger.addHandler(handler)
    try:
        with notes.collected() as noted:
            yield lines
            lines += noted
    finally:
        logger.removeHandler(handler)


def program(name, *arguments):
    """Runs a program of the clone; what it warns of becomes a note.

    Returns:
        What it printed on stdout.

    Raises:
        RunFailed: it ended in one line, which is the message.
    """
    done = run_here(name, *(one.replace("CONFIGS", f"{ROOT}/configs") for one in arguments))
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    for line in lines:
        if re.match(r"W\d{4} ", line):
            logging.getLogger("ensemble").warning("%s", line)
    if done.returncode:
        ended = [line for line in lines if re.match(r"\w+(\.py)?: ", line)]
        assert done.returncode in (1, 2), done.stderr
        assert ended == lines[-1:], done.stderr
        raise ensemble.RunFailed(ended[0])
    return done.stdout


def vectors(seed, count=200, size=5, classes=3):
    """Clouds, one per class: [N, F] float64, and [N] whole numbers from 0."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % classes)
    centres = 2.0 * np.random.default_rng(99).normal(size=(classes, size))
    return centres[labels] + rng.normal(size=(count, size)), labels


def pictures(seed, count=150, side=12, channels=1, classes=3):
    """Noise with a bright bar, whose height is the class: [N, H, W, C] uint8 and [N]."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % classes)
    images = rng.integers(0, 100, size=(count, side, side, channels), dtype=np.uint8)
    thickness = side // classes
    for image, label in zip(images, labels, strict=True):
        image[label * thickness : (label + 1) * thickness] += 120
    return images, labels


def numbers(seed, count=200):
    """A curve with noise: [N, 2] and [N]."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-2, 2, size=(count, 2))
    return inputs, np.sin(inputs[:, 0]) + inputs[:, 1] + 0.1 * rng.normal(size=count)


def learn(data, new_inputs, truth, config=None, workdir=None):
    """Trains on data by `QUICK` and what differs from it, and scores predictions of new ones."""
    config = config or {}
    settings = config if "method" in config else QUICK | config
    result = ensemble.train(settings, data=data, workdir=workdir, show_progress=False)
    if settings.get("likelihood") == "gaussian":
        return r_squared(result.predictor(new_inputs).mean, truth)
    return score(result.predictor(new_inputs), truth)


def score(prediction, truth):
    """The accuracy of a prediction, by the names of its classes, against the most frequent."""
    names = prediction.class_names
    said = [index if names is None else names[index] for index in prediction.label]
    truth = [_plain(one) for one in np.asarray(truth).ravel()]
    right = np.mean([_plain(one) == other for one, other in zip(said, truth, strict=True)])
    return right, max(map(truth.count, truth)) / len(truth) + 0.1


def _plain(label):
    """A label as text: 1, '1' and 1.0 are the same class."""
    with contextlib.suppress(ValueError):
        return f"{float(label):g}"
    return label.decode() if isinstance(label, bytes) else str(label)


def r_squared(mean, truth):
    """The share of the variance that predictions explain, against a tenth."""
    truth = np.asarray(truth, np.float64).ravel()
    error = np.mean((np.asarray(mean, np.float64).ravel() - truth) ** 2)
    return 1 - error / truth.var(), 0.1
