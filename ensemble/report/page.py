"""`evaluation/report.html`: one file that fetches nothing and runs no script.

Warnings come first, then the scores, then a section for each question. Text from data, paths and
configurations is escaped.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ensemble.config import flatten
from ensemble.metrics import Estimate, Metric
from ensemble.report import charts, svg
from ensemble.report.findings import Finding
from ensemble.report.svg import Chart, escaped
from ensemble.report.table import Row, digits, percent, shown

if TYPE_CHECKING:
    from ensemble.report.evaluation import Evaluation

SECTIONS = {
    "scores": ("quality", "gain", "gain_nll", "impossible", "baseline", "comparison", "groups"),
    "calibration": ("calibration", "calibration_by_level", "pit", "factor", "conformal"),
    "errors": (
        "ranking",
        "abstention",
        "requested_rules",
        "guarantee",
        "weak_class",
        "confident_errors",
    ),
    "members": ("agreement", "more_members", "harmful_member"),
    "chains": (
        "convergence",
        "divergences",
        "swaps",
        "step_not_found",
        "step_too_long",
        "predictions_of_chains",
        "evidence",
        "temperature",
        "unadjusted",
    ),
    "shift": ("shift_costs", "shift_overconfidence", "shift_gain", "detection"),
}
"""Sections by their identifier, with the codes of the findings that each one shows."""
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
_MAX_TARGETS, _MAX_WORST, _MAX_COLUMNS, _MAX_CLASSES, _MAX_NAME = 4, 12, 12, 20, 24
_CSS = Path(__file__).with_name("page.css")
Section = tuple[str, str, str, str]
"""Identifier, name, sentence and content; without content it is left out."""
Show = Callable[[Any], str]


def render(e: Evaluation) -> str:
    """Returns the page of an evaluation as HTML."""
    name = escaped(e.about.get("name", "ensemble"))
    sections = [one for one in _sections(e) if one[-1]]
    links = "".join(f'<a href="#{id_}">{escaped(name)}</a>' for id_, name, *_ in sections)
    facts = "".join(f"<span>{escaped(one)}</span>" for one in e.about.get("facts", ()))
    body = "".join(
        f'<section><h2 id="{id_}">{escaped(name)}</h2><p class="why">{escaped(why)}</p>{content}'
        "</section>"
        for id_, name, why, content in sections
    )
    failed = e.about.get("failed_members", {}).items()
    warnings = [
        *(
            Finding("failed_members", "warning", f"{e.noun.capitalize()} {k} is left out: {why}.")
            for k, why in failed
        ),
        *(one for one in e.findings if one.level == "warning"),
    ]
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


def notebook(e: Evaluation) -> str:
    """Returns the page in a frame, as a notebook's cell shows it."""
    style = "width:100%;height:720px;border:1px solid #8884;border-radius:8px"
    return f'<iframe style="{style}" srcdoc="{escaped(render(e))}"></iframe>'


def lead(e: Evaluation) -> str:
    """The sentences on the score and what averaging gains, without their intervals."""
    found = {one.code: one.text for one in e.findings}
    text = " ".join([found.get("quality", ""), found.get("gain", found.get("gain_nll", ""))])
    return re.sub(r" (\[[^]]*\]|\(AUROC[^)]*\))", "", text)


# Parts of any section.


def _section_of(e: Evaluation, code: str) -> str:
    """The section of a finding; of several targets, those on all of them are with the scores."""
    names = (name for name, codes in SECTIONS.items() if code in codes)
    return "scores" if e.targets else next(names, "scores")


def _list_of(findings: Iterable[Finding], linked: Evaluation | None = None) -> str:
    """Findings as a list, warnings first, with links to their sections."""
    items = ""
    for one in sorted(findings, key=lambda one: one.level != "warning"):
        text = escaped(one.text)
        if linked is not None:
            text = f'<a href="#{_section_of(linked, one.code)}">{text}</a>'
        items += f'<li class="{one.level}">{text}</li>'
    return f'<ul class="findings">{items}</ul>' if items else ""


def _panel(title: str, note: str, body: str) -> str:
    head = f"<h3>{escaped(title)}</h3><p>{escaped(note)}</p>" if note else ""
    return f'<div class="panel">{head}{body}</div>' if body else ""


def _grid(found: Sequence[Chart], *more: str) -> str:
    """Panels of charts, and others."""
    panels = [_panel(one.title, one.note, one.svg() + _legend(one)) for one in found]
    body = "".join([*panels, *more])
    return f'<div class="grid">{body}</div>' if body else ""


