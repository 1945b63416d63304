"""How far members differ, and how uncertain they are: no member has these by itself."""

from typing import Any

from ensemble.metrics.mixture import disagreements_of
from ensemble.scoring.combine import Mean
from ensemble.scoring.score import score
from ensemble.scoring.view import ClassView, IntervalView, NumberView

_OF_ALL: dict[str, Any] = {"better": "neither", "of_members": False}


@score(of=ClassView, title="disagreement", combine=Mean(0, 1), unit="share", **_OF_ALL)
def disagreement(view):
    """Share of pairs of members that predict different classes (Fort et al. 2019)."""
    return disagreements_of(view.votes)


def _entropy(part, title):
    @score(of=ClassView, title=title, combine=Mean(), name=part, unit="nats", **_OF_ALL)
    def entropy(view):
        return view.entropies[part]


_entropy("total", "entropy")
_entropy("aleatoric", "members' own entropy")
_entropy("epistemic", "mutual information")


@score(
    of=IntervalView,
    title="members' disagreement",
    combine=Mean(),
    name="epistemic",
    unit="target_squared",
    **_OF_ALL,
)
def variance_of_members(view):
    """Variance of what members expect."""
    return view.disagreement


@score(of=NumberView, title="noise", combine=Mean(), unit="target_squared", **_OF_ALL)
def aleatoric(view):
    """Mean of the members' variances."""
    return view.noise


@score(of=NumberView, title="variance", combine=Mean(), unit="target_squared", **_OF_ALL)
def total(view):
    """Variance of the mixture."""
    return view.noise + view.disagreement
