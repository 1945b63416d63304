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
from ensemble.likelihoods.predictive import Predictive
from ensemble.metrics import Estimate, metrics_of
from ensemble.metrics.calibration import can_fit_scale, fit_scale
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.sections import grid
from ensemble.report.table import digits, parts
from ensemble.selection import select_members
from ensemble.storage.trials import COMPARISON, Trial
from ensemble.storage.workdir import Workdir
from ensemble.tuning.families import FAMILIES, SINGLE, Family
from ensemble.tuning.trials import UNWATCHED, Trials, open_trials

ROUNDS: tuple[int, ...] = (1, 4, 16)
"""Networks whose steps each family has, round after round."""
SELECTION = "selection"
"""Name of the mixture of all families of a round, with weights that the validation split chose."""
_DECIDES = {"classes": "nll", "numbers": "crps", "counts": "crps"}
"""The metric that decides, by kind of predictions."""


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
    known = {one.name: one for one in FAMILIES}
    for name in [methods] if isinstance(methods, str) else methods or ():
        if name not in known:
            raise InputError(f"methods={name} is not a family; choose from {', '.join(known)}")
    names = {SINGLE, *(methods or known)}
    names |= {known[name].starts_from for name in names}
    families = [one for one in FAMILIES if one.name in names]
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


def _run(trials: Trials, family: Family, times: int) -> Trial | None:
    """Runs a family in a round; returns None if the time is over."""
    name = f"{family.name}_{times}"
    settings: dict[str, Any] = {}
    if name != f"{SINGLE}_1":  # It trains as configured, and the others as long.
        steps = trials.folder(f"{SINGLE}_1").newest_step
        settings |= family.settings(trials.config, steps, times)
    if family.starts_from:
        start = trials.folder(f"{family.starts_from}_{times}")
        settings["init_from"] = os.path.abspath(start.path)
    trial = trials.run(name, settings, _score, must_end=times == ROUNDS[0])
    if trial is not None:
        trials.say(f"{name}: {trial.failure or f'validation {trial.score:.4f}'}")
        if trial.failure and name == f"{SINGLE}_1":
            raise TrainingError(trial.failure)
    return trial


def _score(out: Workdir, report: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
    """The calibrated validation score of a run, and its score of the test split.

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
    p, y, _ = validation
    if p.kind not in _DECIDES:
        raise InputError(
            f"config.likelihood={run.config['likelihood']!r} has neither the NLL of classes nor "
            "the CRPS of a number, by which methods are compared. Use one such as 'gaussian'"
        )
    factor = 1.0
    if calibration is not None and can_fit_scale(calibration.predictive, calibration.targets):
        factor = fit_scale(calibration.predictive, calibration.targets) or 1.0
    name = _DECIDES[p.kind]
    metric = metrics_of(p)[name]
    test, targets, _ = run.test
    details = {
        "metric": name,
        "factor": factor,
        "num_predicting": test.num_members,
        "test": metric.estimate(_calibrated(test, factor), targets)._asdict(),
    }
    return metric.value(_calibrated(p, factor), y), details


def _calibrated(p: Predictive, factor: float) -> Predictive:
    return p if factor == 1 else p.scaled(factor)


def _judged(trials: Trials, times: int, rows: Sequence[Trial], is_complete: bool) -> dict[str, Any]:
    """A round: its rows by validation score, with their excess over the best one's test score."""
    well = sorted((one for one in rows if one.score is not None), key=lambda one: one.score or 0.0)
    excess = _excess(trials, well) if is_complete else {}
    shown = [*rows, _selected(trials, times, well)] if is_complete and well else rows
    entries = [
        {
            "method": one.name.removesuffix(f"_{times}"),
            **one._asdict(),
            "excess": excess.get(one.name),
        }
        for one in sorted(shown, key=lambda one: math.inf if one.score is None else one.score)
    ]
    return {"times": times, "is_complete": is_complete, "rows": entries}


def _selected(trials: Trials, times: int, well: Sequence[Trial]) -> Trial:
    """The mixture of a round's runs."""
    name = f"{SELECTION}_{times}"
    out = trials.folder(name)
    if out.path.exists():  # Of another call, and perhaps of fewer runs.
        out.path.rmtree()
    results = select_members([trials.folder(one.name).path for one in well], out.path)
    score, details = _score(out, results)
    costs = (sum(one.seconds for one in well), sum(one.cpu_seconds for one in well))
    return Trial(name, {}, *costs, score, details=details)


def _excess(trials: Trials, well: Sequence[Trial]) -> dict[str, dict[str, Any]]:
    """How much larger the test score of each run is than that of the first.

    The intervals hold together (Bonferroni).
    """
    level = 1 - 0.05 / max(len(well) - 1, 1)
    terms = []
    for one in well:
        test, targets, _ = EvaluatedRun(trials.folder(one.name).path).test
        p = _calibrated(test, one.details["factor"])
        metric = metrics_of(p)[one.details["metric"]]
        terms.append(metric.terms(p, targets))
    found = [metric.difference(terms[0], one, level=level) for one in terms[1:]]
    return {one.name: each._asdict() for one, each in zip(well[1:], found, strict=True)}


def _recommendation(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Which method to use, from the longest complete round, and how sure that is."""
    known = [
        one["rows"]
        for one in rounds
        if one["is_complete"] and any(row["score"] is not None for row in one["rows"])
    ]
    if not known:
        return "No round is complete. Increase --time_limit."
    best = next(row for row in known[-1] if row["method"] != SELECTION)
    worse = [row["method"] for row in known[-1] if _is_worse(row)]
    title = best["details"]["metric"].upper()
    return (
        f"Use {best['method']} (runs/{best['name']}): its validation {title} is lowest, "
        f"{digits(best['score'])}. Worse on the test split: {', '.join(worse) or 'none'}, by "
        "intervals over test rows, of one seed."
    )


def _is_worse(row: Mapping[str, Any]) -> bool:
    return row["excess"] is not None and Estimate(**row["excess"]).above()


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """Paragraphs of a comparison: a table of each round, and the recommendation."""
    lines = []
    for one in result["rounds"]:
        rows = one["rows"]
        metric = next((row["details"]["metric"] for row in rows if row["details"]), "nll")
        titles = ["method", "networks", "validation", f"test {metric.upper()}", "95% CI"]
        titles += ["verdict", "seconds", "CPU seconds"]
        lines.append(f"Training steps of {plural(one['times'], 'network')} each")
        lines.append(grid(titles, [_cells(row) for row in rows]))
        lines += [f"{row['method']} failed: {row['failure']}" for row in rows if row["failure"]]
        if not one["is_complete"]:
            lines.append("The time is over. The same command with a longer time resumes.")
    return [*lines, result["recommendation"]]


def _cells(row: Mapping[str, Any]) -> list[str]:
    """A line of a table."""
    scores = ["-", "failed", "", "", ""]
    if details := row["details"]:
        test = parts(Estimate(**details["test"]), digits)
        verdict = "worse" if _is_worse(row) else ""
        scores = [str(details["num_predicting"]), digits(row["score"]), *test, verdict]
    return [row["method"], *scores, f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}"]
