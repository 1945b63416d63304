"""Shifts: whether the intervals of what they change hold together, over all kinds."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.analytic_intervals import LEVEL, Interval
from ensemble.scoring.combine import RootMean, Share
from simulations.numbers import ERRORS
from simulations.settings import named
from simulations.statement import Outcome, Statement, holds, replication


@replication
def costs(
    rng: np.random.Generator,
    num_examples: int,
    accuracy: float,
    losses: Sequence[float],
    churn: float,
) -> Outcome:
    """Whether the intervals of the accuracy that shifts cost all hold it.

    Args:
        rng: of the draws.
        num_examples: N.
        accuracy: without a shift.
        losses: accuracy that each shift costs.
        churn: share of the wrong predictions that a shift turns right.
    """
    hits, held = rng.random(num_examples) < accuracy, True
    for loss in losses:
        shifted = draw_hits(rng, hits, accuracy, loss, churn)
        held &= bool(holds(cost_interval(1.0 * hits, 1.0 * shifted, len(losses)), loss))
    return {"accuracy": held}


def cost_interval(hits: NDArray, shifted: NDArray, num_kinds: int) -> Interval:
    """The interval of the accuracy that a shift costs; those of all kinds hold together in 95% of
    cases."""
    found = Share().change(shifted, hits, 1 - (1 - LEVEL) / num_kinds)
    assert found is not None
    return found


def draw_hits(
    rng: np.random.Generator, hits: NDArray, accuracy: float, cost: float, churn: float
) -> NDArray:
    """Whether predictions [N] are right with a shift, that were where `hits` says so."""
    draws = rng.random(len(hits))
    lost = (cost + churn * (1 - accuracy)) / accuracy
    return np.where(hits, draws >= lost, draws < churn)


@replication
def ratios(
    rng: np.random.Generator, num_examples: int, errors: str, biases: Sequence[float]
) -> Outcome:
    """Whether the intervals of the RMSE with a shift over that without all hold it.

    Args:
        rng: of the draws.
        num_examples: N.
        errors: of the targets, a name of `ERRORS`.
        biases: of each shift; shifted predictions have errors of their own, too.
    """
    law = ERRORS[errors]
    level, variance = 1 - (1 - LEVEL) / len(biases), float(law.var())
    residuals, held = law.ppf(rng.uniform(size=num_examples)), True
    for bias in biases:
        shifted = residuals + bias + 0.3 * rng.normal(size=num_examples)
        interval = RootMean().ratio(residuals**2, shifted**2, level)
        if interval is None:
            return {"RMSE": None}
        held &= bool(holds(interval, math.sqrt(1 + (bias**2 + 0.09) / variance)))
    return {"RMSE": held}


_costs = named("num_examples accuracy losses churn")
_ratios = named("num_examples errors biases")

STATEMENTS = (
    Statement(
        name="classes.shift_costs",
        claim="Shifts cost [low, high] of the accuracy, each of them",
        over="test examples",
        made_by=("ensemble.scoring.combine.Share",),
        settings={
            "N = 30, 5 kinds": _costs(30, 0.8, (0.0, 0.1, 0.1, 0.3, 0.5), 0.2),
            "N = 100, 5 kinds": _costs(100, 0.9, (0.0, 0.01, 0.05, 0.2, 0.6), 0.2),
            "N = 300, 99% right, no churn": _costs(300, 0.99, (0.0, 0.0, 0.0, 0.02, 0.3), 0.0),
            "N = 1000, 3 kinds": _costs(1000, 0.7, (0.0, 0.02, 0.1), 0.1),
            "N = 1000, 99.9% right": _costs(1000, 0.999, (0.006,) * 5, 0.0),
            "N = 5000, 1 kind": _costs(5000, 0.95, (0.03,), 0.1),
        },
        prepare=costs,
        at_least=True,
    ),
    Statement(
        name="numbers.shift_ratios",
        claim="Shifts change the RMSE by [low, high], each of them",
        over="examples",
        made_by=("ensemble.scoring.combine.RootMean",),
        settings={
            "N = 30, 3 kinds": _ratios(30, "normal", (0.0, 0.5, 2.0)),
            "N = 100, 1 kind, log-normal": _ratios(100, "log-normal", (0.5,)),
            "N = 100, 5 kinds": _ratios(100, "normal", (0.0, 0.1, 0.3, 1.0, 3.0)),
            "N = 300, 5 kinds, t with 5 degrees": _ratios(300, "t5", (0.0, 0.1, 0.3, 1.0, 3.0)),
            "N = 1000, 3 kinds": _ratios(1000, "normal", (0.0, 0.1, 1.0)),
            "N = 5000, 5 kinds, log-normal": _ratios(5000, "log-normal", (0.0, 0.1, 0.3, 1.0, 3.0)),
        },
        prepare=ratios,
        at_least=True,
    ),
)
