"""Findings of an evaluation in plain words: a rule speaks only if an interval decides.

A rule takes an `Evaluation` and yields findings. A new one is a generator with `@rule`; its name is
the code. Its text is a template that `find` fills in. Sentences have at most 25 words. Silence is
no answer: the intervals are in the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import special

from ensemble.metrics import Estimate, Metric, functions
from ensemble.metrics.abstention import MAX_ERROR, Rule
from ensemble.report.baselines import comparable
from ensemble.report.table import digits, percent

if TYPE_CHECKING:
    from ensemble.report.evaluation import Evaluation

MARGIN, COVERAGE_MARGIN = 0.02, 0.05
"""Confidence this near to accuracy, and coverage this near to its level, is calibrated."""
DOUBTED = 0.01
"""p-value of the tests next to an interval, which alone has 5% of false alarms."""
SMALL = 0.01
"""A smaller share of a metric, or nats, does not matter."""
_FEW = 30
"""Examples that a share needs."""


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
RULES: dict[str, Callable[[Evaluation], Findings]] = {}


def rule(function: Callable[[Evaluation], Findings]) -> Callable[[Evaluation], Findings]:
    """Adds a rule."""
    RULES[function.__name__] = function
    return function


def find(e: Evaluation, codes: Collection[str] | None = None) -> list[Finding]:
    """Findings of an evaluation, in the order of the rules.

    Args:
        e: Evaluation to look at.
        codes: Names of rules; None: all.
    """
    found = []
    for code in RULES if codes is None else [one for one in RULES if one in codes]:
        for one in RULES[code](e):
            if not one.code:
                words = {**_words(e, one.numbers), **one.numbers}
                one = one._replace(code=code, text=one.text.format_map(words))
            found.append(one)
    return found


def as_lines(findings: Iterable[Finding], notes: Iterable[str]) -> tuple[list[str], list[str]]:
    """Texts of findings, warnings first, and of notes that are not among them."""
    lines = [one.text for one in sorted(findings, key=lambda one: one.level != "warning")]
    return lines, [f"Note: {one}" for one in notes if one not in lines]


def _words(e: Evaluation, numbers: Mapping[str, Any]) -> dict[str, str]:
    """Words that templates may have in addition to the numbers of their finding.

    A number and its interval are `{number}`, as shares `{percent}`, with three digits `{auroc}`;
    without its sign `{size}`, of shares in points `{points}`.
    """
    found = {
        "noun": e.noun,
        "headline": _title(e.metrics[e.headline]),
        "proper": _title(e.metrics[e.proper]),
        "sets": "sets" if e.is_classes else "intervals",
        "errors": "errors" if e.is_classes else "large errors",
    }
    if "value" in numbers:
        ends = [] if numbers["low"] is None else [numbers["low"], numbers["high"]]
        sizes = [abs(numbers["value"]), *sorted(map(abs, ends))]
        one = [numbers["value"], *ends]
        for name, values, show in (
            ("number", one, digits),
            ("percent", one, percent),
            ("auroc", one, "{:.3f}".format),
            ("size", sizes, digits),
            ("points", sizes, lambda share: f"{100 * share:.1f}"),
        ):
            value, *shown = map(show, values)
            found[name] = f"{value} [{', '.join(shown)}]" if shown else value
    return found


def _title(metric: Metric) -> str:
    """Return the title as within a sentence."""
    return metric.title if metric.title[1].isupper() else metric.title.lower()


def _finding(level: str, text: str, one: Estimate | None = None, **numbers: Any) -> Finding:
    return Finding("", level, text, {**(one._asdict() if one else {}), **numbers})


_good, _warning, _info = (partial(_finding, level) for level in ("good", "warning", "info"))


def _sign(one: Estimate | None, better: int = 1, margin: float = 0.0) -> int:
    """1 if an interval shows an improvement by more than a margin, -1 if a loss, else 0."""
    return better * (int(one.above(margin)) - int(one.below(-margin))) if one else 0


# How good is it?


@rule
def quality(e: Evaluation) -> Findings:
    """The headline metric: the one rule that always speaks."""
    who = "The ensemble is" if e.test.num_members > 1 else f"The {e.noun} is"
    text = (
        f"{who} right on {{percent}}" if e.headline == "accuracy" else "Its {headline} is {number}"
    )
    of = "of" if e.headline == "accuracy" else "on"
    yield _info(f"{text} {of} {len(e.y):,} {e.split} examples.", e.estimate(e.headline))


def _gain(e: Evaluation, name: str, margin: float, size: str) -> Findings:
    one = e.gain(name)
    if sign := _sign(one, e.metrics[name].better, margin):
        verb = "raises" if _sign(one) > 0 else "lowers"
        text = f"Averaging {verb} the {size}, compared with the average {{noun}}."
        yield (_good if sign > 0 else _warning)(text, one)


@rule
def gain(e: Evaluation) -> Findings:
    """Ensemble - average member, headline metric."""
    size = "{points} points" if e.metrics[e.headline].unit == "share" else "{size}"
    yield from _gain(e, e.headline, 0.0, f"{{headline}} by {size}")


@rule
def gain_nll(e: Evaluation) -> Findings:
    """Ensemble - average member, proper score, unless the gain is too small to matter."""
    if e.proper != e.headline:
        margin = SMALL * abs(e.estimate(e.proper).value)
        yield from _gain(e, e.proper, margin, "{proper} by {size}")


@rule
def impossible(e: Evaluation) -> Findings:
    """Targets of probability 0 make the NLL infinite, whatever else is right."""
    if "nll" in e.metrics and math.isinf(e.estimate("nll").value):
        number = int(np.isinf(functions.nll(e.test, e.y)).sum())
        text = "The NLL is infinite: {count} of the targets got a probability of 0."
        yield _warning(text, count=number)


def _versus(one: Estimate, name: str, **numbers: Any) -> Findings:
    """Another ensemble's proper score - ours, if it decides."""
    if sign := _sign(one):
        kind, word = (_good, "lower") if sign > 0 else (_warning, "higher")
        yield kind(f"Its {{proper}} is {{size}} {word} than that of {name}.", one, **numbers)


