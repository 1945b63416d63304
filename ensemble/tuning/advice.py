"""The result of a comparison of methods: a recommendation, and a table of each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.report.sections import grid
from ensemble.report.table import digits, percent
from ensemble.tuning.verdicts import AS_GOOD, SECOND, UNDECIDED, WORSE

TITLES = {"nll": "NLL", "accuracy": "accuracy", "crps": "CRPS", "rmse": "RMSE"}


def recommended(rounds: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The `recommendation` and its `doubt`, from the longest complete round.

    Args:
        rounds: Rounds of comparison.json, the shortest first.
    """
    known = [one for one in rounds if "best" in one]
    if not known:
        return {"recommendation": "", "doubt": "No round of methods is complete."}
    last = known[-1]
    best, rows = last["best"], {row["method"]: row for row in last["rows"]}
    key, number = _size(rows[best])
    setting = f" with config.{key}={number}" if number > 1 else ""
    recommendation = (
        f"For {last['charged_seconds']:.3g} CPU seconds of training use {best}{setting} "
        f"(cells/{best}_{last['times']}c): its validation {TITLES[last['score']]} is lowest, "
        f"{digits(rows[best]['validation'])}."
    )
    verdicts = {name: one["verdict"] for name, one in last["beside"][last["score"]].items()}
    others = [
        f"{verdict}: {', '.join(names)}"
        for verdict in (AS_GOOD, UNDECIDED, WORSE)
        if (names := [name for name, one in verdicts.items() if one == verdict and name != best])
    ]
    doubt = f"By {last['num_test']:,} test rows and one seed, {'; '.join(others)}."
    if not others:
        doubt = "No other method could be compared."
    cost = {name: rows[name].get("predict_seconds") for name, one in verdicts.items()}
    cheaper = [
        name
        for name, one in verdicts.items()
        if one == AS_GOOD and cost[best] and cost[name] and 2 * cost[name] <= cost[best]
        if "selected" not in rows[name]  # It took all of the time.
    ]
    if cheaper:
        name = min(cheaper, key=lambda one: cost[one])
        doubt += f" {name} predicts in {cost[name] / cost[best]:.0%} of {best}'s time."
    return {"recommendation": recommendation, "doubt": doubt}


def _size(row: Mapping[str, Any]) -> tuple[str, int]:
    """The key that sets the number of networks or chains of a method, and their number."""
    settings = row.get("settings", {})
    key = "num_chains" if "num_chains" in settings else "ensemble_size"
    return key, int(settings.get(key, 1))


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """The tables and the recommendation, in paragraphs."""
    length = found["length"]
    parts = [
        f"c = {length['seconds']:.3g} CPU seconds: one network, {length['epochs']:.3g} epochs, its "
        f"best validation score in {length['epochs_tried']:.3g}."
    ]
    for one in found["rounds"]:
        parts.append(f"{one['times']}c = {one['charged_seconds']:.3g} CPU seconds each")
        parts.append(_table(one))
        parts += [f"{r['method']} failed: {r['failed']}" for r in one["rows"] if "failed" in r]
        if not one["is_complete"]:
            parts.append("The time is over. The same command with a longer time resumes.")
    return [*parts, f"{found['recommendation']} {found['doubt']}".strip()]


def _table(one: Mapping[str, Any]) -> str:
    """A round, the lowest validation score first."""
    score = next((row["score"] for row in one["rows"] if "score" in row), "nll")
    pair = (score, SECOND[score])
    first, second = (TITLES[name] for name in pair)
    titles = ["method", "networks", "validation", first, "calibrated", "95% interval", second]
    titles += [f"by {first}", f"by {second}", "charged", "spent", "compiling", "predicting"]
    return grid(titles, [_cells(row, one, pair) for row in one["rows"]])


def _cells(row: Mapping[str, Any], one: Mapping[str, Any], pair: Sequence[str]) -> list[str]:
    """A line of a table."""
    spent = f"{row['cpu_seconds']:.1f} s"
    if "score" not in row:
        why = "failed" if "failed" in row else "cut"
        return [row["method"], "-", why, *["-"] * 7, spent, "-", "-"]
    after, predicting = row["calibrated"], row["predict_seconds"]
    first, shown = after[pair[0]], percent if pair[1] == "accuracy" else digits
    verdicts = [
        "best" if row["method"] == one.get("best") else found.get("verdict", "-")
        for name in pair
        for found in [one.get("beside", {}).get(name, {}).get(row["method"], {})]
    ]
    return [
        row["method"],
        "-" if "selected" in row else str(_size(row)[1]),
        digits(row["validation"]),
        digits(row["test"][pair[0]]["value"]),
        digits(first["value"]),
        "-" if first["low"] is None else f"{digits(first['low'])} to {digits(first['high'])}",
        shown(after[pair[1]]["value"]),
        *verdicts,
        f"{row['charged_seconds']:.3g} s",
        spent,
        f"{row['compile_seconds']:.1f} s",
        "-" if predicting is None else f"{predicting:.2g} s",
    ]
