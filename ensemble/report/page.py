"""`evaluation/report.html`: one file that fetches nothing and runs no script.

Warnings come first, then six numbers, then a section for each question. Text from data, paths and
configurations is escaped.
"""

from __future__ import annotations

import collections
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble.config import flatten
from ensemble.metrics import Estimate, Metric
from ensemble.report import charts, shift, svg
from ensemble.report.baselines import comparable
from ensemble.report.findings import Finding
from ensemble.report.svg import Chart, escaped
from ensemble.report.table import digits, percent, shown

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
_MAX_TARGETS, _MAX_WORST, _MAX_COLUMNS = 4, 12, 12
_MARKS = {"warning": "! warning", "good": "✓ good"}
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
        f'<main><div class="cards">{_cards(e)}</div>{body}<footer>Intervals are 95% confidence '
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
    kind = " three" * any(not one.note for one in found)
    body = "".join([*panels, *more])
    return f'<div class="grid{kind}">{body}</div>' if body else ""


def _legend(chart: Chart) -> str:
    items = "".join(
        f'<span><i class="{kind}"></i>{escaped(name)}</span>' for kind, name in chart.legend.items()
    )
    return f'<div class="legend">{items}</div>' if len(chart.legend) > 1 else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], kinds: Sequence[str] = ()) -> str:
    """A table of texts, or pairs of a text and a small one; a row begins with its name."""
    body = ""
    for kind, (first, *cells) in zip(kinds or itertools.repeat(""), rows, strict=False):
        pairs = [cell if isinstance(cell, tuple) else (cell, "") for cell in cells]
        texts = "".join(f"<td>{escaped(a)}<small>{escaped(b)}</small></td>" for a, b in pairs)
        body += f'<tr class="{kind}"><th>{escaped(first)}</th>{texts}</tr>'
    top = "".join(f"<th>{escaped(one)}</th>" for one in head)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>' if body else ""


def _estimate(found: Estimate, show: Show) -> tuple[str, str]:
    """A number and its interval, which is empty if it is not known."""
    ends = f"{show(found.low)} to {show(found.high)}" if found.is_known else ""
    return show(found.value), ends


def _titles(metrics: Mapping[str, Metric]) -> list[str]:
    return [one.title for one in metrics.values()]


def _cells(e: Evaluation, metrics: Mapping[str, Metric]) -> list[tuple[str, str]]:
    return [_estimate(e.estimate(name), _show(one)) for name, one in metrics.items()]


def _show(metric: Metric, signed: bool = False) -> Show:
    return partial(shown, one=metric, signed=signed)


def _auroc(value: float) -> str:
    return f"{value:.3f}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


# The cards at the top.


def _cards(e: Evaluation) -> str:
    """The headline score and at most five other numbers, of which warnings come first."""
    cards = []
    for title, number, show, note, reference, codes, *band in _numbers(e):
        levels = {one.level for one in e.findings if one.code in codes}
        level = next((one for one in _MARKS if one in levels), "")
        mark = f'<span class="{level}">{_MARKS[level]}</span>' if level else ""
        value, ends = _estimate(number, show)
        cards.append(
            f'<div class="card"><h3>{escaped(title)} {mark}</h3><div class="number">{value}</div>'
            f'<div class="range">{ends or "interval not known"}</div>'
            f"{svg.strip(number, reference, *band)}<p>{escaped(note)}</p></div>"
        )
    return cards[0] + "".join(sorted(cards[1:], key=lambda one: "! warning" not in one))


