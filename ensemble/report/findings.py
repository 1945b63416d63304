"""Findings of an evaluation in plain words: a rule speaks only if an interval decides.

A rule takes an `Evaluation` and yields findings; its name, listed in `SECTIONS`, is their code. A
text is a template that `find` fills in. Sentences have at most 25 words. Silence is no answer: the
intervals are in the tables.
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
from ensemble.metrics.conformal import Outcome
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
Said = tuple[str, str]
"""Level and text."""


def find(e: Evaluation, codes: Collection[str] | None = None) -> list[Finding]:
    """Findings of an evaluation, in the order of the rules.

    Args:
        e: Evaluation to look at.
        codes: Names of rules; None: all, and the findings of chains.
    """
    found = []
    for code, rule in RULES.items():
        for one in rule(e) if codes is None or code in codes else ():
            found.append(one._replace(code=code, text=one.text.format_map(_words(e, one.numbers))))
    if codes is not None:
        return found
    found += (e.chains or {}).get("said", ())
    spoken = {one.code for one in found}
    return found + [one for one in e.warnings if one.code not in spoken]


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
    "size": digits,
    "points": lambda share: f"{100 * share:.1f}",
}
_SIZES = ("size", "points")


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
        known = [numbers[one] for one in Estimate._fields if numbers[one] is not None]
        sizes = [abs(known[0]), *sorted(map(abs, known[1:]))]
        for name, show in _SHOW.items():
            value, *ends = map(show, sizes if name in _SIZES else known)
            found[name] = f"{value} [{', '.join(ends)}]" if ends else value
    return {**found, **numbers}


def _title(metric: Metric) -> str:
    """Return the title as within a sentence."""
    return metric.title if metric.title[1].isupper() else metric.title.lower()


def _finding(
    level: str, text: str, one: Estimate | Outcome | None = None, **numbers: Any
) -> Finding:
    return Finding("", level, text, {**(one._asdict() if one else {}), **numbers})


_good, _warning, _info = (partial(_finding, level) for level in ("good", "warning", "info"))


def _judged(
    one: Estimate | None,
    above: Said | None,
    below: Said,
    near: Said | None = None,
    *,
    bound: float = 0.0,
    slack: float = 0.0,
    margin: float = 0.0,
    **numbers: Any,
) -> Findings:
    """Finding by the place of an interval, if that is known.

    Args:
        one: Estimate; None: nothing is known.
        above: Said if the interval lies above the bound by more than the slack.
        below: Said if it lies below it.
        near: Said if it lies around the bound within the margin.
        bound: What it is compared with.
        slack: Distance that does not matter.
        margin: Largest distance that is near.
        **numbers: In addition to the estimate.
    """
    said = None
    if one and above and one.above(bound + slack):
        said = above
    elif one and one.below(bound - slack):
        said = below
    elif one and one.within(bound - margin, bound + margin):
        said = near
    if said:
        yield _finding(*said, one, **numbers)


def _by_value(item: tuple[Any, Estimate]) -> float:
    return item[1].value


def _extreme(
    found: Mapping[str, Estimate],
    toward: int,
    said: Said,
    otherwise: Said | None = None,
    bound: float = 0.0,
    other_bound: float = 0.0,
) -> Findings:
    """Finding on the most extreme of several estimates, which are tested together, or on all.

    Args:
        found: Estimates by name; the text may have the `{name}`.
        toward: 1: the largest is the most extreme, -1: the smallest.
        said: Said if its interval lies beyond the bound.
        otherwise: Said if all intervals lie on this side of the other bound.
        bound: Of the most extreme one.
        other_bound: Of all.
    """
    if not found:
        return
    beyond, within = (Estimate.above, Estimate.below)[::toward]
    name, one = max(found.items(), key=lambda item: toward * item[1].value)
    if beyond(one, bound):
        yield _finding(*said, one, name=name)
    elif otherwise and all(within(one, other_bound) for one in found.values()):
        yield _finding(*otherwise)


# How good is it?


def quality(e: Evaluation) -> Findings:
    """The headline metric: the one rule that always speaks."""
    text = f"Its {_title(e.metrics[e.headline])} is {{number}} on"
    if e.headline == "accuracy":
        who = "ensemble" if e.test.num_members > 1 else e.noun
        text = f"The {who} is right on {{percent}} of"
    yield _info(f"{text} {len(e.y):,} {e.split} examples.", e.estimate(e.headline))


def _gain(e: Evaluation, name: str) -> Findings:
    """Ensemble - average member, unless it is too small to matter."""
    metric = e.metrics[name]
    is_share = metric.unit == "share"
    size = "{points} points" if is_share else "{size}"
    slack = 0.0 if is_share else SMALL * abs(e.estimate(name).value)
    rest = f"the {_title(metric)} by {size}, compared with the average {{noun}}."
    above, below = ("good", "warning")[:: metric.better]
    texts = (above, f"Averaging raises {rest}"), (below, f"Averaging lowers {rest}")
    yield from _judged(e.gain(name), *texts, slack=slack)


def gain(e: Evaluation) -> Findings:
    """Ensemble - average member, headline metric."""
    yield from _gain(e, e.headline)


def gain_nll(e: Evaluation) -> Findings:
    """Ensemble - average member, proper score."""
    if e.proper != e.headline:
        yield from _gain(e, e.proper)


def impossible(e: Evaluation) -> Findings:
    """Targets of probability 0 make the NLL infinite, whatever else is right."""
    if "nll" in e.metrics and math.isinf(e.estimate("nll").value):
        yield _warning(
            "The NLL is infinite: {count} of the targets got a probability of 0.",
            count=int(np.isinf(functions.nll(e.test, e.y)).sum()),
        )


def _versus(one: Estimate, name: str, **numbers: Any) -> Findings:
    """Another ensemble's proper score - ours, if it decides."""
    text = f"Its {{{{proper}}}} is {{{{size}}}} {{}} than that of {name}."
    yield from _judged(
        one, ("good", text.format("lower")), ("warning", text.format("higher")), **numbers
    )


