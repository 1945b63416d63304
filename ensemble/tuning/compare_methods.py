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

import numpy as np

from ensemble.config import build, by_path
from ensemble.data.catalogue import complete
from ensemble.errors import InputError, plural
from ensemble.metrics import Estimate, metrics_of
from ensemble.metrics.calibration import can_fit_scale, fit_scale
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.sections import grid
from ensemble.report.table import digits
from ensemble.run.progress import duration
from ensemble.selection import select_members
from ensemble.storage.selection import newest_step
from ensemble.storage.trials import COMPARISON, Trial
from ensemble.storage.workdir import Workdir
from ensemble.tuning.families import FAMILIES, SINGLE, Family
from ensemble.tuning.trials import UNWATCHED, Trials, open_trials

ROUNDS: tuple[int, ...] = (1, 4, 16)
"""Networks whose steps each family has, round after round."""
SELECTION = "selection"
"""Name of the mixture of all families of a round, with weights that the validation split chose."""
AS_GOOD = "as good"
WORSE = "worse"
UNDECIDED = "undecided"
_MARGIN = 0.02
"""Share of the single network's score that does not matter."""
_DECIDES = {"classes": "nll", "numbers": "crps", "counts": "crps"}
"""The metric that decides, by kind of predictions."""
_TITLES = {"nll": "NLL", "crps": "CRPS"}


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
    families = _chosen(methods)
    base = _network(config, data)
    with open_trials(COMPARISON, base, data, time_limit, workdir, show_progress) as trials:
        rounds: list[dict[str, Any]] = []
        for times in ROUNDS:
            if rounds and not _may_begin(trials, rounds, times):
                break
            rows = [row for family in families if (row := _run(trials, family, times)) is not None]
            rounds.append(_judged(trials, times, rows, is_complete=len(rows) == len(families)))
            if not rounds[-1]["is_complete"]:
                break
    return MethodComparison(rounds=rounds, recommendation=_recommendation(rounds))


def _chosen(methods: Sequence[str] | None) -> list[Family]:
    """Families of some names, and those that they start from.

    Raises:
        InputError: There is no family of such a name.
    """
    if isinstance(methods, str):
        raise InputError(f"methods={methods!r} must be a list of names, such as [{methods!r}]")
    known = {one.name: one for one in FAMILIES}
    for name in methods or ():
        if name not in known:
            raise InputError(f"methods={name} is not a family; choose from {', '.join(known)}")
    names = {SINGLE, *(methods or known)}
    names |= {known[name].starts_from for name in names}
    return [one for one in FAMILIES if one.name in names]


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


def _may_begin(trials: Trials, rounds: Sequence[Mapping[str, Any]], times: int) -> bool:
    """Whether the time reaches for a round; one that has begun goes on."""
    last = rounds[-1]
    if any(name.endswith(f"_{times}") for name in trials.table.trials):
        return True
    longer = times / last["times"]
    needed = trials.table.spent + longer * sum(one["seconds"] for one in last["rows"])
    if needed > trials.limit:
        seconds = 10 * math.ceil(needed / 10)
        trials.say(f"{times} networks' steps need {duration(needed)}: --time_limit={seconds}s.")
    return needed <= trials.limit


def _run(trials: Trials, family: Family, times: int) -> Trial | None:
    """Runs a family in a round; returns None if the time is over."""
    base = trials.table.config
    name = f"{family.name}_{times}"
    settings: dict[str, Any] = {}
    if name != f"{SINGLE}_1":  # It trains as configured, and the others as long.
        steps = newest_step(trials.folder(f"{SINGLE}_1"))
        settings = {"method": family.method, **family.settings(base, steps, times)}
    if family.starts_from:
        start = trials.folder(f"{family.starts_from}_{times}")
        settings["init_from"] = os.path.abspath(start.path)
    trials.announce(name)
    trial = trials.run(name, settings, _score, must_end=times == ROUNDS[0])
    if trial is not None:
        trials.say(f"{name}: {trial.failure or f'validation {trial.score:.4f}'}")
    return trial


