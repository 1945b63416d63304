"""Test rows in groups of which those of one are alike: what intervals of scores hold."""

from collections.abc import Mapping

import numpy as np

from ensemble.evaluation import strata
from ensemble.evaluation.numbers.number_intervals import intervals
from ensemble.metrics import grouped, regression
from ensemble.source import Strata
from simulations.statement import Replicate, Statement

_LEVEL = 1.6449


def scores(num_groups: int, size: int, unequal: bool, shared: float) -> Replicate:
    """Whether the intervals of RMSE, MAE and coverage hold those of all groups.

    Args:
        num_groups: in the test split.
        size: mean number of rows of a group.
        unequal: whether some groups have many times as many rows as others.
        shared: standard deviation of the error that the rows of a group share; that of a row's own
            is 1.
    """
    scale = np.hypot(shared, 1)

    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        sizes = np.full(number, size)
        if unequal:
            sizes = np.maximum(rng.lognormal(np.log(size) - 0.5, 1.0, number).astype(int), 1)
        groups = np.repeat(np.arange(number), sizes)
        errors = shared * rng.normal(size=number)[groups] + rng.normal(size=len(groups))
        held = (np.abs(errors) < _LEVEL * scale).astype(float)
        return groups, {"rmse": errors**2, "mae": np.abs(errors), "coverage_90": held}

    truth = {"rmse": scale, "mae": scale * np.sqrt(2 / np.pi), "coverage_90": 0.9}

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        groups, terms = draw(rng, num_groups)
        statistic = regression.resampled_means(terms)
        rows = intervals(terms)
        found = strata.over_groups(rows, statistic, Strata("g", "group", groups.astype(str), False))
        if len(np.unique(groups)) < grouped.MIN_GROUPS:
            assert set(found.values()) == {None}
        return {
            name: pair and bool(pair[0] <= truth[name] <= pair[1]) for name, pair in found.items()
        }

    return replicate


def _setting(num_groups: int, size: int, shared: float, unequal: bool = False) -> dict:
    return {"num_groups": num_groups, "size": size, "shared": shared, "unequal": unequal}


STATEMENTS = (
    Statement(
        name="groups.scores",
        claim="Scores of rows that are split by groups, with intervals over groups",
        over="groups",
        made_by=(
            "ensemble.metrics.grouped.group_intervals",
            "ensemble.metrics.grouped._reach",
            "ensemble.metrics.grouped._share",
        ),
        settings={
            "10 groups of 10 rows": _setting(10, 10, 1.0),
            "8 groups of 10 rows": _setting(8, 10, 0.5),
            "8 groups of 40 rows, much alike": _setting(8, 40, 2.0),
            "10 groups of 40 rows, much alike": _setting(10, 40, 2.0),
            "20 unequal groups": _setting(20, 10, 1.0, True),
            "50 groups of 4 rows, independent": _setting(50, 4, 0.0),
            "50 unequal groups, much alike": _setting(50, 10, 2.0, True),
            "100 groups of 5 rows": _setting(100, 5, 1.0),
        },
        prepare=scores,
        at_least=True,
    ),
)