def _legend(chart: Chart) -> str:
    items = "".join(
        f'<span><i class="{kind}"></i>{escaped(name)}</span>' for kind, name in chart.legend.items()
    )
    return f'<div class="legend">{items}</div>' if len(chart.legend) > 1 else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], kinds: Sequence[str] = ()) -> str:
    """A table of texts, or pairs of a text and a small one; a row begins with its name."""
    body = ""
    for (first, *cells), kind in zip(rows, kinds or itertools.repeat(""), strict=False):
        body += f'<tr class="{kind}"><th>{escaped(first)}</th>'
        for cell in cells:
            text, small = cell if isinstance(cell, tuple) else (cell, "")
            body += f"<td>{escaped(text)}<small>{escaped(small)}</small></td>"
        body += "</tr>"
    top = "".join(f"<th>{escaped(one)}</th>" for one in head)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>' if body else ""


def _estimate(found: Estimate, show: Show) -> tuple[str, str]:
    """A number and its interval, which is empty if it is not known."""
    ends = f"{show(found.low)} to {show(found.high)}" if found.is_known else ""
    return show(found.value), ends


def _cell(e: Evaluation, name: str) -> tuple[str, str]:
    return _estimate(e.estimate(name), partial(shown, one=e.metrics[name]))


def _cards(e: Evaluation) -> str:
    """The metrics of the table, each compared with the average member's."""
    average, cards = e.table.values("member"), ""
    for name, one in e.table.shown.items():
        (value, ends), member = _cell(e, name), average.get(name)
        note = f"average {e.noun} {shown(member.value, one)}" if member else f"one {e.noun}"
        if name == "ece":  # It has no interval: chance alone raises it.
            ends = f"by chance up to {digits(e.ece_by_chance[0])}"
        cards += (
            f'<div class="card"><h3>{escaped(one.title)}</h3><div class="number">{value}</div>'
            f'<div class="range">{ends}</div>{svg.strip(e.estimate(name), member)}'
            f"<p>{escaped(note)}</p></div>"
        )
    return f'<div class="cards">{cards}</div>'


# The sections.


def _sections(e: Evaluation) -> list[Section]:
    """The sections with their findings, and of several targets one for each."""
    contents = {
        "scores": _scores(e),
        "calibration": _grid(charts.calibration(e)),
        "errors": _errors(e) + _worst(e),
        "members": _grid(charts.sizes(e)),
        "chains": _grid([*itertools.chain(*(e.chains or {}).get("charts", {}).values())]),
        "shift": _shift(e),
        "training": _grid(charts.learning_curves(e.records, e.recorded)),
        "about": _about(e),
    }
    sections = []
    for id_, body in contents.items():
        found = _list_of(one for one in e.findings if _section_of(e, one.code) == id_)
        sections.append((id_, id_.capitalize(), _WHY[id_], found + body))
    targets = []
    for d, (name, one) in enumerate([*e.targets.items()][:_MAX_TARGETS]):
        body = _list_of(f for f in one.findings if f.code != "groups")
        body += _grid(charts.calibration(one)) + _errors(one)
        targets.append((f"target-{d}", name, f"Target {d + 1} of {len(e.targets)}.", body))
    return [sections[0], *targets, *sections[1:]]


def _scores(e: Evaluation) -> str:
    rows = [*e.table.rows]
    for name, found in e.comparisons.items():
        values = {n: Estimate(one["value"]) for n, one in found.items()}
        rows.append(Row(name, "member", values))
        changes = {n: one["difference"] for n, one in found.items()}
        rows.append(Row(f"{name} - this run", "gain", changes))
    titles = ["", *(one.title for one in e.table.shown.values())]
    cells = [(row.title, *e.table.cells(row)) for row in rows]
    body = _panel("", "", _table(titles, cells, [row.kind for row in rows]))
    if e.targets:
        of_first = next(iter(e.targets.values())).table.shown
        titles = ["", *(one.title for one in of_first.values())]
        each = [(name, *(_cell(one, n) for n in of_first)) for name, one in e.targets.items()]
        note = "Scores of the ensemble on each target."
        body += _panel("Targets", note, _table(titles, each))
    return body


def _errors(e: Evaluation) -> str:
    """What abstention gains, and the recall of classes."""
    if e.targets:
        return ""
    rows = []
    if e.is_classes and len(e.recall) > 2:
        recall = np.array([one.value for one in e.recall])
        rows = [
            (charts.shorten(e.test.axis[c], _MAX_NAME), _estimate(e.recall[c], percent))
            for c in np.argsort(recall, kind="stable")[:_MAX_CLASSES]
            if np.isfinite(recall[c])
        ]
    note = "Share of each class that is found, worst first, with joint 95% intervals."
    return _grid([charts.abstention(e)], _panel("Classes", note, _table(["", "recall"], rows)))


