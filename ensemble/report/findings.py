"""Findings of an evaluation in plain words: a rule speaks only if an interval decides.

A rule takes an `Evaluation` and yields findings; its name is their code. A text begins with its
level, and is a template that `find` fills in. Sentences have at most 25 words. Silence is no
answer: the intervals are in the tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ensemble.metrics import Estimate
from ensemble.metrics.abstention import MAX_ERROR
from ensemble.metrics.interval import joint
from ensemble.report.table import ByName, digits, percent
from ensemble.storage.manifest import Json

if TYPE_CHECKING:
    from ensemble.report.evaluation import Evaluation

MARGIN = 0.02
COVERAGE_MARGIN = 0.05
"""Confidence this near to accuracy, and coverage this near to its level, is calibrated."""
SMALL = 0.01
"""A smaller share of a metric, or nats, does not matter."""


class Finding(NamedTuple):
    """A sentence that an interval decides.

    Attributes:
        code: Name of the rule.
        level: "good"; "warning": read it before relying on the ensemble; or "info".
        text: At most 25 words.
        numbers: That the sentence is about, such as `value`, `low` and `high`.
    """

    code: str
    level: str
    text: str
    numbers: Mapping[str, Any] = {}


Findings = Iterator[Finding]
Some = Iterable[Finding]


def find(e: Evaluation, codes: Collection[str] = ()) -> list[Finding]:
    """Findings of an evaluation, in the order of the rules.

    Args:
        e: Evaluation to look at.
        codes: Names of rules; empty: all, and what the training has found in addition.
    """
    found = []
    for code in codes or RULES:
        for one in RULES[code](e):
            found.append(one._replace(code=code, text=one.text.format_map(_words(e, one.numbers))))
    return found if codes else found + [one for one in e.said if one.code not in RULES]


def as_lines(findings: Some, notes: Iterable[str]) -> list[str]:
    """Texts of findings, warnings first, and of notes that are not among them."""
    lines = [one.text for one in warnings_first(findings)]
    return [*lines, *(f"Note: {one}" for one in notes if one not in lines)]


def warnings_first(findings: Some) -> list[Finding]:
    """The findings in the order that a reader needs."""
    return sorted(findings, key=lambda one: one.level != "warning")


_SHOW: Any = {
    "number": digits,
    "percent": percent,
    "size": lambda value: digits(abs(value)),
    "points": lambda share: f"{100 * abs(share):.1f}",
}


def _words(e: Evaluation, numbers: ByName) -> Json:
    """Words that templates may have in addition to the numbers of their finding.

    A number and its interval are `{number}`, as shares `{percent}`; without its
    sign `{size}`, of shares in points `{points}`, of the metric that it is about, by
    default the proper score, `{by}`; this metric is the `{title}`.
    """
    metric = e.metrics[numbers.get("metric", e.proper)]
    found = {
        "noun": e.noun,
        "title": metric.title if metric.title[1].isupper() else metric.title.lower(),
        "examples": f"{len(e.y):,} {e.split} examples",
    }
    if "value" in numbers:
        ends = [numbers[one] for one in ("low", "high") if numbers[one] is not None]
        for name, show in _SHOW.items():
            is_size = name in ("size", "points")
            texts = map(show, sorted(ends, key=abs) if is_size else ends)
            found[name] = show(numbers["value"]) + (f" [{', '.join(texts)}]" if ends else "")
        found["by"] = f"{found['points']} points" if metric.unit == "share" else found["size"]
    return {**found, **numbers}


def _said(said: str, one=None, **numbers) -> Finding:
    level, _, text = said.partition(": ")
    return Finding("", level, text, {**(one._asdict() if one else {}), **numbers})


def _judged(
    one,
    above: str,
    below: str,
    near: str = "",
    *,
    bound: float = 0.0,
    margin: float = 0.0,
    **numbers,
) -> Findings:
    """Finding by the place of an interval, if that is known.

    Args:
        one: Estimate; None: nothing is known.
        above: Said if the interval lies above the bound; empty: nothing.
        below: Said if it lies below it.
        near: Said if it lies around the bound within the margin.
        bound: What it is compared with.
        margin: Largest distance that is near, or that does not matter.
        **numbers: In addition to the estimate.
    """
    slack = 0.0 if near else margin
    text = ""
    if one and above and one.above(bound + slack):
        text = above
    elif one and below and one.below(bound - slack):
        text = below
    elif one and one.above(bound - margin) and one.below(bound + margin):
        text = near
    if text:
        yield _said(text, one, **numbers)


def _first(found: ByName, direction: int = 1):
    """Name and value of the least estimate, or of the largest with direction -1; at most one."""
    return sorted(found.items(), key=lambda item: direction * item[1].value)[:1]


# How good is it?


def quality(e: Evaluation) -> Findings:
    """The headline metric: the one rule that always speaks."""
    text = "info: Its {title} is {number} on {examples}."
    if e.headline == "accuracy":
        text = "info: The ensemble is right on {percent} of {examples}."
    yield _said(text, e.whole[e.headline], metric=e.headline)


def gain(e: Evaluation) -> Findings:
    """Ensemble - average member of the main metrics, unless it is too small to matter."""
    good = "good: Averaging improves the {title} by {by}, compared with the average {noun}."
    bad = "warning: Averaging worsens the {title} by {by}, compared with the average {noun}."
    for name, metric in e.main.items():
        margin = 0.0 if metric.unit == "share" else SMALL * abs(e.whole[name].value)
        texts = (good, bad)[:: metric.better]
        yield from _judged(e.gain.get(name), *texts, margin=margin, metric=name)


def baseline(e: Evaluation) -> Findings:
    """The best simple baseline, by the proper score; all of them are tested together."""
    rivals = {k: p for k, p in e.simple.items() if e.proper in e.shared(p)}
    level = joint(len(rivals))
    for name, one in _first({k: e.against(p, e.proper, level=level) for k, p in rivals.items()}):
        yield from _versus(one, f"{name}, the best baseline")


def comparison(e: Evaluation) -> Findings:
    """Other ensembles on the same examples, by the proper score."""
    for name, found in e.comparisons.items():
        if e.proper in found:
            yield from _versus(found[e.proper]["difference"], name)


def _versus(one: Estimate, rival: str) -> Findings:
    """Another ensemble's proper score - ours, if it decides."""
    good = "good: Its {title} is {size} lower than that of {rival}."
    bad = "warning: Its {title} is {size} higher than that of {rival}."
    yield from _judged(one, good, bad, rival=rival)


