"""Predicted numbers whose targets are partly censored: what is said of their calibration."""

from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from ensemble import likelihoods
from ensemble.metrics import regression
from ensemble.scoring.facts import facts_of
from ensemble.scoring.score import scores_of
from ensemble.storage.predictions import StoredPredictions
from ensemble.target_rows import joined
from simulations.settings import named, with_each
from simulations.statement import VERDICT, Outcome, Statement, holds, replication

_SURE = 0.05
_LIKELIHOOD: Any = likelihoods.of_data("gaussian", np.linspace(-1, 1, 50), ())


def draw(
    rng: np.random.Generator, num_examples: int, num_members: int, bounds: tuple[float, float]
) -> tuple[StoredPredictions, np.ndarray]:
    """Predictions of members that agree and are right, of N targets, and the targets [N] as such.

    Args:
        rng: of the draws.
        num_examples: N.
        num_members: M.
        bounds: mean and standard deviation of the bound of a target less its expectation; a bound
            also follows the expectation by a half.
    """
    loc = rng.normal(size=num_examples).astype(np.float32)
    y = loc + rng.normal(size=num_examples)
    limit = loc / 2 + rng.normal(*bounds, num_examples)
    rows = joined({"targets": np.minimum(y, limit).astype(np.float32), "censored": y > limit})
    scale = np.ones((num_members, num_examples), np.float32)
    arrays: dict[str, np.ndarray] = {"loc": np.tile(loc, (num_members, 1)), "scale": scale}
    return StoredPredictions(arrays, rows, np.arange(num_members)), y


@replication
def calibration(rng: np.random.Generator, width: float, **setting: Any) -> Outcome:
    """Whether the interval of a coverage holds that of new examples.

    Args:
        rng: of the draws.
        width: factor on the predicted scale, 1 where it is right.
        **setting: of `draw`.
    """
    test, _ = draw(rng, **setting)
    arrays = {**test.arrays, "scale": width * test.arrays["scale"]}
    view = _LIKELIHOOD.view(arrays, test.targets)
    scores = scores_of(view)
    outcome = {}
    for level in regression.LEVELS:
        name = f"coverage_{100 * level:.0f}"
        reach = width * float(ndtri(0.5 + level / 2))
        outcome[name] = holds(scores[name].interval(view), float(ndtr(reach) - ndtr(-reach)))
    return outcome


@replication
def uniformity(rng: np.random.Generator, **setting: Any) -> Outcome:
    """Whether distributions that are right are called wrong."""
    test, _ = draw(rng, **setting)
    pit = facts_of(_LIKELIHOOD.view(test.arrays, test.targets))["pit"]
    return {"pit": bool(pit["p_value"] < _SURE)}


_setting = named("num_examples num_members bounds")
_SETTINGS = {
    "N = 100, M = 2, a third censored": _setting(100, 2, (0.5, 1.0)),
    "N = 50, M = 4, few censored": _setting(50, 4, (2.0, 1.0)),
    "N = 50, M = 2, half censored": _setting(50, 2, (0.0, 1.0)),
    "N = 300, M = 4, few censored": _setting(300, 4, (2.0, 1.0)),
    "N = 300, M = 8, most censored": _setting(300, 8, (-0.7, 0.7)),
    "N = 2000, M = 2, a third censored": _setting(2000, 2, (0.5, 1.0)),
    "N = 300, M = 16, bounds alike": _setting(300, 16, (0.5, 0.01)),
}

STATEMENTS = (
    Statement(
        name="censored.coverage",
        claim="Intervals hold [low, high] of all targets, those that are censored too",
        over="examples",
        made_by=("ensemble.scoring.combine.Coverage",),
        settings=with_each(_SETTINGS, "width", (1.0, 1.0, 0.7, 1.3, 1.0, 1.0, 0.7)),
        prepare=calibration,
        at_least=True,
    ),
    Statement(
        name="censored.pit",
        claim="The predictive distributions are not right",
        over="examples",
        made_by=("ensemble.metrics.censoring.pit_uniformity",),
        settings=_SETTINGS,
        prepare=uniformity,
        kind=VERDICT,
    ),
)
