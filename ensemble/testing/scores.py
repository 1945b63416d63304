"""What every score promises: terms of rows, a value, and an interval that holds it."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from typing import Any

import numpy as np

from ensemble import likelihoods
from ensemble.errors import UserError
from ensemble.scoring.score import Score, asked_for, scores_of
from ensemble.scoring.view import View
from ensemble.testing.promises import Promise, demand, keep_all, promise

NUM_ROWS, NUM_SETS = 200, 60
_LEAST_COVERED = 0.85  # Of 60 intervals of 95%, at most 50 cover once in some thousand times.
_CLASSES = {"categorical": ("a", "b", "c"), "bernoulli": ("a", "b")}
LIKELIHOODS = (*_CLASSES, "gaussian", "quantiles")
"""Predictions of these are made, of every type of view that one target has."""


@dataclasses.dataclass(frozen=True)
class ScoreCase:
    """A score of made predictions.

    Attributes:
        name: of the score.
        score: itself.
        of: the likelihood of the predictions.
    """

    name: str
    score: Score
    of: str
    kind: str = "score"

    @property
    def view(self) -> Any:
        """Predictions of 200 rows."""
        return made_view(self.of, NUM_ROWS)


@functools.cache
def made_view(name: str, num_rows: int) -> View:
    """Predictions of four members that are calibrated, nearly, beside their targets.

    Args:
        name: one of `LIKELIHOODS`.
        num_rows: N.
    """
    rng = np.random.default_rng(0)
    if name in _CLASSES:
        number = len(_CLASSES[name])
        true = 2 * rng.normal(size=(num_rows, number))
        labels = np.argmax(true + rng.gumbel(size=true.shape), axis=1).astype(np.int32)
        logits = true + 0.3 * rng.normal(size=(4, num_rows, number))
        log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        of_classes = likelihoods.of_data(name, labels, _CLASSES[name])
        return of_classes.view({"log_probs": log_probs.astype(np.float32)}, labels)
    mean = 5 + 3 * rng.normal(size=num_rows)
    y = (mean + rng.normal(size=num_rows)).astype(np.float32)
    loc = (mean + 0.3 * rng.normal(size=(4, num_rows))).astype(np.float32)
    if name == "gaussian":
        arrays = {"loc": loc, "scale": np.ones_like(loc)}
        return likelihoods.of_data(name, y, ()).view(arrays, y)
    quantile = loc[..., None] + np.array([-1.6449, 0, 1.6449], np.float32)
    of_levels = likelihoods.of_data(name, y, (), levels="0.05,0.5,0.95")
    return of_levels.view({"quantile": quantile.astype(np.float32)}, y)


def score_cases(name: str) -> list[ScoreCase]:
    """A score beside predictions of each likelihood that has it.

    Raises:
        UserError: there is none of that name, or no predictions of one target have it.
    """
    found, refused = [], ""
    for of in LIKELIHOODS:
        view = made_view(of, NUM_ROWS)
        known = scores_of(view)
        if name in known:
            found.append(ScoreCase(name, known[name], of))
            continue
        try:
            asked = asked_for((name,), view, _CLASSES.get(of, ()))
        except UserError as error:
            refused = str(error)
            continue
        found += [ScoreCase(name, one, of) for one in asked]
    if not found:
        raise UserError(refused or f"the score {name!r} says nothing of predictions of one target")
    return found


def check_score(name: str) -> None:
    """Checks what every score promises, on made predictions of each type that it is of.

    Args:
        name: of a score that is built in, registered or installed; `NAME:TEXT` with a setting.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: there is none of that name, or no predictions of one target have it.
    """
    for case in score_cases(name):
        keep_all(PROMISES, case)


_FOUND: list[Promise] = []


def _hints(field: str) -> tuple[str, ...]:
    """The values that a field of a score can have."""
    return typing.get_args(typing.get_type_hints(Score)[field])


@promise(_FOUND, "the function, and the arguments of @score")
def it_has_a_term_for_each_row_and_one_value(case: ScoreCase) -> None:
    """There is a term, or two, for each row, one finite value, and a unit and a better side."""
    score, view = case.score, case.view
    for field in ("unit", "better", "under_shift"):
        value = getattr(score, field)
        demand(value in _hints(field), f"{field}={value!r} is none of {_hints(field)}")
    terms = score.terms(view)
    shapes = ((view.num_rows,), (view.num_rows, 2))
    demand(np.shape(terms) in shapes, f"terms have the shape {np.shape(terms)}, not {shapes[0]}")
    value = score.value(view)
    demand(math.isfinite(value), f"the value is {value}")
    json_type = type(value).__name__
    demand(isinstance(value, float), f"the value is of type {json_type}, not float")


@promise(_FOUND, "terms that depend on other rows, or on where a row stands")
def the_order_of_rows_does_not_count(case: ScoreCase) -> None:
    """A term is of its row alone, and the value is the same in any order of the rows."""
    score, view = case.score, case.view
    order = np.random.default_rng(2).permutation(view.num_rows)
    terms = np.asarray(score.terms(view), np.float64)
    some = np.asarray(score.terms(view.rows(order[:20])), np.float64)
    np.testing.assert_allclose(some, terms[order[:20]], rtol=1e-9, atol=1e-12, err_msg="terms")
    again = score.value(view.rows(order))
    np.testing.assert_allclose(again, score.value(view), rtol=1e-9, atol=1e-12, err_msg="value")


@promise(_FOUND, "the rule's value(terms, counts)")
def repeated_rows_count_as_often(case: ScoreCase) -> None:
    """With counts, the value is that of rows which are repeated so often."""
    rule, terms = case.score.combine, case.score.known_terms(case.view)[0]
    counts = np.random.default_rng(5).integers(3, size=len(terms))
    repeated = rule.value(np.repeat(terms, counts, axis=0))
    np.testing.assert_allclose(rule.value(terms, counts), repeated, rtol=1e-9, atol=1e-12)


@promise(_FOUND, "the rule's interval")
def an_interval_holds_the_value(case: ScoreCase) -> None:
    """An interval holds the value, and that of a higher level holds both."""
    score, view = case.score, case.view
    narrow, wide = (score.interval(view, level=level) for level in (0.8, 0.95))
    if wide is None or narrow is None:
        demand(wide is narrow, f"at 80% the interval is {narrow}, and at 95% {wide}")
        return
    value = score.value(view)
    ends = (wide[0], narrow[0], value, narrow[1], wide[1])
    demand(list(ends) == sorted(ends), f"at 95%, at 80% and the value: {wide}, {narrow}, {value}")


@promise(_FOUND, "the rule's interval: `tail`, `low` and `high` of Mean, or another rule")
def intervals_cover(case: ScoreCase) -> None:
    """Intervals of 95% of small sets of rows cover the value of all rows, mostly."""
    score, view = case.score, made_view(case.of, NUM_ROWS * NUM_SETS)
    terms, _ = score.known_terms(view)
    value, rule = score.combine.value(terms), score.combine
    found = [rule.interval(one) for one in np.array_split(terms, NUM_SETS)]
    known = [one for one in found if one is not None]
    if len(known) < NUM_SETS:
        return
    covered = np.mean([low <= value <= high for low, high in known])
    told = f"{covered:.0%} of {NUM_SETS} intervals cover, not {_LEAST_COVERED:.0%}"
    demand(covered >= _LEAST_COVERED, told)


@promise(_FOUND, "`better` of @score, and the sign of the terms")
def better_is_what_is_said(case: ScoreCase) -> None:
    """Predictions of other rows' targets do not score better."""
    score, view = case.score, case.view
    if score.better not in ("lower", "higher"):
        return
    last = view.num_rows - 1
    other = dataclasses.replace(view, targets=view.targets[np.r_[last, :last]])
    ours, theirs = score.value(view), score.value(other)
    margin = 1e-9 * max(abs(ours), abs(theirs))
    is_as_good = ours <= theirs + margin if score.better == "lower" else ours >= theirs - margin
    demand(is_as_good, f"{score.better} is better, and {ours:.4g} became {theirs:.4g}")


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of scores, in order."""
