"""Fits a table as well as a time allows: configurations are tried, and the best are mixed.

The first configuration is the default of tables. `ensemble.tuning.halving` proposes the next ones,
by the loss of training rows that members of `kfold_bagging` hold out. Of all runs, greedy selection
takes those that predict these rows best together, each with a weight (Caruana et al. 2004). The
order of trials does not depend on the time, which only ends it.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ensemble.config import build, by_path
from ensemble.config.builtin import MODELS
from ensemble.configs import tabular
from ensemble.errors import InputError, TrainingError, plural
from ensemble.predictor import ensemble_of
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.sections import grid
from ensemble.run.progress import duration
from ensemble.run.results import TrainResult
from ensemble.selection import choose, selected_lines, write_chosen
from ensemble.storage.predictions import HELD_OUT, read_held_out
from ensemble.storage.trials import SEARCH
from ensemble.storage.workdir import Workdir
from ensemble.tuning.halving import proposals
from ensemble.tuning.trials import UNWATCHED, Trials, open_trials

_METHOD = "kfold_bagging"
_MOST_FAILURES = 5
"""Trials, after which a search ends if none succeeded."""


class SearchResult(TrainResult):
    """Result of `ensemble.search`: that of `ensemble.train`, shown as what was tried."""

    def __repr__(self) -> str:
        return "\n\n".join(lines_of(self.report))


def search(
    data: Any = None,
    time_limit: float | str = 600,
    workdir: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    show_progress: bool = True,
) -> SearchResult:
    """Tries configurations of networks on a table until the time is over, and mixes the best.

    The same call resumes an interrupted search; with more seconds it extends a finished one.

    Args:
        data: As of `train`; None: `config.dataset` names it.
        time_limit: Seconds of the search, over all calls with this workdir; or a text such as `10m`
            or `2h`. The first configuration then ends with what it has learned.
        workdir: Directory of what is tried and of what was chosen, which `load` and `evaluate`
            take; None keeps nothing.
        config: Keys of all configurations, such as `likelihood` or `split_by`. Those left out are
            as in `configs/tabular.py`, or differ between configurations. A key of a network, such
            as `mlp.widths`, fixes the network.
        show_progress: If True, show the trials and the time left.

    Returns:
        The report and a predictor. The report's `selection` says what was chosen, its `search` what
        was tried.

    Raises:
        InputError: The configuration, the data or the workdir cannot be used.
        TrainingError: No configuration could be trained.
        Interrupted: SIGTERM or Ctrl-C; the same call resumes the search, or with a time that is
            over chooses from what was tried.
    """
    given = by_path(config or {})
    for name in [key.partition(".")[0] for key in given]:
        if name in MODELS:
            given.setdefault("model", name)
    if given.get("method", _METHOD) != _METHOD or "num_steps" in given:
        raise InputError(
            f"a search compares epochs of config.method={_METHOD!r}, by rows that its members hold "
            "out: leave config.method and config.num_steps out, or use ensemble.train"
        )
    if given.get("likelihood") == "quantiles":
        raise InputError(
            "config.likelihood='quantiles' has no density, by which a search chooses; use one "
            "such as 'gaussian', or ensemble.train"
        )
    if data is None and not given.get("dataset"):
        raise InputError("there are no data: give them, or name them by config.dataset or --data")
    default = dict(build({**tabular.get_config(), **UNWATCHED}, given).values)
    with open_trials(SEARCH, default, data, time_limit, workdir, show_progress) as trials:
        _try(trials, given)
        result = _result(trials)
    result.workdir = None if workdir is None else os.fspath(workdir)
    return result


def _try(trials: Trials, given: Mapping[str, Any]) -> None:
    """Tries what is proposed until the time is over, nothing is left, or all fails."""
    proposed = proposals(trials.config["seed"], trials.config["num_epochs"], given)
    last: float | None = None
    for number in itertools.count():
        try:
            settings = proposed.send(last)
        except StopIteration:
            return
        trial = trials.run(f"{number:03d}", settings, functools.partial(_loss, trials))
        if trial is None or (number >= _MOST_FAILURES and not trials.scored):
            return
        last = math.inf if trial.score is None else trial.score


def _loss(
    trials: Trials, out: Workdir, report: Mapping[str, Any]
) -> tuple[float, Mapping[str, Any]]:
    """The mean loss of a run, on the rows that the first run holds out.

    Raises:
        TrainingError: Members that hold out some of these rows failed.
    """
    losses = read_held_out(out)
    first = trials.folder(trials.scored[0].name) if trials.scored else out
    known = ~np.isnan(read_held_out(first))
    if not known.any() or np.isnan(losses[known]).any():
        raise TrainingError("members failed, and no other holds out their rows")
    return float(losses[known].mean()), {}


def _result(trials: Trials) -> SearchResult:
    """Mixes what was tried, and writes it."""
    done = trials.scored
    if not done:
        raise TrainingError(f"nothing could be trained: {trials.ended[-1].failure}")
    runs = [EvaluatedRun(trials.folder(one.name).path) for one in done]
    report = write_chosen(trials.out, runs, choose(runs, HELD_OUT))
    chosen = zip(done, report["selection"]["runs"], strict=True)
    weights = {one.name: sum(run["weights"]) for one, run in chosen}
    report["search"] = {
        "time_limit": trials.limit,
        "seconds": trials.spent,
        "trials": [{**one._asdict(), "weight": weights.get(one.name, 0.0)} for one in trials.ended],
    }
    trials.out.manifest.write(trials.out.report, report)
    predictor = ensemble_of(trials.out, trials.config.get("num_devices"))
    return SearchResult(dict(report), predictor)


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Paragraphs of what was tried and chosen."""
    search = report["search"]
    trials = search["trials"]
    rows = [
        [
            ", ".join(f"{key.removeprefix('mlp.')}={one}" for key, one in one["settings"].items()),
            "failed" if one["score"] is None else f"{one['score']:.4f}",
            f"{one['seconds']:.0f}",
            f"{one['cpu_seconds']:.0f}",
            f"{one['weight']:.2f}",
        ]
        for one in sorted(trials, key=lambda one: (one["score"] is None, one["score"]))
    ]
    table = grid(("settings", "NLL", "seconds", "CPU seconds", "weight"), rows)
    spent, limit = map(duration, (search["seconds"], search["time_limit"]))
    lines = [f"{plural(len(trials), 'trial')} took {spent} of {limit}.", *selected_lines(report)]
    if trials[0]["details"].get("is_cut"):
        lines.append(
            "The time was over in the first trial. The same call with a longer time resumes it."
        )
    return [table, "\n".join(lines)]
