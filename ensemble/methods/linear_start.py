"""The linear models that members may start from: one for each fold, and as good as they can be.

Of numbers it is ridge regression, of classes multinomial logistic regression. Their penalty is the
one of a path whose predictions of the rows held out are best; its end is a constant.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator
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
    """Linear models that members start from.

    Attributes:
        kernel: Linear part of the outputs, [F, R, K], fold by fold.
        bias: Constants [F, K].
        losses: Loss [N] of each training row, nats, by the model of its fold; NaN of rows in none.
    """

    kernel: Any
    bias: Any
    losses: Any


class _Rows(NamedTuple):
    """Training rows.

    Attributes:
        inputs: Features [N, R] as the network sees them, float64.
        weights: Weights [N].
        folds: Folds of the rows.
    """

    inputs: Any
    weights: Any
    folds: Folds

    def learned(self, fold: int) -> Any:
        """Returns the rows that a fold's model is fitted to, evenly spaced if there are many."""
        if processes.count() == 1:  # Of several processes none stops alone.
            signals.check()
        rows = self.folds.learned(fold)
        return rows[:: -(-len(rows) // _MOST_ROWS)]

    def outputs(self, kernels: Any, biases: Any) -> Any:
        """Returns outputs [N, ...] by kernel and bias of each row's fold; NaN of rows in none."""
        found = np.full((len(self.inputs), *np.shape(biases[0])), np.nan)
        for fold in range(self.folds.number):
            rows = self.folds.of_rows == fold
            found[rows] = self.inputs[rows] @ kernels[fold] + biases[fold]
        return found


def why_not(task: Supervised) -> str:
    """Returns why members cannot start from a linear model; an empty text if they can."""
    shape = task.dataset.input_shape
    name = task.likelihood.name
    if len(shape) != 1 or shape[0] > MOST_FEATURES:
        return f"inputs of shape {shape} are not at most {MOST_FEATURES} features"
    if name not in (*_OF_NUMBERS, *_OF_CLASSES):
        return f"likelihood {name!r} has no linear model here"
    return "" if task.output_layer else "the network's outputs come from no dense layer"


def fit(task: Supervised, folds: Folds, weights: np.ndarray | None) -> LinearStart:
    """Fits a linear model without the rows of each fold.

    Args:
        task: What the members learn, for which `why_not` returns an empty text.
        folds: Folds of the training rows.
        weights: Weights [N] of rows in what is predicted; None: all the same.

    Returns:
        The models, float32.
    """
    examples = task.dataset.read("train", slice(None))
    likelihood: Any = task.likelihood
    inputs = np.asarray(jax.jit(task.prepare)(examples.inputs), np.float64)
    weights = np.ones(len(inputs)) if weights is None else weights / weights.mean(dtype=np.float64)
    rows = _Rows(inputs, weights, folds)
    if likelihood.name in _OF_CLASSES:
        found = [_best(_logistic(likelihood, rows, examples.targets), rows, _PATIENCE)]
    else:  # Several targets lie side by side.
        families = getattr(likelihood, "likelihoods", (likelihood,))
        columns = examples.targets.reshape(len(inputs), -1).T
        found = [
            _best(_ridge(family, rows, column), rows, len(_PENALTIES))
            for family, column in zip(families, columns, strict=True)
        ]
    kernels, biases, losses = zip(*found, strict=True)
    kernel, bias = (np.concatenate(ones, -1).astype(np.float32) for ones in (kernels, biases))
    return LinearStart(kernel, bias, np.sum(losses, 0))


def _best(candidates: Iterator[LinearStart], rows: _Rows, patience: int) -> LinearStart:
    """Returns the models with the lowest mean loss of the rows held out.

    Args:
        candidates: Models, made one by one.
        rows: Training rows.
        patience: Worse candidates in line, after which no more are made.
    """
    held = rows.folds.of_rows < rows.folds.number
    lowest = math.inf
    waited = 0
    best: Any = None
    for one in candidates:
        loss = np.average(one.losses[held], weights=rows.weights[held])
        waited += 1
        if best is None or loss < lowest:
            lowest = loss
            best = one
            waited = 0
        if waited == patience:
            break
    return best


# Numbers.


def _ridge(family: Any, rows: _Rows, targets: Any) -> Iterator[LinearStart]:
    """Fits ridge regressions of one target, by each penalty."""
    folds = rows.folds
    y = (targets.astype(np.float64) - family.shift) / family.scale
    paths = []
    for fold in range(folds.number):
        some = rows.learned(fold)
        inputs = rows.inputs[some]
        shares = rows.weights[some] / rows.weights[some].sum()
        centre = shares @ inputs
        mean = float(shares @ y[some])
        centred = inputs - centre
        values, vectors = np.linalg.eigh((centred * shares[:, None]).T @ centred)
        slope = vectors.T @ (centred.T @ (shares * (y[some] - mean)))
        paths.append((centre, mean, np.maximum(values, 0), vectors, slope))
    held = folds.of_rows < folds.number
    shares = rows.weights[held] / rows.weights[held].sum()
    for penalty in _PENALTIES:
        kernel = [vectors @ (slope / (values + penalty)) for *_, values, vectors, slope in paths]
        pairs = zip(paths, kernel, strict=True)
        bias = [mean - float(centre @ one) for (centre, mean, *_), one in pairs]
        location = rows.outputs(kernel, bias)[held].astype(np.float32)
        given = family, location, targets[held].astype(np.float32)
        # The raw scale output that suits these locations best.
        raw = scipy.optimize.minimize_scalar(
            lambda raw, *given: float(shares @ _losses(raw, *given)),
            args=given,
            bounds=(-7, 7),
            method="bounded",
        ).x
        losses = np.full(len(y), np.nan)
        losses[held] = _losses(raw, *given)
        kernels = np.stack([np.stack([one, np.zeros_like(one)], axis=-1) for one in kernel])
        yield LinearStart(kernels, np.array([[one, raw] for one in bias]), losses)


def _losses(raw: float, *given: Any) -> Any:
    return -np.float64(_log_prob(np.float32(raw), *given))


@functools.partial(jax.jit, static_argnums=1)
def _log_prob(raw: jax.Array, family: Any, location: jax.Array, targets: jax.Array) -> Any:
    outputs = jnp.stack([location, jnp.full_like(location, raw)], axis=-1)
    return family.log_prob(family.init(jax.random.key(0)), outputs, targets)


# Classes.


def _logistic(likelihood: Any, rows: _Rows, labels: Any) -> Iterator[LinearStart]:
    """Fits constants, and logistic regressions of each strength."""
    # Its import takes a second.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    number = likelihood.num_classes
    num_inputs = rows.inputs.shape[1]

    def constant(some: Any) -> Any:
        """Log shares [C] of classes, each with half a row more."""
        scaled = rows.weights[some] * len(some) / rows.weights[some].sum()
        counts = np.bincount(labels[some], scaled, minlength=number) + 0.5
        return np.log(counts / counts.sum())

    def models(kernel: Any, bias: Any) -> LinearStart:
        logits = rows.outputs(kernel, bias)
        losses = logsumexp(logits, axis=1) - logits[np.arange(len(labels)), labels]
        kernel, bias = np.stack(kernel), np.stack(bias)
        if likelihood.class_weights is not None:  # What members learn is in proportion to these.
            bias = bias + np.log(likelihood.class_weights)
        if likelihood.name == "bernoulli":
            kernel, bias = (one[..., 1:] - one[..., :1] for one in (kernel, bias))
        return LinearStart(kernel, bias, losses)

    each = range(rows.folds.number)
    constants = [constant(rows.folds.learned(fold)) for fold in each]
    yield models([np.zeros((num_inputs, number)) for _ in each], constants)
    if any(len(np.unique(labels[rows.learned(fold)])) < 2 for fold in each):
        return
    fits = [LogisticRegression(warm_start=True, max_iter=200, tol=1e-3) for _ in each]
    for strength in _STRENGTHS:
        kernels = []
        biases = []
        for fold, fit in enumerate(fits):
            some = rows.learned(fold)
            inputs = rows.inputs[some]
            with warnings.catch_warnings():  # One that has not converged is a candidate too.
                warnings.simplefilter("ignore", ConvergenceWarning)
                fit.set_params(C=strength)
                fit.fit(inputs, labels[some], sample_weight=rows.weights[some])
            coefficients, intercepts = fit.coef_, fit.intercept_
            if len(coefficients) == 1:  # Of two classes.
                coefficients = np.concatenate([-coefficients, coefficients]) / 2
                intercepts = np.concatenate([-intercepts, intercepts]) / 2
            # Of sum 1 at the mean. A class that the fit has not seen is as likely everywhere as
            # half a row, versus the others there.
            sums = logsumexp(coefficients @ inputs.mean(axis=0) + intercepts)
            kernels.append(np.zeros((num_inputs, number)))
            kernels[-1][:, fit.classes_] = coefficients.T
            biases.append(constants[fold].copy())
            biases[-1][fit.classes_] = intercepts - sums
        yield models(kernels, biases)
