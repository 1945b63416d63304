"""What would more members, draws, or another recipe bring?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble.draws.diagnostics import (
    AGREE,
    DISAGREE,
    GOOD_ESS,
    MIN_CHAINS,
    judge_chains,
    least_ess,
)
from ensemble.evaluation.next_member import FEWEST, SMALL_SHARE
from ensemble.scoring.finding import Finding


def noun_of(evaluation: Mapping[str, Any]) -> str:
    """What a member of an evaluation is called: a sampler's is a chain."""
    is_posterior = "num_chains" in evaluation["config"] and "selection" not in evaluation
    return "chain" if is_posterior else "member"


def of_chains(evaluation: Mapping[str, Any]) -> list[Finding]:
    """What is asked of a posterior first of all, and of an ensemble in vain."""
    if "selection" in evaluation:
        return [selection(evaluation["selection"])]
    starts = [comparison(one) for one in evaluation["compare"] if one.get("is_start")]
    posterior = evaluation["posterior"]
    error = monte_carlo(evaluation.get("chain_error") if posterior is not None else None)
    return [tempered(evaluation), convergence(posterior), error, *starts]


def of_others(evaluation: Mapping[str, Any]) -> list[Finding]:
    """What is asked of other workdirs, and of one more member."""
    found = []
    for one in evaluation["compare"]:
        if not one.get("is_start"):
            found += [comparison(one), these(one)]
        found.append(power(one))
    return [*found, next_member(evaluation["next_member"], noun_of(evaluation))]


def selection(section: Mapping[str, Any]) -> Finding:
    """Which members of several runs these are.

    Args:
        section: the entry of a selection's report.json.
    """
    used = [one for one in section["runs"] if one["members"]]
    numbers = {
        "number": sum(len(one["members"]) for one in used),
        "runs": len(used),
        "by": section["by"],
        "optimism": section["optimism"],
    }
    return Finding("selection.members", numbers=numbers)


def tempered(evaluation: Mapping[str, Any]) -> Finding:
    """Whether the likelihood has a temperature, so that chains sample another posterior."""
    if evaluation["temperature"] == 1:
        return Finding("tempered.no")
    return Finding("tempered.yes", numbers={"temperature": evaluation["temperature"]})


def convergence(posterior: Mapping[str, Any] | None) -> Finding:
    """Whether the chains of a posterior agree.

    Args:
        posterior: the entry of report.json; its R-hat and ESS may be unknown. None of an ensemble.
    """
    if posterior is None:
        return Finding("convergence.ensemble")
    rhat, ess = posterior["rhat_max"], posterior["ess_bulk_min"]
    num_chains = posterior["num_chains"]
    numbers = {"num_samples": posterior["num_samples"], "num_chains": num_chains}
    if rhat is None or ess is None:
        return Finding("convergence.untold", numbers=numbers, tone="warning")
    numbers |= {"rhat": rhat, "ess": ess, "ess_tail": None}
    if num_chains == 1:
        return Finding("convergence.one_chain", numbers=numbers)
    least = least_ess(posterior)
    if least <= GOOD_ESS < ess:
        numbers["ess_tail"] = least
    told = judge_chains(rhat, least, posterior.get("rhat_chance"))
    if told == AGREE and num_chains < MIN_CHAINS:
        numbers["missed"] = 2.0 ** (1 - num_chains)
        return Finding("convergence.few_chains_agree", numbers=numbers, tone="good")
    if told == AGREE:
        return Finding("convergence.agree", numbers=numbers, tone="good")
    which = "disagree" if told == DISAGREE else "few_draws"
    return Finding(f"convergence.{which}", numbers=numbers, tone="warning")


def monte_carlo(section: Mapping[str, Any] | None) -> Finding:
    """How far the test NLL is known after so few draws.

    Args:
        section: of `chain_error.score_chains`.
    """
    if section is None:
        return Finding("monte_carlo.untold")
    numbers = {"nll": section["nll"], "interval": tuple(section["nll_interval"])}
    return Finding("monte_carlo.error", numbers=numbers)


