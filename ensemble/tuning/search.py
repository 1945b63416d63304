"""Fits a table as well as a time allows: configurations are tried, and the best are mixed.

The first configuration is the default of tables. `ensemble.tuning.halving` proposes the next ones,
by the loss of training rows that members of `kfold_bagging` hold out. Of all runs, greedy selection
takes those that predict these rows best together, each with a weight (Caruana et al. 2004). The
order of trials does not depend on the time, which only ends it.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from ensemble import likelihoods
from ensemble.config import build, by_path
from ensemble.config.builtin import MODELS
from ensemble.config.pieces import LIKELIHOODS
from ensemble.configs import tabular
from ensemble.errors import InputError, Interrupted, TrainingError, plural
from ensemble.notes import note
from ensemble.predictor import ensemble_of
from ensemble.report.sections import grid
from ensemble.run.progress import duration
from ensemble.run.results import TrainResult
from ensemble.selection import choose, selected_lines, write_chosen
from ensemble.storage.predictions import HELD_OUT, read_held_out
from ensemble.storage.trials import SEARCH
from ensemble.storage.workdir import Workdir
from ensemble.tuning.halving import DEFAULT_MODEL, proposals
from ensemble.tuning.trials import UNWATCHED, Trials, open_trials

_METHOD = "kfold_bagging"
_MOST_FAILURES = 5


class SearchResult(TrainResult):
    """Result of `ensemble.search`: that of `ensemble.train`, shown as what was tried."""

    def __repr__(self) -> str:
        return "\n\n".join(lines_of(self.report))

    def _repr_html_(self) -> None:
        """A notebook shows it as a terminal does."""


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
        was tried. If the search was interrupted, by SIGTERM or Ctrl-C, these are of what had been
        tried by then.

    Raises:
        InputError: The configuration, the data or the workdir cannot be used.
        TrainingError: No configuration could be trained.
        Interrupted: SIGTERM or Ctrl-C, before the first configuration was trained.
    """
    given = _fixed(by_path(config or {}))
    default = _default(given, has_data=data is not None)
    with open_trials(SEARCH, default, data, time_limit, workdir, show_progress) as trials:
        is_interrupted = False
        try:
            _try(trials, proposals(default["seed"], default["num_epochs"], given))
        except Interrupted:
            if not trials.scored:
                raise
            is_interrupted = True
        result = _result(trials, is_interrupted)
    result.workdir = None if workdir is None else os.fspath(workdir)
    return result