def _score(out: Workdir, report: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
    """The calibrated validation score of a run, and its scores of the test split."""
    decides, factor, value = _validated(out)
    run = EvaluatedRun(out.path)
    test = run.test.predictive
    y = run.test.targets
    scores = {}
    for name, p in (("test", test), ("calibrated", test.scaled(factor) if factor != 1 else test)):
        metrics = {key: one for key, one in metrics_of(p).items() if one.in_table}
        scores[name] = {key: one.estimate(p, y)._asdict() for key, one in metrics.items()}
    details = {"metric": decides, "factor": factor, "num_predicting": test.num_members, **scores}
    return value, details


def _validated(out: Workdir) -> tuple[str, float, float]:
    """The metric that decides, the factor of calibration, and the validation score after it.

    Raises:
        InputError: The run has no validation split, or no metric that decides.
    """
    run = EvaluatedRun(out.path)
    validation = run.predicted("validation")
    calibration = run.predicted("calibration")
    if validation is None:
        raise InputError(
            f"{out.path} has no validation split to choose by. Train with "
            "config.train_on_all=False, or give one"
        )
    p = validation.predictive
    factor = 1.0
    if p.kind not in _DECIDES:
        raise InputError(
            f"config.likelihood={run.config['likelihood']!r} has neither the NLL of classes nor "
            "the CRPS of a number, by which methods are compared. Use one such as 'gaussian'"
        )
    if calibration is not None and can_fit_scale(calibration.predictive, calibration.targets):
        factor = fit_scale(calibration.predictive, calibration.targets) or 1.0
    p = p.scaled(factor) if factor != 1 else p
    metric = _DECIDES[p.kind]
    return metric, factor, metrics_of(p)[metric].value(p, validation.targets)


def _judged(trials: Trials, times: int, rows: Sequence[Trial], is_complete: bool) -> dict[str, Any]:
    """A round: its rows by validation score, with verdicts from the test split."""
    well = [one for one in rows if one.score is not None]
    entries = [{"method": one.name.removesuffix(f"_{times}"), **one._asdict()} for one in rows]
    content: dict[str, Any] = {"times": times, "is_complete": is_complete}
    if is_complete and well:
        entries.append(_selected(trials, times, well))
        best = min(well, key=lambda one: one.score or 0.0)
        content["best"] = best.name.removesuffix(f"_{times}")
        verdicts = _verdicts(trials, [one.name for one in well if one is not best], best)
        entries = [{**one, **verdicts.get(one["name"], {})} for one in entries]
    entries.sort(key=lambda one: math.inf if one["score"] is None else one["score"])
    return {**content, "rows": entries}


def _selected(trials: Trials, times: int, well: Sequence[Trial]) -> dict[str, Any]:
    """The row of the mixture of a round's runs."""
    name = f"{SELECTION}_{times}"
    out = trials.folder(name)
    if out.path.exists():  # Of another call, and perhaps of fewer runs.
        out.path.rmtree()
    results = select_members([trials.folder(one.name).path for one in well], out.path)
    score, details = _score(out, results)
    seconds = sum(one.seconds for one in well)
    cpu = sum(one.cpu_seconds for one in well)
    row = Trial(name, {}, seconds, cpu, score, "", details)
    weights = {
        one.name: sum(run["weights"])
        for one, run in zip(well, results["selection"]["runs"], strict=True)
    }
    return {"method": SELECTION, **row._asdict(), "weights": weights}


def _verdicts(trials: Trials, names: Sequence[str], best: Trial) -> dict[str, dict[str, Any]]:
    """How far runs are behind the best on the test split, by simultaneous intervals (Bonferroni).

    A run is `AS_GOOD` if the interval of its excess lies below the margin, `WORSE` if it lies above
    0, else `UNDECIDED`.
    """
    metric_name = best.details["metric"]
    single = trials.table.trials[f"{SINGLE}_{ROUNDS[0]}"]
    margin = _MARGIN * abs(single.details["calibrated"][metric_name]["value"])
    level = 1 - 0.05 / max(len(names), 1)
    metric, ours = _terms(trials, best.name)
    found: dict[str, dict[str, Any]] = {best.name: {"verdict": "best"}}
    for name in names:
        excess: Estimate = metric.difference(ours, _terms(trials, name)[1], level=level)
        is_as_good = excess.high is not None and excess.high <= margin
        verdict = AS_GOOD if is_as_good else WORSE if excess.above() else UNDECIDED
        found[name] = {"verdict": verdict, "excess": excess._asdict()}
    return found


def _terms(trials: Trials, name: str) -> tuple[Any, np.ndarray]:
    """The metric that decides, its calibrated terms [N] of the test split, less is better."""
    details = trials.table.trials[name].details
    test = EvaluatedRun(trials.folder(name).path).test
    p = test.predictive if details["factor"] == 1 else test.predictive.scaled(details["factor"])
    metric = metrics_of(p)[details["metric"]]
    return metric, -metric.better * metric.terms(p, test.targets)


def _recommendation(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Which method to use, from the longest complete round, and how sure that is."""
    known = [one for one in rounds if "best" in one]
    if not known:
        return "No round is complete. Increase --time_limit."
    last = known[-1]
    rows = {one["method"]: one for one in last["rows"]}
    best = rows[last["best"]]
    sentences = [
        f"Use {last['best']} (runs/{best['name']}): its validation "
        f"{_TITLES[best['details']['metric']]} is lowest, {digits(best['score'])}."
    ]
    for verdict in (AS_GOOD, UNDECIDED, WORSE):
        names = [name for name, one in rows.items() if one.get("verdict") == verdict]
        if names:
            sentences.append(f"On the test split, {verdict}: {', '.join(names)}.")
    return " ".join([*sentences, "These are intervals over test rows, of one seed."])


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """Paragraphs of a comparison: a table of each round, and the recommendation."""
    parts = []
    for one in result["rounds"]:
        parts += [f"Training steps of {plural(one['times'], 'network')} each", _table(one["rows"])]
        parts += [
            f"{row['method']} failed: {row['failure']}" for row in one["rows"] if row["failure"]
        ]
        if not one["is_complete"]:
            parts.append("The time is over. The same command with a longer time resumes.")
    return [*parts, result["recommendation"]]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A round, the lowest validation score first."""
    metric = next((row["details"]["metric"] for row in rows if row["details"]), "nll")
    titles = ["method", "networks", "validation", _TITLES[metric], "calibrated", "95% CI"]
    return grid([*titles, "verdict", "seconds", "CPU seconds"], [_cells(row) for row in rows])


def _cells(row: Mapping[str, Any]) -> list[str]:
    """A line of a table."""
    cost = [f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}"]
    if not row["details"]:
        return [row["method"], "-", "failed", *["-"] * 4, *cost]
    details = row["details"]
    raw, one = (details[name][details["metric"]] for name in ("test", "calibrated"))
    return [
        row["method"],
        str(details["num_predicting"]),
        digits(row["score"]),
        digits(raw["value"]),
        digits(one["value"]),
        "-" if one["low"] is None else f"{digits(one['low'])} to {digits(one['high'])}",
        row.get("verdict", "-"),
        *cost,
    ]
