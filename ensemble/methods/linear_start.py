"""The linear models that members may start from: one for each fold, and as good as they can be.

Of numbers it is ridge regression, of classes multinomial logistic regression. Their penalty is the
one of a path whose predictions of the rows held out are best, of the latest period where folds are
periods; its end is a constant.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from scipy.special import logsumexp

from ensemble.methods.folds import Folds
from ensemble.sharding import processes, signals
from ensemble.tasks.supervised import Supervised

MOST_FEATURES = 1000
"""Beyond, members start without a linear part."""
_MOST_ROWS = 50_000
"""The most rows that a linear model is fitted to."""
_PENALTIES = (*np.logspace(-4, 2, 7), math.inf)
"""Penalties of the mean loss of a row; of standardised features."""
_STRENGTHS = np.logspace(-3, 2, 6)
"""Values of C of scikit-learn's logistic regression, from nearly a constant on."""
_PATIENCE = 2
"""Worse strengths in line, after which no more are tried."""
_OF_NUMBERS = ("gaussian", "student_t", "laplace")
_OF_CLASSES = ("categorical", "bernoulli")


class LinearStart(NamedTuple):
    """What members start from.

    Attributes:
        kernel: [F, R, K] float32 of the linear part of the outputs, fold by fold.
        bias: [F, K] float32.
        losses: [N] of each training row, nats, by the model of its fold; NaN of rows in none.
    """

    kernel: np.ndarray
    bias: np.ndarray
    losses: np.ndarray


def why_not(task: Supervised) -> str:
    """Why members cannot start from a linear model; empty where they can."""
    shape = task.dataset.input_shape
    name = task.likelihood.name
    if len(shape) != 1:
        return "inputs are no features"
    if shape[0] > MOST_FEATURES:
        return f"{shape[0]} features are more than {MOST_FEATURES}"
    if name not in (*_OF_NUMBERS, *_OF_CLASSES):
        return f"likelihood {name!r} has no linear model here"
    if task.output_layer is None:
        return "the network's outputs come from no dense layer"
    return ""


def fit(task: Supervised, folds: Folds, weights: np.ndarray | None) -> LinearStart:
    """Fits a linear model without the rows of each fold.

    Args:
        task: What the members learn, of which `why_not` has nothing to say.
        folds: Folds of the training rows.
        weights: [N], how much rows count in what is predicted; None: all the same.
    """
    examples = task.dataset.read("train", slice(None))
    likelihood = task.likelihood
    inputs = np.asarray(jax.jit(task.prepare)(examples.inputs), np.float64)
    weights = np.ones(len(inputs)) if weights is None else weights / weights.mean(dtype=np.float64)
    if likelihood.name in _OF_CLASSES:
        return _fit_classes(likelihood, inputs, examples.targets, weights, folds)
    # Several targets lie side by side.
    families: Any = getattr(likelihood, "likelihoods", (likelihood,))
    columns = examples.targets.reshape(len(inputs), -1).T
    found = [
        _fit_number(family, inputs, column, weights, folds)
        for family, column in zip(families, columns, strict=True)
    ]
    kernels, biases, losses = zip(*found, strict=True)
    return LinearStart(np.concatenate(kernels, -1), np.concatenate(biases, -1), np.sum(losses, 0))


def _best(
    candidates: Iterable[tuple[Any, np.ndarray]], weights: np.ndarray, folds: Folds, patience: int
) -> tuple[Any, np.ndarray]:
    """The candidate with the lowest mean loss [N] of the rows held out that decide.

    Args:
        candidates: Pairs of something and its losses, made one by one.
        weights: [N] of the rows.
        folds: Folds of the rows.
        patience: Worse candidates in line, after which no more are made.
    """
    decide = folds.deciding
    lowest = math.inf
    waited = 0
    found: Any = None
    for one in candidates:
        loss = np.average(one[1][decide], weights=weights[decide])
        waited += 1
        if found is None or loss < lowest:
            lowest = loss
            found = one
            waited = 0
        if waited == patience:
            break
    return found


def _heed_signals() -> None:
    """Ends a run that is asked to stop between two fits; of several processes none stops alone."""
    if processes.count() == 1:
        signals.check()