def _worst(e: Evaluation) -> str:
    """The errors of highest confidence, or the targets farthest from their prediction."""
    if e.targets:
        return ""
    if e.is_classes:
        title, note = "Most confident errors", "Wrong labels are often among these."
        names = np.array([charts.shorten(name, _MAX_NAME) for name in e.test.axis])
        far = np.where(e.wrong, e.test.confidence, -1)
        order = _largest(far)
        texts = map("{} ({})".format, names[e.test.labels[order]], map(percent, far[order]))
        targets = names[e.y[order]]
    else:
        level, *ends = charts.widest(e.test)
        title, note = "Largest errors", f"In widths of the {100 * level:g}% interval."
        widths = np.maximum(ends[1] - ends[0], 1e-12)
        order = _largest(np.abs(e.y - e.test.median) / widths)
        numbers = (map(digits, one[order]) for one in (e.test.median, *ends))
        texts, targets = map("{} ({} to {})".format, *numbers), [*map(digits, e.y[order])]
    examples = list(zip(map("no. {}".format, order), texts, targets, strict=True))
    if not examples or e.source is None:
        return _panel(title, note, _table(["", "predicted", "target"], examples))
    places = np.sort(order)  # As files are read fastest.
    inputs = e.source.read(e.split, places).inputs[np.searchsorted(places, order)]
    if e.source.has_pictures:
        bounds, figures = e.source.value_range("train"), ""
        for (name, a, b), pixels in zip(examples, inputs, strict=True):
            figures += (
                f'<figure><img alt="{name}" src="{svg.image(pixels, *bounds)}"><div>predicted '
                f"<b>{escaped(a)}</b><br>target <em>{escaped(b)}</em> · {name}</div></figure>"
            )
        return _panel(title, note, f'<div class="worst">{figures}</div>')
    rows = e.source.table.rows(inputs) if e.source.table else [{} for _ in examples]
    columns = list(rows[0])[:_MAX_COLUMNS]
    cells = [
        [*one, *(charts.shorten(row[name], _MAX_NAME) for name in columns)]
        for one, row in zip(examples, rows, strict=True)
    ]
    return _panel(title, note, _table(["", "predicted", "target", *columns], cells))


def _largest(values: NDArray) -> NDArray:
    """Places of the largest values that are not negative, the largest first."""
    return np.argsort(-values, kind="stable")[: min(_MAX_WORST, int((values >= 0).sum()))]


def _shift(e: Evaluation) -> str:
    body = ""
    for name in dict.fromkeys(name for one in e.shifts.values() for name in one.metrics):
        found = charts.shifts(e, name)
        figures = "".join(
            f"<figure><figcaption>{escaped(one.title)}</figcaption>{one.svg()}</figure>"
            for one in found
        )
        small = f'<div class="multiples">{figures}</div>{_legend(found[0])}'
        title = f"{e.metrics[name].title} under shift"
        body += _panel(title, "Against severity; 0 is the test split.", small)
    rows = [[name, _estimate(one.auroc, "{:.3f}".format)] for name, one in e.detection.items()]
    note = "AUROC of the total uncertainty, for telling them from test examples."
    return body + _panel("Out-of-distribution detection", note, _table((), rows))


def _about(e: Evaluation) -> str:
    units = {"nats": "In nats.", "target": "In the target's unit.", "target²": "In its square."}
    better = {-1: "Lower is better.", 1: "Higher is better.", 0: ""}
    terms = {
        one.title: f"{_doc(one)} {units.get(one.unit, '')} {better[one.better]}"
        for one in e.metrics.values()
    }
    rest = [name for name, one in e.metrics.items() if not one.in_table]
    rows = [(e.metrics[name].title, _cell(e, name)) for name in rest]
    parts = {
        "Other metrics": _table((), rows),
        "Definitions": _list(terms),
        "Configuration": _list(flatten(e.about.get("config", {}))),
    }
    body = "".join(f"<p>{escaped(one)}</p>" for one in e.about.get("notes", ()))
    for title, content in parts.items():
        if content:
            body += f"<details><summary>{title}</summary>{content}</details>"
    return body


def _doc(metric: Metric) -> str:
    function = getattr(metric.terms, "func", metric.terms)
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def _list(items: Mapping[str, Any]) -> str:
    found = [f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in items.items()]
    return f"<dl>{''.join(found)}</dl>" if found else ""
