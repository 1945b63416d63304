"""Results of all simulations: their rows, tables, and what is beyond its limit."""

from collections.abc import Iterator
from typing import Any

from simulations import alarms, chains, coverage

LOW = 0.93
HIGH = 0.97
"""Coverage of 95% intervals should lie between these."""
HEAVY_TAILS = 0.91
"""What an interval of RMSE or NLL should cover at least where errors have heavy tails."""
FALSE_ALARMS = 0.05
MOSTLY = 0.9
"""The share of test splits of which more must have an interval for its coverage to be judged."""


def simulate(part: str, name: str, replications: int) -> list[dict[str, Any]]:
    """Simulates everything of one name.

    Args:
        part: "coverage", "alarms" or "chains".
        name: Key of `coverage.WORLDS`, `alarms.NULLS` or `chains.CLAIMS`.
        replications: Of a small test split; large ones have fewer.
    """
    if part == "chains":
        is_slow = name.startswith("chains that agree")
        return [chains.simulate(name, replications // (4 if is_slow else 1))._asdict()]
    rows: list[Any] = []
    if part == "coverage":
        for world, size in coverage.CELLS:
            if world == name:
                count = replications // 2 if size >= 10_000 else replications
                rows += coverage.simulate(name, size, count)
    else:
        slow = "factor" in alarms.NULLS[name].false or "calibrated" in name
        for size in alarms.SIZES:
            rows += alarms.simulate(name, size, replications // (4 if slow else 1))
    return [one._asdict() for one in rows]


def faults(results: dict[str, Any]) -> Iterator[str]:
    """Lines on what is beyond a limit by more than two standard errors of the simulation.

    An interval that many test splits lack is judged by how often a wrong one is stated, since the
    splits that have it are those that look harmless.

    Args:
        results: As written.
    """
    for one in results["coverage"]:
        is_heavy = "t5" in one["world"] or "skewed" in one["world"]
        low = HEAVY_TAILS if is_heavy else LOW
        number = one["replications"]
        share = 1.0 if one["held"] is None else one["held"]
        held = share if one["stated"] > MOSTLY else 1 - one["stated"] * (1 - share)
        if held < low - 2 * _error(low, number):
            yield f"{one['metric']} of {_where(one)}: {held:.1%}"
    for one in results["alarms"]:
        if one["share"] > FALSE_ALARMS + 2 * _error(FALSE_ALARMS, one["replications"]):
            yield f"{one['rule']} in {one['world']}, N = {one['size']}: {one['share']:.1%} false"
    for one in results["chains"]:
        number = one["stated"] * one["replications"]
        is_bound = "guarantee" in one["claim"] or "agree" in one["claim"]
        low = 1 - FALSE_ALARMS if is_bound else LOW
        if number >= 50 and one["held"] < low - 2 * _error(low, number):
            yield f"{one['claim']}: {one['held']:.1%}"


def table(results: dict[str, Any]) -> str:
    """Markdown: the lowest and the highest share of each metric, rule and claim, and where.

    Args:
        results: As written.
    """
    covered: dict[str, dict[float, str]] = {}
    false: dict[str, dict[float, str]] = {}
    for one in results["coverage"]:
        if one["stated"] > MOSTLY:
            covered.setdefault(one["metric"], {})[one["held"]] = _where(one)
    for one in results["alarms"]:
        false.setdefault(one["rule"], {})[one["share"]] = _where(one)
    claims = [f"| {c['claim']} | {c['stated']:.0%} | {c['held']:.1%} |" for c in results["chains"]]
    return "\n".join(
        [
            *_extremes("metric", "coverage", covered),
            *_extremes("rule", "false findings", false),
            *("| claim | stated | held |", "|---|---|---|", *claims),
        ]
    )


def _where(one: dict[str, Any]) -> str:
    number = "groups" if "groups" in one["world"] else "N"
    return f"{one['world']}, {number} = {one['size']:,}"


def _extremes(name: str, what: str, shares: dict[str, dict[float, str]]) -> list[str]:
    lines = [f"| {name} | {what}: least | of | most | of |", "|---|---|---|---|---|"]
    for key, found in sorted(shares.items()):
        least = min(found)
        most = max(found)
        ends = [f"{least:.1%}", found[least], f"{most:.1%}", found[most]]
        lines.append(f"| {' | '.join([key, *ends])} |")
    return [*lines, ""]


def _error(share: float, number: float) -> float:
    return float((share * (1 - share) / number) ** 0.5)
