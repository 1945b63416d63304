"""Predictions and targets of every kind that is scored, made without a network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import registry
from ensemble.config import likelihood_block
from ensemble.likelihoods import of_data
from ensemble.likelihoods.mixture_of_gaussians import LOG_WEIGHT
from ensemble.target_rows import joined

NUM_MEMBERS = 4
CLASSES = ("categorical", "bernoulli", "dirichlet")
POSITIVE = ("log_normal",)
COUNTS = ("poisson", "negative_binomial")
CENSORED = ("gaussian", "student_t", "log_normal")


def settings_of(name):
    """The default settings of a likelihood."""
    keys = likelihood_block(name).keys.items()
    return {key.removeprefix(f"{name}."): one.default for key, one in keys}


def _log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def of_classes(seed, num_rows=150, num_classes=3, pull=0.8, kind="categorical"):
    """Classes that members are more or less sure of, and mostly right about."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=num_rows).astype(np.int32)
    logits = rng.normal(size=(NUM_MEMBERS, num_rows, num_classes))
    logits += pull * np.eye(num_classes)[labels]
    likelihood = of_data(kind, labels, [f"class {i}" for i in range(num_classes)])
    return likelihood, {"log_probs": _log_softmax(logits).astype(np.float32)}, labels


def of_numbers(name, seed=0, num_rows=90, make=lambda y, rng: y):
    """Numbers, and what networks with random outputs near zero say of them."""
    rng = np.random.default_rng(seed)
    y = 5 + 3 * rng.normal(size=num_rows)
    if name in POSITIVE:
        y = np.exp(1 + 0.6 * rng.normal(size=num_rows))
    if name in COUNTS:
        y = rng.negative_binomial(2, 0.2, num_rows)
    targets = make(y.astype(np.float32), rng)
    likelihood = of_data(name, targets, (), **settings_of(name))
    shape = (NUM_MEMBERS, num_rows, likelihood.num_outputs)
    outputs = jnp.asarray(0.7 * rng.normal(size=shape), jnp.float32)
    params = jax.tree.map(lambda leaf: leaf + 0.1, likelihood.init(jax.random.key(0)))
    found = jax.jit(jax.vmap(likelihood.predict, in_axes=(None, 0)))(params, outputs)
    return likelihood, {key: _exact(key, np.asarray(one)) for key, one in found.items()}, targets


def _exact(name, array):
    """Numbers that every machine has alike: of ten binary digits."""
    found = np.round(np.float64(array) * 1024) / 1024
    if name == LOG_WEIGHT:
        found -= np.log(np.exp(found).sum(axis=-1, keepdims=True))
    return found.astype(np.float32)


def _censored(y, rng):
    hidden = rng.uniform(size=len(y)) < 0.3
    return joined({"targets": np.where(hidden, 0.8 * y, y).astype(np.float32), "censored": hidden})


def _all_but_one_heavy(y, rng):
    y = y.copy()
    y[:3] *= 40
    return y


def _with_errors(y, rng):
    return joined({"targets": y, "target_errors": np.sqrt(np.abs(y)).astype(np.float32)})


def _two(y, rng):
    return np.stack([y, y[::-1] ** 2], axis=1)


def _few_errors():
    likelihood, arrays, labels = of_classes(1, pull=2.0)
    return likelihood, arrays, labels


def _impossible():
    likelihood, arrays, labels = of_classes(2)
    log_probs = np.array(arrays["log_probs"], np.float64)
    log_probs[:, 0] = -np.inf
    log_probs[:, 0, (labels[0] + 1) % 3] = 0.0
    return likelihood, {"log_probs": log_probs.astype(np.float32)}, labels


def _ties():
    likelihood, arrays, labels = of_classes(3)
    return likelihood, {"log_probs": np.repeat(arrays["log_probs"][:, :15], 10, axis=1)}, labels


def _chains():
    likelihood, arrays, labels = of_classes(4)
    entropies = np.random.default_rng(5).uniform(0, 0.4, arrays["log_probs"].shape[:2])
    return likelihood, {**arrays, "entropies": entropies.astype(np.float32)}, labels


def _one_member(make):
    likelihood, arrays, targets = make()
    return likelihood, {name: one[:1] for name, one in arrays.items()}, targets


NUMBERS = [name for name in registry.LIKELIHOODS if name not in CLASSES]
MADE = {
    "categorical": functools.partial(of_classes, 0),
    "bernoulli": functools.partial(of_classes, 6, num_classes=2, kind="bernoulli"),
    "dirichlet": functools.partial(of_classes, 7, kind="dirichlet"),
    "few errors": _few_errors,
    "impossible label": _impossible,
    "ties": _ties,
    "members of several estimators": _chains,
    "one member": functools.partial(_one_member, functools.partial(of_classes, 0)),
    **{name: functools.partial(of_numbers, name) for name in NUMBERS},
    **{
        f"{name}, censored": functools.partial(of_numbers, name, make=_censored)
        for name in CENSORED
    },
    "gaussian, measured": functools.partial(of_numbers, "gaussian", make=_with_errors),
    "gaussian, heavy": functools.partial(
        of_numbers, "gaussian", num_rows=600, make=_all_but_one_heavy
    ),
    "gaussian, one member": functools.partial(
        _one_member, functools.partial(of_numbers, "gaussian")
    ),
    "gaussian, many": functools.partial(of_numbers, "gaussian", 8, 500),
    "quantiles, many": functools.partial(of_numbers, "quantiles", 9, 500),
    "gaussian, two targets": functools.partial(of_numbers, "gaussian", make=_two),
    "quantiles, two targets": functools.partial(of_numbers, "quantiles", make=_two),
}
"""A likelihood, arrays [M, N, ...] and targets [N], by name."""
