"""Sentences about predicted numbers: how often is one wrong?"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble import metrics
from ensemble.evaluation import sections
from ensemble.evaluation.questions import calibration, doubts, inputs, quality
from ensemble.likelihoods.counts import RATE
from ensemble.likelihoods.mixture_view import MixtureView
from ensemble.likelihoods.poisson import Poisson
from ensemble.metrics.analytic_intervals import LEVEL
from ensemble.report.simple_predictors import EXCESS_LEVEL
from ensemble.scoring.combine import RootMean
from ensemble.scoring.facts import pit_of
from ensemble.scoring.folds import change_on_folds
from ensemble.scoring.sections import score_split
from ensemble.scoring.view import CONFORMAL_LEVEL
from simulations.class_scores import evaluated
from simulations.numbers import ERRORS, LIKELIHOOD, MANY, World
from simulations.statement import VERDICT, Interval, Outcome, Replicate, Statement, replication

_COUNTS = Poisson.of_data(np.arange(100.0), ())


def simple_predictors(score: str, found: Iterable[tuple[float, Interval]]) -> dict[str, Any]:
    """Sections of least squares and a constant, by their scores and the intervals of the excess."""
    return {
        name: {"scores": {score: {"value": value}}, "excess_interval": {score: interval}}
        for name, (value, interval) in zip(("least_squares", "constant"), found, strict=True)
    }


def tells_apart(squares: Iterable[NDArray], groups: NDArray | None = None) -> bool:
    """Whether the first of three predictors is called better or worse, by squared errors [N]."""
    ours, *others = squares
    level = EXCESS_LEVEL
    found = ((1.0, RootMean().change(ours, one, level, groups)) for one in others)
    simple = simple_predictors("rmse", found)
    said = quality.baseline({"num_rows": len(ours)}, simple, "rmse").code
    return said in ("baseline.better", "baseline.worse")


CHANGED = ("shift.error_higher", "shift.error_lower")
"""What is found where a shift changes the RMSE."""


def shift_sentence(squares: Iterable[NDArray], groups: NDArray | None = None) -> str:
    """What is found of shifts, as a code, by squared errors [N] without them and with each."""
    plain, *shifted = squares
    level = 1 - (1 - LEVEL) / len(shifted)
    found = {}
    for k, one in enumerate(shifted):
        interval = RootMean().ratio(plain, one, level, groups)
        scores = {"rmse": [math.sqrt(one.mean())] * 6, "coverage_90": [0.9] * 6}
        found[f"{k}"] = {"scores": scores, "change": {"rmse": [interval] * 5}}
    return inputs.error_under_shift({}, found).code


def is_advised(value: float, held_out: MixtureView, groups: NDArray | None = None) -> bool:
    """Whether a factor is advised, by what it brings on folds of calibration examples."""
    folds = change_on_folds(held_out, groups)
    scores = {"nll": {"value": 0.0}, "coverage_90": {"value": 0.9}}
    section = {"factor": "scale", "value": value, "on_folds": folds, "scores": scores}
    section |= {"num_rows": held_out.num_rows, "nll_change_interval": None}
    return calibration.recalibration({"scores": scores}, section).code.endswith("_helps")


@replication
def trust(rng: np.random.Generator, num_examples: int, **settings: Any) -> Outcome:
    """Whether distributions that are right are called wrong."""
    view = LIKELIHOOD.view(*World(**settings).draw(rng, num_examples))
    test = score_split(view, names=view.under_shift)  # The others take quantiles.
    said = calibration.coverage(test, {"pit": pit_of(view)}).code
    wrong = ("coverage.too_narrow", "coverage.too_wide", "coverage.wrong_shape")
    return {"calibrated": said in wrong}


def power(num_examples: int) -> Replicate:
    """Whether a coverage is noticed that would be in four of five cases."""
    coverage = calibration.visible_coverage(num_examples)

    def replicate(rng: np.random.Generator) -> Outcome:
        if not coverage:
            return {"coverage": None}
        num_held = int(rng.binomial(num_examples, coverage))
        interval = metrics.error_interval(num_held, num_examples)
        told = {"value": num_held / num_examples, "interval": interval}
        said = calibration.coverage(
            {"num_rows": num_examples, "scores": {"coverage_90": told}},
            {"pit": {"distance": 0.0, "p_value": 1.0}},
        )
        return {"coverage": said.code == "coverage.too_narrow"}

    return replicate


def factor(num_held_out: int, **settings: Any) -> Replicate:
    """Whether a factor is advised that makes predictions worse."""
    world = World(**settings)
    everything = LIKELIHOOD.view(*world.draw(np.random.default_rng(0), MANY // 10, evenly=True))

    def nll(value: float) -> float:
        if world.num_members == 1:
            scale = value * world.factor
            return math.log(scale) + float(ERRORS[world.errors].var()) / scale**2 / 2
        return -float(everything.with_factor(value).log_density.mean())

    plain = nll(1.0)

    def replicate(rng: np.random.Generator) -> Outcome:
        held_out = LIKELIHOOD.view(*world.draw(rng, num_held_out))
        try:
            value = held_out.fit_factor()
        except ValueError:
            return {"use it": None}
        return {"use it": is_advised(value, held_out) and nll(value) >= plain}

    return replicate


def _may_differ(held_out: MixtureView, test: MixtureView) -> Outcome:
    found = sections.score_conformal(evaluated(test, held_out))
    said = calibration.conformal(found, {}).code
    is_told = said != "conformal.none"
    return {"may differ": said == "conformal.intervals_outside" if is_told else None}


@replication
def conformal(
    rng: np.random.Generator, num_held_out: int, num_examples: int, **settings: Any
) -> Outcome:
    """Whether test and calibration examples, which are alike, are called different."""
    world = World(**settings)
    splits = (LIKELIHOOD.view(*world.draw(rng, one)) for one in (num_held_out, num_examples))
    return _may_differ(*splits)


@replication
def conformal_of_counts(
    rng: np.random.Generator, num_held_out: int, num_examples: int, rate: float
) -> Outcome:
    """Whether test and calibration examples, which are alike, are called different: of counts.

    Args:
        rng: of the draws.
        num_held_out: calibration examples.
        num_examples: test examples.
        rate: median of the counts' means, which are predicted as they are.
    """

    def draw(number: int) -> MixtureView:
        rates = rate * np.exp(rng.uniform(-0.5, 0.5, number))
        counts = rng.poisson(rates).astype(np.float64)
        return _COUNTS.view({RATE: rates[None]}, counts)

    return _may_differ(draw(num_held_out), draw(num_examples))


@replication
def conformal_holds(
    rng: np.random.Generator, num_held_out: int, num_examples: int, **settings: Any
) -> Outcome:
    """Whether conformal intervals hold the target of one new example."""
    world = World(**settings)
    held_out, test = (LIKELIHOOD.view(*world.draw(rng, one)) for one in (num_held_out, 1))
    found = sections.score_conformal(evaluated(test, held_out))
    return {
        name: one["coverage"] == 1 if "coverage" in one else None for name, one in found.items()
    }


def abstention(num_held_out: int, max_error: float, **settings: Any) -> Replicate:
    """Whether more than the wanted share of what is accepted errs."""
    world, rule = World(**settings), metrics.Rule("max_error", max_error, 1.0)
    many = LIKELIHOOD.view(*world.draw(np.random.default_rng(0), MANY // 10))
    doubts, errors = many.doubt, many.errs(rule.tolerance)

    def replicate(rng: np.random.Generator) -> Outcome:
        held_out = LIKELIHOOD.view(*world.draw(rng, num_held_out))
        try:
            fitted = metrics.fit_abstention(rule, held_out.doubt, held_out.errs(rule.tolerance))
        except ValueError:
            return {"promise": None}
        accepted = doubts < fitted.threshold
        return {"promise": bool(accepted.any() and errors[accepted].mean() > rule.value)}

    return replicate


@replication
def uncertainty(rng: np.random.Generator, num_examples: int, errors: str) -> Outcome:
    """Whether errors that do not depend on the predicted deviation are said to."""
    arrays, targets = World(errors=errors).draw(rng, num_examples)
    scale = rng.permuted(arrays["scale"], axis=1)
    view = LIKELIHOOD.view({**arrays, "scale": scale}, targets)
    section = sections.score_uncertainty(evaluated(view, None))
    said = doubts.ranking({"num_rows": num_examples}, section).code
    return {"errs more or less": said in ("ranking.right", "ranking.inverted")}


@replication
def beside(rng: np.random.Generator, num_examples: int, errors: str, noise: float) -> Outcome:
    """Whether one of three predictors that are equally good is called better or worse.

    Args:
        rng: of the draws.
        num_examples: N.
        errors: of the targets, a name of `ERRORS`.
        noise: standard deviation of each predictor's own errors.
    """
    residuals = World(errors=errors).residuals(rng, num_examples)
    squares = (residuals + noise * rng.normal(size=(3, num_examples))) ** 2
    return {"better or worse": tells_apart(squares)}


def shift(num_examples: int, num_kinds: int, errors: str, noise: float) -> Replicate:
    """Whether shifts that do no harm are said to do, or those that do are called harmless.

    Args:
        num_examples: N.
        num_kinds: of shift.
        errors: of the targets, a name of `ERRORS`.
        noise: of the predictions with a shift, and of those without.
    """
    world = World(errors=errors)
    # One that raises the RMSE by just more than what is called harmless.
    harm = math.sqrt((1.051**2 - 1) * (world.variance(9999) + noise**2))

    def sentence(residuals: NDArray, rng: np.random.Generator, bias: float) -> str:
        drawn = residuals + noise * rng.normal(size=(num_kinds + 1, len(residuals)))
        return shift_sentence((drawn + bias * np.r_[0, np.ones(num_kinds)][:, None]) ** 2)

    def replicate(rng: np.random.Generator) -> Outcome:
        residuals = world.residuals(rng, num_examples)
        return {
            "changes the RMSE": sentence(residuals, rng, 0.0) in CHANGED,
            "none raises it": sentence(residuals, rng, harm) == "shift.error_harmless",
        }

    return replicate


def _titled(*settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by a title made of them."""
    names = {"num_examples": "N", "num_held_out": "calibration", "num_members": "M"}
    return {
        ", ".join(f"{names.get(key, key)} = {value}" for key, value in one.items()): one
        for one in settings
    }