def comparison(one: Mapping[str, Any]) -> Finding:
    """Whether the recipe of another workdir, or what a posterior starts from, is better.

    Args:
        one: as `comparison.compare` returns it.
    """
    is_start = bool(one.get("is_start"))
    about, section = f"compare/{one['workdir']}", deciding(one)
    if not section:
        return Finding("comparison.none", about, {"name": one["workdir"]})
    numbers: dict[str, Any] = {"name": one["workdir"], "score": section["score"]}
    question = "start" if is_start else "comparison"
    if "reason" in section:
        return Finding(f"{question}.untold", about, numbers | {"reason": section["reason"]})
    low, high = section["interval"]
    difference = section["difference"]
    numbers |= {"over": section["over"], "could_see": section["could_see"]}
    if is_start:  # Of the posterior less its start.
        low, high, difference = -high, -low, -difference
    numbers |= {"difference": difference, "interval": (low, high), "margin": section["margin"]}
    if high < 0:
        return Finding(f"{question}.better", about, numbers, "good" if is_start else "plain")
    if low > 0:
        return Finding(f"{question}.worse", about, numbers, "warning" if is_start else "plain")
    if not is_start and high < section["margin"]:
        return Finding("comparison.no_worse", about, numbers | {"share": SMALL_SHARE})
    return Finding(f"{question}.inconclusive", about, numbers)


def these(one: Mapping[str, Any]) -> Finding:
    """What is known of two ensembles themselves, where nothing is of their recipes.

    Args:
        one: as `comparison.compare` returns it.
    """
    about, section = f"compare/{one['workdir']}", deciding(one)
    is_open = comparison(one).code in ("comparison.untold", "comparison.inconclusive")
    if not is_open or section["over"].endswith("groups"):  # Whose rows are alike.
        return Finding("these.not_asked", about)
    score = one["scores"].get(section["score"].lower(), {})
    numbers: dict[str, Any] = {"name": one["workdir"], "score": section["score"]}
    if score.get("interval") is None:
        return Finding("these.untold", about, numbers)
    low, high = score["interval"]
    numbers |= {"difference": score["difference"], "interval": (low, high)}
    which = "lower" if high < 0 else "higher" if low > 0 else "inconclusive"
    return Finding(f"these.{which}", about, numbers)


def deciding(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a comparison is decided on, as `recipe.score_recipes` returns it; may be empty.

    Args:
        one: as `comparison.compare` returns it.
    """
    found: Mapping[str, Any] = one.get("recipe", {})
    return one.get("recipe_by_nll", found) if one.get("is_start") else found


def power(one: Mapping[str, Any]) -> Finding:
    """What it would take to see a difference of the margin.

    Args:
        one: as `comparison.compare` returns it.
    """
    about, section = f"compare/{one['workdir']}", deciding(one)
    found = section.get("needed")
    if not found:
        return Finding("power.untold", about)
    numbers = {
        "margin": section["margin"],
        "examples": found["examples"],
        "members": found["members"],
        "times": found["times"],
    }
    if found["times"] <= 1:
        return Finding("power.enough", about, numbers)
    of_groups = "groups" if section["over"].endswith("groups") else "examples"
    return Finding(f"power.more_{of_groups}", about, numbers)


def next_member(section: Mapping[str, Any], noun: str = "member") -> Finding:
    """Is one more member worth its cost?

    Args:
        section: as `next_member.score_sizes` returns it.
        noun: what a member is called.
    """
    numbers: dict[str, Any] = {"noun": noun}
    if "sizes" not in section:
        return Finding("next_member.none", numbers=numbers)
    number = len(section["sizes"])
    if number < FEWEST:
        which = "one" if number == 1 else "two"
        return Finding(f"next_member.{which}", numbers=numbers | {"fewest": FEWEST})
    gain, interval = section["expected_gain"]["nll"], section["gain_interval"]
    if gain is None or interval is None:
        return Finding("next_member.untold", numbers=numbers)
    low, high = interval
    nll = section["mean"]["nll"][-1]
    small = section["small_gain"]
    of_density = small is not None
    least = small if of_density else SMALL_SHARE * nll
    numbers |= {"number": number + 1, "gain": gain, "interval": (low, high)}
    if not of_density and nll > 0:
        numbers |= {"share": gain / nll, "share_interval": (low / nll, high / nll)}
    numbers["least"] = SMALL_SHARE if not of_density else least
    kind = "nats" if of_density or nll <= 0 else "share"
    if high < least:
        return Finding(f"next_member.stop_{kind}", numbers=numbers, tone="good")
    if low > 0:
        return Finding(f"next_member.pays_{kind}", numbers=numbers, tone="good")
    return Finding(f"next_member.inconclusive_{kind}", numbers=numbers)
