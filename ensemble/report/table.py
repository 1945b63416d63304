"""The one table, of a training and of an evaluation: baselines, average member, ensemble, gain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ensemble.errors import aligned
from ensemble.metrics import Estimate, Metric

if TYPE_CHECKING:
    from ensemble.report.evaluation import Evaluation

Json = dict[str, Any]
"""Content of a JSON object."""
ByName = Mapping[str, Any]
"""Anything by its name."""
MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        title: What predicts.
        kind: "baseline", "draw", "member", "sd", "ensemble" or "gain".
        values: Estimates by metric.
    """

    title: str
    kind: str
    values: Mapping[str, Estimate]


class Table(NamedTuple):
    """Metrics of a split.

    Attributes:
        metrics: By name.
        rows: Of the table.
        members: Metrics of every member, [M] by name.
        over: What intervals are over.
    """

    metrics: Mapping[str, Metric]
    rows: list[Row]
    members: Mapping[str, list[float]]
    over: str

    def values(self, kind: str) -> Mapping[str, Estimate]:
        """Estimates of the first row of a kind; empty if there is none."""
        return next((one.values for one in self.rows if one.kind == kind), {})

    @property
    def shown(self) -> dict[str, Metric]:
        """The metrics that the table shows."""
        return {name: one for name, one in self.metrics.items() if one.in_table}

    def text(self) -> str:
        """For a terminal."""
        lines = [["", *(one.title for one in self.shown.values())]]
        for row in self.rows:
            values, intervals = zip(*cells(row, self.shown), strict=True)
            lines.append([row.title, *values])
            if row.kind in ("ensemble", "gain"):
                lines.append(["  95% interval", *intervals])
        last = f"Intervals are 95%, over {self.over}, with these members."
        return "\n".join([*aligned(lines), last])

    def json(self) -> Json:
        """`metrics` with intervals and members, `gain`, `single_draw` and `baselines`."""
        metrics = as_data(self.values("ensemble"))
        for name, members in self.members.items():
            metrics[name]["members"] = members
        baselines = {one.title: one.values for one in self.rows if one.kind == "baseline"}
        return {
            "metrics": metrics,
            "gain": as_data(self.values("gain")),
            "single_draw": {name: one.value for name, one in self.values("draw").items()},
            "baselines": as_data(baselines),
            "intervals_over": self.over,
        }


def as_data(value: Any) -> Any:
    """Returns named tuples as dicts, also within dicts and lists."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: as_data(one) for key, one in value.items()}
    return [as_data(one) for one in value] if isinstance(value, list | tuple) else value


def table(e: Evaluation) -> Table:
    """Scores an ensemble, its members and simple baselines on the same rows."""
    p = e.test
    rows = [
        Row(title, "baseline", e.estimates(other, e.shared(other)))
        for title, other in e.simple.items()
    ]
    if e.draw:
        single = {name: Estimate(one) for name, one in e.draw.items() if name in e.metrics}
        rows.append(Row("average draw", "draw", single))
    members = {}
    means = {}
    sds = {}
    gains = {}
    for name, one in e.metrics.items():
        if one.of_members:
            terms = one.member_terms(p, e.y)
            each = terms.reshape(len(terms), -1).mean(axis=1)
            members[name] = each.tolist()
            means[name] = Estimate(float(each.mean()))
            with np.errstate(invalid="ignore"):
                sds[name] = Estimate(float(each.std(ddof=len(each) > 1)))
            if one.better:
                gains[name] = one.difference(terms.mean(axis=0), one.terms(p, e.y), e.groups)
    is_one = p.num_members == 1
    if not is_one:
        rows.append(Row(f"average {e.noun}", "member", means))
        rows.append(Row(f"sd of {e.noun}s", "sd", sds))
    title = f"one {e.noun}" if is_one else f"ensemble of {p.num_members}"
    rows.append(Row(title, "ensemble", e.estimates(p, e.metrics)))
    if not is_one:
        rows.append(Row(f"ensemble - average {e.noun}", "gain", gains))
    groups = "" if e.groups is None else f"{len(np.unique(e.groups))} groups of "
    return Table(e.metrics, rows, members, f"{groups}{e.split} examples")


def joint(number: int) -> float:
    """Level of each of several intervals that hold together (Bonferroni)."""
    return 1 - 0.05 / max(number, 1)


# How numbers are shown.


def digits(value: float | None, signed: bool = False) -> str:
    """Four significant digits, of which at most four stand behind the point."""
    if value is None or math.isnan(value):
        return DASH
    size = abs(value)
    before = len(f"{size:.0f}") if round(size, 4) >= 1 else 0
    form = ".2g" if 0 < size < 5e-5 else f",.{max(4 - before, 0)}f"
    return f"{value + 0.0:{'+' * signed}{form}}".replace("-", MINUS).replace("inf", "\N{INFINITY}")


def percent(value: float, places: int = 1, signed: bool = False) -> str:
    """A share as percent."""
    text = DASH if math.isnan(value) else f"{value:{'+' * signed}.{places}%}"
    return text.replace("-", MINUS)


def shown(value: float, one: Metric, signed: bool = False) -> str:
    """A value in the unit of a metric."""
    return percent(value, 2, signed) if one.unit == "share" else digits(value, signed)


def parts(found: Estimate, show: Callable[[Any], str]) -> tuple[str, str]:
    """Texts of a number and of its interval, which may be unknown."""
    ends = f"{show(found.low)} to {show(found.high)}" if found.is_known else ""
    return show(found.value), ends


def cells(row: Row, metrics: Mapping[str, Metric]) -> list[tuple[str, str]]:
    """Texts of the values of a row and of their intervals; differences of shares are in points."""
    is_gain = row.kind == "gain"
    found = []
    for name, one in metrics.items():
        value, ends = "", ""
        if name in row.values:
            value, ends = parts(row.values[name], partial(shown, one=one, signed=is_gain))
        if is_gain:
            value = value.replace("%", " pts")
            ends = ends.replace("%", "")
        found.append((value, ends))
    return found