def baseline(e: Evaluation) -> Findings:
    """The best simple baseline, by the proper score; all of them are tested together."""
    rivals = {k: p for k, p in e.simple.items() if e.proper in e.shared(p)}
    found = {name: e.against(p, e.proper, joint(len(rivals))) for name, p in rivals.items()}
    if found:
        best, one = min(found.items(), key=_by_value)
        yield from _versus(one, "{{baseline}}, the best baseline", baseline=best)


def weak_class(e: Evaluation) -> Findings:
    """The class that is found least often, if significantly less than the average one."""
    if e.is_classes and len(e.recall) > 2:
        recall = {str(e.test.axis[c]): one for c, one in enumerate(e.recall) if one.is_known}
        yield from _extreme(
            recall,
            -1,
            ("warning", "Class {name!r} is found least often: {percent} of its examples."),
            bound=e.estimate("accuracy").value,
        )


def failed_members(e: Evaluation) -> Findings:
    """Members that are left out."""
    for member, why in e.about.get("failed_members", {}).items():
        text = f"{e.noun.capitalize()} {{member}} is left out: {{why}}."
        yield _warning(text, member=member, why=why)


# Can its uncertainty be trusted?


def calibration(e: Evaluation) -> Findings:
    """Confidence - accuracy, or coverage of the widest intervals of the table."""
    name = next((n for n in e.metrics if n.startswith("coverage_")), "")
    if e.is_classes:
        text = "It is {}confident: mean confidence is {{points}} points {} accuracy."
        over = text.format("over", "above")
        under = text.format("under", "below")
        near = "good", "Its confidence is right on average: within 2 points of accuracy."
        yield from _judged(
            e.estimate("overconfidence"), ("warning", over), ("warning", under), near, margin=MARGIN
        )
    elif name and e.test.kind != "several":
        text = f"Its {name[9:]}% intervals cover {{percent}} of the targets"
        level = name[9:]
        wide = None if e.test.kind == "counts" else ("warning", f"{text}: they are too wide.")
        narrow = ("warning", f"{text}: they are too narrow.")
        near = ("good", f"{text}.")
        how = {"bound": float(level) / 100, "margin": COVERAGE_MARGIN}
        yield from _judged(e.estimate(name), wide, narrow, near, **how)


def calibration_by_level(e: Evaluation) -> Findings:
    """ECE above that of labels drawn from the predictions, by a Monte Carlo test at 1%."""
    if not e.is_classes or e.groups is not None:
        return
    chance, p_value = e.ece_by_chance
    one = e.estimate("overconfidence")
    if p_value <= DOUBTED and one.is_known and not (one.above() or one.below()):
        yield _warning(
            "Confidence is right on average, not at every level: ECE is {ece:.4f}, and chance "
            "seldom exceeds {by_chance:.4f}.",
            ece=e.estimate("ece").value,
            by_chance=chance,
            p_value=p_value,
        )


def pit(e: Evaluation) -> Findings:
    """Uniformity of the PIT, by an exact test at 1%."""
    if e.test.kind in ("numbers", "counts") and e.groups is None and e.pit[1] <= DOUBTED:
        yield _warning(
            "The predicted distributions have the wrong shape: their PIT is not uniform (distance "
            "{distance:.3f}, p = {p_value:.2g}).",
            distance=e.pit[0],
            p_value=e.pit[1],
        )


