"""Tells a comparison of methods: a sentence with its doubt, and a table of each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.scoring.score import named
from ensemble.search.verdicts import AS_GOOD, INCONCLUSIVE, SECOND, WORSE


def recommended(rounds: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The `recommendation` and its `doubt`, of the longest round that is complete.

    Args:
        rounds: of methods.json, the shortest first.
    """
    known = [one for one in rounds if "best" in one]
    if not known:
        return {"recommendation": "", "doubt": "No round of methods is complete."}
    last = known[-1]
    best, title = last["best"], named(last["score"]).title
    row = next(one for one in last["rows"] if one["method"] == best)
    verdicts = {name: one["verdict"] for name, one in last["beside"][last["score"]].items()}
    key, number = _several(row)
    told = (
        f"For {last['charged_seconds']:.3g} CPU seconds of training use {best}"
        f"{f' with config.{key}={number}' if number > 1 else ''} (cells/{best}_{last['times']}c): "
        f"its {title} of the validation split is lowest, "
        f"{named(last['score']).shown(row['validation'])}."
    )
    says = {AS_GOOD: f"as good as {best}", INCONCLUSIVE: INCONCLUSIVE, WORSE: f"worse than {best}"}
    others = [
        f"{_listed(names)} {'is' if len(names) == 1 else 'are'} {said}"
        for verdict, said in says.items()
        if (names := [name for name, one in verdicts.items() if one == verdict and name != best])
    ]
    doubt = f"By {last['num_test']:,} test rows and one seed, {', '.join(others)}"
    if not others:
        doubt = "No other method could be compared"
    return {"recommendation": told, "doubt": f"{doubt}.{_cheaper(last, verdicts)}"}


def _several(row: Mapping[str, Any]) -> tuple[str, int]:
    """The key that says how many networks or chains a method has trained, and their number."""
    settings = row.get("settings", {})
    key = "num_chains" if "num_chains" in settings else "ensemble_size"
    return key, int(settings.get(key, 1))


def _cheaper(last: Mapping[str, Any], verdicts: Mapping[str, str]) -> str:
    """Names what is as good and predicts in half of the time or less."""
    cost = {one["method"]: one.get("predict_seconds") for one in last["rows"]}
    best = cost[last["best"]]
    selections = [one["method"] for one in last["rows"] if "selected" in one]
    less = [
        name
        for name, one in verdicts.items()
        if one == AS_GOOD and best and cost[name] and 2 * cost[name] <= best
        if name not in selections  # They took all of the time.
    ]
    if not less:
        return ""
    name = min(less, key=lambda one: cost[one] or 0.0)
    share = (cost[name] or 0.0) / (best or 1.0)
    return f" {name} predicts in {share:.0%} of {last['best']}'s time."


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """The tables and what is recommended, in paragraphs."""
    length = found["length"]
    parts = [
        f"c = {length['seconds']:.3g} CPU seconds, in which one network trains for "
        f"{length['epochs']:.3g} epochs, those of its best validation score of "
        f"{length['epochs_tried']:.3g}."
    ]
    for one in found["rounds"]:
        parts.append(f"{one['times']}c = {one['charged_seconds']:.3g} CPU seconds each")
        parts.append(_table(one))
        parts += [f"{row['method']} failed: {row['failed']}" for row in _failed(one)]
        if not one["is_complete"]:
            parts.append("The time was over; give more, and the same command goes on.")
    return [*parts, " ".join(filter(None, (found["recommendation"], found["doubt"])))]


def _failed(one: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in one["rows"] if "failed" in row]


def _table(one: Mapping[str, Any]) -> str:
    """A round, the lowest validation score first."""
    well = [row for row in one["rows"] if "score" in row]
    score = well[0]["score"] if well else next(iter(SECOND))
    pair = (score, SECOND[score])
    first, second = (named(name).title for name in pair)
    titles = ["method", "networks", "validation", first, "calibrated", "95% interval", second]
    titles += [f"by {first}", f"by {second}", "charged", "spent", "compiling", "predicting"]
    rows = [titles, *(_cells(row, one, pair) for row in one["rows"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([f"{cells[0]:<{widths[0]}}", *map(str.rjust, cells[1:], widths[1:])])
        for cells in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cells(row: Mapping[str, Any], one: Mapping[str, Any], pair: Sequence[str]) -> list[str]:
    """A line of a table."""
    spent = f"{row['cpu_seconds']:.1f} s"
    if "score" not in row:
        why = "failed" if "failed" in row else "cut"
        return [row["method"], "-", why, *["-"] * 7, spent, "-", "-"]
    first, second = map(named, pair)
    after, predicting = row["calibrated"], row["predict_seconds"]
    interval = after[pair[0]]["interval"]
    ends = "-" if interval is None else " to ".join(map(first.shown, interval))
    verdicts = [
        "best" if row["method"] == one.get("best") else found["verdict"]
        for name in pair
        for found in [one.get("beside", {}).get(name, {}).get(row["method"], {"verdict": "-"})]
    ]
    return [
        row["method"],
        "-" if "selected" in row else str(_several(row)[1]),
        first.shown(row["validation"]),
        first.shown(row["test"][pair[0]]["value"]),
        first.shown(after[pair[0]]["value"]),
        ends,
        second.shown(after[pair[1]]["value"]),
        *verdicts,
        f"{row['charged_seconds']:.3g} s",
        spent,
        f"{row['compile_seconds']:.1f} s",
        "-" if predicting is None else f"{predicting:.2g} s",
    ]


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
