"""Metrics that are computed on request: `auroc:CLASS`, `auprc:CLASS`, `cost:FILE`, or one's own."""

from __future__ import annotations

import csv
import io
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
    known, found = metrics_of(p), {}
    usual = {} if p.kind != "classes" else {"auroc": "CLASS", "auprc": "CLASS", "cost": "FILE"}
    for text in texts:
        name, _, setting = text.partition(":")
        if name in usual and text not in known:
            if not setting:
                raise InputError(f"--metrics={text} lacks its setting. Use {name}:{usual[name]}")
            found[text] = _made(name, setting, label_names)
        elif is_path(text):
            found[text] = _custom(text)
        elif text not in known:
            choices = ", ".join([*map(":".join, usual.items()), *known])
            raise InputError(
                f"--metrics={text}: such predictions have no metric {name}. Use one of {choices}, "
                "or your own as package.module:Name or file.py:Name"
            )
    return found


def _made(name: str, setting: str, label_names: Sequence[str]) -> Metric:
    if name == "cost":
        costs = read_costs(setting, label_names)
        bounds = float(costs.min()), float(costs.max())
        return Metric(f"Mean cost ({setting})", partial(_cost, costs=costs), bounds=bounds)
    label = _class_of(setting, label_names)
    # A metric, and how many rows of the class determine an interval.
    terms, fewest = (of.auroc, 2) if name == "auroc" else (of.average_precision, 30)
    weight = partial(of.auroc_weight, label=label, fewest=fewest)
    title, terms = f"{name.upper()} ({setting})", partial(terms, label=label)
    return Metric(title, terms, "share", 1, (0, 1), row_weight=weight)


def _class_of(name: str, label_names: Sequence[str]) -> int:
    if name in label_names:
        return list(label_names).index(name)
    if name.isdecimal() and int(name) < len(label_names):
        return int(name)
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
    where, number = f"--metrics=cost:{shown(path)}", len(label_names)
    try:
        text = epath.Path(path).expanduser().read_text().removeprefix("\ufeff")
        rows = [[one.strip() for one in row] for row in csv.reader(io.StringIO(text)) if row]
        order = np.arange(number)
        # Numbers in the first of as many lines as classes are costs, even if classes are so named.
        if len(rows) > number and sorted(rows[0]) == sorted(label_names):
            order = np.array([rows[0].index(name) for name in label_names])
            rows = rows[1:]
        costs = np.array(rows, np.float64)
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"{where} cannot be read as costs ({error}). Use a CSV file of numbers, perhaps below "
            "the names of the classes"
        ) from None
    if costs.ndim != 2 or len(costs) != number or not np.isfinite(costs).all() or not np.ptp(costs):
        raise InputError(
            f"{where} has shape {costs.shape}. Use a row of finite costs, not all the same, for "
            f"each of the {number} classes, and a column for each decision"
        )
    costs = costs[order]
    return costs[:, order] if costs.shape[1] == number else costs


def _custom(path: str) -> Metric:
    """A user's metric by its path; its faults become one line."""
    found = given_or_imported(path, f"--metrics={path}")
    metric = found if isinstance(found, Metric) else Metric(path.rpartition(":")[2], found)
    if not callable(metric.terms):
        raise InputError(
            f"--metrics={path} is a {type(found).__name__}. Use a function (predictive, targets) "
            "-> [N] or an ensemble.metrics.Metric"
        )
    return metric._replace(terms=_guarded(metric, path))


def _guarded(metric: Metric, path: str) -> Callable[..., Any]:
    @wraps(metric.terms)
    def terms(p: Any, y: NDArray) -> Any:
        try:
            values = np.asarray(metric.terms(p, y), np.float64)
        except InputError:
            raise
        except Exception as error:  # A user's program may raise anything.
            raise InputError(f"the metric {path} failed {in_own_code(error)}") from error
        if values.shape not in ((), (len(p),)):
            raise InputError(
                f"the metric {path} returns shape {list(values.shape)}. Return a value for each of "
                f"the {len(p)} rows, or a single number"
            )
        return values

    return terms
