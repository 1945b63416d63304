"""Coverage by group and over time: whether a guarantee that holds on average holds in each."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.source import Strata

OVER_BOTH = "test examples and out-of-distribution ones, with these members fixed"
"""What would be drawn anew, where it is scored how well these are told from each other."""
OVER_GROUPS = "groups, with these members fixed"
"""The same where rows of one group may be alike."""
NUM_PERIODS = 5
_ENOUGH = 20  # Rows of a group that a sentence is about.
_TIME = "time"


def by_stratum(held: NDArray, strata: Strata | None) -> list[dict[str, Any]]:
    """How often something holds in each group, the largest first, or in consecutive periods.

    Args:
        held: [N] bool, of the test rows.
        strata: of these; None where there are none.

    Returns:
        Of each its `name`, `num_rows`, `share`, and the 95% `interval` of the share (Clopper
        and Pearson 1934).
    """
    if strata is None:
        return []
    names = _periods(strata) if strata.kind == _TIME else strata.values
    found, first, index = np.unique(names, return_index=True, return_inverse=True)
    counts = np.bincount(index)
    order = np.argsort(-counts, kind="stable")
    if strata.kind == _TIME:
        order = np.argsort(strata.values[first], kind="stable")
    sections = []
    for i in order:
        num_held, count = int(held[index == i].sum()), int(counts[i])
        sections.append(
            {
                "name": str(found[i]),
                "num_rows": count,
                "share": num_held / count,
                "interval": list(metrics.error_interval(num_held, count)),
            }
        )
    return sections


def stratified(evaluation: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The conformal method whose coverage is shown by group or period, and its section.

    Of bands it is the widest, of other intervals the conformalised quantiles. An empty pair where
    rows are split by neither, or nothing is conformal.

    Args:
        evaluation: the content of evaluation.json so far.
    """
    conformal = evaluation.get("conformal", {})  # Several targets have it each.
    for name in ("sets", "quantiles", *list(conformal)[:1]):
        if conformal.get(name, {}).get("by_stratum"):
            return name, conformal[name]
    return "", {}


def _periods(strata: Strata) -> NDArray:
    """The names [N] of periods of about as many rows each; equal times are in one."""
    values = strata.values
    edges = np.unique(np.quantile(values, np.linspace(0, 1, NUM_PERIODS + 1)[1:-1], method="lower"))
    index = np.searchsorted(edges, values, side="left")
    names = np.empty(len(values), object)
    for i in np.unique(index):
        low, high = values[index == i].min(), values[index == i].max()
        ends = [_written(one, strata.has_dates) for one in (low, high)]
        names[index == i] = " to ".join(dict.fromkeys(ends))
    return names.astype(str)


def _written(value: float, is_date: bool) -> str:
    if not is_date:
        return f"{value:.6g}"
    return str(np.datetime64("1970-01-01") + np.timedelta64(int(np.floor(value)), "D"))
