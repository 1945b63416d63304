"""Metrics that are computed on request: `auroc:CLASS`, `auprc:CLASS`, `cost:FILE`, or one's own."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from ensemble.config.pieces import given_or_imported, is_path
from ensemble.errors import InputError, in_own_code, shown
from ensemble.metrics import functions as of
from ensemble.metrics.metric import Metric, metrics_of


def requested(texts: Iterable[str], p: Any, label_names: Sequence[str] = ()) -> dict[str, Metric]:
    """Metrics that a user asks for, by their texts.

    Args:
        texts: `auroc:CLASS`, `auprc:CLASS`, `cost:FILE`, or the path of a function
            `(Predictive, y) -> [N]` or of a `Metric`; names of usual metrics are skipped.
        p: `Predictive` that is scored.
        label_names: Names of the classes; empty if targets are no classes.

    Raises:
        InputError: There is no such metric for such predictions, or no such class or file.
    """
    known = metrics_of(p)
    found = {}
    made = _OF_CLASSES if p.kind == "classes" else {}
    for text in texts:
        name, _, setting = text.partition(":")
        if name in made and setting:
            found[text] = made[name](setting, label_names)
        elif name in _OF_CLASSES and setting:
            raise InputError(f"--metrics={text}: {name} is for classes. Remove it")
        elif is_path(text):
            found[text] = _custom(text)
        elif text not in known:
            choices = ", ".join([*(f"{one}:{_SETTINGS[one]}" for one in made), *known])
            raise InputError(
                f"--metrics={text}: such predictions have no metric {name}. Use one of {choices}, "
                "or your own as package.module:Name or file.py:Name"
            )
    return found


def _ranked(name: str, label_names: Sequence[str], title: str, terms: Any, fewest: int) -> Metric:
    label = _class_of(name, label_names)
    weight = partial(of.auroc_weight, label=label, fewest=fewest)
    terms = partial(terms, label=label)
    return Metric(f"{title} ({name})", terms, "share", 1, (0, 1), row_weight=weight)


def _costs(path: str, label_names: Sequence[str]) -> Metric:
    costs = read_costs(path, label_names)
    bounds = float(costs.min()), float(costs.max())
    return Metric(f"Mean cost ({path})", partial(_cost, costs=costs), bounds=bounds)


_SETTINGS = {"auroc": "CLASS", "auprc": "CLASS", "cost": "FILE"}
_OF_CLASSES: dict[str, Callable[[str, Sequence[str]], Metric]] = {
    "auroc": partial(_ranked, title="AUROC", terms=of.auroc, fewest=2),
    "auprc": partial(_ranked, title="AUPRC", terms=of.average_precision, fewest=30),
    "cost": _costs,
}
"""Metrics by class name or file; `fewest` rows of a class determine an interval."""


def _class_of(name: str, label_names: Sequence[str]) -> int:
    for names in (list(label_names), [*map(str, range(len(label_names)))]):
        if name in names:
            return names.index(name)
    known = ", ".join(map(shown, label_names[:10]))
    raise InputError(
        f"--metrics: there is no class {shown(name)} among {len(label_names)}. Use one of {known} "
        "or its number"
    )


def _cost(p: Any, y: NDArray, costs: NDArray) -> NDArray:
    """Cost of the decision with the least expected cost (Elkan 2001, section 1)."""
    decisions = (np.exp(p.log_probs) @ costs).argmin(axis=1)
    return costs[y, decisions]


def read_costs(path: str, label_names: Sequence[str]) -> NDArray:
    """Reads a matrix of costs [C, D] from a CSV file.

    Args:
        path: File with a row per class and a column per decision. A first line with the names of
            the classes, in any order, assigns rows (and, of C decisions, columns) to classes.
        label_names: Names of the classes.

    Raises:
        InputError: There is no such file, or no such matrix in it.
    """
    number = len(label_names)
    names = list(label_names)
    try:
        lines = epath.Path(path).expanduser().read_text().removeprefix("\ufeff").splitlines()
        rows = [[one.strip() for one in row] for row in csv.reader(lines) if row]
        # Numbers in the first of as many lines as classes are costs, even if classes are so named.
        if len(rows) > number and sorted(rows[0]) == sorted(names):
            names, *rows = rows
        costs = np.array(rows, np.float64)
        if costs.ndim != 2 or len(costs) != number or not (0 < np.ptp(costs) < np.inf):
            raise ValueError(f"shape {costs.shape}")
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"--metrics=cost:{shown(path)} cannot be read as costs ({error}). Use a CSV file with "
            f"a row of finite costs, not all the same, for each of the {number} classes, perhaps "
            "below the names of the classes"
        ) from None
    order = [names.index(name) for name in label_names]
    costs = costs[order]
    return costs[:, order] if costs.shape[1] == number else costs


def _custom(path: str) -> Metric:
    """A user's metric by its path; its faults become one line."""
    found = given_or_imported(path, f"--metrics={path}")
    metric = found if isinstance(found, Metric) else Metric(path.rpartition(":")[2], found)

    @wraps(metric.terms)
    def terms(p: Any, y: NDArray) -> Any:
        try:
            values = np.asarray(metric.terms(p, y), np.float64)
            if values.shape not in ((), (len(p),)):
                raise ValueError(f"{list(values.shape)} is no shape of {len(p)} rows or one number")
        except InputError:
            raise
        except Exception as error:  # A user's program may raise anything.
            raise InputError(f"the metric {path} failed {in_own_code(error)}") from error
        return values

    return metric._replace(terms=terms)
