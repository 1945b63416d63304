"""The sections of evaluation.json that are made of views, each written once for all targets."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.evaluation import derived
from ensemble.evaluation.classes import score_classes
from ensemble.evaluation.next_member import score_sizes
from ensemble.evaluation.shift import SHIFTS
from ensemble.evaluation.strata import OVER_BOTH, OVER_GROUPS, by_stratum
from ensemble.evaluation.table_shift import TABLE_SHIFTS, columns_of, is_table
from ensemble.evaluation.thresholds import score_rule
from ensemble.metrics.analytic_intervals import Interval, mean_interval
from ensemble.metrics.number_calibration import conformal_quantile
from ensemble.metrics.rank_correlation import rank_correlation_interval
from ensemble.report.simple_predictors import score_simple
from ensemble.scoring.facts import facts_of
from ensemble.scoring.folds import change_on_folds
from ensemble.scoring.score import Score, scores_of
from ensemble.scoring.sections import OVER, score_split
from ensemble.scoring.view import (
    CONFORMAL_LEVEL,
    ClassView,
    Conformal,
    IntervalView,
    NumberView,
    View,
)
from ensemble.source import Source, SplitInputs, Strata

logger = logging.getLogger("ensemble")

NUM_BINS = 10
"""The number of bins of examples by their predicted uncertainty."""
NUM_LISTED = 10
MAX_SHOWN = 12
"""Columns of an example that are shown."""
_FEW = 20
"""With fewer examples there are no intervals."""
_LEVEL = 0.95
_ABSENT = {"reason": "not available: the run holds no calibration split out"}
_SHOWN = ("rmse", "mae", "coverage_90", "width_90")
"""Scores of what is accepted."""


@dataclass(frozen=True)
class Evaluated:
    """What sections are made of.

    Attributes:
        likelihood: of the run.
        test: what the live members say of the test split.
        calibration: the same of the calibration split; None where the run has no such split.
        outside: the same beside the test split, by the names of `derived.plan`.
        source: of the run; None where it cannot be had.
        why_no_data: why, where `source` is None.
        rules: what is wanted of abstention; None: what is usual of such targets.
        exact_sets: whether conformal sets may be empty, to cover no more than is guaranteed.
        target: the number of this target, of one of several.
    """

    likelihood: Any
    test: View
    calibration: View | None
    outside: Mapping[str, View]
    source: Source | None
    why_no_data: str
    rules: Sequence[metrics.Rule] | None = None
    exact_sets: bool = False
    target: int | None = None

    @functools.cached_property
    def strata(self) -> Strata | None:
        """What the test rows are split by; None where they are split at random, or not here."""
        return None if self.source is None else self.source.strata("test")

    @property
    def groups(self) -> NDArray | None:
        """The groups of the test rows [N], where they are split by groups."""
        return None if self.strata is None else self.strata.groups

    @property
    def calibration_groups(self) -> NDArray | None:
        """The groups of the calibration rows."""
        strata = None if self.source is None else self.source.strata("calibration")
        return None if strata is None else strata.groups

    @functools.cached_property
    def parts(self) -> list[Evaluated]:
        """The same for each of several targets; empty for a single one."""
        return [
            replace(
                self,
                likelihood=self.likelihood.of[d],
                test=part,
                calibration=None if self.calibration is None else self.calibration.parts[d],
                outside={name: one.parts[d] for name, one in self.outside.items()},
                target=d,
            )
            for d, part in enumerate(self.test.parts)
        ]


def sections(one: Evaluated) -> dict[str, Any]:
    """The scores of the test split, and all other sections that there are, by name."""
    return {"test": score_split(one.test, strata=one.strata), **_beside_scores(one)}


def _beside_scores(one: Evaluated) -> dict[str, Any]:
    """All sections of such targets but their scores; of several, `targets` has those of each."""
    kind = type(one.test)
    found = {name: make(one) for name, of, make in _SECTIONS if issubclass(kind, of)}
    if one.parts:
        found["targets"] = [_beside_scores(part) for part in one.parts]
    return found


# The scores.


def _simple(one: Evaluated) -> dict[str, Any]:
    if one.source is None:
        absent = {"reason": f"not available: {one.why_no_data}"}
        return {"constant": absent, "least_squares": absent}
    return score_simple(
        one.likelihood, one.source, "test", one.test, target=one.target, groups=one.groups
    )


def _classes(one: Evaluated) -> dict[str, Any]:
    view: Any = one.test
    return score_classes(view, one.likelihood.class_names)


# Uncertainty.


def score_uncertainty(one: Evaluated) -> dict[str, Any]:
    """Whether predictions that are less certain are worse.

    Returns:
        `rank_correlation` (Spearman's) of how far off a prediction says it may be and its absolute
        error, None where either is constant, and its 95% `interval`; `bins` of examples of like
        uncertainty, the most certain first: their `counts`, the root mean squares of what was
        predicted, `deviation`, and of the errors, `rmse`.
    """
    view: Any = one.test.known
    deviation, errors = view.deviation, np.abs(view.point - view.y)
    groups = np.array_split(np.argsort(deviation, kind="stable"), min(NUM_BINS, len(errors)))
    section: dict[str, Any] = {
        "bins": {
            "counts": [len(some) for some in groups],
            "deviation": [float(np.sqrt(np.mean(deviation[some] ** 2))) for some in groups],
            "rmse": [float(np.sqrt(np.mean(errors[some] ** 2))) for some in groups],
        }
    }
    if np.ptp(deviation) < 1e-6 * deviation.mean() or np.ptp(errors) == 0:
        return {**section, "rank_correlation": None, "interval": None}
    return {
        **section,
        "rank_correlation": float(scipy.stats.spearmanr(deviation, errors).statistic),
        "interval": rank_correlation_interval(deviation, errors),
        "interval_over": OVER,
    }


def least_certain(one: Evaluated) -> list[dict[str, Any]]:
    """The examples whose predictions may be farthest off, and their `inputs` if there are few."""
    view: Any = one.test
    source, chosen = one.source, np.argsort(-view.deviation, kind="stable")[:NUM_LISTED]
    inputs: list[Any] | None = None
    if source is not None and source.table is not None:
        rows = source.table.rows(source.read("test", chosen).inputs)
        inputs = rows if len(rows[0]) <= MAX_SHOWN else None
    elif source is not None and np.prod(source.input_shape) <= MAX_SHOWN:
        inputs = source.read("test", chosen).inputs.reshape(len(chosen), -1).tolist()
    listed: list[dict[str, Any]] = view.listed(chosen)
    if inputs is None:
        return listed
    return [{**row, "inputs": inputs[i]} for i, row in enumerate(listed)]


def score_abstention(one: Evaluated) -> list[dict[str, Any]]:
    """Fits on the calibration split which predictions are accepted, and scores the test split.

    Returns:
        For each rule what `thresholds.score_rule` says, and what `View.accepting` does; of numbers
        in `test` the `scores` of what is accepted.
    """
    usual = map(metrics.Rule.parse, one.test.rules)
    return [_abstention(one, rule) for rule in (usual if one.rules is None else one.rules)]


def _abstention(one: Evaluated, rule: metrics.Rule) -> dict[str, Any]:
    def terms_of(view: View) -> tuple[NDArray, NDArray]:
        return view.doubt, view.errs(rule.tolerance)

    try:
        held_out = None if one.calibration is None else terms_of(one.calibration)
        doubts, errors = terms_of(one.test)
    except ValueError as error:
        return {"rule": str(rule), "reason": f"not available: {error}"}
    section = score_rule((doubts, errors), held_out, rule)
    section |= one.test.accepting(section.get("threshold"), rule.tolerance)
    if "reason" in section:
        return section
    accepted = doubts < section["threshold"]
    chosen = {name: score for name, score in scores_of(one.test).items() if name in _SHOWN}
    if accepted.any() and chosen:
        some = one.test.rows(accepted)
        section["test"]["scores"] = _scored(some, chosen)
    return section


def _scored(view: View, scores: Mapping[str, Score]) -> dict[str, dict[str, Any]]:
    """By name `value` and 95% `interval`."""
    return {
        name: {"value": one.value(view), "interval": one.interval(view)}
        for name, one in scores.items()
    }


# Calibration.


def score_factor(one: Evaluated) -> dict[str, Any]:
    """Scores the ensemble after one factor that was fitted on the calibration split.

    Returns:
        `factor`, what it is called, and its `value`; `scores`; `nll_change`, nats, and
        its paired 95% `nll_change_interval` over `nll_change_over`; `on_folds`, the interval of the
        change on calibration examples that a factor was not fitted on, which says whether to use
        one, None where it is not known. One that is not available has a `reason` and no numbers,
        and is 1.
    """
    test, calibration = one.test, one.calibration
    found: dict[str, Any] = {"factor": test.factor_name}
    if calibration is None:
        return found | _ABSENT
    try:
        factor = calibration.fit_factor()
    except ValueError as error:
        logger.warning("The %s stays 1: %s.", test.factor_name, error)
        return {**found, "value": 1.0, "reason": f"left at 1: {error}"}
    after, nll = test.with_factor(factor), scores_of(test)["nll"]
    scores = {
        name: score
        for name, score in scores_of(after).items()
        if score.better != "neither" or test.factor_keeps_members
    }
    return {
        **found,
        "value": factor,
        "num_rows": calibration.num_rows,
        "scores": _scored(after, scores),
        "interval_over": OVER,
        "nll_change": _mean_change(test, after),
        "nll_change_interval": nll.change(test, after, groups=one.groups),
        "nll_change_over": OVER if one.groups is None else OVER_GROUPS,
        "on_folds": change_on_folds(calibration, one.calibration_groups),
    }


def score_scale(one: Evaluated) -> dict[str, Any]:
    """`score_factor` of numbers, with the `pit` and, beside bounds, the `coverage_bounds` after."""
    found = score_factor(one)
    if "reason" in found:
        return found
    facts = facts_of(one.test.with_factor(found["value"]))
    return found | {key: facts[key] for key in ("pit", "coverage_bounds") if key in facts}


def _mean_change(before: View, after: View) -> float:
    first, second = (scores_of(each)["nll"].value(each) for each in (before, after))
    with np.errstate(invalid="ignore"):  # A label of probability 0 stays so: inf - inf.
        return float(np.subtract(second, first))


def score_conformal(one: Evaluated) -> dict[str, dict[str, Any]]:
    """Conformal predictions, fitted on the calibration split and scored on the test split.

    Returns:
        By name of the method `level`, `num_rows` of calibration, `threshold`, `coverage`, the
        mean size, the 95% `interval` of both, `coverage_range`, which holds the coverage of at
        least 95% of such pairs of calibration and test splits, and `by_stratum`, the coverage as of
        `strata.by_stratum`, with a `coverage_range` of each period; or the `reason` why there are
        none.
    """
    made = one.test.conformals(one.exact_sets)
    if one.calibration is None:
        return {each.name: dict(_ABSENT) for each in made}
    if not (one.calibration.is_known.all() and one.test.is_known.all()):
        reason = "what censored targets are, and so whether they are held, is unknown"
        return {each.name: {"reason": f"not available: {reason}"} for each in made}
    pairs = zip(made, one.calibration.conformals(one.exact_sets), strict=True)
    return {test.name: _conformal(test, held_out, one) for test, held_out in pairs}


def _conformal(test: Conformal, held_out: Conformal, one: Evaluated) -> dict[str, Any]:
    level, number = test.level, len(held_out.scores)
    needed = math.ceil(level / (1 - level) - 1e-9)
    if test.reason or held_out.reason:
        return {"reason": f"not available: {test.reason or held_out.reason}"}
    if number < needed and not test.may_hold_all:
        return {"reason": f"not available: {number} calibration examples, and it takes {needed}"}
    threshold = conformal_quantile(held_out.scores, level)
    sizes, held = test.size(threshold), test.scores <= threshold
    if test.holds is not None:
        held = test.holds(threshold)

    def expected(num_rows: int) -> list[float]:
        if math.isinf(threshold):
            return [1.0, 1.0]  # Everything is held.
        low, high = conformal_range(held_out.scores, threshold, num_rows, level)
        # By `holds` coverage is no less, and its law not known.
        return [low, high if test.holds is None else 1.0]

    periods = by_stratum(held, one.strata)
    if one.strata is not None and one.strata.groups is None:
        periods = [each | {"coverage_range": expected(each["num_rows"])} for each in periods]
    found = test.describe(sizes)
    mean, sizes = f"mean_{test.unit}", np.maximum(sizes, 0)
    finite = bool(np.isfinite(sizes).all())
    return {
        **found,
        "level": level,
        "num_rows": number,
        "threshold": threshold,
        "coverage": float(held.mean()),
        "coverage_range": expected(len(held)),
        mean: float(sizes.mean()),
        "interval": {
            "coverage": metrics.error_interval(int(held.sum()), len(held)),
            mean: mean_interval(sizes) if finite else None,
        },
        "interval_over": OVER,
        "by_stratum": periods,
    }


def conformal_range(
    scores: NDArray, threshold: float, num_examples: int, level: float = CONFORMAL_LEVEL
) -> list[float]:
    """What holds the coverage of at least 95% of pairs of calibration and test splits.

    The coverage of a test split is beta-binomial (Angelopoulos & Bates 2021, arXiv:2107.07511).
    Where scores tie at the threshold, as those of counts do, it is higher, by an unknown law: then
    the upper end is 1.

    Args:
        scores: [N] of the calibration examples.
        threshold: that they gave.
        num_examples: test examples.
        level: that is guaranteed.
    """
    num_held_out = len(scores)
    rank = min(math.ceil((num_held_out + 1) * level - 1e-9), num_held_out)
    spread = scipy.stats.betabinom(num_examples, rank, num_held_out + 1 - rank)
    low, high = (float(spread.ppf(tail)) / num_examples for tail in (0.025, 0.975))
    return [low, 1.0 if np.sum(scores == threshold) > 1 else high]


# Other inputs.


def score_shifts(one: Evaluated) -> dict[str, Any]:
    """Scores by kind of shift.

    Returns:
        By kind `unit`, `amounts` [5]; `scores` and `spreads`, by name the values [6] of the
        ensemble, the first without a shift, and of classes `mean`, those of the average member;
        `change` [5] by score, paired intervals of the RMSE with the shift over that without, and of
        the accuracy with it less that without. At each severity those of all kinds hold together in
        95% of cases (Bonferroni). All are of the rows whose target is known.
    """
    names_of = {
        kind: [f"{derived.SHIFT}/{kind}/{severity}" for severity in derived.SEVERITIES]
        for kind in (*SHIFTS, *TABLE_SHIFTS)
    }
    kinds = [kind for kind, names in names_of.items() if set(names) <= one.outside.keys()]
    plain, is_known = one.test.known, one.test.is_known
    groups = None if one.groups is None else one.groups[is_known]
    level = 1 - (1 - _LEVEL) / max(len(kinds), 1)
    found, without = {}, _shifted(plain) if kinds else {}
    over = OVER if groups is None else OVER_GROUPS
    for kind in kinds:
        shift = {**SHIFTS, **TABLE_SHIFTS}[kind]
        views = [one.outside[name].known for name in names_of[kind]]
        each = [without, *map(_shifted, views)]
        found[kind] = {
            "unit": shift.unit,
            "amounts": list(shift.amounts),
            "interval_over": f"{over}; those of one severity hold together",
            **{
                group: {name: [some[group][name] for some in each] for name in without[group]}
                for group in without
            },
            "change": change_under_shift(plain, views, level, groups),
        }
    return found


def _shifted(view: View) -> dict[str, dict[str, float]]:
    """Values of scores, means of spreads and, of some views, the average member's."""
    names = view.under_shift
    scores = {
        name: score
        for name, score in scores_of(view).items()
        if score.of_members and (names is None or name in names)
    }
    found = {
        "scores": {name: score.value(view) for name, score in scores.items()},
        "spreads": {name: float(values.mean()) for name, values in view.spreads().items()},
    }
    if view.members_under_shift:
        each = view.each()
        found["mean"] = {
            name: float(np.mean([score.value(member) for member in each]))
            for name, score in scores.items()
        }
    return found


def change_under_shift(
    plain: View, shifted: list[View], level: float, groups: NDArray | None = None
) -> dict[str, list[Interval | None]]:
    """Intervals of what a shift changes: the ratio of an RMSE, the difference of an accuracy."""
    scores, found = scores_of(plain), {}
    for name, score in scores.items():
        if score.under_shift == "ratio":
            found[name] = [score.ratio(plain, one, level, groups) for one in shifted]
        elif score.under_shift == "difference":
            found[name] = [score.change(plain, one, level, groups) for one in shifted]
    return found


def score_detections(one: Evaluated) -> dict[str, Any]:
    """How well uncertainties tell each set from the test split.

    Returns:
        By set `num_rows`, what `View.outside` says of it, and by uncertainty `auroc`, `aupr`
        and `fpr95`, and the `interval` of each.
    """
    inside, found = one.test.uncertainties(), {}
    for name, view in one.outside.items():
        if name.startswith(f"{derived.SHIFT}/") or name == derived.PROFILE:
            continue
        section = {"num_rows": view.num_rows, "interval_over": OVER_BOTH, **view.outside()}
        for key, values in view.uncertainties().items():
            ranked = metrics.rank(inside[key], values)
            section[key] = {**ranked.scores(), "interval": ranked.intervals()}
        found[name] = section
    return found


def score_beyond(one: Evaluated) -> dict[str, Any] | None:
    """Scores test rows within the range of every training column, and those beyond one.

    Returns:
        `within` and `beyond`: `num_rows`; where there are any, `scores`, by name `value` and, where
        there are enough rows, `interval`. None of data that are no table, or that cannot be had.
    """
    source, view = one.source, one.test.known
    if source is None or not is_table(source):
        return None
    columns, inputs = columns_of(source), SplitInputs(source, "test")[:]
    inputs = inputs[one.test.is_known]
    is_beyond = ((inputs < columns.low) | (inputs > columns.high)).any(axis=1)
    found: dict[str, dict[str, Any]] = {}
    for name, chosen in (("within", ~is_beyond), ("beyond", is_beyond)):
        found[name] = {"num_rows": int(chosen.sum())}
        if not chosen.any():
            continue
        some, is_enough = view.rows(chosen), chosen.sum() >= _FEW
        scores, found[name]["scores"] = scores_of(some), {}
        for key in some.under_shift or ():
            found[name]["scores"][key] = {"value": scores[key].value(some)}
            if is_enough:
                found[name]["scores"][key]["interval"] = scores[key].interval(some)
        for key, values in some.spreads().items():
            found[name]["scores"][key] = {"value": float(values.mean())}
            if is_enough:
                found[name]["scores"][key]["interval"] = mean_interval(values)
    return found


_SINGLE = (ClassView, IntervalView)
_SECTIONS: list[tuple[str, type[View] | tuple[type[View], ...], Callable[[Evaluated], Any]]] = [
    ("facts", _SINGLE, lambda one: facts_of(one.test, one.groups)),
    ("classes", ClassView, _classes),
    ("simple", IntervalView, _simple),
    ("calibrated", ClassView, score_factor),
    ("calibrated", NumberView, score_scale),
    ("conformal", _SINGLE, score_conformal),
    ("uncertainty", IntervalView, score_uncertainty),
    ("abstention", (ClassView, NumberView), score_abstention),
    ("next_member", View, lambda one: score_sizes(one.test)),
    ("beyond", NumberView, score_beyond),
    ("shift", _SINGLE, score_shifts),
    ("out_of_distribution", _SINGLE, score_detections),
    ("least_certain", IntervalView, least_certain),
]
