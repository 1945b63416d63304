"""Findings of an evaluation in plain words: a rule speaks only if an interval decides.

A rule takes an `Evaluation` and yields findings; its name is their code. A text is a template that
`find` fills in. Sentences have at most 25 words. Silence is no answer: the intervals are in the
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ensemble.metrics import Estimate, Metric
from ensemble.metrics.abstention import MAX_ERROR
from ensemble.report.table import ByName, Json, digits, joint, percent

if TYPE_CHECKING:
    from ensemble.report.evaluation import Evaluation

MARGIN = 0.02
COVERAGE_MARGIN = 0.05
"""Confidence this near to accuracy, and coverage this near to its level, is calibrated."""
DOUBTED = 0.01
"""p-value of the tests next to an interval, which alone has 5% of false alarms."""
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
Said = tuple[str, str]
"""Level and text."""


def find(e: Evaluation, codes: Collection[str] | None = None) -> list[Finding]:
    """Findings of an evaluation, in the order of the rules.

    Args:
        e: Evaluation to look at.
        codes: Names of rules; None: all, and what the training has found in addition.
    """
    found = []
    for code, rule in RULES.items():
        for one in rule(e) if codes is None or code in codes else ():
            found.append(one._replace(code=code, text=one.text.format_map(_words(e, one.numbers))))
    return found if codes is not None else found + [f for f in e.said if f.code not in RULES]


def as_lines(findings: Iterable[Finding], notes: Iterable[str]) -> list[str]:
    """Texts of findings, warnings first, and of notes that are not among them."""
    lines = [one.text for one in warnings_first(findings)]
    return [*lines, *(f"Note: {one}" for one in notes if one not in lines)]


def warnings_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the order that a reader needs."""
    return sorted(findings, key=lambda one: one.level != "warning")


_SHOW: dict[str, Callable[[float], str]] = {
    "number": digits,
    "percent": percent,
    "auroc": "{:.3f}".format,
    "size": lambda value: digits(abs(value)),
    "points": lambda share: f"{100 * abs(share):.1f}",
}


def _words(e: Evaluation, numbers: ByName) -> Json:
    """Words that templates may have in addition to the numbers of their finding.

    A number and its interval are `{number}`, as shares `{percent}`, with three digits `{auroc}`;
    without its sign `{size}`, of shares in points `{points}`.
    """
    found = {
        "noun": e.noun,
        "proper": _title(e.metrics[e.proper]),
        "sets": "sets" if e.is_classes else "intervals",
        "errors": "errors" if e.is_classes else "large errors",
        "what": "temperature" if e.is_classes else "scale factor",
    }
    if "value" in numbers:
        ends = [numbers[one] for one in ("low", "high") if numbers[one] is not None]
        for name, show in _SHOW.items():
            is_size = name in ("size", "points")
            texts = map(show, sorted(ends, key=abs) if is_size else ends)
            interval = f" [{', '.join(texts)}]" if ends else ""
            found[name] = show(numbers["value"]) + interval
    return {**found, **numbers}


def _title(metric: Metric) -> str:
    """Return the title as within a sentence."""
    return metric.title if metric.title[1].isupper() else metric.title.lower()


def _said(said: Said, one: Estimate | None = None, **numbers: Any) -> Finding:
    return Finding("", *said, {**(one._asdict() if one else {}), **numbers})


def _judged(
    one: Estimate | None,
    above: Said | None,
    below: Said | None,
    near: Said | None = None,
    *,
    bound: float = 0.0,
    margin: float = 0.0,
    **numbers: Any,
) -> Findings:
    """Finding by the place of an interval, if that is known.

    Args:
        one: Estimate; None: nothing is known.
        above: Said if the interval lies above the bound.
        below: Said if it lies below it.
        near: Said if it lies around the bound within the margin.
        bound: What it is compared with.
        margin: Largest distance that is near, or that does not matter.
        **numbers: In addition to the estimate.
    """
    slack = 0.0 if near else margin
    if one and above and one.above(bound + slack):
        yield _said(above, one, **numbers)
    elif one and below and one.below(bound - slack):
        yield _said(below, one, **numbers)
    elif one and near and one.within(bound - margin, bound + margin):
        yield _said(near, one, **numbers)


def _extreme(found: Mapping[str, Estimate], toward: int, text: str, bound: float = 0.0) -> Findings:
    """Warning of the most extreme of several estimates, which are tested together.

    Args:
        found: Estimates by name; the text may have the `{name}`.
        toward: 1: the largest is the most extreme, -1: the smallest.
        text: Said if its interval lies beyond the bound.
        bound: What it is compared with.
    """
    beyond = Estimate.above if toward > 0 else Estimate.below
    ordered = sorted(found.items(), key=lambda item: -toward * item[1].value)
    for name, one in ordered[:1]:
        if beyond(one, bound):
            yield _said(("warning", text), one, name=name)


