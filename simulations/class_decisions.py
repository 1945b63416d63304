"""What is found of predicted classes, where it is known to be wrong or right."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.evaluation import sections, strata
from ensemble.evaluation.classes import score_classes
from ensemble.evaluation.questions import calibration, inputs, quality
from ensemble.likelihoods.class_view import MeanOfSoftmax
from ensemble.scoring.score import scores_of
from ensemble.source import Strata
from simulations.class_scores import ROUNDING, UNEQUAL, answers, evaluated, nll_change
from simulations.populations import population, sample
from simulations.settings import named, with_more
from simulations.shifts import cost_interval, draw_hits
from simulations.statement import VERDICT, Outcome, Statement, holds, replication


@replication
def temperature(rng: np.random.Generator, num_examples: int, **setting: Any) -> Outcome:
    """Whether the advice on a temperature is the opposite of what it does to new examples."""
    setting |= {"size": 10_000}
    everything = population(**setting)
    test, held_out = (sample(rng, everything, size) for size in (100, num_examples))
    section = sections.score_factor(evaluated(test, held_out))
    effect = calibration.effect(section)
    if not effect:
        return {"use it": None, "leave it out": None}
    change = nll_change(section["value"], **setting)
    return {
        "use it": effect < 0 < change if effect < 0 else None,
        "leave it out": change < 0 if effect > 0 else None,
    }


@replication
def majority(
    rng: np.random.Generator, num_examples: int, prior: Sequence[float], recalls: Sequence[float]
) -> Outcome:
    """Whether the most frequent class is wrongly said to be better than the ensemble, or worse."""
    predictions, classes = _classes(rng, num_examples, prior, recalls)
    accuracy = scores_of(predictions)["accuracy"].interval(predictions)
    test = {"num_rows": num_examples, "scores": {"accuracy": {"interval": accuracy}}}
    code = quality.majority(test, {**classes, "are_unequal": True}).code
    if code == "majority.inconclusive":
        return {"sentence": None}
    excess = _accuracy(prior, recalls) - np.array(prior)[int(classes["majority"]["name"])]
    is_better = code == "majority.better"
    return {"sentence": excess >= -ROUNDING if is_better else excess <= ROUNDING}


def _accuracy(prior: Sequence[float], recalls: Sequence[float]) -> float:
    return float(np.array(prior) @ np.array(recalls))


@replication
def majority_excess(
    rng: np.random.Generator, num_examples: int, prior: Sequence[float], recalls: Sequence[float]
) -> Outcome:
    """Whether the interval holds the accuracy less the share of the most frequent class."""
    majority = _classes(rng, num_examples, prior, recalls)[1]["majority"]
    truth = _accuracy(prior, recalls) - max(prior)
    return {"excess": holds(majority["excess_interval"], truth, ROUNDING)}


@replication
def majority_power(
    rng: np.random.Generator, num_examples: int, prior: Sequence[float], recalls: Sequence[float]
) -> Outcome:
    """Whether as many examples as are said to show the difference do show it."""
    truth = abs(_accuracy(prior, recalls) - max(prior))
    majority = _classes(rng, num_examples, prior, recalls)[1]["majority"]
    needed = metrics.num_to_see(truth, majority["excess_interval"], num_examples)
    rarer, more = _classes(rng, needed, prior, recalls)[1]["majority"]["wins"]
    return {"wins": more < 0.5 or rarer > 0.5}


def _classes(
    rng: np.random.Generator, num_examples: int, prior: Sequence[float], recalls: Sequence[float]
) -> tuple[MeanOfSoftmax, dict[str, Any]]:
    """Predictions of one member with such recalls, and what is said of their classes."""
    labels = rng.choice(len(prior), size=num_examples, p=prior)
    hits = rng.random(num_examples) < np.array(recalls)[labels]
    num_classes = int(labels.max()) + 2
    other = (labels + rng.integers(1, num_classes, size=num_examples)) % num_classes
    predictions = answers(np.where(hits, labels, other), labels, num_classes)
    return predictions, score_classes(predictions, [str(i) for i in range(len(prior))])


@replication
def shift(
    rng: np.random.Generator,
    num_examples: int,
    accuracy: float,
    costs: Sequence[float],
    churn: float,
) -> Outcome:
    """Whether the sentence about shifts is wrong.

    Args:
        rng: of the draws.
        num_examples: N.
        accuracy: without a shift.
        costs: accuracy that each shift costs.
        churn: share of the wrong predictions that a shift turns right, beside those that it costs.
    """
    names = [f"shift {i}" for i in range(len(costs))]
    hurts_most = [name for name, cost in zip(names, costs, strict=True) if cost == max(costs)]
    hits = rng.random(num_examples) < accuracy
    found = {}
    for name, cost in zip(names, costs, strict=True):
        shifted = draw_hits(rng, hits, accuracy, cost, churn)
        low, high = cost_interval(1.0 * hits, 1.0 * shifted, len(costs))
        found[name] = {
            "scores": {"accuracy": [shifted.mean()] * 6, "ece": [0.0] * 6},
            "change": {"accuracy": [(-high, -low)] * 5},
        }
    said = inputs.accuracy_under_shift({}, found)
    lowest, known = str(said.numbers.get("kind", "")), str(said.numbers.get("known", ""))
    most = lowest if said.code == "shift.worst" else ""
    costly = known.split(", ") if known else []
    if said.code in ("shift.worst", "shift.lowest"):
        costly = [lowest]
    is_harmless = said.code == "shift.harmless"
    is_free = any(costs[names.index(one)] <= 0 for one in costly)
    return {
        "none costs more than half a point": max(costs) > inputs.HARMLESS if is_harmless else None,
        "it costs accuracy": is_free if costly else None,
        "it hurts most": hurts_most != [most] if most else None,
    }


@replication
def groups(rng: np.random.Generator, sizes: Sequence[int], shares: Sequence[float]) -> Outcome:
    """Whether groups that are alike are said to differ."""
    names = np.repeat([f"group {i}" for i in range(len(sizes))], sizes)
    held = rng.random(len(names)) < np.repeat(shares, sizes)
    found = strata.by_stratum(held, Strata("group", "group", names))
    section = {"conformal": {"sets": {"by_stratum": found}}, "config": {"split": "group:group"}}
    is_said = calibration.strata(section).code == "strata.groups_differ"
    return {"they differ": len(set(shares)) == 1 if is_said else None}


@replication
def group_interval(rng: np.random.Generator, num_examples: int, share: float) -> Outcome:
    """Whether a group's interval holds its share."""
    names = np.full(num_examples, "all")
    held = rng.random(num_examples) < share
    (section,) = strata.by_stratum(held, Strata("group", "group", names))
    return {"share": holds(section["interval"], share)}


