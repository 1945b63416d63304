"""Coverage by group and over time: whether a promise that holds on average holds in each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.source import Source, Strata

NUM_PERIODS = 5
_TIME = "time"


def strata_of(source: Source | None) -> Strata | None:
    """What the test rows are split by; None where they are split at random, or are not here."""
    return None if source is None else source.strata("test")


def by_stratum(held: NDArray, strata: Strata | None) -> list[dict[str, Any]]:
    """How often something holds in each group, the largest first, or in consecutive periods.

    Args:
        held: [N] bool, of the test rows.
        strata: of these; None where there are none.

    Returns:
        Of each its `name`, `num_examples`, `share`, and the 95% `interval` of the share (Clopper
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
                "num_examples": count,
                "share": num_held / count,
                "interval": list(metrics.error_interval(num_held, count)),
            }
        )
    return sections


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