@rule
def baseline(e: Evaluation) -> Findings:
    """The best simple baseline, by the proper score; all of them are tested together."""
    rivals = {k: p for k, p in e.simple.items() if e.proper in comparable(e.test, p, e.metrics)}
    if rivals:
        level = 1 - 0.05 / len(rivals)
        found = {name: e.against(p, e.proper, level) for name, p in rivals.items()}
        best = min(found, key=lambda name: found[name].value)
        yield from _versus(found[best], "{baseline}, the best baseline", baseline=best)


@rule
def weak_class(e: Evaluation) -> Findings:
    """Classes that are found significantly less often than the average one."""
    recall = e.recall if e.is_classes and len(e.test.axis) > 2 else []
    weak = [c for c, one in enumerate(recall) if one.below(e.estimate("accuracy").value)]
    if weak:
        c = min(weak, key=lambda c: recall[c].value)
        text = "Class {label!r} is found least often: {percent} of its examples."
        if others := len(weak) - 1:
            text += f" {others} other classes are below average too."
        yield _warning(text, recall[c], label=e.test.axis[c])


# Can its uncertainty be trusted?


@rule
def calibration(e: Evaluation) -> Findings:
    """Confidence - accuracy, or coverage of the widest intervals of the table."""
    if e.is_classes:
        one = e.estimate("overconfidence")
        if sign := _sign(one):
            word, side = ("over", "above") if sign > 0 else ("under", "below")
            text = f"It is {word}confident: mean confidence is {{points}} points {side} accuracy."
            yield _warning(text, one)
        elif one.within(-MARGIN, MARGIN):
            yield _good("Its confidence is right on average: within 2 points of accuracy.", one)
        return
    name = next((n for n in e.metrics if n.startswith("coverage_")), None)
    if name is None or e.test.kind == "several":
        return
    level, one = float(name[9:]) / 100, e.estimate(name)
    text = f"Its {name[9:]}% intervals cover {{percent}} of the targets"
    if one.below(level):
        yield _warning(f"{text}: they are too narrow.", one)
    elif one.above(level) and e.test.kind != "counts":
        yield _warning(f"{text}: they are too wide.", one)
    elif one.within(level - COVERAGE_MARGIN, level + COVERAGE_MARGIN):
        yield _good(f"{text}.", one)


@rule
def calibration_by_level(e: Evaluation) -> Findings:
    """ECE above that of labels drawn from the predictions, by a Monte Carlo test at 1%."""
    if not e.is_classes or e.groups is not None:
        return
    (chance, p_value), one = e.ece_by_chance, e.estimate("overconfidence")
    if p_value <= DOUBTED and one.is_known and not _sign(one):
        text = "Confidence is right on average, not at every level: ECE is {ece:.4f}, and chance "
        text += "seldom exceeds {by_chance:.4f}."
        yield _warning(text, ece=e.estimate("ece").value, by_chance=chance, p_value=p_value)


@rule
def pit(e: Evaluation) -> Findings:
    """Uniformity of the PIT, by an exact test at 1%."""
    if e.test.kind in ("numbers", "counts") and e.groups is None and e.pit[1] <= DOUBTED:
        text = "The predicted distributions have the wrong shape: their PIT is not uniform "
        text += "(distance {distance:.3f}, p = {p_value:.2g})."
        yield _warning(text, distance=e.pit[0], p_value=e.pit[1])