def several(e: Evaluation) -> Findings:
    """Warnings of each of several targets."""
    for name, one in e.targets.items():
        for f in one.findings:
            if f.level == "warning":
                yield f._replace(text=f"{name}: {f.text}")


# Can its uncertainty be trusted?


def calibration(e: Evaluation) -> Findings:
    """Confidence - accuracy, or coverage of the widest intervals of the table."""
    if e.is_classes:
        yield from _judged(
            e.whole["overconfidence"],
            "warning: It is overconfident: mean confidence is {points} points above accuracy.",
            "warning: It is underconfident: mean confidence is {points} points below accuracy.",
            "good: Its confidence is right on average: within 2 points of accuracy.",
            margin=MARGIN,
        )
    covers = [name for name in e.whole if name.startswith("coverage_")]
    for name in covers[:1] if e.test.kind != "several" else ():
        text = f"Its {name[9:]}% intervals cover {{percent}} of the targets"
        yield from _judged(
            e.whole[name],
            "" if e.test.kind == "counts" else f"warning: {text}: they are too wide.",
            f"warning: {text}: they are too narrow.",
            f"good: {text}.",
            bound=float(name[9:]) / 100,
            margin=COVERAGE_MARGIN,
        )


def factor(e: Evaluation) -> Findings:
    """One temperature, or factor of the scale, by folds of the calibration split."""
    good = f"good: Calibration is not needed: it would lower the NLL by less than {SMALL:g} nats."
    bad = "warning: A factor of {factor:.2f} lowers the NLL by {size} on held-out rows: calibrate."
    yield from _judged(e.factor_gain, good, bad, good, margin=SMALL, factor=e.factor)


def conformal(e: Evaluation) -> Findings:
    """Coverage compared with its distribution over pairs of splits."""
    one = e.conformal
    if one is None or e.groups is not None:
        return
    text = "Conformal predictions of 90% cover {coverage:.1%}"
    low, high = one.expected
    if not low <= one.coverage <= high:
        yield _said(f"warning: {text}: calibration and test examples differ.", one)
    elif low >= 0.9 - COVERAGE_MARGIN:  # Fewer examples would not show a broken promise.
        yield _said(f"good: {text}, with a size of {digits(one.size)} on average.", one)


# Does it know where it errs?


def ranking(e: Evaluation) -> Findings:
    """AUROC of the doubt for errors."""
    yield from _judged(
        e.detects_errors,
        "good: It knows where it errs: its uncertainty is higher there (AUROC {percent}).",
        "warning: Do not rank by its uncertainty: it is lower where it errs (AUROC {percent}).",
        bound=0.5,
    )


def abstention(e: Evaluation) -> Findings:
    """The rules that somebody asks for; else the least error rate that abstention guarantees."""
    text = (
        "info: By {rule} it answers {coverage:.1%} of the examples; {percent} of these answers are "
        "wrong."
    )
    proved = [name for name in e.abstention if name.startswith(MAX_ERROR) and e.is_classes]
    for rule in e.abstention if e.rules else proved[:1]:
        found = e.abstention[rule]
        yield _said(text, found["error"], rule=rule, coverage=found["coverage"])


# What does it do on other inputs?


def shift_costs(e: Evaluation) -> Findings:
    """The shift that costs most at the middle severity."""
    better = e.metrics[e.headline].better
    text = (
        "warning: Under {name} at severity 3 {title} is worse by {by}, the most among {num_shifts} "
        "shifts."
    )
    changes = {kind: one["change"] for kind, one in e.shifts.items()}
    for name, one in _first(changes, better):
        texts = ("", text)[::better]
        numbers = {"name": name, "metric": e.headline, "num_shifts": len(changes)}
        yield from _judged(one, *texts, **numbers)


def shift_overconfidence(e: Evaluation) -> Findings:
    """The shift under which confidence falls least with accuracy."""
    found = {k: one["overconfidence"] for k, one in e.shifts.items() if one["overconfidence"]}
    text = (
        "warning: Under {name} at severity 3 it is overconfident by {points} points: do not trust "
        "its confidence there."
    )
    for name, one in _first(found, -1):
        yield from _judged(one, text, "", bound=MARGIN, name=name)


def detection(e: Evaluation) -> Findings:
    """Inputs unlike the training data that uncertainty does not reveal."""
    for name, one in _first({name: found["auroc"] for name, found in e.detection.items()}):
        text = (
            "info: Of the other inputs, its uncertainty reveals {inputs} least well "
            "(AUROC {percent})."
        )
        bad = (
            "warning: It is surer of {inputs} than of test examples (AUROC {percent}): its "
            "uncertainty does not reveal them."
        )
        yield from _judged(one, text, bad, bound=0.5, inputs=name)


RULES: Any = {
    rule.__name__: rule
    for rule in (
        *(quality, gain, baseline, comparison, several),
        *(calibration, factor, conformal, ranking, abstention),
        *(shift_costs, shift_overconfidence, detection),
    )
}
"""The rules by their names."""
