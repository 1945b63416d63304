"""Metrics that are computed on request: `auroc:CLASS`, `auprc:CLASS`, `cost:FILE`, or one's own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from ensemble.config.pieces import given_or_imported, is_path
from ensemble.errors import InputError, in_own_code, shown
from ensemble.metrics import functions as of
from ensemble.metrics.metric import Metric, Metrics, metrics_of


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


def _ranked(terms: Any, title: str, name: str, classes: list[str]) -> Metric:
    for names in (classes, [*map(str, range(len(classes)))]):
        if name in names:
            of_class = {"label": names.index(name)}
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


def _cost(p: Any, y: NDArray, costs: NDArray) -> NDArray:
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

    def terms(p: Any, y: NDArray) -> NDArray:
        try:
            values = np.asarray(metric.terms(p, y), np.float64)
            if values.shape not in ((), (len(p),)):
                raise ValueError(f"{list(values.shape)} is no shape of {len(p)} rows or one number")
        except Exception as error:  # A user's program may raise anything.
            raise InputError(f"the metric {path} failed {in_own_code(error)}") from error
        return values

    return metric._replace(terms=terms)
