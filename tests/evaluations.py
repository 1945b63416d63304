"""Evaluations of predictions that are drawn at random, one of each kind."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np

from ensemble import likelihoods
from ensemble.likelihoods.classes import Classes
from ensemble.likelihoods.several import Several
from ensemble.report import charts
from ensemble.report.evaluation import Evaluation

HOSTILE = ("<script>alert(1)</script>", "$x_1$ & \x1b[31m", "\u202eright to left")
RECORDS = [
    {"step": step, "epoch": step / 10}
    | {f"train/member_{k:02d}/loss": 1 / (step + k) for k in range(3)}
    | {f"validation/member_{k:02d}/nll": 2 / step for k in range(3)}
    | {"validation/ensemble/nll": 1.5 / step, "validation/ensemble/crps": None}
    for step in range(10, 50, 10)
]


def classes(num_rows=200, num_classes=3, num_members=3, seed=0, names=()):
    """Predictive of members that differ, and labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, num_classes, num_rows)
    logits = rng.normal(size=(num_members, num_rows, num_classes))
    logits[:, np.arange(num_rows), y] += 2
    logits -= np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return Classes({"log_probs": logits.astype(np.float32)}, class_names=names), y


def numbers(kind="gaussian", num_rows=200, num_members=3):
    """Predictive of a likelihood of numbers, and targets."""
    rng = np.random.default_rng(0)
    y = rng.poisson(7, num_rows) + (0.0 if kind in ("poisson", "negative_binomial") else 0.5)
    settings = {"levels": [0.05, 0.25, 0.5, 0.75, 0.95]} if kind == "quantiles" else {}
    likelihood = likelihoods.from_data(kind, y, [], **settings)
    params = likelihood.init(jax.random.key(0))
    outputs = rng.normal(size=(num_members, num_rows, likelihood.num_outputs)) / 5
    each = [likelihood.predict(params, one.astype(np.float32)) for one in outputs]
    arrays = {name: np.stack([np.asarray(one[name]) for one in each]) for name in each[0]}
    return likelihood, likelihood.predictive(arrays), y


def several():
    """Predictive of two targets, and targets [N, 2]."""
    first, p, y = numbers("gaussian")
    second, q, z = numbers("gaussian")
    arrays = {name: np.stack([p.arrays[name], q.arrays[name]], axis=-1) for name in p.arrays}
    return Several(arrays, likelihoods=[first, second]), np.stack([y, z], axis=1)


def source(inputs, has_pictures=False, **how):
    """Data whose test split has these inputs, pictures or rows of a table."""

    def read(split, indices):
        assert (np.diff(indices) >= 0).all(), "files are read in order"
        return SimpleNamespace(inputs=np.array([inputs[i] for i in indices]))

    return SimpleNamespace(read=read, has_pictures=has_pictures, **how)


def images():
    """Everything that an evaluation of images can have, with names that no page must execute."""
    p, y = classes(names=HOSTILE)
    held, labels = classes(seed=1, names=HOSTILE)
    y[:2] = (y[:2] + 1) % 3  # Wrong.
    shifted = {kind: [classes(seed=k)[0] for k in range(5)] for kind in ("rotation", "blur")}
    pixels = np.random.default_rng(0).random((len(y), 8, 8, 1))
    about = {"name": HOSTILE[0], "facts": HOSTILE, "config": {"key": HOSTILE[2]}}
    return Evaluation(
        p,
        y,
        (held, labels),
        baselines=[{HOSTILE[1]: dataclasses.replace(held, class_names=HOSTILE)}],
        shifted=shifted,
        outside={HOSTILE[0]: held},
        others={HOSTILE[2]: held},
        about={**about, "notes": HOSTILE, "failed_members": {"3": HOSTILE[0]}},
        source=source(pixels, has_pictures=True, value_range=lambda split: (0, 1)),
        records=RECORDS,
    )


def table():
    """Numbers of the rows of a table."""
    _, p, y = numbers()
    return Evaluation(p, y, source=source(y[:, None]), records=RECORDS)


def chains():
    """A posterior with traces."""
    rng = np.random.default_rng(0)
    p, y = classes(num_members=4)
    draws = {"log_density": rng.normal(size=(4, 90)), "step_size": rng.random((4, 90))}
    return Evaluation(p, y, traces=charts.traces(draws, 30), noun="chain")


def one_member():
    """One network, two classes, few rows."""
    p, y = classes(20, 2, 1)
    return Evaluation(p, y)


def impossible():
    """A target to which every member gives probability 0."""
    p, y = classes()
    logs = p.arrays["log_probs"].copy()
    logs[:, 0] = -np.inf
    logs[:, 0, (y[0] + 1) % 3] = 0
    return Evaluation(Classes({"log_probs": logs}), y, records=RECORDS)


def few_groups():
    """So few groups that no interval is known."""
    p, y = classes()
    return Evaluation(p, y, groups=np.arange(len(y)) % 3)


def targets():
    """Several targets."""
    p, y = several()
    return Evaluation(p, y, records=RECORDS)


KINDS = {
    "images": images,
    "table": table,
    "chains": chains,
    "one member": one_member,
    "few groups": few_groups,
    "impossible target": impossible,
    "several targets": targets,
    **{
        kind: lambda kind=kind: Evaluation(*numbers(kind)[1:])
        for kind in ("poisson", "quantiles", "student_t", "log_normal")
    },
}