# How good is it?


def quality(e: Evaluation) -> Findings:
    """The headline metric: the one rule that always speaks."""
    text = f"Its {_title(e.metrics[e.headline])} is {{number}} on"
    if e.headline == "accuracy":
        who = "ensemble" if e.test.num_members > 1 else e.noun
        text = f"The {who} is right on {{percent}} of"
    text += f" {len(e.y):,} {e.split} examples."
    yield _said(("info", text), e.estimate(e.headline))


def gain(e: Evaluation) -> Findings:
    """Ensemble - average member of the main metrics, unless it is too small to matter."""
    for name, metric in e.main.items():
        is_share = metric.unit == "share"
        size = "{points} points" if is_share else "{size}"
        rest = f"the {_title(metric)} by {size}, compared with the average {{noun}}."
        above, below = ("good", "warning")[:: metric.better]
        texts = (above, f"Averaging raises {rest}"), (below, f"Averaging lowers {rest}")
        margin = 0.0 if is_share else SMALL * abs(e.estimate(name).value)
        yield from _judged(e.gain(name), *texts, margin=margin, metric=name)


def _versus(one: Estimate, name: str, **numbers: Any) -> Findings:
    """Another ensemble's proper score - ours, if it decides."""
    text = f"Its {{{{proper}}}} is {{{{size}}}} {{}} than that of {name}."
    good = "good", text.format("lower")
    yield from _judged(one, good, ("warning", text.format("higher")), **numbers)


def baseline(e: Evaluation) -> Findings:
    """The best simple baseline, by the proper score; all of them are tested together."""
    rivals = {k: p for k, p in e.simple.items() if e.proper in e.shared(p)}
    found = {name: e.against(p, e.proper, joint(len(rivals))) for name, p in rivals.items()}
    if found:
        best = min(found, key=lambda name: found[name].value)
        yield from _versus(found[best], "{{baseline}}, the best baseline", baseline=best)


def comparison(e: Evaluation) -> Findings:
    """Other ensembles on the same examples, by the proper score."""
    for name, found in e.comparisons.items():
        if e.proper in found:
            yield from _versus(found[e.proper]["difference"], "{{other}}", other=name)


def several(e: Evaluation) -> Findings:
    """Warnings of each of several targets."""
    for name, one in e.targets.items():
        for f in one.findings:
            if f.level == "warning":
                yield f._replace(text=f"{name}: {f.text}")


# Can its uncertainty be trusted?


def calibration(e: Evaluation) -> Findings:
    """Confidence - accuracy, or coverage of the widest intervals of the table."""
    name = next((n for n in e.metrics if n.startswith("coverage_")), "")
    if e.is_classes:
        text = "It is {}confident: mean confidence is {{points}} points {} accuracy."
        over = "warning", text.format("over", "above")
        under = "warning", text.format("under", "below")
        near = "good", "Its confidence is right on average: within 2 points of accuracy."
        yield from _judged(e.estimate("overconfidence"), over, under, near, margin=MARGIN)
    elif name and e.test.kind != "several":
        text = f"Its {name[9:]}% intervals cover {{percent}} of the targets"
        wide = None if e.test.kind == "counts" else ("warning", f"{text}: they are too wide.")
        narrow = "warning", f"{text}: they are too narrow."
        level = float(name[9:]) / 100
        found = e.estimate(name)
        near = "good", f"{text}."
        yield from _judged(found, wide, narrow, near, bound=level, margin=COVERAGE_MARGIN)


def pit(e: Evaluation) -> Findings:
    """Uniformity of the PIT, by an exact test at 1%."""
    if e.test.kind in ("numbers", "counts") and e.groups is None and e.pit[1] <= DOUBTED:
        text = (
            "The predicted distributions have the wrong shape: their PIT is not uniform (distance "
            "{distance:.3f}, p = {p_value:.2g})."
        )
        yield _said(("warning", text), distance=e.pit[0], p_value=e.pit[1])


def factor(e: Evaluation) -> Findings:
    """One temperature, or factor of the scale, by folds of the calibration split."""
    one = e.factor_gain
    text = "A {what} of {factor:.2f} lowers the NLL by {size} on held-out examples: calibrate."
    least = f"Calibration is not needed: it would lower the NLL by less than {SMALL:g} nats."
    if one and one.below():
        yield _said(("warning", text), one, factor=e.factor)
    elif one and one.above(-SMALL):
        yield _said(("good", least), one, factor=e.factor)


