"""Sections of reports and evaluations that are made of views alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.checks import Floats
from ensemble.scoring.combine import main
from ensemble.scoring.score import Score, scores_of
from ensemble.scoring.view import View


def score_split(
    view: View,
    *,
    intervals: bool = True,
    groups: NDArray | None = None,
    names: Collection[str] | None = None,
) -> dict[str, Any]:
    """Scores what an ensemble says of a split, and of each target where there are several.

    Args:
        view: of the live members.
        intervals: whether 95% intervals are computed.
        groups: of the rows [N], where those of one may be alike: intervals are then over these too.
        names: of the scores; None: all that there are.

    Returns:
        What `score_view` does; `targets`, the same of each where there are several.
    """
    how: dict[str, Any] = {"intervals": intervals, "groups": groups, "names": names}
    found = score_view(view, **how)
    if view.parts:
        found["targets"] = [score_split(one, **how) for one in view.parts]
    return found


def score_view(
    view: View,
    *,
    intervals: bool = True,
    groups: NDArray | None = None,
    names: Collection[str] | None = None,
) -> dict[str, Any]:
    """The scores of a view itself; of several targets those that these have together.

    Args:
        view: as of `score_split`.
        intervals: likewise.
        groups: likewise.
        names: likewise.

    Returns:
        `num_rows`; `scores`, by name `value`, `interval` (None where it cannot be told) and, where
        members have the score, their `members` [M], `mean` and `sd`.
    """
    chosen = {name: one for name, one in scores_of(view).items() if names is None or name in names}
    each = view.each() if any(one.of_members for one in chosen.values()) else []
    return {
        "num_rows": view.num_rows,
        "scores": {
            name: _scored(one, view, each, intervals, groups) for name, one in chosen.items()
        },
    }


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


def spread(members: Sequence[float]) -> dict[str, float]:
    """The `mean` of the members' scores and, with one degree of freedom less, their `sd`."""
    with np.errstate(invalid="ignore"):  # The sd of infinite scores is NaN.
        sd = float(np.std(members, ddof=int(len(members) > 1)))
    return {"mean": float(np.mean(members)), "sd": sd}


def terms_of(view: View, name: str) -> Floats:
    """Terms [N] of a score; of several targets that do not have it together, the mean over them."""
    found = scores_of(view).get(name)
    if found is None:
        return np.mean([terms_of(one, name) for one in view.parts], axis=0)
    return main(found.terms(view))


def member_terms(view: View, name: str) -> Floats:
    """The same [M, N] of every member by itself."""
    return np.stack([terms_of(one, name) for one in view.each()])


def summary(view: View, names: Collection[str] | None = None) -> dict[str, Any]:
    """Scores as reports have them.

    Args:
        view: of the live members.
        names: of the scores; None: all.

    Returns:
        `ensemble`: scores by name; `members`: of the same names, M values each; `diversity`: how
        far the members differ. Where there are several targets, `targets` has the `ensemble` of
        each. Nats are then summed over the targets, unless these have the score together, and all
        other scores are means over them.
    """
    return _laid_out(view, score_split(view, intervals=False, names=names))


def _laid_out(view: View, section: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"ensemble": {}, "members": {}, "diversity": {}}
    if view.parts:
        parts = [_laid_out(*pair) for pair in zip(view.parts, section["targets"], strict=True)]
        units = {name: one.unit for name, one in scores_of(view.parts[0]).items()}
        for group, into in found.items():
            for name in parts[0][group]:
                columns = np.array([one[group][name] for one in parts], np.float64)
                combined = columns.sum(axis=0) if units[name] == "nats" else columns.mean(axis=0)
                into[name] = combined.tolist()
        found["targets"] = [one["ensemble"] for one in parts]
    for name, score in scores_of(view).items():
        if name in section["scores"]:
            one = section["scores"][name]
            is_diversity = score.better == "neither" and not score.of_members
            found["diversity" if is_diversity else "ensemble"][name] = one["value"]
            if "members" in one:
                found["members"][name] = one["members"]
    return found


def values_of(view: View, names: Collection[str] | None = None) -> dict[str, float]:
    """The values of the scores of a view, by name."""
    found = scores_of(view).items()
    return {name: one.value(view) for name, one in found if names is None or name in names}