_RIGHT = (
    {"num_examples": 30},
    {"num_examples": 30, "num_members": 16},
    {"num_examples": 100, "num_members": 4},
    {"num_examples": 300, "spread": 2.0, "num_members": 2},
    {"num_examples": 1000, "num_members": 8},
    {"num_examples": 5000},
)
_CONFORMAL = (
    {"num_held_out": 30, "num_examples": 30, "factor": 0.5},
    {"num_held_out": 30, "num_examples": 300, "errors": "t3"},
    {"num_held_out": 120, "num_examples": 150, "num_members": 3, "errors": "log-normal"},
    {"num_held_out": 300, "num_examples": 100, "errors": "t3", "factor": 2.0},
    {"num_held_out": 1000, "num_examples": 300, "errors": "log-normal"},
    {"num_held_out": 200, "num_examples": 1000, "num_members": 2},
)
_EQUAL = (
    {"num_examples": 30, "errors": "normal", "noise": 0.5},
    {"num_examples": 100, "errors": "t3", "noise": 0.5},
    {"num_examples": 100, "errors": "log-normal", "noise": 0.1},
    {"num_examples": 300, "errors": "t5", "noise": 1.0},
    {"num_examples": 1000, "errors": "normal", "noise": 0.1},
    {"num_examples": 5000, "errors": "t3", "noise": 0.3},
)