def _numbers(e: Evaluation) -> Iterator[tuple[Any, ...]]:
    """Title, estimate, its text, note, reference, codes of findings, and a band of good values."""
    metric, proper = e.metrics[e.headline], e.metrics[e.proper]
    member, show, ours = e.table.values("member"), _show(metric), e.estimate(e.headline)
    average = member[e.headline].value if member else None
    note = f"average {e.noun} {show(average)}" if member else "a single network"
    yield metric.title, ours, show, note, average, ()
    if gain := e.gain(e.proper):
        title = f"{proper.title} versus the average {e.noun}"
        code = "gain" if e.proper == e.headline else "gain_nll"
        yield title, gain, _show(proper, True), "0 is no gain", 0, (code,)
    aim = next((one for one in e.metrics if one.startswith("coverage_")), "")
    if e.is_classes:
        ece, chance = map(digits, (e.estimate("ece").value, e.ece_by_chance[0]))
        title, note = (
            "Confidence \N{MINUS SIGN} accuracy, points",
            f"ECE {ece}; by chance up to {chance}",
        )
        gap, codes = e.estimate("overconfidence"), SECTIONS["calibration"][:2]
        yield title, gap, _points, note, 0, codes, (-0.02, 0.02)
    elif aim:
        note = f"mean width {digits(e.estimate(aim.replace('coverage', 'width')).value)}"
        title, level = f"Coverage of {aim[9:]}% intervals", float(aim[9:]) / 100
        yield title, e.estimate(aim), _show(e.metrics[aim]), note, level, ("calibration", "pit")
    if e.detects_errors:
        of = "uncertainty, for errors" if e.is_classes else "interval width, for large errors"
        title, note = "Error detection, AUROC", f"of {of}; chance is 0.5"
        yield title, e.detects_errors, _auroc, note, 0.5, ("ranking",)
    if e.shifts:
        kind = min(e.shifts, key=lambda one: metric.better * e.shifts[one].change.value)
        number = e.shifts[kind].metrics[e.headline][shift.MIDDLE]
        note = f"at severity {shift.MIDDLE}; largest change of {len(e.shifts)} shifts"
        yield f"{metric.title} under {kind}", number, show, note, ours.value, SECTIONS["shift"][:2]
    if not e.chains and not e.targets and e.next_member:
        title, note = f"One more {e.noun}: {proper.title}", "expected fall; 0 is no gain"
        yield title, e.next_member, _show(proper), note, 0, SECTIONS["members"][1:]


# The sections.


def _sections(e: Evaluation) -> list[Section]:
    """The sections with their findings, and of several targets one for each."""
    contents = {
        "scores": _scores(e),
        "calibration": _grid(charts.calibration(e), _fitted(e)),
        "errors": _grid(charts.errors(e)) + _worst(e),
        "members": _grid(charts.sizes(e)),
        "chains": _grid([*itertools.chain(*(e.chains or {}).get("charts", {}).values())]),
        "shift": _shift(e),
        "training": _grid(charts.learning_curves(e.records, e.recorded)),
        "about": _about(e),
    }
    first, *others = [
        (id_, id_.capitalize(), _WHY[id_], _list_of(found) + body)
        for id_, body in contents.items()
        for found in [[one for one in e.findings if _section_of(e, one.code) == id_]]
    ]
    targets = list(e.targets.items())[:_MAX_TARGETS]
    return [first, *(_target(e, d, *one) for d, one in enumerate(targets)), *others]


def _target(e: Evaluation, place: int, name: str, one: Evaluation) -> Section:
    """What is said of one of several targets."""
    body = _list_of(f for f in one.findings if f.code != "groups")
    body += _grid([*charts.calibration(one), *charts.errors(one)], _fitted(one))
    return f"target-{place}", name, f"Target {place + 1} of {len(e.targets)}.", body


def _scores(e: Evaluation) -> str:
    shown_, rows = e.table.shown, e.table.rows
    cells = [(row.title, *e.table.cells(row)) for row in rows]
    table = _table(["", *_titles(shown_)], cells, [row.kind for row in rows])
    body = _panel("", "", table)
    if e.targets:
        metrics = next(iter(e.targets.values())).table.shown
        head = ["", *_titles(metrics)]
        cells = [(name, *_cells(one, one.table.shown)) for name, one in e.targets.items()]
        body += _panel("Targets", "Scores of the ensemble on each target.", _table(head, cells))
    for name, p in e.others.items():
        both = {n: shown_[n] for n in comparable(e.test, p, shown_)}
        theirs = [shown(one.value(p, e.y), one) for one in both.values()]
        changes = [_estimate(e.against(p, n), _show(one, True)) for n, one in both.items()]
        columns = zip(_titles(both), _cells(e, both), theirs, changes, strict=True)
        table = _table(["", "this run", name, "difference"], columns)
        body += _panel(f"Comparison with {name}", "On the same examples.", table)
    return body


def _fitted(e: Evaluation) -> str:
    """Scores after a temperature or factor, if it is needed, and of conformal predictions."""
    rows: list[tuple[Any, ...]] = []
    if e.factor is not None and e.factor_gain is not None and e.factor_gain.below():
        after = e.test.scaled(e.factor)
        rows = [("temperature" if e.is_classes else "factor of the scale", "1", digits(e.factor))]
        for name in ("nll", "ece", "crps", "coverage_90", "width_90"):
            if one := e.metrics.get(name):
                rows.append((one.title, *(shown(one.value(p, e.y), one) for p in (e.test, after))))
    body = _table(["", "before", "after"], rows)
    if fit := e.conformal:
        held = percent(fit.coverage), "expected {} to {}".format(*map(percent, fit.expected))
        size = "mean number of classes" if e.is_classes else "mean width"
        rows = [("coverage", held), (size, digits(fit.size))]
        body += _table(["Conformal predictions of 90%", ""], rows)
    note = "Fitted on the calibration split, applied to the test split."
    return _panel("After calibration", note, body)


