"""Fits a table as well as a time allows: configurations are tried, and the best are mixed.

A trial trains a family: networks of one configuration by `kfold_bagging`, which hold out all
training rows between them. The first family is the default of tables. Then come rounds of
successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943): new families train for a quarter
of the epochs, the better half of them for a half, and the better half of these for all. Each round
has twice as many families as the one before. Every trial trains from the start, because a schedule
ends where its trial ends.

Families are compared by the loss of the rows that their members hold out. Of all runs, greedy
selection takes those that predict these rows best together, each with a weight (Caruana et al.
2004). The order of trials does not depend on the time, which only ends it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Mapping
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np
from etils.epath import PathLike

from ensemble.config import build, by_path
from ensemble.config.builtin import MODELS
from ensemble.configs import tabular
from ensemble.data.batches import SEARCH_STREAM, seeded_generator
from ensemble.errors import InputError, TrainingError, plural
from ensemble.predictor import ensemble_of
from ensemble.pytrees import ByName
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.table import grid
from ensemble.run.progress import duration
from ensemble.run.results import TrainResult
from ensemble.selection import choose, write_chosen
from ensemble.storage.predictions import HELD_OUT, read_held_out
from ensemble.storage.workdir import SEARCH, Workdir
from ensemble.tuning.trials import UNWATCHED, Keys, Trials, open_trials

_METHOD = "kfold_bagging"
_MOST_FAILURES = 5
"""Trials, after which a search ends if none succeeded."""
_DEFAULT_MODEL = "mlp"
_FIRST_ROUND = 4
_LENGTHS = (4, 2, 1)
"""Parts of the epochs that a family trains for, from rung to rung."""
_DRAWS = 20
"""Settings that are drawn and all known already, after which there are no others."""
_FIRST: tuple[Keys, ...] = (
    {"mlp.embedding": "piecewise_linear", "mlp.widths": "128,128"},
    {"mlp.widths": "256,256", "learning_rate": 1e-3},
    {"mlp.embedding": "piecewise_linear", "mlp.widths": "256,256", "learning_rate": 2e-3},
    {
        "mlp.embedding": "piecewise_linear",
        "mlp.widths": "128,128",
        "num_estimators": 8,
        "batch_size": 128,
    },
)
"""The families of the first round."""
_SHARED = 0.2
"""The share of drawn families whose members consist of estimators, which take longer."""
_WIDTHS = ("64,64", "128,128", "256,256", "128,128,128", "256,256,256")


class SearchResult(TrainResult):
    """Result of `ensemble.search`: that of `ensemble.train`, shown as what was tried."""

    def __repr__(self) -> str:
        search, found = self.report["search"], self.report["selection"]
        trials = search["trials"]
        rows = [
            [
                ", ".join(f"{k.removeprefix('mlp.')}={v}" for k, v in one["settings"].items()),
                "failed" if one["score"] is None else f"{one['score']:.4f}",
                f"{one['seconds']:.0f}",
                f"{one['weight']:.2f}",
            ]
            for one in sorted(trials, key=lambda one: (one["score"] is None, one["score"]))
        ]
        table = grid(("settings", "NLL", "seconds", "weight"), rows)
        spent, limit = map(duration, (search["seconds"], search["time_limit"]))
        alone = min(one["nll"] for one in found["runs"])
        lines = [
            f"{plural(len(trials), 'trial')} took {spent} of {limit}.",
            f"Selection of {self.report['num_members']}: NLL {found['nll']:.4f} on the rows held "
            f"out, which decided, versus {alone:.4f} for the best run alone.",
        ]
        if test := self.report["metrics"].get("test"):
            lines.append(f"Test split: NLL {test['nll']['value']:.4f}.")
        if trials[0]["details"].get("is_cut"):
            lines.append(
                "The time was over in the first trial. The same call with a longer time resumes it."
            )
        return "\n".join([table, "", *lines])


def search(
    data: Any = None,
    time_limit: float | str = 600,
    workdir: PathLike | None = None,
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


def _try(trials: Trials, given: ByName) -> None:
    """Tries what is proposed until the time is over, nothing is left, or all fails."""
    proposed = proposals(trials.config["seed"], trials.config["num_epochs"], given)
    score, last = partial(_loss, trials), None
    for number in count():
        try:
            settings = proposed.send(last)
        except StopIteration:
            return
        trial = trials.run(f"{number:03d}", settings, score)
        if trial is None or (number >= _MOST_FAILURES and not trials.scored):
            return
        last = math.inf if trial.score is None else trial.score


def _loss(trials: Trials, out: Workdir, report: ByName) -> tuple[float, ByName]:
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
    done, out = trials.scored, trials.out
    if not done:
        raise TrainingError(f"nothing could be trained: {trials.ended[-1].failure}")
    runs = [EvaluatedRun(trials.folder(one.name).path) for one in done]
    report = write_chosen(out, runs, choose(out, runs, HELD_OUT))
    chosen = zip(done, report["selection"]["runs"], strict=True)
    weights = {one.name: sum(run["weights"]) for one, run in chosen}
    tried = [{**one._asdict(), "weight": weights.get(one.name, 0.0)} for one in trials.ended]
    report["search"] = {"time_limit": trials.limit, "seconds": trials.spent, "trials": tried}
    out.manifest.write(out.report, report)
    return SearchResult(report, ensemble_of(out, trials.config.get("num_devices")))


# What is tried, and in which order: a function of the seed and of how earlier trials went.


def _draw(rng: np.random.Generator) -> dict[str, Any]:
    """Draws the settings of a family."""
    is_embedded = bool(rng.choice([False, True]))
    found = {
        "mlp.widths": str(rng.choice(_WIDTHS)),
        "mlp.activation": str(rng.choice(["relu", "silu"])),
        "dropout": float(rng.choice([0.0, 0.0, 0.1, 0.2])),
        "learning_rate": _rounded(rng.uniform(-3, -2)),
        "weight_decay": _rounded(rng.uniform(-5, -2)),
        "batch_size": int(rng.choice([32, 128])),
    }
    if rng.random() < _SHARED:
        found["num_estimators"] = 8
    if is_embedded:
        found["mlp.embedding"] = "piecewise_linear"
        found["mlp.embedding_size"] = int(rng.choice([8, 16]))
    return found


def proposals(seed: int, num_epochs: int, fixed: Keys) -> Generator[Keys, Any, None]:
    """Yields what to try next, and is sent the held-out NLL of it: infinite of one that failed.

    Args:
        seed: Seed of what is drawn.
        num_epochs: Epochs that families train for in the end.
        fixed: Keys that all families have, with their values.

    Yields:
        Settings of a family, with `num_epochs`.
    """
    yield {"num_epochs": num_epochs}
    drawn = _families(seed, fixed)
    for size in (_FIRST_ROUND * 2**k for k in count()):
        families = list(islice(drawn, size))
        if not families:
            return
        for part in _LENGTHS:
            ranked = []
            for k, family in enumerate(families):
                loss = yield {**family, "num_epochs": max(1, num_epochs // part)}
                if loss < math.inf:
                    ranked.append((loss, k))
            better = sorted(ranked)[: math.ceil(len(ranked) / 2)]
            families = [families[k] for _, k in better]


def _families(seed: int, fixed: Keys):
    """Yields new families, which leave alone what is fixed, and keys of another network."""
    is_other = fixed.get("model", _DEFAULT_MODEL) != _DEFAULT_MODEL
    known: list = [{}]
    for number in count():
        rng = seeded_generator(SEARCH_STREAM, seed, number)
        for settings in [*_FIRST[number : number + 1], *(_draw(rng) for _ in range(_DRAWS))]:
            own = {
                key: one
                for key, one in settings.items()
                if key not in fixed and not (is_other and key.startswith(f"{_DEFAULT_MODEL}."))
            }
            if own not in known:
                break
        else:
            return  # What is fixed leaves nothing else to try.
        known.append(own)
        yield own


def _rounded(exponent: float) -> float:
    """A power of ten in two digits, which are easy to read and to copy."""
    return float(f"{10**exponent:.1e}")
