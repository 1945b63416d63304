"""Predicted quantiles: intervals of their scores, and sentences about them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.evaluation.numbers import number_intervals
from ensemble.evaluation.numbers.number_scores import EXCESS_LEVEL
from ensemble.evaluation.quantiles import quantile_scores, quantile_verdict
from ensemble.metrics import regression
from simulations.numbers import ERRORS, MANY
from simulations.statement import VERDICT, Replicate, Statement

LEVELS = np.array([0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975])
_BANDS = ((0, 6, "95"), (1, 5, "90"), (2, 4, "50"))


def _pinball(errors: NDArray, quantiles: NDArray) -> NDArray:
    """Mean pinball loss over the levels of errors [N] from what is predicted, [N]."""
    gaps = errors[:, None] - quantiles
    return np.mean(np.maximum(LEVELS * gaps, (LEVELS - 1) * gaps), axis=-1)


def _held(errors: NDArray, quantiles: NDArray) -> dict[str, NDArray]:
    return {
        f"coverage_{name}": (errors >= quantiles[i]) & (errors <= quantiles[j])
        for i, j, name in _BANDS
    }


def scores(num_examples: int, errors: str) -> Replicate:
    """Whether intervals of the pinball loss hold it.

    Args:
        num_examples: N.
        errors: of the targets, a name of `ERRORS`.
    """
    law = ERRORS[errors]
    quantiles = law.ppf(LEVELS)
    many = law.ppf((np.arange(MANY) + 0.5) / MANY)
    truth = float(_pinball(many, quantiles).mean())

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        drawn = law.ppf(rng.uniform(size=num_examples))
        found = number_intervals.intervals({"pinball": _pinball(drawn, quantiles)})["pinball"]
        return {"pinball": None if found is None else bool(found[0] <= truth <= found[1])}

    return replicate


def sentences(num_examples: int, errors: str, noise: float) -> Replicate:
    """Whether right bands are called wrong, or one of three equal predictors better or worse.

    Args:
        num_examples: N.
        errors: of the targets, a name of `ERRORS`.
        noise: standard deviation of each predictor's own errors.
    """
    law = ERRORS[errors]
    quantiles = law.ppf(LEVELS)

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        drawn = law.ppf(rng.uniform(size=num_examples))
        terms = _held(drawn, quantiles)
        test: dict[str, Any] = {
            "num_examples": num_examples,
            "ensemble": regression.means(terms),
            "interval": number_intervals.intervals(terms),
            "together": quantile_scores.together(terms),
        }
        ours, *others = (
            _pinball(drawn + noise * rng.normal(size=num_examples), quantiles) for _ in range(3)
        )
        simple = {
            name: {
                "ensemble": {"pinball": one.mean()},
                "excess_interval": {"pinball": number_intervals.of_mean(one - ours, EXCESS_LEVEL)},
            }
            for name, one in zip(("least_squares", "constant"), others, strict=True)
        }
        beside = quantile_verdict._beside(test, simple)
        return {
            "bands are wrong": "Some of its bands" in quantile_verdict._trust(test),
            "better or worse": "ensemble is better" in beside or "ensemble is worse" in beside,
        }

    return replicate


_SETTINGS = {
    "N = 30, normal": {"num_examples": 30, "errors": "normal"},
    "N = 100, t with 3 degrees of freedom": {"num_examples": 100, "errors": "t3"},
    "N = 100, log-normal": {"num_examples": 100, "errors": "log-normal"},
    "N = 300, t with 5 degrees of freedom": {"num_examples": 300, "errors": "t5"},
    "N = 1000, normal": {"num_examples": 1000, "errors": "normal"},
    "N = 5000, log-normal": {"num_examples": 5000, "errors": "log-normal"},
}

STATEMENTS = (
    Statement(
        name="quantiles.scores",
        claim="The pinball loss is 0.2 [low, high]",
        over="examples",
        made_by=(
            "ensemble.evaluation.numbers.number_intervals.intervals",
            "ensemble.evaluation.quantiles.quantile_scores.score_predictions",
        ),
        settings=_SETTINGS,
        prepare=scores,
    ),
    Statement(
        name="quantiles.sentences",
        claim="Some bands are too narrow or too wide; it is better or worse than the better of "
        "least squares and a constant",
        over="examples",
        made_by=(
            "ensemble.evaluation.quantiles.quantile_scores.together",
            "ensemble.evaluation.quantiles.quantile_scores.score_simple",
        ),
        settings={
            title: {**one, "noise": noise}
            for (title, one), noise in zip(
                _SETTINGS.items(), (0.5, 0.3, 0.1, 1.0, 0.1, 0.3), strict=True
            )
        },
        prepare=sentences,
        kind=VERDICT,
    ),
)