def _learned(folds: Folds, fold: int) -> np.ndarray:
    """The rows that a fold's model is fitted to, evenly spaced where there are too many."""
    rows = folds.learned(fold)
    return rows[:: -(-len(rows) // _MOST_ROWS)]


def _outputs(models: Sequence[tuple[Any, Any]], inputs: np.ndarray, folds: Folds) -> np.ndarray:
    """Outputs [N, ...] of each row by kernel and bias of its fold; NaN of rows in none."""
    found = np.full((len(inputs), *np.shape(models[0][1])), np.nan)
    for fold, (kernel, bias) in enumerate(models):
        rows = folds.rows(fold)
        found[rows] = inputs[rows] @ kernel + bias
    return found


# Numbers.


def _fit_number(
    family: Any, inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray, folds: Folds
) -> LinearStart:
    """Fits ridge regressions of one target."""
    y = (targets.astype(np.float64) - family.shift) / family.scale
    paths = []
    for rows in (_learned(folds, fold) for fold in range(folds.number)):
        _heed_signals()
        paths.append(_ridge_path(inputs[rows], y[rows], weights[rows]))
    held = folds.of_rows < folds.number

    def candidates() -> Iterator[tuple[Any, np.ndarray]]:
        for models in zip(*paths, strict=True):
            losses = np.full(len(y), np.nan)
            location = _outputs(models, inputs, folds)[held]
            raw, losses[held] = _scaled(family, location, targets[held], weights[held])
            yield (models, raw), losses

    (models, raw), losses = _best(candidates(), weights, folds, len(_PENALTIES))
    kernel = np.stack([np.stack([one, np.zeros_like(one)], axis=-1) for one, _ in models])
    bias = np.array([[constant, raw] for _, constant in models])
    return LinearStart(kernel.astype(np.float32), bias.astype(np.float32), losses)


def _ridge_path(
    inputs: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> list[tuple[np.ndarray, float]]:
    """Coefficients and constant of each penalty."""
    shares = weights / weights.sum()
    centre = shares @ inputs
    mean = float(shares @ y)
    centred = inputs - centre
    values, vectors = np.linalg.eigh((centred * shares[:, None]).T @ centred)
    slope = vectors.T @ (centred.T @ (shares * (y - mean)))
    values = np.maximum(values, 0)
    found = []
    for penalty in _PENALTIES:
        coefficients = vectors @ (slope / (values + penalty))
        found.append((coefficients, mean - float(centre @ coefficients)))
    return found


def _scaled(
    family: Any, location: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """The raw scale output that suits locations [n] best, and the losses [n] with it."""
    shares = weights / weights.sum()
    location = location.astype(np.float32)
    targets = targets.astype(np.float32)

    def losses(raw: float) -> np.ndarray:
        return np.asarray(_losses(family, np.float32(raw), location, targets), np.float64)

    found = scipy.optimize.minimize_scalar(
        lambda raw: float(shares @ losses(raw)), bounds=(-7, 7), method="bounded"
    )
    return float(found.x), losses(found.x)


@functools.partial(jax.jit, static_argnums=0)
def _losses(family: Any, raw: jax.Array, location: jax.Array, targets: jax.Array) -> jax.Array:
    outputs = jnp.stack([location, jnp.full_like(location, raw)], axis=-1)
    found: jax.Array = family.log_prob(family.init(jax.random.key(0)), outputs, targets)
    return -found


# Classes.


def _fit_classes(
    likelihood: Any, inputs: np.ndarray, labels: np.ndarray, weights: np.ndarray, folds: Folds
) -> LinearStart:
    """Fits logistic regressions, or constants."""
    # Its import takes a second.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    number = likelihood.num_classes
    constants = [
        _shares(labels[rows], weights[rows], number)
        for rows in map(folds.learned, range(folds.number))
    ]
    rows_of = [_learned(folds, fold) for fold in range(folds.number)]
    fits = [LogisticRegression(warm_start=True, max_iter=200, tol=1e-3) for _ in rows_of]

    def with_losses(models: list[tuple[np.ndarray, np.ndarray]]) -> tuple[Any, np.ndarray]:
        logits = _outputs(models, inputs, folds)
        return models, logsumexp(logits, axis=1) - logits[np.arange(len(labels)), labels]

    def candidates() -> Iterator[tuple[Any, np.ndarray]]:
        yield with_losses([(np.zeros((inputs.shape[1], number)), one) for one in constants])
        if any(len(np.unique(labels[rows])) < 2 for rows in rows_of):
            return
        for strength in _STRENGTHS:
            models = []
            for fit, rows, constant in zip(fits, rows_of, constants, strict=True):
                _heed_signals()
                with warnings.catch_warnings():  # One that has not converged is a candidate too.
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    fit.set_params(C=strength)
                    fit.fit(inputs[rows], labels[rows], sample_weight=weights[rows])
                models.append(_as_linear(fit, inputs[rows].mean(axis=0), constant, number))
            yield with_losses(models)

    models, losses = _best(candidates(), weights, folds, _PATIENCE)
    kernel, bias = (np.stack(ones) for ones in zip(*models, strict=True))
    if likelihood.class_weights is not None:  # What members learn is in proportion to these, too.
        bias = bias + np.log(likelihood.class_weights)
    if likelihood.name == "bernoulli":
        kernel, bias = (one[..., 1:] - one[..., :1] for one in (kernel, bias))
    return LinearStart(kernel.astype(np.float32), bias.astype(np.float32), losses)


def _shares(labels: np.ndarray, weights: np.ndarray, num_classes: int) -> np.ndarray:
    """Log shares [C] of classes, each with half a row more."""
    counts = np.bincount(labels, weights * len(labels) / weights.sum(), minlength=num_classes)
    return np.log((counts + 0.5) / (counts + 0.5).sum())


def _as_linear(
    fit: Any, centre: np.ndarray, constant: np.ndarray, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Kernel [R, C] and bias [C] of a fit.

    A class that it has not seen is as likely everywhere as half a row, beside the others' mean.
    """
    coefficients = fit.coef_
    intercepts = fit.intercept_
    if len(coefficients) == 1:  # Of two classes.
        coefficients = np.concatenate([-coefficients, coefficients]) / 2
        intercepts = np.concatenate([-intercepts, intercepts]) / 2
    intercepts = intercepts - logsumexp(coefficients @ centre + intercepts)  # Of sum 1 there.
    kernel = np.zeros((coefficients.shape[1], num_classes))
    bias = constant.copy()
    kernel[:, fit.classes_] = coefficients.T
    bias[fit.classes_] = intercepts
    return kernel, bias
