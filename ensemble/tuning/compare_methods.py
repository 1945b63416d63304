"""Compares methods on one network and one data set at equal training steps.

One network trains as configured. Each family of `ensemble.tuning.families` then has as many steps
in all, then four and sixteen times as many, as far as the time reaches. Each is an ordinary run.
The validation split chooses the best; the test split only says how far the others are behind it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.config import build, by_path
from ensemble.data.catalogue import complete
from ensemble.errors import InputError, TrainingError, plural
from ensemble.metrics import metrics_of
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.sections import grid
from ensemble.report.table import digits
from ensemble.storage.trials import COMPARISON, Trial
from ensemble.storage.workdir import Workdir
from ensemble.tuning.families import FAMILIES, SINGLE, STARTS, settings_of
from ensemble.tuning.trials import UNWATCHED, Trials, open_trials

ROUNDS: tuple[int, ...] = (1, 4, 16)
"""Networks whose steps each family has, round after round."""


class MethodComparison(dict[str, Any]):
    """Result of `compare_methods`: `rounds` and the `recommendation`, shown as tables."""

    def __repr__(self) -> str:
        return "\n\n".join(lines_of(self))


def compare_methods(
    config: Mapping[str, Any],
    time_limit: float | str = 600,
    workdir: str | os.PathLike[str] | None = None,
    data: Any = None,
    *,
    methods: Sequence[str] | None = None,
    show_progress: bool = True,
) -> MethodComparison:
    """Trains families of methods at equal training steps, and recommends one.

    The same call resumes an interrupted comparison; with more seconds it goes on to longer
    training.

    Args:
        config: Keys of the network and its training, as of `train`; its method is replaced.
        time_limit: Seconds over all calls with this workdir; or a text such as `10m`. The first
            round is finished in any case.
        workdir: Directory of all runs, each in `runs/NAME`, and of trials.json; None keeps nothing.
        data: As of `train`; None: `config.dataset` names it.
        methods: Names of families to compare, such as `['swag', 'mc_dropout']`; None: all. Those
            that they start from, and the single network, are always compared.
        show_progress: If True, show the runs and the time left.

    Returns:
        `rounds`, each with `rows` by validation score, and the `recommendation`.

    Raises:
        InputError: The configuration, the data, the time or the workdir cannot be used.
        TrainingError: The single network could not be trained.
        Interrupted: SIGTERM or Ctrl-C; the same call resumes the comparison.
    """
    chosen = [methods] if isinstance(methods, str) else [*(methods or FAMILIES)]
    for name in chosen:
        if name not in FAMILIES:
            raise InputError(f"methods={name} is not a family; choose from {', '.join(FAMILIES)}")
    names = {SINGLE, *chosen, *(STARTS[one] for one in chosen if one in STARTS)}
    families = [one for one in FAMILIES if one in names]
    base = _network(config, data)
    rounds: list[dict[str, Any]] = []
    with open_trials(COMPARISON, base, data, time_limit, workdir, show_progress) as trials:
        for times in ROUNDS:
            rows = [row for family in families if (row := _run(trials, family, times)) is not None]
            is_complete = len(rows) == len(families)
            if rows:
                rounds.append(_judged(trials, times, rows, is_complete))
            if not is_complete:
                break
    return MethodComparison(rounds=rounds, recommendation=_recommendation(rounds))


def _network(config: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """The configuration of one network, flat.

    Raises:
        InputError: It cannot be built.
    """
    _, values = complete(by_path(config), {}, data)
    build(values)
    if values.get("init_from"):
        raise InputError(
            f"config.init_from={values['init_from']!r}: methods are compared by networks that "
            "start anew; leave it out"
        )
    single = {"method": "deep_ensemble", "ensemble_size": 1}
    return dict(build({**values, **UNWATCHED}, single).values)


def _run(trials: Trials, family: str, times: int) -> Trial | None:
    """Runs a family in a round; returns None if the time is over."""
    name = f"{family}_{times}"
    is_first = name == f"{SINGLE}_1"
    settings: dict[str, Any] = {}
    if not is_first:  # It trains as configured, and the others as long.
        steps = trials.folder(f"{SINGLE}_1").newest_step
        settings |= settings_of(family, trials.config, steps, times)
    if family in STARTS:
        start = trials.folder(f"{STARTS[family]}_{times}")
        settings["init_from"] = os.path.abspath(start.path)
    trial = trials.run(name, settings, _score, must_end=times == ROUNDS[0])
    if is_first and trial is not None and trial.failure:
        raise TrainingError(trial.failure)
    return trial


def _score(out: Workdir, report: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
    """The validation score of a run, its CRPS or else its NLL, and its score of the test split.

    Raises:
        InputError: The run has no validation split, or neither metric.
    """
    metrics = report["metrics"]
    found = metrics.get("validation", {})
    name = "crps" if "crps" in found else "nll"
    if name not in found:
        raise InputError(
            "methods are compared by the NLL of classes or the CRPS of a number on a validation "
            "split. Set config.train_on_all=False, and one target with a likelihood such as "
            "'gaussian'"
        )
    test = metrics["test"][name]
    members = len(report["active_members"])
    return found[name]["value"], {"metric": name, "members": members, "test": test}


def _judged(trials: Trials, times: int, rows: Sequence[Trial], is_complete: bool) -> dict[str, Any]:
    """A round: its rows by validation score, failed ones last, and which are worse than the first.

    Worse is one whose test score is larger, by intervals that hold together (Bonferroni).
    """
    ranked = sorted(rows, key=lambda one: math.inf if one.score is None else one.score)
    worse = {one.name: False for one in ranked}
    if is_complete and ranked[0].details:
        well = [one for one in ranked if one.details]
        tests = [EvaluatedRun(trials.folder(one.name).path).test for one in well]
        metric = metrics_of(tests[0].predictive)[well[0].details["metric"]]
        first, *others = [metric.terms(p, targets) for p, targets, _ in tests]
        level = 1 - 0.05 / max(len(others), 1)
        for trial, terms in zip(well[1:], others, strict=True):
            worse[trial.name] = metric.difference(first, terms, level=level).above()
    entries = [
        {**one._asdict(), "method": one.name.removesuffix(f"_{times}"), "is_worse": worse[one.name]}
        for one in ranked
    ]
    return {"times": times, "is_complete": is_complete, "rows": entries}


def _recommendation(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Which method to use, from the longest complete round, and how sure that is."""
    rows = next(one["rows"] for one in reversed(rounds) if one["is_complete"])
    worse = [row["method"] for row in rows if row["is_worse"]]
    return (
        f"Use {rows[0]['method']} (runs/{rows[0]['name']}): its validation score is lowest, "
        f"{digits(rows[0]['score'])}. Worse on the test split: {', '.join(worse) or 'none'}, by "
        "intervals over test rows, of one seed."
    )


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """Paragraphs of a comparison: a table of each round, and the recommendation."""
    lines = []
    titles = ["method", "members", "validation", "test", "95% CI", "verdict", "seconds"]
    for one in result["rounds"]:
        lines.append(f"Training steps of {plural(one['times'], 'network')} each")
        lines.append(grid([*titles, "CPU seconds"], [_cells(row) for row in one["rows"]]))
        lines += [
            f"{row['method']} failed: {row['failure']}" for row in one["rows"] if row["failure"]
        ]
        if not one["is_complete"]:
            lines.append("The time is over. The same command with a longer time resumes.")
    return [*lines, result["recommendation"]]


def _cells(row: Mapping[str, Any]) -> list[str]:
    """A line of a table."""
    scores = ["-", "failed", "", "", ""]
    if details := row["details"]:
        value, low, high = (details["test"][one] for one in ("value", "low", "high"))
        test = [digits(value), "" if low is None else f"{digits(low)} to {digits(high)}"]
        verdict = "worse" if row["is_worse"] else ""
        scores = [str(details["members"]), digits(row["score"]), *test, verdict]
    return [row["method"], *scores, f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}"]