def conformal(e: Evaluation) -> Findings:
    """Coverage compared with its distribution over pairs of splits."""
    one = e.conformal
    if one is None or e.groups is not None:
        return
    text = f"Conformal {{sets}} of 90% cover {one.coverage:.1%}"
    low, high = one.expected
    if not low <= one.coverage <= high:
        differ = f"{text}: calibration and test examples differ."
        yield _said(("warning", differ), **one._asdict())
    elif low >= 0.9 - COVERAGE_MARGIN:  # Fewer examples would not show a broken promise.
        text += f", with a size of {digits(one.size)} on average."
        yield _said(("good", text), **one._asdict())


# Does it know where it errs?


def ranking(e: Evaluation) -> Findings:
    """AUROC of the doubt for errors."""
    above = "good", "It knows where it errs: {errors} have higher uncertainty (AUROC {auroc})."
    below = (
        "warning",
        "Do not rank by its uncertainty: {errors} have a lower one (AUROC {auroc}).",
    )
    yield from _judged(e.detects_errors, above, below, bound=0.5)


def abstention(e: Evaluation) -> Findings:
    """The rules that somebody asks for; else the least error rate that abstention guarantees."""
    text = (
        "By {rule} it answers {coverage:.1%} of the examples; {percent} of these answers are wrong."
    )
    proved = [name for name in e.abstention if name.startswith(MAX_ERROR) and e.is_classes]
    for rule in e.abstention if e.rules else proved[:1]:
        found = e.abstention[rule]
        yield _said(("info", text), found["error"], rule=rule, coverage=found["coverage"])


def weak_class(e: Evaluation) -> Findings:
    """The class that is found least often, if significantly less than the average one."""
    if e.is_classes and len(e.recall) > 2:
        recall = {str(e.test.axis[c]): one for c, one in enumerate(e.recall) if one.is_known}
        text = "Class {name!r} is found least often: {percent} of its examples."
        yield from _extreme(recall, -1, text, e.estimate("accuracy").value)


# What do its members bring?


def more_members(e: Evaluation) -> Findings:
    """Expected gain of one more member, compared with a hundredth of the score."""
    yield from _judged(
        e.next_member,
        ("info", "More {noun}s pay: one more should lower the {proper} by {number}."),
        ("good", "There are enough {noun}s: one more should lower the {proper} by less than 1%."),
        bound=SMALL * abs(e.estimate(e.proper).value),
    )


# What does it do on other inputs?


def shift_costs(e: Evaluation) -> Findings:
    """The shift that costs most at the middle severity."""
    metric = e.metrics[e.headline]
    changes = {k: one["change"] for k, one in e.shifts.items()}
    size, verb = ("{points} points", "falls") if metric.unit == "share" else ("{size}", "rises")
    text = (
        f"Under {{name}} at severity 3 {_title(metric)} {verb} by {size}, most among "
        f"{len(changes)} shifts."
    )
    yield from _extreme(changes, -metric.better, text)


def shift_overconfidence(e: Evaluation) -> Findings:
    """The shift under which confidence falls least with accuracy."""
    found = {k: one["overconfidence"] for k, one in e.shifts.items() if one["overconfidence"]}
    text = (
        "Under {name} at severity 3 it is overconfident by {points} points: do not trust its "
        "confidence there."
    )
    yield from _extreme(found, 1, text, MARGIN)


def detection(e: Evaluation) -> Findings:
    """Inputs unlike the training data that uncertainty does not reveal."""
    aurocs = {name: one["auroc"] for name, one in e.detection.items()}
    for name in sorted(aurocs, key=lambda name: aurocs[name].value)[:1]:
        level = "good" if aurocs[name].above(0.95) else "info"
        text = "Of the other inputs, its uncertainty reveals {inputs} least well (AUROC {auroc})."
        bad = (
            "It is surer of {inputs} than of test examples (AUROC {auroc}): its uncertainty does "
            "not reveal them."
        )
        yield from _judged(aurocs[name], (level, text), ("warning", bad), bound=0.5, inputs=name)


RULES: dict[str, Callable[[Evaluation], Findings]] = {
    rule.__name__: rule
    for rule in (
        *(quality, gain, baseline, comparison, several),
        *(calibration, pit, factor, conformal, ranking, abstention, weak_class),
        *(more_members, shift_costs, shift_overconfidence, detection),
    )
}
"""The rules by their names."""
