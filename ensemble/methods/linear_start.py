"""The linear models that members may start from: one for each fold, and as good as they can be.

Of numbers it is ridge regression, of classes multinomial logistic regression. Their strength is the
one of a path whose predictions of the rows held out are best; the path begins with a constant.
"""

import warnings
from functools import partial
from operator import itemgetter

import jax
import numpy as np
import scipy.optimize
from jax import Array
from numpy.typing import NDArray

from ensemble.sharding import processes, signals
from ensemble.tasks.supervised import Supervised

MOST_FEATURES = 1000
"""Beyond, members start without a linear part."""
_MOST_ROWS = 50_000
"""The most rows that a linear model is fitted to, evenly spaced."""
_OF_NUMBERS = ("gaussian", "student_t", "laplace")
_OF_CLASSES = ("categorical", "bernoulli")
_RIDGE = (0, *np.logspace(-2, 4, 7))
"""Strengths: inverse penalties of the mean loss of a row, of standardised features."""
_LOGISTIC = (1e-6, *np.logspace(-3, 2, 6))
"""Strengths: values of C of scikit-learn's logistic regression, from nearly a constant on."""


def suits(task: Supervised) -> bool:
    """Returns True if members can start from a linear model."""
    shape = task.dataset.input_shape
    is_known = task.likelihood.name in (*_OF_NUMBERS, *_OF_CLASSES)
    return is_known and len(shape) == 1 and shape[0] <= MOST_FEATURES and bool(task.output_layer)


def fit(task: Supervised, folds, weights: NDArray) -> dict[str, NDArray]:
    """Fits a linear model without the rows of each fold.

    Args:
        task: Task of the members, which `suits`.
        folds: `Folds` of the training rows.
        weights: Weights [N] of rows in what is predicted.

    Returns:
        The models, float32: `kernel` [F, R, K] and `bias` [F, K], fold by fold.
    """
    examples = task.dataset.read("train", slice(None))
    inputs = np.asarray(jax.jit(task.prepare)(examples.inputs), np.float64)
    weights = weights / weights.mean(dtype=np.float64)
    # Several targets lie side by side.
    families = getattr(task.likelihood, "likelihoods", (task.likelihood,))
    columns = examples.targets.reshape(len(inputs), -1).T
    found = [
        _best(family, inputs, column, weights, folds)
        for family, column in zip(families, columns, strict=True)
    ]
    kernel, bias = (np.concatenate(ones, axis=-1) for ones in zip(*found, strict=True))
    return {"kernel": kernel.astype(np.float32), "bias": bias.astype(np.float32)}


def _best(family, inputs, targets, weights, folds):
    """Kernels and biases of one target with the lowest mean loss of the rows held out."""
    is_class = family.name in _OF_CLASSES
    fitted = _logistic if is_class else _ridge
    paths, held = [], []
    for fold in range(folds.number):
        held.append(np.flatnonzero(folds.of_rows == fold))
        rows = folds.learned(fold)
        rows = rows[:: -(-len(rows) // _MOST_ROWS)]
        paths.append(fitted(family, inputs[rows], targets[rows], weights[rows]))
    judges = np.concatenate(held)
    shares = weights[judges] / weights[judges].sum()
    judged = targets[judges] if is_class else targets[judges].astype(np.float32)

    def loss(outputs):
        return -float(shares @ np.float64(_log_prob(family, np.float32(outputs), judged)))

    found = []
    for models in zip(*paths, strict=True):
        kernel, bias = (np.stack(each) for each in zip(*models, strict=True))
        each = zip(held, kernel, bias, strict=True)
        outputs = np.concatenate([inputs[rows] @ k + b for rows, k, b in each])
        if not is_class:
            # The raw scale output that suits these locations best.
            raw = scipy.optimize.minimize_scalar(
                lambda raw, location: loss(_beside(location, raw)),
                args=(outputs,),
                bounds=(-7, 7),
                method="bounded",
            ).x
            kernel, bias, outputs = map(_beside, (kernel, bias, outputs), (0, raw, raw))
        found.append((loss(outputs), kernel, bias))
    _, kernel, bias = min(found, key=itemgetter(0))
    if is_class and family.class_weights is not None:  # Members learn in proportion to these.
        logs = np.log(family.class_weights)
        bias = bias + (logs[1:] - logs[:1] if family.num_outputs == 1 else logs)
    return kernel, bias


def _beside(array: NDArray, value: float) -> NDArray:
    """Puts a value behind the last axis, which has one entry."""
    return np.concatenate([array, np.full_like(array, value)], axis=-1)


@partial(jax.jit, static_argnums=0)
def _log_prob(family, outputs: Array, targets: Array) -> Array:
    return family.log_prob(family.init(jax.random.key(0)), outputs, targets)


def _ridge(family, inputs, targets, weights):
    """Kernels [R, K] and biases [K] of ridge regressions, by strength."""
    y = (targets.astype(np.float64) - family.shift) / family.scale
    shares = weights / weights.sum()
    centre, mean = shares @ inputs, shares @ y
    centred = inputs - centre
    moments = (centred * shares[:, None]).T @ centred
    slope = centred.T @ (shares * (y - mean))
    kernels = [
        np.linalg.solve(np.eye(len(slope)) + strength * moments, strength * slope)
        for strength in _RIDGE
    ]
    return [(one[:, None], np.array([mean - centre @ one])) for one in kernels]


def _logistic(family, inputs, labels, weights):
    """Kernels [R, K] and biases [K] of logistic regressions, by strength."""
    # Its import takes a second.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    # Half a row more of each class, at the mean: none is impossible.
    number = family.num_classes
    inputs = np.concatenate([inputs, np.tile(inputs.mean(axis=0), (number, 1))])
    labels = np.concatenate([labels, np.arange(number)])
    weights = np.concatenate([weights, np.full(number, 0.5)])
    fit = LogisticRegression(warm_start=True, max_iter=200, tol=1e-3)
    models = []
    for strength in _LOGISTIC:
        if processes.count() == 1:  # Of several processes none stops alone.
            signals.check()
        with warnings.catch_warnings():  # One that has not converged is a candidate too.
            warnings.simplefilter("ignore", ConvergenceWarning)
            fit.set_params(C=strength).fit(inputs, labels, sample_weight=weights)
        kernel, bias = fit.coef_.T, fit.intercept_
        if len(bias) < family.num_outputs:  # Of two classes.
            kernel, bias = (np.concatenate([-one, one], axis=-1) / 2 for one in (kernel, bias))
        models.append((kernel, bias))
    return models