def factor(e: Evaluation) -> Findings:
    """One temperature, or factor of the scale, by folds of the calibration split."""
    one = e.factor_gain
    if one and one.below():
        text = "A {what} of {factor:.2f} lowers the NLL by {size} on held-out examples: calibrate."
        yield _warning(text, one, factor=e.factor)
    elif one and one.above(-SMALL):
        text = f"Calibration is not needed: it would lower the NLL by less than {SMALL:g} nats."
        yield _good(text, one, factor=e.factor)


def conformal(e: Evaluation) -> Findings:
    """Coverage compared with its distribution over pairs of splits."""
    one = e.conformal
    text = "Conformal {sets} of 90% cover {coverage:.1%}"
    if one is None or e.groups is not None:
        return
    low, high = one.expected
    if not low <= one.coverage <= high:
        yield _warning(f"{text}: calibration and test examples differ.", one)
    elif low >= 0.9 - COVERAGE_MARGIN:  # Fewer examples would not show a broken promise.
        text += f", with a size of {digits(one.size)} on average."
        yield _good(text, one)


# Does it know where it errs?


def ranking(e: Evaluation) -> Findings:
    """AUROC of the doubt for errors."""
    yield from _judged(
        e.detects_errors,
        ("good", "It knows where it errs: {errors} have higher uncertainty (AUROC {auroc})."),
        ("warning", "Do not rank by its uncertainty: {errors} have a lower one (AUROC {auroc})."),
        bound=0.5,
    )


def abstention(e: Evaluation) -> Findings:
    """Accuracy of the 80% of surest examples, if it is higher."""
    if e.is_classes and e.wrong.any():
        terms = e.metrics["accuracy_at_80"].terms(e.test, e.y)
        if e.interval(terms - functions.accuracy(e.test, e.y)).above():
            yield _good(
                "On the 80% of examples it is surest of, {percent} are right.",
                e.estimate("accuracy_at_80"),
            )


def requested_rules(e: Evaluation) -> Findings:
    """Rules of abstention that somebody asks for."""
    text = (
        "By {rule} it answers {coverage:.1%} of the examples; {percent} of these answers are wrong."
    )
    for one in e.rules:
        if answers := e.answers(one):
            yield _info(text, answers.error, rule=str(one), coverage=answers.coverage)


def guarantee(e: Evaluation) -> Findings:
    """The least of three error rates that the calibration split proves."""
    for most in (0.01, 0.02, 0.05) if e.is_classes else ():
        if answers := e.answers(Rule(MAX_ERROR, most)):
            yield _info(
                "At most {max_error:.0%} of its answers are wrong, with 95% confidence, if it "
                "answers {coverage:.1%} of examples.",
                max_error=most,
                coverage=answers.coverage,
            )
            return


def confident_errors(e: Evaluation) -> Findings:
    """Errors at a confidence of 99%, compared with the expected number (Poisson test, 1%)."""
    if not e.is_classes or e.groups is not None:
        return
    sure = e.test.confidence >= 0.99
    number = int((e.wrong & sure).sum())
    expected = float((1 - e.test.confidence)[sure].sum())
    if number >= 3 and special.pdtrc(number - 1, expected) <= DOUBTED:
        yield _warning(
            "It was wrong {count} times with a confidence above 99%, where {expected:.1f} are "
            "expected: look at these first.",
            count=number,
            expected=expected,
        )


# What do its members bring?


def agreement(e: Evaluation) -> Findings:
    """Accuracy where all members agree."""
    if not e.is_classes or e.test.num_members < 3:
        return
    right = ~e.wrong
    agree = (e.test.votes == e.test.votes[0]).all(axis=0)
    if min(agree.sum(), (~agree).sum()) >= _FEW:
        one = e.interval(right, agree, bounds=(0, 1))
        elsewhere = float(right[~agree].mean())
        text = (
            "Where all {noun}s agree, on {share:.0%} of examples, {percent} are right; elsewhere "
            "{elsewhere:.1%}."
        )
        if one.above(e.estimate("accuracy").value):
            yield _info(text, one, share=float(agree.mean()), elsewhere=elsewhere)


def more_members(e: Evaluation) -> Findings:
    """Expected gain of one more member, compared with a hundredth of the score."""
    yield from _judged(
        e.next_member,
        ("info", "More {noun}s pay: one more should lower the {proper} by {number}."),
        ("good", "There are enough {noun}s: one more should lower the {proper} by less than 1%."),
        bound=SMALL * abs(e.estimate(e.proper).value),
    )