STATEMENTS = (
    Statement(
        name="numbers.trust",
        claim="It is too sure (too cautious; its distributions are not right)",
        over="examples",
        made_by=("ensemble.evaluation.questions.calibration.coverage",),
        settings=_titled(*({**one, "is_mixture": True} for one in _RIGHT)),
        prepare=trust,
        kind=VERDICT,
    ),
    Statement(
        name="numbers.power",
        claim="With so many examples a coverage of 80% would be noticed in 80% of cases",
        over="examples",
        made_by=("ensemble.evaluation.questions.calibration.visible_coverage",),
        settings=_titled(*({"num_examples": one} for one in (30, 60, 100, 300, 1000, 5000))),
        prepare=power,
        level=0.8,
        at_least=True,
    ),
    Statement(
        name="numbers.factor",
        claim="A factor on its scale makes it better, use it",
        over="calibration and test examples",
        made_by=(
            "ensemble.evaluation.sections.score_factor",
            "ensemble.scoring.folds.change_on_folds",
            "ensemble.evaluation.questions.calibration.recalibration",
        ),
        settings=_titled(
            {"num_held_out": 30},
            {"num_held_out": 30, "factor": 0.8},
            {"num_held_out": 100, "factor": 0.95},
            {"num_held_out": 100, "factor": 1.73, "errors": "t3"},
            {"num_held_out": 300, "factor": 0.53, "errors": "log-normal"},
            {"num_held_out": 300, "num_members": 4, "is_mixture": True},
            {"num_held_out": 1000},
        ),
        prepare=factor,
        kind=VERDICT,
    ),
    Statement(
        name="numbers.conformal",
        claim="Outside of what is to be expected: calibration and test examples may differ",
        over="calibration and test examples",
        made_by=(
            "ensemble.evaluation.sections._conformal",
            "ensemble.evaluation.questions.calibration.conformal",
        ),
        settings=_titled(*_CONFORMAL),
        prepare=conformal,
        kind=VERDICT,
    ),
    Statement(
        name="numbers.conformal_of_counts",
        claim="Outside of what is to be expected: calibration and test examples may differ",
        over="calibration and test examples",
        made_by=(
            "ensemble.evaluation.sections._conformal",
            "ensemble.evaluation.sections.conformal_range",
            "ensemble.evaluation.questions.calibration.conformal",
        ),
        settings=_titled(
            {"num_held_out": 30, "num_examples": 100, "rate": 2.0},
            {"num_held_out": 200, "num_examples": 500, "rate": 2.0},
            {"num_held_out": 200, "num_examples": 500, "rate": 20.0},
            {"num_held_out": 200, "num_examples": 500, "rate": 200.0},
            {"num_held_out": 1000, "num_examples": 300, "rate": 5.0},
            {"num_held_out": 30, "num_examples": 30, "rate": 0.5},
        ),
        prepare=conformal_of_counts,
        kind=VERDICT,
    ),
    Statement(
        name="numbers.conformal_holds",
        claim="Conformal intervals hold 90% of the targets on average over calibration splits",
        over="calibration and test examples",
        made_by=("ensemble.evaluation.sections._conformal",),
        settings=_titled(*_CONFORMAL),
        prepare=conformal_holds,
        level=CONFORMAL_LEVEL,
    ),
    Statement(
        name="numbers.abstention",
        claim="To miss by more than 1 on at most 10% of what it accepts, it abstains where ...",
        over="calibration examples",
        made_by=("ensemble.evaluation.sections._abstention",),
        settings=_titled(
            {"num_held_out": 100, "max_error": 0.2},
            {"num_held_out": 100, "max_error": 0.1, "num_members": 3},
            {"num_held_out": 300, "max_error": 0.1, "factor": 0.5},
            {"num_held_out": 300, "max_error": 0.2, "errors": "t3"},
            {"num_held_out": 1000, "max_error": 0.1, "errors": "log-normal"},
            {"num_held_out": 1000, "max_error": 0.05},
        ),
        prepare=abstention,
        kind=VERDICT,
    ),
    Statement(
        name="numbers.uncertainty",
        claim="Where it is less certain, it errs more (less)",
        over="examples",
        made_by=("ensemble.evaluation.questions.doubts.ranking",),
        settings=_titled(
            *({key: one[key] for key in ("num_examples", "errors")} for one in _EQUAL)
        ),
        prepare=uncertainty,
        kind=VERDICT,
    ),
    Statement(
        name="numbers.beside",
        claim="The ensemble is better (worse) than the better of least squares and a constant",
        over="examples",
        made_by=("ensemble.evaluation.questions.quality.baseline",),
        settings=_titled(*_EQUAL),
        prepare=beside,
        kind=VERDICT,
    ),
    Statement(
        name="numbers.shift",
        claim="The shift changes the RMSE (none raises it by more than 5%)",
        over="examples",
        made_by=(
            "ensemble.scoring.combine.RootMean",
            "ensemble.evaluation.sections.score_shifts",
            "ensemble.evaluation.questions.inputs.error_under_shift",
        ),
        settings=_titled(
            *({**one, "num_kinds": k} for one, k in zip(_EQUAL, (4, 1, 4, 8, 4, 8), strict=True))
        ),
        prepare=shift,
        kind=VERDICT,
    ),
)