@replication
def conformal(
    rng: np.random.Generator,
    num_held_out: int,
    num_examples: int,
    parts: Sequence[str],
    **setting: Any,
) -> Outcome:
    """Whether what is said of conformal sets holds.

    `coverage` and `mean_size`: on the population, of the sets as they were fitted; `range`: on this
    test split.
    """
    everything = population(**setting)
    held_out, test = (sample(rng, everything, n) for n in (num_held_out, num_examples))
    # Without empty sets the range has no upper end.
    exact = dataclasses.replace(evaluated(test, held_out), exact_sets=True)
    section = sections.score_conformal(exact)["sets"]
    (sets,) = everything.conformals(is_exact=True)
    sizes, held = sets.size(section["threshold"]), sets.scores <= section["threshold"]
    found = {"range": (section["coverage_range"], section["coverage"])}
    for name, truth in (("coverage", float(held.mean())), ("mean_size", float(sizes.mean()))):
        found[name] = section["interval"][name], truth
    return {part: holds(*found[part], ROUNDING) for part in parts}


_sized = named("num_examples")
_shift = named("num_examples accuracy costs churn")
_majority = named("num_examples prior recalls")
_shares = named("sizes shares")
_splits = named("num_held_out num_examples")
_CONFORMAL = {
    "30 calibration, 100 test": _splits(30, 100),
    "150 calibration, 300 test": _splits(150, 300),
    "150, 300, 98% right": _splits(150, 300, signal=3.5),
    "300, 300, hard, 10 classes": _splits(300, 300, signal=1.0, num_classes=10),
    "300, 300, overconfident, M = 4": _splits(300, 300, sharpness=2.0, num_members=4),
    "500, 1000, unequal classes": _splits(500, 1000, prior=UNEQUAL),
}
_UNEQUAL = {
    "N = 300, 90% in one": _majority(300, (0.9, 0.1), (0.98, 0.6)),
    "N = 300": _majority(300, (0.65, 0.2, 0.15), (0.85, 0.4, 0.35)),
    "N = 1000": _majority(1000, (0.65, 0.2, 0.15), (0.8, 0.45, 0.4)),
    "N = 1000, 75% in one": _majority(1000, (0.75, 0.25), (0.9, 0.35)),
    "N = 1000, worse": _majority(1000, (0.95, 0.05), (0.98, 0.2)),
    "N = 2000, half in one": _majority(2000, (0.5, 0.3, 0.2), (0.7, 0.4, 0.3)),
}

