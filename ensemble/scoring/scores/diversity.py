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


_NATS: dict[str, Any] = {"combine": Mean(), "unit": "nats", **_OF_ALL}


@score(of=ClassView, title="entropy", name="total", **_NATS)
def entropy(view):
    """Entropy of the ensemble's prediction: how unsure it is, for whatever reason."""
    return view.entropies["total"]


@score(of=ClassView, title="members' own entropy", name="aleatoric", **_NATS)
def own_entropy(view):
    """Mean entropy of the single predictions: how unsure each is by itself."""
    return view.entropies["aleatoric"]


@score(of=ClassView, title="mutual information", name="epistemic", **_NATS)
def mutual_information(view):
    """Entropy less the members' own: how far the single predictions differ; 0 if all agree."""
    return view.entropies["epistemic"]


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
