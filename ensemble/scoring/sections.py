"""The scores of a split, as report.json and evaluation.json have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.checks import Floats
from ensemble.scoring.combine import main
from ensemble.scoring.score import scores_of
from ensemble.scoring.view import View

VERSION = 2
"""The version of report.json and of evaluation.json; version 1, of release 1.0, had scores in other
places."""
OVER = "test examples, with these members fixed"
"""What would be drawn anew, in words that stand beside intervals."""


class Strata(Protocol):
    """What rows are split by, as `ensemble.source.Strata`."""

    @property
    def column(self) -> str: ...

    @property
    def groups(self) -> NDArray | None: ...


def score_split(
    view: View,
    *,
    intervals: bool = True,
    strata: Strata | None = None,
    names: Collection[str] | None = None,
) -> dict[str, Any]:
    """Scores what an ensemble says of a split, and of each target where there are several.

    Args:
        view: of the live members.
        intervals: whether 95% intervals are computed.
        strata: of the rows, where these are not split at random. Those of one group may be alike:
            intervals are then over groups too.
        names: of the scores; None: all that there are.

    Returns:
        `num_rows`; `scores`, by name `value`, `interval` (None where it is not known) and, where
        members have the score, their `members` [M], `mean` and `sd`; `interval_over`, what would be
        drawn anew. Where rows are split by groups, `over_groups` is the column that has them, and
        `num_groups` how many there are. Where there are several targets, `targets` has the same of
        each, and scores that targets do not have together are over them: `over_targets` says
        whether it is the `sum` or the `mean`.
    """
    groups = None if strata is None else strata.groups
    chosen = {name: one for name, one in scores_of(view).items() if names is None or name in names}
    each = view.each() if any(one.of_members for one in chosen.values()) else []
    scores: dict[str, Any] = {}
    for name, one in chosen.items():
        scores[name] = {"value": one.value(view)}
        if intervals:
            scores[name]["interval"] = one.interval(view, groups)
        if one.of_members:
            members = [one.value(member) for member in each]
            scores[name] |= {"members": members, **spread(members)}
    found: dict[str, Any] = {"num_rows": view.num_rows, "scores": scores}
    if intervals:
        found["interval_over"] = OVER
    if intervals and strata is not None and groups is not None:
        found["interval_over"] = f"groups of {strata.column}, with these members fixed"
        found |= {"over_groups": strata.column, "num_groups": len(np.unique(groups))}
    if view.parts:
        how: dict[str, Any] = {"intervals": intervals, "strata": strata, "names": names}
        found["targets"] = [score_split(one, **how) for one in view.parts]
        found["scores"] = {**_over_targets(view, found["targets"]), **scores}
    return found


def _over_targets(view: View, sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Scores of several targets that these do not have together: nats are summed."""
    own, found = scores_of(view), {}
    for name, score in scores_of(view.parts[0]).items():
        if name in own or name not in sections[0]["scores"]:
            continue
        each = [one["scores"][name] for one in sections]
        over = np.sum if score.unit == "nats" else np.mean
        found[name] = {
            "value": float(over([one["value"] for one in each])),
            "over_targets": over.__name__,
            **({"interval": None} if "interval" in each[0] else {}),
        }
        if score.of_members:
            members = over([one["members"] for one in each], axis=0).tolist()
            found[name] |= {"members": members, **spread(members)}
    return found


def spread(members: Sequence[float]) -> dict[str, float]:
    """The `mean` of the members' scores and, with one degree of freedom less, their `sd`."""
    with np.errstate(invalid="ignore"):  # The sd of infinite scores is NaN.
        sd = float(np.std(members, ddof=int(len(members) > 1)))
    return {"mean": float(np.mean(members)), "sd": sd}


def values_in(section: Mapping[str, Any], of: str = "value") -> dict[str, Any]:
    """The values of the scores of a section by name, or what else is told of them, such as `mean`.

    Scores without it are left out.
    """
    return {name: one[of] for name, one in section["scores"].items() if of in one}


def values_of(view: View, names: Collection[str] | None = None) -> dict[str, float]:
    """The values of the scores of a view, by name."""
    found = scores_of(view).items()
    return {name: one.value(view) for name, one in found if names is None or name in names}


def terms_of(view: View, name: str) -> Floats:
    """Terms [N] of a score; of several targets that do not have it together, the mean over them."""
    found = scores_of(view).get(name)
    if found is None:
        return np.mean([terms_of(one, name) for one in view.parts], axis=0)
    return main(found.terms(view))


def member_terms(view: View, name: str) -> Floats:
    """The same [M, N] of every member by itself."""
    return np.stack([terms_of(one, name) for one in view.each()])