def _fixed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that were given, with the network that one of them is of."""
    fixed = dict(given)
    for name in [key.partition(".")[0] for key in given]:
        if name in MODELS:
            fixed.setdefault("model", name)
    return fixed


def _default(given: Mapping[str, Any], has_data: bool) -> dict[str, Any]:
    """The configuration of the first trial, flat; keys that were given are as they were given.

    Raises:
        InputError: A search cannot do with these keys, or there are no data.
    """
    likelihood = str(given.get("likelihood", ""))
    if given.get("method", _METHOD) != _METHOD or "num_steps" in given:
        raise InputError(
            f"a search compares epochs of config.method={_METHOD!r}, by rows that its members hold "
            "out: leave config.method and config.num_steps out, or use ensemble.train"
        )
    if likelihood in LIKELIHOODS.names and not likelihoods.named(likelihood).has_density:
        raise InputError(
            f"config.likelihood={likelihood!r} has no density, by which a search chooses; use one "
            "such as 'gaussian', or ensemble.train"
        )
    if not has_data and not given.get("dataset"):
        raise InputError("there are no data: give them, or name them by config.dataset or --data")
    return dict(build({**tabular.get_config(), **UNWATCHED}, given).values)


def _try(trials: Trials, proposed: Generator[Mapping[str, Any], Any, None]) -> None:
    """Tries what is proposed until the time is over, nothing is left, or all fails."""
    losses: list[float] = []
    score = functools.partial(_loss, trials)
    last: float | None = None
    while True:
        try:
            settings = proposed.send(last)
        except StopIteration:
            trials.say("There is nothing left to try with the keys that were given.")
            return
        trial = trials.run(f"{len(losses):03d}", settings, score)
        if trial is None:
            return
        last = math.inf if trial.score is None else trial.score
        losses.append(last)
        went = trial.failure or f"held-out NLL {last:.4f}"
        trials.say(f"{_settings(settings)}: {went}, best {min(losses):.4f}")
        if len(losses) >= _MOST_FAILURES and min(losses[-_MOST_FAILURES:]) == math.inf:
            note(f"{_MOST_FAILURES} trials failed in a row; the search ends: {trial.failure}")
            return


def _loss(
    trials: Trials, out: Workdir, report: Mapping[str, Any]
) -> tuple[float, Mapping[str, Any]]:
    """The mean loss of a run, on the rows that the first run holds out.

    Raises:
        TrainingError: Members that hold out some of these rows failed.
    """
    num_rows = report["num_train_examples"]
    losses = read_held_out(out, num_rows)
    first = trials.folder(trials.scored[0].name) if trials.scored else out
    known = ~np.isnan(read_held_out(first, num_rows))
    if not known.any() or np.isnan(losses[known]).any():
        raise TrainingError("members failed, and no other holds out their rows")
    return float(losses[known].mean()), {}


def _result(trials: Trials, is_interrupted: bool) -> SearchResult:
    """Mixes what was tried, and writes it."""
    done = trials.scored
    if not done:
        raise TrainingError(f"nothing could be trained: {trials.ended[-1].failure}")
    folders = [trials.folder(one.name).path for one in done]
    report = write_chosen(trials.out, choose(folders, HELD_OUT))
    runs = zip(done, report["selection"]["runs"], strict=True)
    weights = {one.name: sum(run["weights"]) for one, run in runs}
    report["search"] = {
        "time_limit": trials.limit,
        "seconds": trials.spent,
        "is_interrupted": is_interrupted,
        "trials": [{**one._asdict(), "weight": weights.get(one.name, 0.0)} for one in trials.ended],
    }
    trials.out.manifest.write(trials.out.report, report)
    for line in _remarks(report["search"]):
        note(line)
    predictor = ensemble_of(trials.out, trials.config.get("num_devices"))
    return SearchResult(dict(report), predictor)


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Paragraphs of what was tried and chosen."""
    search = report["search"]
    trials = search["trials"]
    rows = [
        [
            _settings(one["settings"]),
            "failed" if one["score"] is None else f"{one['score']:.4f}",
            f"{one['seconds']:.0f}",
            f"{one['cpu_seconds']:.0f}",
            f"{one['weight']:.2f}",
        ]
        for one in sorted(trials, key=lambda one: (one["score"] is None, one["score"]))
    ]
    table = grid(("settings", "NLL", "seconds", "CPU seconds", "weight"), rows)
    spent, limit = map(duration, (search["seconds"], search["time_limit"]))
    lines = [
        f"{plural(len(trials), 'trial')} took {spent} of {limit}.",
        *selected_lines(report),
        *_remarks(search),
    ]
    return [table, "\n".join(lines)]


def _remarks(search: Mapping[str, Any]) -> list[str]:
    """Lines about a time that was too short, or an interruption."""
    first = search["trials"][0]
    lines = []
    if first["details"].get("is_cut"):
        lines.append(
            f"The time was over in the first trial, after {first['seconds']:.0f} seconds. The same "
            "call with a longer time resumes it."
        )
    if search["is_interrupted"]:
        lines.append("The search was interrupted. With a workdir the same call resumes it.")
    return lines


def _settings(settings: Mapping[str, Any]) -> str:
    """How a trial differs from the default."""
    prefix = f"{DEFAULT_MODEL}."
    return ", ".join(f"{key.removeprefix(prefix)}={value}" for key, value in settings.items())
