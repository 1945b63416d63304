"""Sentences about test rows in groups of which those of one are alike: how often is one wrong?"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ensemble.evaluation import recipe, scoring, sentences
from ensemble.evaluation.numbers import (
    calibrated_numbers,
    number_comparison,
    number_intervals,
    number_scores,
    number_verdict,
)
from ensemble.evaluation.quantiles import quantile_scores, quantile_verdict
from ensemble.metrics import regression
from ensemble.source import Strata
from ensemble.storage.predictions import StoredPredictions
from simulations import number_comparisons
from simulations.comparisons import is_wrong
from simulations.number_comparisons import Kind
from simulations.numbers import LIKELIHOOD
from simulations.statement import VERDICT, Replicate, Statement

_BANDS = {"50": 0.6745, "90": 1.6449, "95": 1.96}


def _groups(rng: np.random.Generator, num_groups: int, size: int, unequal: bool) -> NDArray:
    sizes = np.full(num_groups, size)
    if unequal:
        sizes = np.maximum(rng.lognormal(np.log(size) - 0.5, 1.0, num_groups).astype(int), 1)
    return np.repeat(np.arange(num_groups), sizes)


def _normal(rng: np.random.Generator, groups: NDArray, alike: float) -> NDArray:
    """Standard normal [N], whose correlation within groups is `alike`."""
    shared = rng.normal(size=groups.max() + 1)[groups]
    return np.sqrt(alike) * shared + np.sqrt(1 - alike) * rng.normal(size=len(groups))


def sentences_of_equals(num_groups: int, size: int, alike: float, unequal: bool) -> Replicate:
    """Whether anything is concluded of predictions that are right, or as good as others.

    Args:
        num_groups: of the test rows.
        size: mean number of rows of a group.
        alike: correlation of the errors of a group's rows.
        unequal: whether some groups have many times as many rows as others.
    """

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        groups = _groups(rng, num_groups, size, unequal)

        def normal() -> NDArray:
            return _normal(rng, groups, alike)

        return {
            "better or worse": _said_beside(normal, groups),
            "the shift changes": _said_of_shift(normal, groups),
            "bands are wrong": _said_of_bands(normal(), groups),
        }

    return replicate


def advice_on_equals(num_groups: int, size: int, alike: float, unequal: bool) -> Replicate:
    """Whether a factor or a temperature is advised where none makes predictions better.

    Args:
        num_groups: of the calibration rows.
        size: mean number of rows of a group.
        alike: correlation of the errors of a group's rows.
        unequal: whether some groups have many times as many rows as others.
    """

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        groups = _groups(rng, num_groups, size, unequal)
        errors, luck = (_normal(rng, groups, alike) for _ in range(2))
        return {
            "use this factor": _said_of_factor(errors, groups),
            "use this temperature": _said_of_temperature(rng, luck, groups),
        }

    return replicate


def _said_beside(normal: Callable[[], NDArray], groups: NDArray) -> bool:
    """Whether one of three equally good predictors is called better or worse."""
    errors = normal()
    ours, *others = ((errors + 0.5 * normal()) ** 2 for _ in range(3))
    simple = {
        name: {
            "ensemble": {"rmse": 1.0},
            "excess_interval": {
                "rmse": number_intervals.of_rmse_difference(
                    ours, one, number_scores.EXCESS_LEVEL, groups
                )
            },
        }
        for name, one in zip(("least_squares", "constant"), others, strict=True)
    }
    said = number_verdict.beside({"num_examples": len(groups)}, simple)
    return "is better" in said or "is worse" in said


def _said_of_shift(normal: Callable[[], NDArray], groups: NDArray) -> bool:
    errors = normal()
    plain, shifted = ((errors + 0.5 * normal()) ** 2 for _ in range(2))
    interval = number_intervals.of_rmse_ratio(plain, shifted, groups=groups)
    scores = {"rmse": [1.0] * 6, "coverage_90": [0.9] * 6}
    section = {"ensemble": scores, "rmse_ratio_interval": [interval] * 5}
    return "The shift changes" in number_verdict.shift({"it": section})


def _said_of_factor(errors: NDArray, groups: NDArray) -> bool:
    arrays = {"loc": np.zeros((1, len(groups))), "scale": np.ones((1, len(groups)))}
    held_out = StoredPredictions(arrays, errors, np.arange(1))
    folds = calibrated_numbers._change_on_folds(LIKELIHOOD, held_out, groups)
    scores = {"nll": 0.0, "coverage_90": 0.9}
    section = {"value": 1.1, "on_folds": folds, "ensemble": scores}
    return "use it" in number_verdict.advice({"ensemble": scores}, section)


def _said_of_temperature(rng: np.random.Generator, luck: NDArray, groups: NDArray) -> bool:
    sure = rng.uniform(0.5, 0.99, len(groups))
    labels = (ndtr(luck) > sure).astype(int)
    log_probs = np.log(np.stack([sure, 1 - sure], axis=1))
    folds = scoring._change_on_folds(log_probs, labels, groups)
    return sentences.effect({"nll_change_interval": (0.0, 0.0), "on_folds": folds}) < 0


def _said_of_bands(errors: NDArray, groups: NDArray) -> bool:
    terms = {f"coverage_{name}": np.abs(errors) < end for name, end in _BANDS.items()}
    strata = Strata("site", "group", groups.astype(str))
    test = {
        "num_examples": len(groups),
        "num_groups": len(np.unique(groups)),
        "over_groups": strata.column,
        "ensemble": regression.means(terms),
        "interval": number_intervals.intervals(terms),
        "together": quantile_scores.together(terms, strata),
    }
    return "Some of its bands" in quantile_verdict._trust(test)


def recipes(num_groups: int, size: int, members: int, kind: Kind) -> Replicate:
    """Whether a recipe is called better or worse than itself, or the interval leaves out 0."""

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        groups = _groups(rng, num_groups, size, False)
        ours, theirs = ((kind, kind.slopes(rng, members)) for _ in range(2))
        pair = number_comparisons.draw(rng, (ours, theirs), len(groups), groups=groups)
        parts = map(number_comparison.leave_one_out, pair)
        section = recipe.score_recipes("CRPS", "members", *parts, groups=groups)
        return {"sentence": is_wrong(section, 0.0)}

    return replicate


def _setting(num_groups: int, size: int, alike: float, unequal: bool = False) -> dict[str, Any]:
    return {"num_groups": num_groups, "size": size, "alike": alike, "unequal": unequal}


def _recipe(num_groups: int, size: int, members: int, smooth: float) -> dict[str, Any]:
    kind = Kind(0.4, smooth)
    return {"num_groups": num_groups, "size": size, "members": members, "kind": kind}


_SETTINGS = {
    "12 groups of 10 rows": _setting(12, 10, 0.5),
    "8 groups of 10 rows": _setting(8, 10, 0.5),
    "10 groups of 40 rows, much alike": _setting(10, 40, 0.9),
    "20 unequal groups": _setting(20, 10, 0.5, True),
    "50 groups of 4 rows, independent": _setting(50, 4, 0.0),
    "50 unequal groups, much alike": _setting(50, 10, 0.9, True),
    "100 groups of 5 rows": _setting(100, 5, 0.5),
}

STATEMENTS = (
    Statement(
        name="groups.sentences",
        claim="Rows in groups: it is better or worse than others, a shift changes it, its bands "
        "are too narrow or too wide",
        over="groups",
        made_by=(
            "ensemble.metrics.grouped.mean_over_groups",
            "ensemble.evaluation.quantiles.quantile_scores.together",
        ),
        settings=_SETTINGS,
        prepare=sentences_of_equals,
        kind=VERDICT,
    ),
    Statement(
        name="groups.advice",
        claim="Rows in groups: a factor, or a temperature, makes it better",
        over="groups of calibration rows",
        made_by=("ensemble.evaluation.scoring._mean_interval",),
        settings=_SETTINGS,
        prepare=advice_on_equals,
        kind=VERDICT,
    ),
    Statement(
        name="groups.recipes",
        claim="Rows in groups: the other recipe is better, worse, or no worse than by 1%",
        over="members and groups",
        made_by=("ensemble.evaluation.recipe.score_recipes",),
        settings={
            "12 groups of 10 rows, M = 4, equal": _recipe(12, 10, 4, 0.3),
            "8 groups of 10 rows, M = 4, equal": _recipe(8, 10, 4, 0.3),
            "10 groups of 40 rows, M = 8, equal": _recipe(10, 40, 8, 0.3),
            "20 groups of 10 rows, M = 3, equal": _recipe(20, 10, 3, 0.6),
            "50 groups of 4 rows, M = 8, equal": _recipe(50, 4, 8, 0.1),
            "50 groups of 10 rows, M = 4, equal": _recipe(50, 10, 4, 0.6),
        },
        prepare=recipes,
        kind=VERDICT,
    ),
)
