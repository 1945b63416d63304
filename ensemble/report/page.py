"""`evaluation/report.html`: one file that fetches nothing and runs no script.

Warnings come first, then the scores, then a section for each question. Text from data, paths and
configurations is escaped.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble.config import flatten
from ensemble.metrics import Estimate, Metric
from ensemble.report import charts, svg
from ensemble.report.findings import OF_ALL, SECTIONS, Finding, warnings_first
from ensemble.report.svg import Chart, escaped
from ensemble.report.table import Row, cells, digits, parts, percent, shown

if TYPE_CHECKING:
    from ensemble.report.evaluation import Evaluation

_WHY = {
    "scores": "All predictors on the same test examples.",
    "calibration": "Agreement of probabilities and intervals with the observed frequencies.",
    "errors": "Uncertainty is useful if it is higher for errors.",
    "members": "Scores of ensembles of fewer members, averaged over subsets.",
    "chains": "Agreement and worth of the draws of the posterior.",
    "shift": "The same test examples, changed by degrees; and inputs unlike the training data.",
    "training": "Scores recorded during training.",
    "about": "Metrics and configuration of this evaluation.",
}
"""Sections by their identifier."""
_MAX_TARGETS, _MAX_WORST, _MAX_COLUMNS, _MAX_CLASSES, _MAX_NAME = 4, 12, 12, 20, 24
_CSS = Path(__file__).with_name("page.css")


def render(e: Evaluation) -> str:
    """Returns the page of an evaluation as HTML."""
    name = escaped(e.about.get("name", "ensemble"))
    links = ""
    body = ""
    for id_, title, why, content in _sections(e):
        if content:
            links += f'<a href="#{id_}">{title}</a>'
            body += f'<section><h2 id="{id_}">{title}</h2><p class="why">{why}</p>{content}'
            body += "</section>"
    facts = "".join(f"<span>{escaped(one)}</span>" for one in e.about.get("facts", ()))
    warnings = [one for one in e.findings if one.level == "warning"]
    top = _list_of(warnings, e) or '<ul class="findings"><li class="good">No warnings.</li></ul>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{name}: evaluation</title>'
        f"<style>{_CSS.read_text()}</style></head><body><header><div>"
        f'<p class="over">Evaluation</p><h1>{name}</h1><p class="facts">{facts}</p>'
        f'<p class="lead">{escaped(lead(e))}</p>{top}<nav>{links}</nav></div></header>'
        f"<main>{_cards(e)}{body}<footer>Intervals are 95% confidence "
        f"intervals over {escaped(e.table.over)}, for these {e.noun}s.</footer></main>"
        "</body></html>"
    )


def lead(e: Evaluation) -> str:
    """The sentences on the score and what averaging gains, without their intervals."""
    found = {one.code: one.text for one in e.findings}
    text = " ".join([found.get("quality", ""), found.get("gain", found.get("gain_nll", ""))])
    return re.sub(r" (\[[^]]*\]|\(AUROC[^)]*\))", "", text)


# Parts of any section.


def _section_of(e: Evaluation, code: str) -> str:
    """The section of a finding; of several targets, those on all of them are with the scores."""
    for name, rules in SECTIONS.items():
        if code in [one.__name__ for one in rules]:
            return "scores" if e.targets else name
    return "chains" if e.chains and e.chains.get("charts") else "scores"


def _list_of(findings: Iterable[Finding], linked: Evaluation | None = None) -> str:
    """Findings as a list, warnings first, with links to their sections."""
    items = ""
    for one in warnings_first(findings):
        text = escaped(one.text)
        if linked is not None:
            text = f'<a href="#{_section_of(linked, one.code)}">{text}</a>'
        items += f'<li class="{one.level}">{text}</li>'
    return f'<ul class="findings">{items}</ul>' if items else ""


def _panel(title: str, note: str, body: str) -> str:
    head = f"<h3>{escaped(title)}</h3><p>{escaped(note)}</p>" if note else ""
    return f'<div class="panel">{head}{body}</div>' if body else ""


def _grid(found: Iterable[Chart], *more: str) -> str:
    """Panels of charts, and others."""
    panels = [_panel(one.title, one.note, one.svg() + _legend(one)) for one in found]
    body = "".join([*panels, *more])
    return f'<div class="grid">{body}</div>' if body else ""


def _legend(chart: Chart) -> str:
    items = "".join(
        f'<span><i class="{kind}"></i>{escaped(name)}</span>' for kind, name in chart.legend.items()
    )
    return f'<div class="legend">{items}</div>' if len(chart.legend) > 1 else ""


def _table(head: Iterable[str], rows: Iterable[Sequence[Any]], kinds: Iterable[str] = ()) -> str:
    """A table of texts, or pairs of a text and a small one; a row begins with its name."""
    body = ""
    for (first, *texts), kind in zip(rows, kinds or itertools.repeat(""), strict=False):
        body += f'<tr class="{kind}"><th>{escaped(first)}</th>'
        for cell in texts:
            text, small = (cell, "") if isinstance(cell, str) else cell
            body += f"<td>{escaped(text)}<small>{escaped(small)}</small></td>"
        body += "</tr>"
    top = "".join(f"<th>{escaped(one)}</th>" for one in head)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>' if body else ""


def _cards(e: Evaluation) -> str:
    """The metrics of the table, each compared with the average member's."""
    average = e.table.values("member")
    html = ""
    metrics = e.table.shown
    for (name, one), (value, ends) in zip(
        metrics.items(), cells(e.table.first("ensemble"), metrics), strict=True
    ):
        member = average.get(name)
        note = f"average {e.noun} {shown(member.value, one)}" if member else f"one {e.noun}"
        if name == "ece":  # It has no interval: chance alone raises it.
            ends = f"by chance up to {digits(e.ece_by_chance[0])}"
        html += (
            f'<div class="card"><h3>{escaped(one.title)}</h3><div class="number">{value}</div>'
            f'<div class="range">{ends}</div>{svg.strip(e.estimate(name), member)}'
            f"<p>{escaped(note)}</p></div>"
        )
    return f'<div class="cards">{html}</div>'


