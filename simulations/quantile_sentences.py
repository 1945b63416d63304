"""Predicted quantiles: intervals of their scores, and sentences about them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.evaluation.questions import calibration, quality
from ensemble.metrics.analytic_intervals import LEVEL
from ensemble.report.simple_predictors import EXCESS_LEVEL
from ensemble.scoring.combine import Mean, Share, over_groups
from simulations.number_sentences import simple_predictors
from simulations.numbers import ERRORS, MANY
from simulations.settings import named, with_each
from simulations.statement import VERDICT, Outcome, Replicate, Statement, holds, replication

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

    def replicate(rng: np.random.Generator) -> Outcome:
        drawn = law.ppf(rng.uniform(size=num_examples))
        return {"pinball": holds(Mean().interval(_pinball(drawn, quantiles)), truth)}

    return replicate


def bands_section(
    held: dict[str, NDArray], groups: NDArray | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`test` and `facts` about the bands of a test split, by whether they held targets [N]."""
    terms = {name: one.astype(float) for name, one in held.items()}

    def intervals(level: float) -> dict[str, Any]:
        if groups is None:
            return {name: Share().interval(one, level) for name, one in terms.items()}
        return {name: over_groups(Share(), one, groups, level) for name, one in terms.items()}

    found = intervals(LEVEL)
    scores = {
        name: {"value": float(one.mean()), "interval": found[name]} for name, one in terms.items()
    }
    test = {"num_rows": len(next(iter(terms.values()))), "scores": scores}
    return test, {"together": intervals(1 - (1 - LEVEL) / len(terms))}


@replication
def sentences(rng: np.random.Generator, num_examples: int, errors: str, noise: float) -> Outcome:
    """Whether right bands are called wrong, or one of three equal predictors better or worse.

    Args:
        rng: of the draws.
        num_examples: N.
        errors: of the targets, a name of `ERRORS`.
        noise: standard deviation of each predictor's own errors.
    """
    law = ERRORS[errors]
    quantiles = law.ppf(LEVELS)
    drawn = law.ppf(rng.uniform(size=num_examples))
    test, facts = bands_section(_held(drawn, quantiles), None)
    ours, *others = (
        _pinball(drawn + noise * rng.normal(size=num_examples), quantiles) for _ in range(3)
    )
    found = [(one.mean(), Mean().change(ours, one, EXCESS_LEVEL)) for one in others]
    simple = simple_predictors("pinball", found)
    beside = quality.baseline(test, simple, "pinball").code
    return {
        "bands are wrong": calibration.bands(test, facts).code.startswith("bands.too_"),
        "better or worse": beside in ("baseline.better", "baseline.worse"),
    }


_setting = named("num_examples errors")
_SETTINGS = {
    "N = 30, normal": _setting(30, "normal"),
    "N = 100, t with 3 degrees of freedom": _setting(100, "t3"),
    "N = 100, log-normal": _setting(100, "log-normal"),
    "N = 300, t with 5 degrees of freedom": _setting(300, "t5"),
    "N = 1000, normal": _setting(1000, "normal"),
    "N = 5000, log-normal": _setting(5000, "log-normal"),
}

STATEMENTS = (
    Statement(
        name="quantiles.scores",
        claim="The pinball loss is 0.2 [low, high]",
        over="examples",
        made_by=(
            "ensemble.scoring.combine.Mean",
            "ensemble.scoring.facts._levels",
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
            "ensemble.scoring.combine.Share",
            "ensemble.report.simple_predictors.score_simple",
        ),
        settings=with_each(_SETTINGS, "noise", (0.5, 0.3, 0.1, 1.0, 0.1, 0.3)),
        prepare=sentences,
        kind=VERDICT,
    ),
)
