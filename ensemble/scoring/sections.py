"""Sections of reports and evaluations that are made of views alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.scoring.score import Score, scores_of
from ensemble.scoring.view import View


def score_split(
    view: View,
    *,
    intervals: bool = True,
    groups: NDArray | None = None,
    names: Collection[str] | None = None,
) -> dict[str, Any]:
    """Scores what an ensemble says of a split.

    Args:
        view: of the live members.
        intervals: whether 95% intervals are computed.
        groups: of the rows [N], where those of one may be alike: intervals are then over these too.
        names: of the scores; None: all that there are.

    Returns:
        `num_rows`; `scores`, by name `value`, `interval` (None where it cannot be told) and, where
        members have the score, their `members` [M], `mean` and `sd`; `targets`, the same of each
        where there are several.
    """
    chosen = {name: one for name, one in scores_of(view).items() if names is None or name in names}
    each = view.each() if any(one.of_members for one in chosen.values()) else []
    found: dict[str, Any] = {
        "num_rows": view.num_rows,
        "scores": {
            name: _scored(one, view, each, intervals, groups) for name, one in chosen.items()
        },
    }
    if view.parts:
        how: dict[str, Any] = {"intervals": intervals, "groups": groups, "names": names}
        found["targets"] = [score_split(one, **how) for one in view.parts]
    return found


def _scored(
    score: Score, view: View, each: list[View], intervals: bool, groups: NDArray | None
) -> dict[str, Any]:
    found: dict[str, Any] = {"value": score.value(view)}
    if intervals:
        found["interval"] = score.interval(view, groups)
    if not score.of_members:
        return found
    members = [score.value(one) for one in each]
    return {**found, "members": members, **spread(members)}


def spread(members: Sequence[Any]) -> dict[str, float | None]:
    """The `mean` of the members' scores and, with one degree of freedom less, their `sd`."""
    if None in members:
        return {"mean": None, "sd": None}
    with np.errstate(invalid="ignore"):  # The sd of infinite scores is NaN.
        sd = float(np.std(members, ddof=int(len(members) > 1)))
    return {"mean": float(np.mean(members)), "sd": sd}


def values_of(view: View, names: Collection[str] | None = None) -> dict[str, float | None]:
    """The values of the scores of a view, by name."""
    found = scores_of(view).items()
    return {name: one.value(view) for name, one in found if names is None or name in names}
