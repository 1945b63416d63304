"""Metrics by kind of target. A new one is a function and one line here; the rest follows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.config.pieces import given_or_imported, is_path
from ensemble.errors import InputError, in_own_code, shown
from ensemble.metrics import functions as of
from ensemble.metrics.interval import Bounds, Estimate, has_heavy_tail, interval

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
    terms: Any
    unit: str = ""
    better: int = -1
    bounds: Bounds = None
    in_table: bool = True
    of_members: bool = True
    heavy_tailed: bool = False
    row_weight: Any = 1.0
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
        """The second metric less the first, paired; shared errors do not make its tails heavy.

        Differences of like predictors are nearly symmetric, and a few rows decide them. Without
        pseudo-rows they have no correction of skewness, which would follow these few.

        Args:
            ours: Terms [N] of one predictive, or the number.
            theirs: Terms of another on the same rows.
            groups: Labels [N] of rows that may be alike; None: rows are independent.
            level: Probability that the interval holds the expected difference.
        """
        theirs = np.asarray(theirs, np.float64)
        with np.errstate(invalid="ignore"):  # Of two infinite terms.
            found = theirs - ours
            # Rounding makes no differences.
            found = np.where(np.abs(found) <= 1e-12 * np.abs(theirs), 0, found)
        if np.size(found) < self.min_rows:
            return Estimate(float(np.mean(found)))
        weight = 0.0 if callable(self.row_weight) else self.row_weight
        span: Any = self.bounds and np.ptp(self.bounds)
        bounds = span and (-span, span)
        is_smooth = not (bounds and weight)
        how: Any = {"level": level, "weight": weight, "symmetric": is_smooth}
        return interval(found, groups, bounds=bounds, **how)

    def member_terms(self, p: Any, y: NDArray) -> NDArray:
        """Terms [M, N] of every member, or [M] of a metric without terms."""
        return np.stack([self.terms(one, y) for one in p.members])


Metrics = dict[str, Metric]
_MISSES = 20
"""Fewer targets outside of intervals decide their score: simulations cover 89 to 95%."""
_ALL: Any = {"better": 0, "in_table": False, "of_members": False}
"""Settings of metrics that describe an ensemble and are neither good nor bad."""
_SHARE: Any = {"unit": "share", "bounds": (0, 1)}


def _uncertainty(title: str, unit: str, part: str) -> Metric:
    return Metric(title, partial(of.uncertainty, part=part), unit, **_ALL)


_CLASSES = {
    "accuracy": Metric("Accuracy", of.accuracy, better=1, **_SHARE),
    "nll": Metric("NLL", of.nll, "nats", row_weight=of.smooth_if_errors),
    "brier": Metric("Brier", of.brier, bounds=(0, 2)),
    "ece": Metric("ECE", of.ece),
    "adaptive_ece": Metric("Adaptive ECE", of.adaptive_ece, in_table=False),
    "aurc": Metric("AURC", of.aurc, bounds=(0, 1), row_weight=of.smooth_if_errors),
    "accuracy_at_80": Metric(
        "Accuracy at 80%", of.accuracy_at_80, better=1, in_table=False, row_weight=1.25, **_SHARE
    ),
    "balanced_accuracy": Metric(
        *("Balanced accuracy", of.balanced_accuracy, "share", 1, (0, 1), False),
        row_weight=of.balanced_weight,
    ),
    "overconfidence": Metric(
        "Confidence - accuracy", of.overconfidence, "share", bounds=(-1, 1), **_ALL
    ),
    "disagreement": Metric("Disagreement", of.disagreement, **_SHARE, **_ALL),
    "total": _uncertainty("Total uncertainty", "nats", "total"),
    "aleatoric": _uncertainty("Aleatoric", "nats", "aleatoric"),
    "epistemic": _uncertainty("Epistemic", "nats", "epistemic"),
}
_ERRORS = {
    "rmse": Metric("RMSE", of.rmse, "target", heavy_tailed=True),
    "crps": Metric("CRPS", of.crps, "target"),
    "mae": Metric("MAE", of.mae, "target", in_table=False),
    "r2": Metric("R²", of.r2, better=1, in_table=False),
    "epistemic": _uncertainty("Members' disagreement", "target²", "epistemic"),
}


def _bands(levels: Iterable[float], in_table: float) -> Metrics:
    found: Metrics = {}
    for level in levels:
        held, width, score = (
            partial(one, level=level) for one in (of.coverage, of.width, of.interval_score)
        )
        name = f"{100 * level:.4g}"
        shown: Any = {"better": 0, "in_table": level == in_table}
        few: Any = {"in_table": False, "min_rows": round(_MISSES / (1 - level))}
        found |= {
            f"coverage_{name}": Metric(f"{name}% coverage", held, **_SHARE, **shown),
            f"width_{name}": Metric(f"{name}% width", width, "target", **shown),
            f"interval_score_{name}": Metric(f"{name}% interval score", score, "target", **few),
        }
    return found


_DENSITIES = {
    "rmse": _ERRORS["rmse"],
    "nll": Metric("NLL", of.nll, "nats", heavy_tailed=True),
    **_ERRORS,
    **_bands((0.9, 0.5, 0.95), 0.9),
    "nll_by_moments": Metric(
        "NLL by moments", of.nll_by_moments, "nats", in_table=False, heavy_tailed=True
    ),
    "aleatoric": _uncertainty("Members' noise", "target²", "aleatoric"),
    "total": _uncertainty("Variance", "target²", "total"),
}
_AUROC = Metric("AUROC", of.auroc, better=1, row_weight=of.auroc_weight, **_SHARE)
METRICS: dict[str, Metrics] = {
    "classes": _CLASSES,
    "numbers": _DENSITIES,
    "counts": _DENSITIES,
}
"""By `Predictive.kind`; the first one is the headline."""


def metrics_of(p: Any) -> Metrics:
    """The metrics of a predictive, by name; the first one is the headline."""
    if p.kind == "several":
        return _of_several(p)
    if p.kind == "quantiles":
        loss = {"pinball": Metric("Pinball loss", of.pinball, "target")}
        return loss | _ERRORS | _bands(p.bands, max(p.bands, default=0))
    if p.kind == "classes" and p.log_probs.shape[-1] == 2:
        return {**_CLASSES, "auroc": _AUROC}
    return METRICS[p.kind]


def _of_several(p) -> Metrics:
    """The NLL of all targets together; else the mean over targets, of nats the sum."""
    first = metrics_of(p.targets[0])
    joint = {"nll": Metric("NLL of all", of.nll, "nats")} if "nll" in first else {}
    for name, one in pytrees.without(first, "nll").items():
        joint[name] = one._replace(terms=partial(_over_targets, one))
    return joint


def _over_targets(metric: Metric, p, y: NDArray):
    over = np.sum if metric.unit == "nats" else np.mean
    return over([metric.terms(one, y[:, d]) for d, one in enumerate(p.targets)], axis=0)


def values(p: Any, y: NDArray, names: Iterable[str] | None = None) -> dict[str, float]:
    """The metrics of a predictive without intervals, by name.

    Args:
        p: `Predictive` of N rows.
        y: Targets [N].
        names: Of the metrics; None: all that it has.
    """
    known = metrics_of(p)
    return {name: known[name].value(p, y) for name in known if names is None or name in names}


# On request.


def requested(texts: Iterable[str], p: Any) -> Metrics:
    """Metrics that a user asks for, by their texts.

    Args:
        texts: `auroc:CLASS`, `auprc:CLASS`, `cost:FILE`, or the path of a function
            `(Predictive, y) -> [N]` or of a `Metric`; names of usual metrics are skipped.
        p: `Predictive` that is scored.

    Raises:
        InputError: There is no such metric for such predictions, or no such class or file.
    """
    known = metrics_of(p)
    found = {}
    for text in texts:
        name, _, setting = text.partition(":")
        if name in _OF_CLASSES and setting and p.kind == "classes":
            found[text] = _OF_CLASSES[name](setting, p.axis)
        elif is_path(text):
            found[text] = _custom(text)
        elif text not in known:
            raise InputError(
                f"--metrics={text}: such predictions have no metric {name}. Use one of "
                f"{', '.join(known)}, of classes auroc:CLASS, auprc:CLASS or cost:FILE, or your "
                "own as package.module:Name or file.py:Name"
            )
    return found


def _ranked(terms, title: str, name: str, classes: list[str]) -> Metric:
    for names in (classes, [*map(str, range(len(classes)))]):
        if name in names:
            of_class: Any = {"label": names.index(name)}
            weight = partial(of.auroc_weight, **of_class)
            terms = partial(terms, **of_class)
            return Metric(f"{title} ({name})", terms, "share", 1, (0, 1), row_weight=weight)
    raise InputError(
        f"--metrics: there is no class {shown(name)} among {len(classes)}. Use one of "
        f"{', '.join(map(shown, classes[:10]))} or its number"
    )


def _costs(path: str, classes: list[str]) -> Metric:
    """The metric of a CSV file with a row of costs per class and a column per decision."""
    try:
        lines = epath.Path(path).expanduser().read_text().splitlines()
        costs = np.loadtxt(lines, delimiter=",", ndmin=2)
        if len(costs) != len(classes) or not 0 < np.ptp(costs) < np.inf:
            raise ValueError(f"shape {costs.shape}")
    except (OSError, ValueError) as error:
        raise InputError(
            f"--metrics=cost:{shown(path)} cannot be read as costs ({error}). Use a CSV file with "
            f"a row of finite costs, not all the same, for each of the {len(classes)} classes"
        ) from None
    bounds = float(costs.min()), float(costs.max())
    return Metric(f"Mean cost ({path})", partial(_cost, costs=costs), bounds=bounds)


def _cost(p, y: NDArray, costs: NDArray) -> NDArray:
    """Cost of the decision with the least expected cost (Elkan 2001, section 1)."""
    return costs[y, (p.probs @ costs).argmin(axis=1)]


_OF_CLASSES: Any = {
    "auroc": partial(_ranked, of.auroc, "AUROC"),
    "auprc": partial(_ranked, of.average_precision, "AUPRC"),
    "cost": _costs,
}
"""Metrics by class name or file."""


def _custom(path: str) -> Metric:
    """A user's metric by its path; its faults become one line."""
    found = given_or_imported(path, f"--metrics={path}")
    metric = found if isinstance(found, Metric) else Metric(path.rpartition(":")[2], found)

    def terms(p, y: NDArray) -> NDArray:
        try:
            values = np.asarray(metric.terms(p, y), np.float64)
            if values.shape not in ((), (len(p),)):
                raise ValueError(f"{list(values.shape)} is no shape of {len(p)} rows or one number")
        except Exception as error:  # A user's program may raise anything.
            raise InputError(f"the metric {path} failed {in_own_code(error)}") from error
        return values

    return metric._replace(terms=terms)
