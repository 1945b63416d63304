"""Can its probabilities and intervals be trusted, and does correcting them help?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.special

from ensemble import metrics
from ensemble.evaluation.questions.quality import FEW_EXAMPLES, NOTABLE, has_few_groups
from ensemble.evaluation.strata import stratified
from ensemble.scoring.finding import Finding
from ensemble.scoring.sections import values_in

WIDE = 0.02
"""Half-width of an interval of confidence less accuracy that is too wide to call it calibrated."""
FALSE_ALARMS = 0.05
WIDE_COVERAGE = 0.06
"""Half-width of an interval of the coverage that is too wide to call it right."""
LEVEL = 0.9
_POWER = 0.8
_FEW_DISTINCT = 0.1
_ENOUGH = 20  # Rows of a group that a finding is about.
_TIME = "time"


def is_available(section: Mapping[str, Any]) -> bool:
    """Whether a section of something fitted has numbers."""
    return "reason" not in section


def confidence(test: Mapping[str, Any], facts: Mapping[str, Any]) -> Finding:
    """Whether confidence and accuracy of a classifier agree.

    Args:
        test: as `score_split` returns it.
        facts: as `facts_of` returns them.
    """
    scores = test["scores"]
    gap, ece = scores["overconfidence"]["value"], scores["ece"]["value"]
    numbers = {"points": 100 * gap, "ece": ece, "num_rows": test["num_rows"]}
    if test["num_rows"] < FEW_EXAMPLES:
        return Finding("calibration.few_examples", numbers=numbers)
    if "over_groups" in test:  # Whose rows may be alike: tests count them one by one.
        return Finding("calibration.groups", numbers=numbers | {"column": test["over_groups"]})
    low, high = scores["overconfidence"]["interval"]
    chance, found = facts["ece_by_chance"], facts["calibration_p"]
    numbers |= {"interval": (100 * low, 100 * high), "ece_by_chance": chance}
    # A calibrated predictor is to fail neither of two tests in 95% of cases: each is at half of it.
    if found["overconfidence"] <= FALSE_ALARMS / 2:
        if gap > 0:
            return Finding("calibration.overconfident", numbers=numbers, tone="warning")
        numbers |= {"points": -100 * gap, "interval": (-100 * high, -100 * low)}
        return Finding("calibration.underconfident", numbers=numbers, tone="warning")
    if found["ece"] <= FALSE_ALARMS / 2:
        return Finding("calibration.by_level", numbers=numbers, tone="warning")
    if (high - low) / 2 > WIDE:
        needed = metrics.num_to_see(WIDE, (low, high), test["num_rows"])
        numbers |= {"needed": needed, "margin": 100 * WIDE}
        return Finding("calibration.too_small", numbers=numbers)
    margin = math.ceil(1000 * max(-low, high) - 1e-9) / 10
    numbers |= {"margin": margin, "ece_by_chance": max(ece, chance)}
    return Finding("calibration.consistent", numbers=numbers, tone="good")


def coverage(test: Mapping[str, Any], facts: Mapping[str, Any]) -> Finding:
    """Whether 90% intervals cover as many targets as they say, and whether the PIT is uniform.

    Args:
        test: as `score_split` returns it.
        facts: as `facts_of` returns them.
    """
    one, number = test["scores"]["coverage_90"], test["num_rows"]
    numbers: dict[str, Any] = {"coverage": one["value"], "num_rows": number}
    if has_few_groups(test):
        few = {"num_groups": test["num_groups"], "column": test["over_groups"]}
        return Finding("coverage.few_groups", numbers=numbers | few)
    low, high = one["interval"]
    numbers["interval"] = (low, high)
    if number < FEW_EXAMPLES:
        return Finding("coverage.few_examples", numbers=numbers)
    is_of_counts = bool(facts.get("is_of_counts"))
    if "over_groups" in test:  # Rows of one group may be alike: tests count them one by one.
        numbers["column"] = test["over_groups"]
        if high < LEVEL:
            return Finding("coverage.groups_too_narrow", numbers=numbers, tone="warning")
        if low > LEVEL and not is_of_counts:
            return Finding("coverage.groups_too_wide", numbers=numbers, tone="warning")
        return Finding("coverage.groups_consistent", numbers=numbers)
    pit = facts["pit"]
    numbers |= {"distance": pit["distance"], "p_value": pit["p_value"]}
    # Of right distributions at most 5% are doubted, because there are two tests (Bonferroni).
    is_doubted, is_censored = pit["p_value"] < FALSE_ALARMS / 2, "num_censored" in facts
    if is_censored:  # Of which some are held, or not, to an unknown share.
        is_wrong, is_low = not low <= LEVEL <= high, high < LEVEL
    else:
        is_wrong = _p_value(round(one["value"] * number), number) < FALSE_ALARMS / 2
        is_low = one["value"] < LEVEL
    if is_wrong and is_low:
        return Finding("coverage.too_narrow", numbers=numbers, tone="warning")
    if is_wrong and is_of_counts and not is_doubted:  # They hold their ends.
        return Finding("coverage.counts", numbers=numbers, tone="good")
    if is_wrong:
        return Finding("coverage.too_wide", numbers=numbers, tone="warning")
    if is_doubted:
        return Finding("coverage.wrong_shape", numbers=numbers, tone="warning")
    is_wide = (high - low) / 2 > WIDE_COVERAGE
    if is_censored and is_wide:
        return Finding("coverage.censored", numbers=numbers)
    numbers |= {"noticed": visible_coverage(number), "power": _POWER}
    if is_wide:
        return Finding("coverage.too_small", numbers=numbers)
    return Finding("coverage.consistent", numbers=numbers, tone="good")


def visible_coverage(num_examples: int) -> float:
    """The coverage below 90% that `coverage` would notice in 80% of test splits of this size.

    Args:
        num_examples: N of the test split.

    Returns:
        A share; 0 where even that would not be noticed.
    """
    counts = np.arange(num_examples + 1)
    noticed = scipy.special.bdtr(counts, num_examples, LEVEL) < FALSE_ALARMS / 4
    most = int(noticed.sum()) - 1  # Targets held, as one sees at most of a coverage too low.
    return float(scipy.special.bdtri(most, num_examples, _POWER)) if most >= 0 else 0.0


def _p_value(num_held: int, num_examples: int) -> float:
    """Exact and two-sided, of a coverage of 90%."""
    below = scipy.special.bdtr(num_held, num_examples, LEVEL)
    above = scipy.special.bdtrc(num_held - 1, num_examples, LEVEL) if num_held else 1.0
    return float(min(1.0, 2 * min(below, above)))


def bands(test: Mapping[str, Any], facts: Mapping[str, Any]) -> Finding:
    """Whether each band of quantiles covers what it says, as intervals of all bands tell together.

    Args:
        test: as `score_split` returns it.
        facts: as `facts_of` returns them.
    """
    if has_few_groups(test):
        few = {"num_groups": test["num_groups"], "column": test["over_groups"]}
        return Finding("bands.few_groups", numbers=few)
    levels, wrong = [], set()
    for name in test["scores"]:
        if not name.startswith("coverage_"):
            continue
        percent = name.removeprefix("coverage_")
        least, most = facts["together"][name]
        if not least <= float(percent) / 100 <= most:
            wrong.add("narrow" if most < float(percent) / 100 else "wide")
        levels.append(percent)
    if not levels:
        return Finding("bands.none")
    widest = test["scores"][f"coverage_{levels[0]}"]
    numbers = {
        "percent": levels[0],
        "coverage": widest["value"],
        "interval": widest["interval"],
        "num_rows": test["num_rows"],
    }
    if test["num_rows"] < FEW_EXAMPLES:
        return Finding("bands.few_examples", numbers=numbers)
    if not wrong:
        return Finding("bands.consistent", numbers=numbers, tone="good")
    which = "too_narrow_or_wide" if len(wrong) > 1 else f"too_{wrong.pop()}"
    return Finding(f"bands.{which}", numbers=numbers, tone="warning")


def targets(test: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Finding]:
    """How targets are scored that are censored or measured with errors, or often equal."""
    found, numbers = [], {"num_rows": test["num_rows"]}
    if "num_measured" in facts:
        of_errors = numbers | {"number": facts["num_measured"]}
        found.append(Finding("targets.measured", numbers=of_errors))
    if "num_censored" in facts:
        bounds = facts["coverage_bounds"]["coverage_90"]
        of_bounds = numbers | {"number": facts["num_censored"], "bounds": tuple(bounds)}
        found.append(Finding("targets.censored", numbers=of_bounds))
    if facts["distinct_targets"] < _FEW_DISTINCT * test["num_rows"]:
        distinct = numbers | {"number": facts["distinct_targets"]}
        found.append(Finding("targets.few_distinct", numbers=distinct))
    return found


def weights(config: Mapping[str, Any], dataset: Mapping[str, Any]) -> Finding:
    """Whether the run has learned with class weights, which one factor cannot undo.

    Args:
        config: of the run.
        dataset: its description, which has the weights that probabilities are corrected for.
    """
    spec = config.get("class_weights", "none")
    if spec == "none":
        return Finding("weights.none")
    if "class_weights" in dataset:
        return Finding("weights.corrected", numbers={"weights": spec})
    return Finding("weights.classes", numbers={"weights": spec}, tone="warning")


def effect(section: Mapping[str, Any]) -> int:
    """-1 where a factor lowers the NLL, 1 where it raises it, 0 where it is not known.

    Args:
        section: as `sections.score_factor` returns it. `on_folds`, the interval of the change on
            parts of the calibration split that have not fitted it, decides what is to be used: then
            the test split has not decided on what it scores. What this finds worse is left out.
    """
    if not is_available(section):
        return 0
    low, high = section["nll_change_interval"] or (0.0, 0.0)
    if low > 0:
        return 1
    low, high = section.get("on_folds", (low, high)) or (0.0, 0.0)
    return -1 if high < 0 else 0


def recalibration(test: Mapping[str, Any], section: Mapping[str, Any]) -> Finding:
    """Whether to use the temperature or the factor on the scale.

    Args:
        test: as `score_split` returns it.
        section: as `sections.score_factor` returns it.
    """
    factor = section["factor"]
    if not is_available(section):
        which = "unfitted" if "value" in section else "no_split"
        return Finding(f"recalibration.{which}", numbers={"reason": section["reason"]})
    before, after = values_in(test), values_in(section)
    numbers: dict[str, Any] = {
        "factor": section["value"],
        "nll_before": before["nll"],
        "nll_after": after["nll"],
        "num_rows": section["num_rows"],
        "on_folds": section["on_folds"],
    }
    if factor == "temperature":
        numbers |= {"ece_before": before["ece"], "ece_after": after["ece"]}
    else:
        numbers |= {"covered_before": before["coverage_90"], "covered_after": after["coverage_90"]}
    found = effect(section)
    if found < 0:
        return Finding(f"recalibration.{factor}_helps", numbers=numbers, tone="good")
    if found > 0:
        return Finding(f"recalibration.{factor}_hurts", numbers=numbers)
    lower = "lower" if after["nll"] < before["nll"] else "higher"
    if section["on_folds"] is None:
        few = "groups" if "over_groups" in test else "examples"
        return Finding(f"recalibration.{factor}_{lower}_too_few_{few}", numbers=numbers)
    numbers["needed"] = metrics.num_to_see(NOTABLE, section["on_folds"], section["num_rows"])
    numbers["notable"] = NOTABLE
    if numbers["needed"] <= section["num_rows"]:
        return Finding(f"recalibration.{factor}_needless", numbers=numbers, tone="good")
    return Finding(f"recalibration.{factor}_{lower}_inconclusive", numbers=numbers)


def conformal(sections: Mapping[str, Any], test: Mapping[str, Any]) -> Finding:
    """Whether conformal predictions cover as many test targets as is to be expected.

    Args:
        sections: by method, as `sections.score_conformal` returns them.
        test: as `score_split` returns it.
    """
    found = {name: one for name, one in sections.items() if is_available(one)}
    if not found:
        return Finding("conformal.none")
    name, one = min(found.items(), key=lambda item: item[1].get("mean_width", 0.0))
    if "sets" not in sections and len(found) > 1 and "quantiles" not in sections:
        name, one = next(iter(found.items()))  # Bands of several levels: the widest.
    low, high = one["coverage_range"]
    numbers: dict[str, Any] = {
        "method": name,
        "level": one["level"],
        "coverage": one["coverage"],
        "expected": (low, high),
        "size": one.get("mean_size", one.get("mean_width")),
    }
    if "over_groups" in test:  # Whose rows may be alike.
        return Finding("conformal.groups", numbers=numbers | {"column": test["over_groups"]})
    kind = "sets" if name == "sets" else "intervals"
    if low <= one["coverage"] <= high:
        return Finding(f"conformal.{kind}_as_expected", numbers=numbers, tone="good")
    return Finding(f"conformal.{kind}_outside", numbers=numbers, tone="warning")


def strata(evaluation: Mapping[str, Any]) -> Finding:
    """What conformal guarantees are worth where rows are split by groups or by time.

    Args:
        evaluation: the content of evaluation.json so far.
    """
    sections = stratified(evaluation)[1].get("by_stratum", ())
    kind, _, column = evaluation["config"].get("split", "").partition(":")
    if not kind:
        return Finding("strata.random")
    numbers: dict[str, Any] = {"column": column}
    if kind == _TIME and sections:
        last = sections[-1]
        numbers |= {"name": last["name"], "share": last["share"], "interval": last["interval"]}
        low, high = last["coverage_range"]
        if not low <= last["share"] <= high:
            numbers["expected"] = (low, high)
            return Finding("strata.time_last_period_outside", numbers=numbers, tone="warning")
        return Finding("strata.time_last_period", numbers=numbers)
    if kind == _TIME:
        return Finding("strata.time", numbers=numbers)
    large = [one for one in sections if one["num_rows"] >= _ENOUGH]
    if len(large) < 2:
        return Finding("strata.groups", numbers=numbers)
    shares = [one["share"] for one in large]
    numbers |= {"number": len(large), "size": _ENOUGH, "least": min(shares), "most": max(shares)}
    if _differ(large):
        return Finding("strata.groups_differ", numbers=numbers, tone="warning")
    return Finding("strata.groups_alike", numbers=numbers)


def _differ(sections: Sequence[Mapping[str, Any]]) -> bool:
    """Whether shares differ by more than chance: an exact test at 5%, by drawing who is held."""
    sizes = np.array([one["num_rows"] for one in sections])
    held = np.array([round(one["share"] * one["num_rows"]) for one in sections])
    drawn = np.random.default_rng(0).multivariate_hypergeometric(sizes, held.sum(), 999)
    expected = sizes * held.sum() / sizes.sum()
    found, by_chance = (
        np.sum((each - expected) ** 2 / sizes, axis=-1).round(9) for each in (held, drawn)
    )
    return bool(1 + np.sum(by_chance >= found) <= 0.05 * (1 + len(drawn)))