# The sections.


def _sections(e: Evaluation) -> list[tuple[str, str, str, str]]:
    """Identifier, title, sentence and content of each section, also of several targets."""
    contents = (
        _scores(e),
        _grid(charts.calibration(e)),
        _errors(e),
        _grid(charts.sizes(e)),
        _grid(itertools.chain(*(e.chains or {}).get("charts", {}).values())),
        _shift(e),
        _grid(charts.learning_curves(e.records, e.recorded)),
        _about(e),
    )
    found = []
    for (id_, why), body in zip(_WHY.items(), contents, strict=True):
        said = _list_of(one for one in e.findings if _section_of(e, one.code) == id_)
        found.append((id_, id_.capitalize(), why, said + body))
    for d, (name, one) in enumerate([*e.targets.items()][:_MAX_TARGETS]):
        body = _list_of(f for f in one.findings if f.code not in OF_ALL)
        body += _grid(charts.calibration(one)) + _errors(one, False)
        why = f"Target {d + 1} of {len(e.targets)}."
        found.insert(d + 1, (f"target-{d}", name, why, body))
    return found


def _scores(e: Evaluation) -> str:
    metrics = e.table.shown
    rows = [*e.table.rows]
    if e.factor is not None:
        what = "temperature" if e.is_classes else "scale factor"
        calibrated = e.estimates(e.test.scaled(e.factor), metrics)
        rows.append(Row(f"with {what} {digits(e.factor)}", "ensemble", calibrated))
    for name, found in e.comparisons.items():
        scores = {n: Estimate(one["value"]) for n, one in found.items()}
        changes = {n: one["difference"] for n, one in found.items()}
        rows += [Row(name, "member", scores), Row(f"{name} - this run", "gain", changes)]
    body = _panel("", "", _metrics(rows, metrics))
    if e.targets:
        each = [
            Row(name, "ensemble", one.table.values("ensemble")) for name, one in e.targets.items()
        ]
        metrics = next(iter(e.targets.values())).table.shown
        body += _panel("Targets", "Scores of the ensemble on each target.", _metrics(each, metrics))
    return body


def _metrics(rows: Sequence[Row], metrics: Mapping[str, Metric]) -> str:
    """A table of some metrics."""
    titles = ["", *(one.title for one in metrics.values())]
    texts = [(row.title, *cells(row, metrics)) for row in rows]
    return _table(titles, texts, [row.kind for row in rows])


def _errors(e: Evaluation, shows_worst: bool = True) -> str:
    """What abstention gains, the recall of classes, and the worst examples."""
    if e.targets:
        return ""
    rows = []
    if e.is_classes and len(e.recall) > 2:
        worst = np.argsort([one.value for one in e.recall], kind="stable")[:_MAX_CLASSES]
        known = [c for c in worst if np.isfinite(e.recall[c].value)]
        rows = [(_name(e.test.axis[c]), parts(e.recall[c], percent)) for c in known]
    found = _grid(
        [charts.abstention(e)],
        _panel(
            "Classes",
            "Share of each class that is found, worst first, with joint 95% intervals.",
            _table(["", "recall"], rows),
        ),
    )
    return found + _worst(e) if shows_worst else found