def harmful_member(e: Evaluation) -> Findings:
    """A member without which the ensemble is better; all are tested together."""
    if e.without_each is not None:
        whole = e.metrics[e.proper].terms(e.test, e.y)
        level = joint(e.test.num_members)
        each = [e.interval(whole - one, level=level) for one in e.without_each]
        numbers = e.about.get("members", range(e.test.num_members))
        yield from _extreme(
            {str(k): one for k, one in zip(numbers, each, strict=True)},
            1,
            (
                "warning",
                "Without {noun} {name} the {proper} is {number} lower: look at its training.",
            ),
            bound=SMALL / 10 * abs(e.estimate(e.proper).value),
        )


# What does it do on other inputs?


def shift_costs(e: Evaluation) -> Findings:
    """The shift that costs most at the middle severity, or that none costs much."""
    metric = e.metrics[e.headline]
    changes = {k: one.change for k, one in e.shifts.items()}
    size, verb = ("{points} points", "falls") if metric.unit == "share" else ("{size}", "rises")
    text = (
        f"Under {{name}} at severity 3 {_title(metric)} {verb} by {size}, most among "
        f"{len(changes)} shifts."
    )
    good = "good", f"None of {len(changes)} shifts costs 2 points of accuracy at severity 3."
    few = good if metric.better > 0 else None
    yield from _extreme(changes, -metric.better, ("warning", text), few, 0, -MARGIN)


def shift_overconfidence(e: Evaluation) -> Findings:
    """Whether confidence falls with accuracy."""
    found = {k: one.overconfidence for k, one in e.shifts.items() if one.overconfidence}
    yield from _extreme(
        found,
        1,
        (
            "warning",
            "Under {name} at severity 3 it is overconfident by {points} points: do not trust its "
            "confidence there.",
        ),
        ("good", f"Under none of {len(found)} shifts is it overconfident at severity 3."),
        MARGIN,
        MARGIN,
    )


def shift_gain(e: Evaluation) -> Findings:
    """Whether averaging still helps under shift."""
    gains = {k: one.gain for k, one in e.shifts.items() if e.test.num_members > 1}
    good = f"Averaging helps under all {len(gains)} shifts, too."
    said = "warning", "Averaging hurts under {name} at severity 3."
    yield from _extreme(gains, -e.metrics[e.headline].better, said, ("good", good))


def detection(e: Evaluation) -> Findings:
    """Inputs unlike the training data that uncertainty does not reveal."""
    found = {name: one.auroc for name, one in e.detection.items()}
    if not found:
        return
    name, one = min(found.items(), key=_by_value)
    bad = (
        "It is surer of {inputs} than of test examples (AUROC {auroc}): its uncertainty does not "
        "reveal them."
    )
    above = (
        "info",
        "Of the other inputs, its uncertainty reveals {inputs} least well (AUROC {auroc}).",
    )
    if one.above(0.95):
        above = "good", "Its uncertainty reveals other inputs; hardest is {inputs} (AUROC {auroc})."
    yield from _judged(one, above, ("warning", bad), bound=0.5, inputs=name)


# Compared with others.


def comparison(e: Evaluation) -> Findings:
    """Other ensembles on the same examples, by the proper score."""
    for name, found in e.comparisons.items():
        if e.proper in found:
            yield from _versus(found[e.proper]["difference"], "{{other}}", other=name)


def groups(e: Evaluation) -> Findings:
    """What intervals are over."""
    if e.groups is not None:
        said = _warning
        text = "{groups} groups are too few for intervals: collect more."
        if e.estimate(e.headline).is_known:
            said = _info
            text = "Rows come in {groups} groups, and intervals are over these."
        yield said(text, groups=len(np.unique(e.groups)))


OF_ALL = {"groups", "failed_members"}
"""Codes of findings that are the same for each of several targets."""


def several(e: Evaluation) -> Findings:
    """Warnings of each target, but those that hold for all of them."""
    for name, one in e.targets.items():
        for f in find(one, RULES.keys() - OF_ALL):
            if f.level == "warning":
                yield f._replace(text=f"{name}: {f.text}")


SECTIONS: dict[str, tuple[Callable[[Evaluation], Findings], ...]] = {
    "scores": (
        failed_members,
        quality,
        gain,
        gain_nll,
        impossible,
        baseline,
        comparison,
        groups,
        several,
    ),
    "calibration": (calibration, calibration_by_level, pit, factor, conformal),
    "errors": (ranking, abstention, requested_rules, guarantee, weak_class, confident_errors),
    "members": (agreement, more_members, harmful_member),
    "shift": (shift_costs, shift_overconfidence, shift_gain, detection),
}
"""Rules by the section of the page that shows what they find."""
RULES = {rule.__name__: rule for rules in SECTIONS.values() for rule in rules}