@rule
def factor(e: Evaluation) -> Findings:
    """One temperature, or factor of the scale, by folds of the calibration split."""
    one, what = e.factor_gain, "temperature" if e.is_classes else "scale factor"
    if one and one.below():
        text = f"A {what} of {{factor:.2f}} lowers the NLL by {{size}} on held-out examples: "
        yield _warning(f"{text}calibrate it.", one, factor=e.factor)
    elif one and one.above(-SMALL):
        text = f"Calibration is not needed: it would lower the NLL by less than {SMALL:g} nats."
        yield _good(text, one, factor=e.factor)


@rule
def conformal(e: Evaluation) -> Findings:
    """Coverage compared with its distribution over pairs of splits."""
    if (one := e.conformal) is None or e.groups is not None:
        return
    low, high = one.expected
    text, kind = "Conformal {sets} of 90% cover {coverage:.1%}", _good
    if not low <= one.coverage <= high:
        text, kind = f"{text}: calibration and test examples differ.", _warning
    elif low < 0.9 - COVERAGE_MARGIN:
        return  # So few examples would not show a broken promise.
    else:
        text += f", with a size of {digits(one.size)} on average."
    yield kind(text, coverage=one.coverage, expected=one.expected, size=one.size)


# Does it know where it errs?


@rule
def ranking(e: Evaluation) -> Findings:
    """AUROC of the doubt for errors."""
    one = e.detects_errors
    if one and one.above(0.5):
        text = "It knows where it errs: {errors} have higher uncertainty (AUROC {auroc})."
        yield _good(text, one)
    elif one and one.below(0.5):
        text = "Do not rank by its uncertainty: {errors} have a lower one (AUROC {auroc})."
        yield _warning(text, one)


@rule
def abstention(e: Evaluation) -> Findings:
    """Accuracy of the 80% of surest examples, if it is higher."""
    if e.is_classes and e.wrong.any():
        terms = e.metrics["accuracy_at_80"].terms(e.test, e.y)
        if e.interval(terms - functions.accuracy(e.test, e.y)).above():
            text = "On the 80% of examples it is surest of, {percent} are right."
            yield _good(text, e.estimate("accuracy_at_80"))


@rule
def requested_rules(e: Evaluation) -> Findings:
    """Rules of abstention that somebody asks for."""
    text = (
        "By {rule} it answers {coverage:.1%} of the examples; {percent} of these answers are wrong."
    )
    for one in e.rules:
        if answers := e.answers(one):
            yield _info(text, answers.error, rule=str(one), coverage=answers.coverage)


@rule
def guarantee(e: Evaluation) -> Findings:
    """The least of three error rates that the calibration split proves."""
    for most in (0.01, 0.02, 0.05) if e.is_classes else ():
        if answers := e.answers(Rule(MAX_ERROR, most)):
            is_whole = answers.coverage == 1
            text = "At most {max_error:.0%} of its answers are wrong, with 95% confidence, "
            text += (
                "without abstaining." if is_whole else "if it answers {coverage:.1%} of examples."
            )
            kind = _good if is_whole else _info
            yield kind(text, max_error=most, coverage=answers.coverage)
            return


@rule
def confident_errors(e: Evaluation) -> Findings:
    """Errors at a confidence of 99%, compared with the expected number (Poisson test, 1%)."""
    if not e.is_classes or e.groups is not None:
        return
    sure = e.test.confidence >= 0.99
    number, expected = int((e.wrong & sure).sum()), float((1 - e.test.confidence)[sure].sum())
    if number >= 3 and special.pdtrc(number - 1, expected) <= DOUBTED:
        text = "It was wrong {count} times with a confidence above 99%, where {expected:.1f} are "
        yield _warning(f"{text}expected: look at these first.", count=number, expected=expected)


# What do its members bring?


@rule
def agreement(e: Evaluation) -> Findings:
    """Accuracy where all members agree."""
    if not e.is_classes or e.test.num_members < 3:
        return
    right, agree = ~e.wrong, (e.test.votes == e.test.votes[0]).all(axis=0)
    if min(agree.sum(), (~agree).sum()) < _FEW:
        return
    one = e.interval(right, agree, bounds=(0, 1))
    if one.above(e.estimate("accuracy").value):
        text = (
            "Where all {noun}s agree, on {share:.0%} of examples, {percent} are right; elsewhere "
        )
        text += "{elsewhere:.1%}."
        yield _info(text, one, share=float(agree.mean()), elsewhere=float(right[~agree].mean()))


@rule
def more_members(e: Evaluation) -> Findings:
    """Expected gain of one more member, compared with a hundredth of the score."""
    one, least = e.next_member, SMALL * abs(e.estimate(e.proper).value)
    if one and one.above(least):
        yield _info("More {noun}s pay: one more should lower the {proper} by {number}.", one)
    elif one and one.below(least):
        text = "There are enough {noun}s: one more should lower the {proper} by less than 1%."
        yield _good(text, one)