def _name(text: Any) -> str:
    return charts.shorten(str(text), _MAX_NAME)


def _worst(e: Evaluation) -> str:
    """The errors of highest confidence, or the targets farthest from their prediction."""
    level, *ends = (0, 0, 0) if e.is_classes else charts.widest(e.test)
    if e.is_classes:
        title = "Most confident errors"
        note = "Wrong labels are often among these."
        far = np.where(e.wrong, e.test.confidence, -1)
    else:
        title = "Largest errors"
        note = f"In widths of the {100 * level:g}% interval."
        far = np.abs(e.y - e.test.median) / np.maximum(ends[1] - ends[0], 1e-12)
    order = np.argsort(-far, kind="stable")[: min(_MAX_WORST, int((far >= 0).sum()))]
    rows = []
    for i in order:
        if e.is_classes:
            predicted = f"{_name(e.test.axis[e.test.labels[i]])} ({percent(far[i])})"
            target = _name(e.test.axis[e.y[i]])
        else:
            predicted = "{} ({} to {})".format(*(digits(one[i]) for one in (e.test.median, *ends)))
            target = digits(e.y[i])
        rows.append([f"no. {i}", predicted, target])
    columns: list[str] = []
    if rows and e.source:
        places = np.sort(order)  # As files are read fastest.
        inputs = e.source.read(e.split, places).inputs[np.searchsorted(places, order)]
        if e.source.has_pictures:
            figures = ""
            bounds = e.source.value_range("train")
            for (name, a, b), pixels in zip(rows, inputs, strict=True):
                figures += (
                    f'<figure><img alt="{name}" src="{svg.image(pixels, *bounds)}"><div>predicted '
                    f"<b>{escaped(a)}</b><br>target <em>{escaped(b)}</em> · {name}</div></figure>"
                )
            return _panel(title, note, f'<div class="worst">{figures}</div>')
        if e.source.table:
            known = e.source.table.rows(inputs)
            columns = list(known[0])[:_MAX_COLUMNS]
            rows = [[*a, *(_name(b[c]) for c in columns)] for a, b in zip(rows, known, strict=True)]
    return _panel(title, note, _table(["", "predicted", "target", *columns], rows))


def _shift(e: Evaluation) -> str:
    body = ""
    for name in dict.fromkeys(name for one in e.shifts.values() for name in one.metrics):
        found = charts.shifts(e, name)
        figures = "".join(
            f"<figure><figcaption>{escaped(one.title)}</figcaption>{one.svg()}</figure>"
            for one in found
        )
        body += _panel(
            f"{e.metrics[name].title} under shift",
            "Against severity; 0 is the test split.",
            f'<div class="multiples">{figures}</div>{_legend(found[0])}',
        )
    rows = [[name, parts(one.auroc, "{:.3f}".format)] for name, one in e.detection.items()]
    return body + _panel(
        "Out-of-distribution detection",
        "AUROC of the total uncertainty, for telling them from test examples.",
        _table((), rows),
    )


def _about(e: Evaluation) -> str:
    units = {"nats": "In nats.", "target": "In the target's unit.", "target²": "In its square."}
    better = {-1: "Lower is better.", 1: "Higher is better.", 0: ""}
    terms = {
        one.title: f"{_doc(one)} {units.get(one.unit, '')} {better[one.better]}"
        for one in e.metrics.values()
    }
    rest = {name: one for name, one in e.metrics.items() if not one.in_table}
    rows = zip(
        [one.title for one in rest.values()], cells(e.table.first("ensemble"), rest), strict=True
    )
    contents = {
        "Other metrics": _table((), rows),
        "Definitions": _list(terms),
        "Configuration": _list(flatten(e.about.get("config", {}))),
    }
    body = "".join(f"<p>{escaped(one)}</p>" for one in e.about.get("notes", ()))
    for title, content in contents.items():
        if content:
            body += f"<details><summary>{title}</summary>{content}</details>"
    return body


def _doc(metric: Metric) -> str:
    return " ".join(
        (inspect.getdoc(getattr(metric.terms, "func", metric.terms)) or "").split("\n\n")[0].split()
    )


def _list(items: Mapping[str, Any]) -> str:
    found = "".join(f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in items.items())
    return f"<dl>{found}</dl>" if found else ""