def _worst(e: Evaluation) -> str:
    """The errors of highest confidence, or the targets farthest from their prediction."""
    if e.targets:
        return ""
    if e.is_classes:
        names, labels = [charts.shorten(name, 24) for name in e.class_names], e.test.labels
        pairs = collections.Counter(zip(e.y[e.wrong], labels[e.wrong], strict=True)).most_common(3)
        texts = ", ".join(f"{names[a]} as {names[b]} ({number})" for (a, b), number in pairs)
        note = f"Wrong labels are often among these. Most frequent: {texts}."
        title, far = "Most confident errors", np.where(e.wrong, e.test.confidence, -1)
    else:
        level, low, high = charts.widest(e.test)
        title, note = "Largest errors", f"In widths of the {100 * level:g}% interval."
        far = np.abs(e.y - e.test.median) / np.maximum(high - low, 1e-12)
    order = np.argsort(-far, kind="stable")[: min(_MAX_WORST, int((far >= 0).sum()))]
    if not len(order):
        return ""
    if e.is_classes:
        said = [(f"{names[labels[i]]} ({percent(far[i])})", names[e.y[i]]) for i in order]
    else:
        ranges = map(
            "{} ({} to {})".format, *(map(digits, v[order]) for v in (e.test.median, low, high))
        )
        said = list(zip(ranges, map(digits, e.y[order]), strict=True))
    source = e.source
    seen: Any = source.read(e.split, order).inputs if source else ()
    if source and source.has_pictures:
        ends = source.value_range("train")
        figures = "".join(
            f'<figure><img alt="example {i}" src="{svg.image(pixels, *ends)}">'
            f"<div>predicted <b>{escaped(a)}</b><br>target <em>{escaped(b)}</em> · no. {i}</div>"
            "</figure>"
            for i, pixels, (a, b) in zip(order, seen, said, strict=True)
        )
        return _panel(title, note, f'<div class="worst">{figures}</div>')
    rows: Any = source.table.rows(seen) if source and source.table else [{} for _ in order]
    columns = list(rows[0])[:_MAX_COLUMNS]
    cells = [
        [f"no. {i}", *texts, *(charts.shorten(row[one], 24) for one in columns)]
        for i, texts, row in zip(order, said, rows, strict=True)
    ]
    return _panel(title, note, _table(["", "predicted", "target", *columns], cells))


def _shift(e: Evaluation) -> str:
    body = ""
    for name in dict.fromkeys([e.headline, "nll" if "nll" in e.metrics else e.proper]):
        found = charts.shifts(e, name)
        figures = "".join(
            f"<figure><figcaption>{escaped(one.title)}</figcaption>{one.svg()}</figure>"
            for one in found
        )
        if found:
            small = f'<div class="multiples">{figures}</div>{_legend(found[0])}'
            title = f"{e.metrics[name].title} under shift"
            body += _panel(title, "Against severity; 0 is the test split.", small)
    rows = [[name, _estimate(one.auroc, _auroc)] for name, one in e.detection.items()]
    note = "AUROC of the total uncertainty, for telling them from test examples."
    return body + _panel("Out-of-distribution detection", note, _table((), rows))


def _about(e: Evaluation) -> str:
    units = {"nats": "In nats.", "target": "In the target's unit.", "target²": "In its square."}
    better = {-1: "Lower is better.", 1: "Higher is better.", 0: ""}
    terms = {
        one.title: f"{_doc(one)} {units.get(one.unit, '')} {better[one.better]}"
        for one in e.metrics.values()
    }
    rest = {name: one for name, one in e.metrics.items() if not one.in_table}
    rows = zip(_titles(rest), _cells(e, rest), strict=True)
    body = "".join(f"<p>{escaped(one)}</p>" for one in e.about.get("notes", ()))
    parts = [("Other metrics", _table((), rows)), ("Definitions", _list(terms))]
    for title, content in [*parts, ("Configuration", _list(flatten(e.about.get("config", {}))))]:
        if content:
            body += f"<details><summary>{title}</summary>{content}</details>"
    return body


def _doc(metric: Metric) -> str:
    function = getattr(metric.terms, "func", metric.terms)
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def _list(items: Mapping[str, Any]) -> str:
    found = [f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in items.items()]
    return f"<dl>{''.join(found)}</dl>" if found else ""
