"""What is told of a split beside scores: facts of views of one type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.metrics import censoring, number_calibration
from ensemble.metrics.abstention import error_interval
from ensemble.scoring.score import scores_of
from ensemble.scoring.view import ClassView, NumberView, QuantileView, View

_LEVEL = 0.95


def facts_of(view: View, groups: NDArray | None = None) -> dict[str, Any]:
    """Everything that is told of a view beside its scores, by name, JSON-ready.

    Args:
        view: of a split with targets.
        groups: of the rows [N], where those of one may be alike.
    """
    kinds = type(view).__mro__
    found: dict[str, Any] = {}
    for of, make in _FACTS:
        if of in kinds:
            found |= make(view, groups)
    return found


def _chance(view: ClassView, _: NDArray | None) -> dict[str, Any]:
    """How well calibrated it is beside labels that are drawn from the predictions.

    `num_impossible`: labels of probability 0; `ece_by_chance`: below it lie 95% of the ECEs that
    such labels give; `calibration_p`: how probable they make an `overconfidence` so far from 0, and
    an `ece` so large; `disagreement_matrix` [M, M].
    """
    terms = metrics.terms(view.log_probs, view.labels)
    chance = metrics.calibration_by_chance(terms)
    return {
        "num_impossible": int(np.isinf(terms.surprisal).sum()),
        "ece_by_chance": chance.ece_quantile,
        "calibration_p": {"overconfidence": chance.p_overconfidence, "ece": chance.p_ece},
        "disagreement_matrix": [(view.votes != one).mean(axis=1).tolist() for one in view.votes],
    }


def pit_of(view: NumberView) -> dict[str, Any]:
    """Whether the PIT is uniform, as `pit_uniformity` says, of targets that may be censored."""
    if view.is_known.all():
        return number_calibration.pit_uniformity(view.pit)
    return censoring.pit_uniformity(view.pit, ~view.is_known)


def _pit(view: Any, _: NDArray | None) -> dict[str, Any]:
    """`pit`; what kind of targets these are; `coverage_bounds`, where some are only bounded."""
    found = {"pit": pit_of(view), **view.describe()}
    if view.is_known.all():
        return found
    return {
        **found,
        "coverage_bounds": {
            name: one.combine.bounds(one.terms(view))
            for name, one in scores_of(view).items()
            if name.startswith("coverage")
        },
    }


def _levels(view: QuantileView, groups: NDArray | None) -> dict[str, Any]:
    """`levels`: the share of targets `below` each quantile, and its exact `interval`; `together`:
    intervals of the coverages that all hold in 95% of cases (Bonferroni)."""
    below = (view.y[:, None] <= view.quantiles).sum(axis=0)
    bands = {name: one for name, one in scores_of(view).items() if name.startswith("coverage")}
    level = 1 - (1 - _LEVEL) / max(len(bands), 1)
    return {
        "together": {name: one.interval(view, groups, level) for name, one in bands.items()},
        "levels": [
            {
                "level": one,
                "below": int(count) / view.num_rows,
                "interval": list(error_interval(int(count), view.num_rows)),
            }
            for one, count in zip(view.levels.tolist(), below, strict=True)
        ],
    }


_FACTS: list[tuple[type[View], Callable[[Any, NDArray | None], dict[str, Any]]]] = [
    (ClassView, _chance),
    (NumberView, _pit),
    (QuantileView, _levels),
]