@rule
def harmful_member(e: Evaluation) -> Findings:
    """A member without which the ensemble is better; all are tested together."""
    if e.without_each is None:
        return
    whole, level = e.metrics[e.proper].terms(e.test, e.y), 1 - 0.05 / e.test.num_members
    found = [e.interval(whole - one, level=level) for one in e.without_each]
    one = max(found, key=lambda one: one.value)
    if one.above(SMALL / 10 * abs(e.estimate(e.proper).value)):
        text = "Without {noun} {member} the {proper} is {number} lower: look at its training."
        yield _warning(text, one, member=found.index(one))


@rule
def convergence(e: Evaluation) -> Findings:
    """Chains of a posterior: agreement, step sizes, divergences (`report.chains`)."""
    yield from (e.chains or {}).get("said", ())


# What does it do on other inputs?


@rule
def shift_costs(e: Evaluation) -> Findings:
    """The shift that costs most at the middle severity, or that none costs much."""
    metric, changes = e.metrics[e.headline], {k: one.change for k, one in e.shifts.items()}
    bad = [kind for kind, one in changes.items() if _sign(one, metric.better) < 0]
    is_share = metric.unit == "share"
    if bad:
        kind = min(bad, key=lambda kind: metric.better * changes[kind].value)
        word, size = ("falls", "{points} points") if is_share else ("rises", "{size}")
        text = f"Under {{shift}} at severity 3 {{headline}} {word} by {size}, most among "
        yield _warning(f"{text}{len(changes)} shifts.", changes[kind], shift=kind)
    elif changes and is_share and all(one.above(-MARGIN) for one in changes.values()):
        yield _good(f"None of {len(changes)} shifts costs 2 points of accuracy at severity 3.")


@rule
def shift_overconfidence(e: Evaluation) -> Findings:
    """Whether confidence falls with accuracy."""
    found = {k: one.overconfidence for k, one in e.shifts.items() if one.overconfidence}
    if bad := {kind: one for kind, one in found.items() if one.above(MARGIN)}:
        kind = max(bad, key=lambda kind: bad[kind].value)
        text = (
            "Under {shift} at severity 3 it is overconfident by {points} points: do not trust its "
        )
        yield _warning(f"{text}confidence there.", bad[kind], shift=kind)
    elif found and all(one.below(MARGIN) for one in found.values()):
        yield _good(f"Under none of {len(found)} shifts is it overconfident at severity 3.")


@rule
def shift_gain(e: Evaluation) -> Findings:
    """Whether averaging still helps under shift."""
    better = e.metrics[e.headline].better
    signs = {kind: _sign(one.gain, better) for kind, one in e.shifts.items()}
    if not signs or e.test.num_members == 1:
        return
    if min(signs.values()) > 0:
        yield _good(f"Averaging helps under all {len(signs)} shifts, too.")
    elif bad := [kind for kind, sign in signs.items() if sign < 0]:
        text = "Averaging hurts under {shift} at severity 3."
        yield _warning(text, e.shifts[bad[0]].gain, shift=bad[0])


@rule
def detection(e: Evaluation) -> Findings:
    """Inputs unlike the training data that uncertainty does not reveal."""
    if not e.detection:
        return
    name, (one, *_) = min(e.detection.items(), key=lambda each: each[1].auroc.value)
    if one.below(0.5):
        text = "It is surer of {inputs} than of test examples (AUROC {auroc}): its uncertainty "
        yield _warning(f"{text}does not reveal them.", one, inputs=name)
    elif one.above(0.95):
        text = "Its uncertainty reveals other inputs; hardest is {inputs} (AUROC {auroc})."
        yield _good(text, one, inputs=name)
    elif one.above(0.5):
        text = "Of the other inputs, its uncertainty reveals {inputs} least well (AUROC {auroc})."
        yield _info(text, one, inputs=name)


# Compared with others.


@rule
def comparison(e: Evaluation) -> Findings:
    """Other ensembles on the same examples, by the proper score."""
    for name, found in e.comparisons.items():
        if e.proper in found:
            yield from _versus(found[e.proper]["difference"], "{other}", other=name)


@rule
def groups(e: Evaluation) -> Findings:
    """What intervals are over."""
    if e.groups is not None:
        kind, text = _warning, "{groups} groups are too few for intervals: collect more."
        if e.estimate(e.headline).is_known:
            kind, text = _info, "Rows come in {groups} groups, and intervals are over these."
        yield kind(text, groups=len(np.unique(e.groups)))


@rule
def several(e: Evaluation) -> Findings:
    """The targets that are predicted worse than by their baseline."""
    for name, one in e.targets.items():
        for f in find(one, ("baseline",)):
            if f.level == "warning":
                yield f._replace(code="several", text=f"{name}: {f.text}")