STATEMENTS = (
    Statement(
        name="classes.temperature",
        claim="A temperature makes probabilities better, or worse",
        over="calibration examples",
        made_by=(
            "ensemble.scoring.folds.change_on_folds",
            "ensemble.evaluation.questions.calibration.effect",
        ),
        settings={
            "N = 60": _sized(60, sharpness=0.8),
            "N = 150": _sized(150, sharpness=0.8),
            "N = 150, 98% right": _sized(150, signal=3.5, sharpness=0.8),
            "N = 300, hard, 5 classes": _sized(300, signal=1.0, num_classes=5, sharpness=0.8),
            "N = 300, slightly overconfident": _sized(300),
            "N = 300, unequal classes": _sized(300, prior=UNEQUAL, sharpness=0.8),
            "N = 600, M = 4": _sized(600, num_members=4, sharpness=0.95),
        },
        prepare=temperature,
        kind=VERDICT,
    ),
    Statement(
        name="classes.majority",
        claim="Always answering the most frequent class is better, or worse",
        over="test examples",
        made_by=("ensemble.evaluation.questions.quality.majority",),
        settings={
            "N = 30": _majority(30, (0.7, 0.2, 0.1), (0.8, 0.5, 0.4)),
            "N = 100": _majority(100, (0.9, 0.1), (0.95, 0.45)),
            "N = 300, 99% in one": _majority(300, (0.99, 0.01), (0.998, 0.198)),
            "N = 1000": _majority(1000, (0.7, 0.2, 0.1), (0.8, 0.5, 0.4)),
            "N = 1000, two frequent": _majority(
                1000, (0.45, 0.44, 0.11), (0.5, 0.42, 0.3654545454545454)
            ),
            "N = 5000": _majority(5000, (0.9, 0.1), (0.95, 0.45)),
        },
        prepare=majority,
        kind=VERDICT,
    ),
    Statement(
        name="classes.majority_excess",
        claim="The accuracy less the share of the most frequent class",
        over="test examples",
        made_by=("ensemble.evaluation.classes.score_classes",),
        settings=_UNEQUAL,
        prepare=majority_excess,
        at_least=True,
    ),
    Statement(
        name="classes.majority_num_to_see",
        claim="So many examples would show a difference of this size in at least 4 of 5 cases",
        over="test examples",
        made_by=("ensemble.metrics.analytic_intervals.num_to_see",),
        settings=_UNEQUAL,
        prepare=majority_power,
        level=0.8,
        at_least=True,
    ),
    Statement(
        name="classes.shift",
        claim="A shift costs accuracy, hurts most, or none costs more than half a point",
        over="test examples",
        made_by=("ensemble.scoring.combine.Share",),
        settings={
            "N = 100, nothing costs": _shift(100, 0.9, (0.0,) * 5, 0.2),
            "N = 100, equal costs": _shift(100, 0.9, (0.3,) * 5, 0.2),
            "N = 300, equal costs, 99% right": _shift(300, 0.99, (0.02,) * 5, 0.0),
            "N = 1000, two equal costs": _shift(1000, 0.8, (0.1, 0.1, 0.02, 0.0, 0.0), 0.2),
            "N = 1000, nothing costs": _shift(1000, 0.7, (0.0,) * 5, 0.1),
            "N = 1000, .6 points, 99.9% right": _shift(1000, 0.999, (0.006,) * 5, 0.0),
            "N = 5000, .6 points": _shift(5000, 0.95, (0.006,) + (0.0,) * 4, 0.02),
        },
        prepare=shift,
        kind=VERDICT,
    ),
    Statement(
        name="classes.groups",
        claim="Conformal sets hold the label in some groups more often than in others",
        over="test examples",
        made_by=("ensemble.evaluation.questions.calibration.strata",),
        settings={
            "2 groups of 20": _shares((20, 20), (0.9, 0.9)),
            "5 groups of 20 to 100": _shares((20, 40, 60, 80, 100), (0.9,) * 5),
            "20 groups of 25": _shares((25,) * 20, (0.9,) * 20),
            "50 groups of 30, 98%": _shares((30,) * 50, (0.98,) * 50),
            "3 groups of 500 to 2000": _shares((500, 1000, 2000), (0.9,) * 3),
            "2 groups, 1000 and 20": _shares((1000, 20), (0.9, 0.9)),
        },
        prepare=groups,
        kind=VERDICT,
    ),
    Statement(
        name="classes.shares",
        claim="A share of examples, of a group or of those accepted, lies in [low, high]",
        over="test examples",
        made_by=(
            "ensemble.evaluation.strata.by_stratum",
            "ensemble.metrics.abstention.error_interval",
            "ensemble.evaluation.thresholds._section",
            "ensemble.metrics.abstention._why_not",
        ),
        settings={
            f"N = {n}, {100 * share:g}%": {"num_examples": n, "share": share}
            for n, share in zip(
                (20, 20, 100, 100, 1000, 5000), (0.9, 0.5, 0.99, 0.9, 0.999, 0.9), strict=True
            )
        },
        prepare=group_interval,
        at_least=True,
    ),
    Statement(
        name="classes.conformal_coverage",
        claim="Sets hold the label of [low, high] of examples, as they were fitted; and of this "
        "test split's share in the stated range",
        over="test examples; the range: calibration and test examples",
        made_by=(
            "ensemble.evaluation.sections._conformal",
            "ensemble.evaluation.sections.conformal_range",
        ),
        settings=with_more(_CONFORMAL, parts=("coverage", "range")),
        prepare=conformal,
        at_least=True,
    ),
    Statement(
        name="classes.conformal_size",
        claim="Sets have [low, high] classes on average",
        over="test examples",
        made_by=("ensemble.evaluation.sections._conformal",),
        settings=with_more(_CONFORMAL, parts=("mean_size",)),
        prepare=conformal,
    ),
)
