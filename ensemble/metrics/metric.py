"""Metrics by kind of target. A new one is a function and one line here; the rest follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics import functions as of
from ensemble.metrics.interval import Estimate, change, difference, has_heavy_tail, interval

LEVEL = 0.95


class Metric(NamedTuple):
    """How a metric is computed, compared and shown.

    Attributes:
        title: Heading of its column.
        terms: Function `(Predictive, y) -> [N]`, whose mean is the metric; or a number, which has
            no interval.
        unit: "share", "nats", "target" (the target's unit), "target²" or "".
        better: -1 if lower is better, 1 if higher, 0 if neither.
        bounds: Least and largest possible term; None: unbounded.
        in_table: If True, the table of a training shows it.
        of_members: If False, a single member has no such metric.
        heavy_tailed: If True, there is no interval where the variance of the terms may be infinite.
        row_weight: Most that one further row moves the metric, in N-ths of its distance to a bound
            (1 for a mean of bounded terms); or a function `(Predictive, y)` that returns it, or
            None if these rows determine no interval.
        min_rows: Fewer rows determine no interval.
    """

    title: str
    terms: Callable[..., Any]
    unit: str = ""
    better: int = -1
    bounds: tuple[float, float] | None = None
    in_table: bool = True
    of_members: bool = True
    heavy_tailed: bool = False
    row_weight: float | Callable[..., float | None] = 1.0
    min_rows: int = 2

    def value(self, p: Any, y: NDArray) -> float:
        """The metric without its interval."""
        return float(np.mean(self.terms(p, y)))

    def estimate(self, p: Any, y: NDArray, groups: NDArray | None = None) -> Estimate:
        """The metric with its interval."""
        terms = self.terms(p, y)
        weight = self.row_weight(p, y) if callable(self.row_weight) else self.row_weight
        is_heavy = self.heavy_tailed and has_heavy_tail(terms)
        if np.size(terms) < self.min_rows or weight is None or is_heavy:
            return Estimate(float(np.mean(terms)))
        return interval(terms, groups, bounds=self.bounds, weight=weight)

    def difference(
        self, ours: Any, theirs: Any, groups: NDArray | None = None, level: float = LEVEL
    ) -> Estimate:
        """The second metric less the first; errors that both share do not make its tails heavy.

        Args:
            ours: Terms [N] of one predictive, or the number.
            theirs: Terms of another on the same rows.
            groups: Labels [N] of rows that may be alike; None: rows are independent.
            level: Probability that the interval holds the expected difference.
        """
        if np.size(ours) < self.min_rows:
            return Estimate(float(change(np.mean(ours), np.mean(theirs))))
        weight = 0.0 if callable(self.row_weight) else self.row_weight
        return difference(ours, theirs, groups, bounds=self.bounds, weight=weight, level=level)

    def member_terms(self, p: Any, y: NDArray) -> NDArray:
        """Terms [M, N] of every member, or [M] of a metric without terms."""
        return np.stack([self.terms(one, y) for one in p.members])


_RARE_MISSES = 200
"""With fewer rows a few misses decide: simulated intervals cover 89 to 95%."""
_ALL: dict[str, Any] = {"better": 0, "in_table": False, "of_members": False}
"""Settings of metrics that describe an ensemble and are neither good nor bad."""
_NLL = Metric("NLL", of.nll, "nats", heavy_tailed=True)
_CLASSES = {
    "accuracy": Metric("Accuracy", of.accuracy, "share", 1, (0, 1)),
    "nll": Metric("NLL", of.nll, "nats", row_weight=of.smooth_if_errors),
    "brier": Metric("Brier", of.brier, bounds=(0, 2)),
    "ece": Metric("ECE", of.ece),
    "adaptive_ece": Metric("Adaptive ECE", of.adaptive_ece, in_table=False),
    "aurc": Metric("AURC", of.aurc, bounds=(0, 1), row_weight=of.smooth_if_errors),
    "accuracy_at_80": Metric(
        "Accuracy at 80%", of.accuracy_at_80, "share", 1, (0, 1), in_table=False, row_weight=1.25
    ),
    "balanced_accuracy": Metric(
        "Balanced accuracy",
        of.balanced_accuracy,
        "share",
        1,
        (0, 1),
        in_table=False,
        row_weight=of.balanced_weight,
    ),
    "overconfidence": Metric(
        "Confidence - accuracy", of.overconfidence, "share", bounds=(-1, 1), **_ALL
    ),
    "disagreement": Metric("Disagreement", of.disagreement, "share", bounds=(0, 1), **_ALL),
    "total": Metric("Total uncertainty", partial(of.uncertainty, part="total"), "nats", **_ALL),
    "aleatoric": Metric("Aleatoric", partial(of.uncertainty, part="aleatoric"), "nats", **_ALL),
    "epistemic": Metric("Epistemic", partial(of.uncertainty, part="epistemic"), "nats", **_ALL),
}
_RMSE = Metric("RMSE", of.rmse, "target", heavy_tailed=True)
_REST = {
    "mae": Metric("MAE", of.mae, "target", in_table=False),
    "r2": Metric("R²", of.r2, "", 1, in_table=False),
    "epistemic": Metric(
        "Members' disagreement", partial(of.uncertainty, part="epistemic"), "target²", **_ALL
    ),
}


def _bands(levels: Iterable[float], in_table: float) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for level in levels:
        held, width, missed = (
            partial(one, level=level) for one in (of.coverage, of.width, of.interval_score)
        )
        name, shown = f"{100 * level:.4g}", {"better": 0, "in_table": level == in_table}
        found |= {
            f"coverage_{name}": Metric(f"{name}% coverage", held, "share", bounds=(0, 1), **shown),
            f"width_{name}": Metric(f"{name}% width", width, "target", **shown),
            f"interval_score_{name}": Metric(
                f"{name}% interval score", missed, "target", in_table=False, min_rows=_RARE_MISSES
            ),
        }
    return found


_NUMBERS = {
    "rmse": _RMSE,
    "nll": _NLL,
    "crps": Metric("CRPS", of.crps, "target"),
    **_bands((0.9, 0.5, 0.95), 0.9),
    **_REST,
    "nll_by_moments": _NLL._replace(
        title="NLL by moments", terms=of.nll_by_moments, in_table=False
    ),
    "aleatoric": Metric(
        "Members' noise", partial(of.uncertainty, part="aleatoric"), "target²", **_ALL
    ),
    "total": Metric("Variance", partial(of.uncertainty, part="total"), "target²", **_ALL),
}
METRICS: dict[str, dict[str, Metric]] = {
    "classes": _CLASSES,
    "numbers": _NUMBERS,
    "counts": _NUMBERS,
}
"""By `Predictive.kind`; the first one is the headline."""


def metrics_of(p: Any) -> dict[str, Metric]:
    """The metrics of a predictive, by name; the first one is the headline."""
    if p.kind == "several":
        return _of_several(p)
    if p.kind == "quantiles":
        losses = {
            "pinball": Metric("Pinball", of.pinball, "target"),
            "rmse": _RMSE,
            "crps": Metric("CRPS", of.crps, "target"),
        }
        return losses | _bands(p.bands, p.bands[0] if p.bands else 0) | _REST
    found = dict(METRICS[p.kind])
    if p.kind == "classes" and p.log_probs.shape[-1] == 2:
        found["auroc"] = Metric("AUROC", of.auroc, "share", 1, (0, 1), row_weight=of.auroc_weight)
    return found


def _of_several(p: Any) -> dict[str, Metric]:
    """The NLL of all targets together; else the mean over targets, of nats the sum."""
    first = metrics_of(p.targets[0])
    joint = {"nll": Metric("NLL of all", of.nll, "nats")} if "nll" in first else {}
    for name, one in first.items():
        if name != "nll":
            over = np.sum if one.unit == "nats" else np.mean
            terms = partial(_over_targets, over, one.terms)
            joint[name] = one._replace(terms=terms, row_weight=0.0)
    return joint


def _over_targets(over: Callable[..., Any], terms: Callable[..., Any], p: Any, y: NDArray) -> Any:
    return over([terms(one, y[:, d]) for d, one in enumerate(p.targets)], axis=0)


def summary(p: Any, y: NDArray) -> dict[str, dict[str, Any]]:
    """Every metric by name, JSON-ready: `value` of the ensemble, and `members` [M]."""
    metrics = metrics_of(p)
    found: dict[str, dict[str, Any]] = {n: {"value": one.value(p, y)} for n, one in metrics.items()}
    for name, one in metrics.items():
        if one.of_members:
            found[name]["members"] = [one.value(each, y) for each in p.members]
    return found


def values(p: Any, y: NDArray, names: Iterable[str] | None = None) -> dict[str, float]:
    """The metrics of a predictive without intervals, by name.

    Args:
        p: `Predictive` of N rows.
        y: Targets [N].
        names: Of the metrics; None: all that it has.
    """
    known = metrics_of(p)
    chosen = known if names is None else known.keys() & names
    return {name: one.value(p, y) for name, one in known.items() if name in chosen}
