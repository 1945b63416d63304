"""Sentences that evaluations share: chains, unfamiliar inputs, other recipes, groups, times."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from run_parts import strata_of

from ensemble.evaluation.questions import calibration, inputs, others
from ensemble.evaluation.strata import by_stratum
from ensemble.scoring.finding import Finding


def make_detection(auroc, half_width=0.01):
    """A set of unfamiliar inputs that is told so well."""
    score = {"auroc": auroc, "fpr95": 0.2}
    score["interval"] = {"auroc": (auroc - half_width, auroc + half_width), "fpr95": (0.1, 0.4)}
    return {"num_rows": 17, "entropy": score}


def make_comparison(interval=(-0.3, 0.2), **changes):
    """The section of a comparison with another recipe."""
    section = {
        "score": "NLL", "over": "members and examples", "difference": -0.01, "interval": interval,
        "margin": 0.004, "could_see": 0.02, **changes,
    }  # fmt: skip
    score = {"difference": -0.01, "interval": (-0.02, -0.001)}
    return {"workdir": "runs/b", "recipe": section, "scores": {"nll": score}}


CHAINS = {
    "agree": {},
    "agree_and_are_many": {"num_chains": 6},
    "disagree": {"rhat_max": 1.02},
    "one": {"num_chains": 1},
    "few_draws": {"ess_bulk_min": 399.0},
    "few_draws_of_tails": {"ess_tail_min": 399.0},
    "degenerate": {"rhat_max": None},
}
DETECTION = {"all": 1.001, "well": 0.995, "badly": 0.8, "inverted": 0.3}
RECIPE = {
    "better": (-0.03, -0.001),
    "worse": (0.001, 0.03),
    "no_worse": (-0.03, 0.003),
    "not_told": (-0.03, 0.005),
}
START = {"better": (0.1, 0.3), "worse": (-0.3, -0.1), "not_told": (-0.1, 0.3)}
PAIRED = {
    "lower": (-0.02, -0.001),
    "higher": (0.001, 0.02),
    "inconclusive": (-0.02, 0.001),
    "untold": None,
}
POWER = {
    "examples": {"examples": 900, "members": None, "times": 2.0},
    "both": {"examples": None, "members": None, "times": 3.0},
    "enough": {"examples": 90, "members": 3, "times": 0.5},
}


def cases() -> Iterator[tuple[str, str | Finding | list[Finding]]]:
    """Every case, and what is found in it."""
    posterior = {"num_samples": 1000, "rhat_max": 1.004, "ess_bulk_min": 900.0, "num_chains": 4}
    for case, changes in CHAINS.items():
        yield f"chains.{case}", others.convergence({**posterior, **changes})
    yield "chains.none", others.convergence(None)
    over = {"nll": 0.3, "nll_interval": (0.29, 0.32), "interval_over": "chains of this length"}
    yield "chains.error", others.monte_carlo(over)
    yield "chains.no_error", others.monte_carlo(None)
    for case, temperature in {"bayes": 1.0, "tempered": 0.3}.items():
        yield f"temperature_of_{case}", others.tempered({"temperature": temperature})
    for case, auroc in DETECTION.items():
        found = {"a": make_detection(1.0), "uniform": make_detection(auroc)}
        yield f"detection.{case}", inputs.detection(found, "entropy")
    yield "detection.constant", inputs.detection({"constant": make_detection(0.8)}, "entropy")
    yield "detection.none", inputs.detection({}, "entropy")
    for case, interval in RECIPE.items():
        yield f"recipe.{case}", others.comparison(make_comparison(interval))
    no_recipe = {"score": "NLL", "over": "chains and examples", "reason": "it takes 3 chains"}
    untold = {**make_comparison(), "recipe": no_recipe}
    yield "recipe.few_members", others.comparison(untold)
    yield "recipe.none", others.comparison({"workdir": "runs/b"})
    for case, paired in PAIRED.items():
        score = {"difference": -0.01, "interval": paired}
        yield f"these.{case}", others.these({**untold, "scores": {"nll": score}})
    of_groups = {**no_recipe, "over": "members and groups"}
    yield "these.groups", others.these({**untold, "recipe": of_groups})
    for case, interval in START.items():
        by_nll = make_comparison(interval, difference=0.2)["recipe"]
        start = {**make_comparison(), "recipe_by_nll": by_nll, "is_start": True}
        yield f"start.{case}", others.comparison(start)
    yield (
        "start.untold",
        others.comparison({**untold, "recipe_by_nll": no_recipe, "is_start": True}),
    )
    for case, needed in POWER.items():
        yield f"power.{case}", others.power(make_comparison(needed=needed))
    many = make_comparison(needed=POWER["examples"], over="members and groups")
    yield "power.groups", others.power(many)
    yield "power.untold", others.power(untold)
    yield from _of_strata()


def _told(sections: Sequence[Mapping[str, Any]], split: str) -> Finding:
    conformal = {"sets": {"by_stratum": sections}}
    return calibration.strata({"conformal": conformal, "config": {"split": split}})


def _of_strata() -> Iterator[tuple[str, Finding]]:
    held = np.array([True] * 20 + [True] * 10 + [False] * 10 + [True])
    groups = strata_of(np.repeat(["a", "b", "c"], [20, 20, 1]), column="patient")
    yield "strata.groups_differ", _told(by_stratum(held, groups), "group:patient")
    held[10:20] = False
    yield "strata.groups_alike", _told(by_stratum(held, groups), "group:patient")
    yield "strata.no_sections", _told([], "group:patient")
    days = strata_of(np.arange(41.0), "time", "when", has_dates=True)
    periods = by_stratum(held, days)
    for case, low in {"strata.time": 0.0, "strata.time_outside": 0.7}.items():
        each = [one | {"coverage_range": [low, 1.0]} for one in periods]
        yield case, _told(each, "time:when")
    yield "strata.time_without_sections", _told([], "time:when")
    yield "strata.random", _told([], "")
