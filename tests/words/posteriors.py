"""Sentences that evaluations share: chains, unfamiliar inputs, other recipes, groups, times."""

from collections.abc import Iterator

import numpy as np
from run_parts import strata_of

from ensemble.evaluation import chain_error, recipe, sentences
from ensemble.evaluation.strata import by_stratum, no_promise, sentence, too_few


def make_detection(auroc, half_width=0.01):
    """A set of unfamiliar inputs that is told so well."""
    score = {"auroc": auroc, "fpr95": 0.2}
    score["interval"] = {"auroc": (auroc - half_width, auroc + half_width), "fpr95": (0.1, 0.4)}
    return {"num_examples": 17, "entropy": score}


def make_comparison(interval=(-0.3, 0.2), **changes):
    """The section of a comparison with another recipe."""
    section = {
        "score": "NLL", "over": "members and examples", "difference": -0.01, "interval": interval,
        "margin": 0.004, "could_see": 0.02, **changes,
    }  # fmt: skip
    paired = {"nll": (-0.02, -0.001)}
    return {
        "workdir": "runs/b", "recipe": section, "difference": {"nll": -0.01}, "interval": paired,
    }  # fmt: skip


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
POWER = {
    "examples": {"examples": 900, "members": None, "times": 2.0},
    "both": {"examples": None, "members": None, "times": 3.0},
    "enough": {"examples": 90, "members": 3, "times": 0.5},
}


def cases() -> Iterator[tuple[str, str | list[str]]]:
    """Every case, and what is said in it."""
    posterior = {"num_samples": 1000, "rhat_max": 1.004, "ess_bulk_min": 900.0, "num_chains": 4}
    for case, changes in CHAINS.items():
        yield f"chains.{case}", sentences.convergence({**posterior, **changes})
    over = {"nll": 0.3, "nll_interval": (0.29, 0.32), "interval_over": "chains of this length"}
    yield "chains.error", chain_error.sentence(over)
    for case, auroc in DETECTION.items():
        found = {"a": make_detection(1.0), "uniform": make_detection(auroc)}
        yield f"detection.{case}", sentences.detection(found, "entropy", "entropy")
    constant = {"constant": make_detection(0.8)}
    yield "detection.constant", sentences.detection(constant, "entropy", "entropy")
    over = {"interval_over": "groups of site; the members stay as they are"}
    yield "over.groups", sentences.over(over)
    yield "over.nothing", sentences.over({})
    for case, interval in RECIPE.items():
        yield f"recipe.{case}", recipe.sentence(make_comparison(interval))
    no_recipe = {"score": "NLL", "over": "chains and examples", "reason": "it takes 3 chains"}
    yield "recipe.few_members", recipe.sentence({**make_comparison(), "recipe": no_recipe})
    of_groups = {**no_recipe, "over": "members and groups"}
    yield "recipe.groups", recipe.sentence({**make_comparison(), "recipe": of_groups})
    for case, interval in START.items():
        by_nll = make_comparison(interval, difference=0.2)["recipe"]
        start = {**make_comparison(), "recipe_by_nll": by_nll, "is_start": True}
        yield f"start.{case}", recipe.sentence(start)
    for case, needed in POWER.items():
        yield f"power.{case}", recipe.power(make_comparison(needed=needed))
    yield from _whole(posterior)
    yield from _of_strata()


def _whole(posterior: dict[str, float | None]) -> Iterator[tuple[str, list[str]]]:
    """What a verdict says of a posterior, and how it ends."""
    by_nll = make_comparison(START["better"], difference=0.2)["recipe"]
    start = {**make_comparison(), "recipe_by_nll": by_nll, "is_start": True}
    evaluation = {
        "temperature": 0.3,
        "posterior": posterior,
        "compare": [make_comparison(RECIPE["better"]), start],
        "next_member": {"sentence": "One more member would lower the NLL by 0.001."},
        "test": {"interval_over": "examples"},
        "notes": ["The data have 3 copies."],
    }
    yield "posterior.tempered", sentences.posterior(evaluation)
    members = {**evaluation, "temperature": 1, "posterior": None, "compare": []}
    yield "posterior.none", sentences.posterior(members)
    yield "closing.all", sentences.closing(evaluation)
    yield (
        "closing.nothing",
        sentences.closing({**members, "next_member": {"sentence": ""}, "test": {}, "notes": []}),
    )


def _of_strata() -> Iterator[tuple[str, str]]:
    held = np.array([True] * 20 + [True] * 10 + [False] * 10 + [True])
    groups = strata_of(np.repeat(["a", "b", "c"], [20, 20, 1]), column="patient")
    yield "strata.groups_differ", sentence(by_stratum(held, groups), "group:patient")
    held[10:20] = False
    yield "strata.groups_alike", sentence(by_stratum(held, groups), "group:patient")
    yield "strata.no_sections", sentence([], "group:patient")
    days = strata_of(np.arange(41.0), "time", "when", has_dates=True)
    yield "strata.time", sentence(by_stratum(held, days), "time:when")
    few = {"num_groups": 4, "over_groups": "site"}
    yield "groups.few", too_few(few)
    yield "groups.one", too_few({**few, "num_groups": 1})
    yield "groups.no_promise", no_promise(few)
