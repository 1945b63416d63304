"""`evaluation/report.html`: one file that fetches nothing and runs no script.

Findings come first, of these the warnings, then the scores, then a section for each question. Text
from data, paths and configurations is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble.metrics import Estimate
from ensemble.report import charts, svg
from ensemble.report.findings import Finding, warnings_first
from ensemble.report.svg import Chart, escaped
from ensemble.report.table import ByName, Row, cells, digits, parts, percent

if TYPE_CHECKING:
    from ensemble.report.evaluation import Evaluation

_MAX_TARGETS = 4
_MAX_WORST = 12
_MAX_CLASSES = 20
_CSS = Path(__file__).with_name("page.css")


def render(e: Evaluation) -> str:
    """Returns the page of an evaluation as HTML."""
    name = escaped(e.about.get("name", "ensemble"))
    links = ""
    body = ""
    for k, (title, why, content) in enumerate(_sections(e)):
        if content:
            links += f'<a href="#part-{k}">{title}</a>'
            body += f'<section><h2 id="part-{k}">{title}</h2><p class="why">{why}</p>{content}'
            body += "</section>"
    facts = escaped(" · ".join(e.about.get("facts", ())))
    levels = {one.level for one in e.findings}
    nothing = [] if "warning" in levels else [Finding("", "good", "No warnings.")]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{name}: evaluation</title>'
        f"<style>{_CSS.read_text()}</style></head><body><header><div>"
        f'<p class="over">Evaluation</p><h1>{name}</h1><p class="facts">{facts}</p>'
        f"{_list_of([*nothing, *e.findings])}<nav>{links}</nav></div></header><main>{body}<footer>"
        f"Intervals are 95% confidence intervals over {escaped(e.over)}, for these {e.noun}s."
        "</footer></main></body></html>"
    )


# Parts of any section.


def _list_of(findings: Iterable[Finding]) -> str:
    """Findings as a list, warnings first."""
    items = "".join(
        f'<li class="{one.level}">{escaped(one.text)}</li>' for one in warnings_first(findings)
    )
    return f'<ul class="findings">{items}</ul>'


def _panel(title: str, body: str, note: str = "") -> str:
    why = f"<p>{escaped(note)}</p>" * bool(note)
    return f'<div class="panel"><h3>{escaped(title)}</h3>{why}{body}</div>'


def _grid(found: Iterable[Chart], more: str = "") -> str:
    """Panels of charts, and others."""
    panels = "".join(_panel(one.title, one.svg() + _legend(one)) for one in found) + more
    return f'<div class="grid">{panels}</div>' if panels else ""


def _legend(chart: Chart) -> str:
    names = {mark.kind: mark.name for mark in chart.marks if mark.name}
    items = [f'<span><i class="{kind}"></i>{escaped(name)}</span>' for kind, name in names.items()]
    return f'<div class="legend">{"".join(items)}</div>' if len(names) > 1 else ""


def _table(title: str, head, rows, note: str = "") -> str:
    """A panel of rows: each has a kind, a name, and pairs of a text and a small one."""
    body = ""
    for kind, first, *pairs in rows:
        body += f'<tr class="{kind}"><th>{escaped(first)}</th>'
        for text, small in pairs:
            body += f"<td>{escaped(text)}<small>{escaped(small)}</small></td>"
        body += "</tr>"
    top = "".join(f"<th>{escaped(one)}</th>" for one in head)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return _panel(title, f'<div class="scroll" tabindex="0">{table}</div>', note) if body else ""


# The sections.


def _sections(e: Evaluation) -> list[Any]:
    """Title, sentence and content of each section; several targets have one each."""
    who = f"{e.noun}s"
    shift = "The same test examples, changed by degrees; and inputs unlike the training data."
    why = (
        "On the diagonal, predictions agree with the observed shares; bars are 95% intervals. "
        "Abstention leaves out the least certain examples."
    )
    each = [
        (name, why, _list_of(one.findings) + _predictions(one))
        for name, one in [*e.targets.items()][:_MAX_TARGETS]
    ]
    aurocs = [("", name, parts(one["auroc"], percent)) for name, one in e.detection.items()]
    note = "AUROC of the total uncertainty, for telling them from test examples."
    others = _table("Out-of-distribution detection", (), aurocs, note)
    curves = charts.learning_curves(e.records, e.main)
    return [
        ("Scores", "All predictors on the same test examples.", _scores(e)),
        *(each or [("Predictions", why, _predictions(e))]),
        (
            who.capitalize(),
            f"Scores of ensembles of fewer {who}.",
            _grid([*charts.sizes(e), *e.traces]),
        ),
        ("Shift", shift, _grid(charts.shifts(e), others)),
        ("Training", "Scores recorded during training.", _grid(curves)),
    ]


def _scores(e: Evaluation) -> str:
    rows = [*e.rows]
    if e.factor is not None:
        what = "temperature" if e.is_classes else "scale factor"
        calibrated = e.estimates(e.test.scaled(e.factor), e.shown)
        rows.append(Row(f"with {what} {digits(e.factor)}", "ensemble", calibrated))
    for name, found in e.comparisons.items():
        scores = {n: Estimate(one["value"]) for n, one in found.items()}
        changes = {n: one["difference"] for n, one in found.items()}
        rows += [Row(name, "member", scores), Row(f"{name} - this run", "gain", changes)]
    note = f"ECE by chance: up to {digits(e.ece_by_chance)}." if e.is_classes else ""
    body = _metrics("All predictors", rows, e.shown, note)
    each = [Row(name, "ensemble", one.whole) for name, one in e.targets.items()]
    for one in [*e.targets.values()][:1]:
        body += _metrics("Targets", each, one.shown)
    rest = {name: one for name, one in e.metrics.items() if not one.in_table}
    body += _metrics("Other metrics", [Row("ensemble", "ensemble", e.whole)], rest)
    return body + "".join(f"<p>{escaped(one)}</p>" for one in e.about.get("notes", ()))


def _metrics(title: str, rows: Iterable[Row], metrics: ByName, note: str = "") -> str:
    """A table of some metrics."""
    titles = ["", *(one.title for one in metrics.values())]
    texts = [(row.kind, row.title, *cells(row, metrics)) for row in rows]
    return _table(title, titles, texts, note)


def _predictions(e: Evaluation) -> str:
    """Calibration, abstention, the recall of classes and the worst examples."""
    worst = np.argsort([one.value for one in e.recall], kind="stable")[:_MAX_CLASSES]
    rows = [
        ("", e.test.axis[c], parts(e.recall[c], percent))
        for c in worst
        if np.isfinite(e.recall[c].value) and len(e.recall) > 2
    ]
    note = "Share of each class that is found, worst first, with joint 95% intervals."
    panel = _table("Classes", ["", "recall"], rows, note)
    return _grid([charts.calibration(e), charts.abstention(e)], panel) + _worst(e)


def _worst(e: Evaluation) -> str:
    """The errors of highest confidence, or the targets farthest from their prediction."""
    p = e.test
    if e.is_classes:
        title, predicted, far = "Most confident errors", p.labels, e.wrong * p.confidence
    else:
        title, predicted, far = "Largest errors", p.median, np.abs(e.y - p.median)
    order = np.argsort(-far, kind="stable")[:_MAX_WORST]
    order = order[far[order] > 0]
    show = (lambda c: p.axis[c]) if e.is_classes else digits
    rows = [("", f"no. {i}", (show(predicted[i]), ""), (show(e.y[i]), "")) for i in order]
    if not rows or not e.source or not e.source.has_pictures:
        return _table(title, ["", "predicted", "target"], rows)
    places = np.sort(order)  # As files are read fastest.
    inputs = e.source.read(e.split, places).inputs[np.searchsorted(places, order)]
    ends = e.source.value_range("train")
    figures = "".join(
        f'<figure><img alt="{name}" src="{svg.image(pixels, *ends)}"><div>predicted '
        f"<b>{escaped(a)}</b><br>target <em>{escaped(b)}</em> · {name}</div></figure>"
        for (_, name, (a, _), (b, _)), pixels in zip(rows, inputs, strict=True)
    )
    return _panel(title, f'<div class="worst">{figures}</div>')
