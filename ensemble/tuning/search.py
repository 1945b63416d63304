"""Fits a table as well as a budget of time allows: families are tried, and the best are mixed.

The first family is the default of tables. `ensemble.tuning.trials` says what is tried after it, by
the training rows that cross-fitted members hold out. Of all families that were trained, greedy
selection takes those that predict these rows best together, each with a weight (Caruana et al.
2004). What was tried, in which order, does not depend on the budget, which only ends it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ensemble import likelihoods
from ensemble.config import build, by_path
from ensemble.config.builtin import MODELS
from ensemble.config.pieces import LIKELIHOODS
from ensemble.configs import tabular
from ensemble.errors import InputError, Interrupted, TrainingError, plural
from ensemble.notes import collected, note
from ensemble.predictor import restore
from ensemble.report.sections import grid
from ensemble.run.loop import train
from ensemble.run.progress import Display, duration, open_display
from ensemble.run.result import TrainResult
from ensemble.selection import HELD_OUT, select_from, write
from ensemble.sharding import processes, signals, startup
from ensemble.storage.predictions import read_held_out
from ensemble.storage.search import Comparison, Search, Tried
from ensemble.storage.workdir import Workdir
from ensemble.tuning.budget import parse_seconds, quiet, stop_after
from ensemble.tuning.same_data import check_same_data, fingerprint_of
from ensemble.tuning.trials import DEFAULT_MODEL, Trial, trials

logger = logging.getLogger("ensemble")

_METHOD = "kfold_bagging"
_UNWATCHED: Mapping[str, Any] = {"eval_every_epochs": 10**9}
"""Nobody looks at the curves and pictures of a trial."""
_MOST_FAILURES = 5
_LEAST_SHARE = 0.5
"""The share of the shortest trial that must be left of the time for another one to begin: the first
seconds of a trial compile, and cannot be cut short."""
_SHOWN_SECONDS = 1.0
"""From one state of the display to the next, while a trial is under way."""
_KEPT_SECONDS = 5.0
"""From one note of the seconds that it has taken to the next: a killed process forgets no more."""


class Fit(TrainResult):
    """What `fit` returns: as of `ensemble.train`, and it shows itself as what was tried."""

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
) -> Fit:
    """Tries families of networks on a table until the time is over, and mixes the best.

    The same call goes on with a search that was interrupted; with more seconds it goes on with one
    that has ended.

    Args:
        data: as of `train`; None: `config.dataset` names it.
        time_limit: seconds that the search may take, over all calls with this workdir; or a text
            such as `10m` or `2h`. The first family is trained in any case.
        workdir: where all that is tried lives, and what was chosen, which `load` and `evaluate`
            take; None keeps nothing.
        config: keys of the configuration that all families have, such as `likelihood` or `split`.
            Those that are left out are as in `configs/tabular.py`, or differ between families. A
            key of a network, such as `mlp.widths`, fixes the network.
        show_progress: whether to show what was tried, and the time left.

    Returns:
        The report and a predictor. The report's `selection` says what was chosen, its `search` what
        was tried. Where the search was interrupted, by SIGTERM or Ctrl-C, these are of what had
        been tried by then.

    Raises:
        InputError: the configuration, the data or the workdir cannot be used.
        TrainingError: no family could be trained.
        Interrupted: SIGTERM or Ctrl-C, before the first family was trained.
    """
    budget = parse_seconds(time_limit)
    given = _fixed(by_path(config or {}))
    _check(given, has_data=data is not None)
    default = _family({}, given)
    startup.configure(default["num_devices"], _METHOD)
    if processes.count() > 1:
        raise InputError("a search runs in one process; start it without the others")
    with contextlib.ExitStack() as stack:
        folder = workdir or stack.enter_context(tempfile.TemporaryDirectory())
        out = Workdir(folder)
        if (out.config.exists() and not Search.is_in(out)) or Comparison.is_in(out):
            raise InputError(
                f"{out.path} has a run or a comparison already; choose another --workdir"
            )
        stack.enter_context(out.opened())
        search = Search.read(out, default)
        check_same_data(out, search.config, search.fingerprint, data)
        stop = stack.enter_context(signals.stop_signals())
        stack.enter_context(collected())
        display = stack.enter_context(open_display(show_progress))
        is_interrupted = False
        try:
            for tried in _searched(out, search, given, data, budget, stop, display):
                logger.info("%s; %s", _line(tried), _best(search), extra={"stays": True})
                if is_interrupted := stop.by_signal:
                    break
        except Interrupted:
            if not search.has_found:
                if workdir is None:
                    raise Interrupted("interrupted; without a workdir nothing is kept") from None
                raise
            is_interrupted = True
        stop.is_settled = True
        return _result(out, search, budget, is_interrupted, None if workdir is None else folder)


def _best(search: Search) -> str:
    """The best so far."""
    known = [one.nll for one in search.tried if one.nll is not None]
    return f"best so far {min(known):.4f}" if known else "nothing has ended yet"


def _check(given: Mapping[str, Any], has_data: bool) -> None:
    """Refuses keys that a search cannot do with.

    Raises:
        InputError: as said.
    """
    if given.get("method", _METHOD) != _METHOD:
        raise InputError(
            f"config.method={given['method']!r}: a search compares families by rows that members "
            f"of {_METHOD!r} hold out; leave it out, or use ensemble.train"
        )
    name = str(given.get("likelihood", ""))
    if name in LIKELIHOODS.names and not likelihoods.named(name).has_density:
        raise InputError(
            f"config.likelihood={name!r} has no density, by which a search chooses; use one such "
            "as 'gaussian', or ensemble.train"
        )
    if not has_data and not given.get("dataset"):
        raise InputError("there are no data: give them, or name them by config.dataset or --data")
    if "num_steps" in given:
        raise InputError("config.num_steps: a search counts config.num_epochs; set that instead")


def _family(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a family, flat; keys that were given are as they were given."""
    values = {**tabular.get_config(), **_UNWATCHED, **settings, **given}
    own = {key: one for key, one in values.items() if _network(key) in ("", values["model"])}
    return dict(build(own, given).values)


def _fixed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that were given, with the network that one of them is of."""
    fixed = dict(given)
    for model in filter(None, map(_network, given)):
        fixed.setdefault("model", model)
    return fixed


def _network(key: str) -> str:
    """The network that a key is of; empty: of none."""
    name = key.partition(".")[0]
    return name if name in MODELS else ""


# The search.


def _searched(
    out: Workdir,
    search: Search,
    given: Mapping[str, Any],
    data: Any,
    budget: float,
    stop: signals.Stop,
    display: Display,
) -> Iterator[Tried]:
    """Tries one family after the other, writes and yields how it went, until the time is over."""
    tries = trials(search.config["seed"], search.config["num_epochs"], given)
    try:
        trial = next(tries)
        for one in search.tried:
            if (one.family, one.settings, one.num_epochs) != trial:
                raise InputError(
                    f"{out.path} holds a search of other families than this version tries; "
                    "choose another --workdir"
                )
            trial = tries.send(math.inf if one.nll is None else one.nll)
        while not search.tried or search.spent + _LEAST_SHARE * search.shortest < budget:
            config = _family(trial.settings, given)
            tried = _tried(out, search, trial, config, data, budget, stop, display)
            if tried is None:
                return
            yield tried
            if _keeps_failing(search):
                return
            trial = tries.send(math.inf if tried.nll is None else tried.nll)
    except StopIteration:
        logger.info("There is nothing left to try with the keys that were given.")


def _keeps_failing(search: Search) -> bool:
    """Whether family after family has failed, which is said."""
    last = search.tried[-_MOST_FAILURES:]
    if len(last) < _MOST_FAILURES or any(one.nll is not None for one in last):
        return False
    note(f"{_MOST_FAILURES} families failed in a row, and no more are tried: {last[-1].failure}")
    return True


def _tried(
    out: Workdir,
    search: Search,
    trial: Trial,
    config: Mapping[str, Any],
    data: Any,
    budget: float,
    stop: signals.Stop,
    display: Display,
) -> Tried | None:
    """Trains a family, and writes how it went; None: the time was over before it had ended.

    Raises:
        Interrupted: SIGTERM or Ctrl-C.
    """
    folder = _folder(out, len(search.tried))
    began, before = time.monotonic(), search.spent
    values = {**config, "num_epochs": trial.num_epochs}
    left = max(0.0, budget - before) if search.has_found else math.inf
    nll, failure = None, ""
    try:
        with _watched(out, search, trial, budget, display), stop_after(left, stop), quiet():
            report = train(values, data, os.fspath(folder.path), show_progress=False).report
    except Interrupted:
        search.seconds += time.monotonic() - began
        search.write(out)
        if search.spent < budget or not search.has_found:
            raise
        return None
    except (TrainingError, InputError) as error:
        if isinstance(error, InputError) and not search.has_found:
            raise  # The data, or what was given, suit no family.
        # Nor do they if they are gone, or are others.
        check_same_data(out, search.config, search.fingerprint, data)
        failure = str(error)
    else:
        search.fingerprint = fingerprint_of(report, folder, search.fingerprint)
        nll, failure = _loss(out, search, read_held_out(folder, report["num_train_examples"]))
    seconds = search.seconds + time.monotonic() - began
    tried = Tried(trial.family, trial.settings, trial.num_epochs, nll, seconds, failure)
    search.tried.append(tried)
    search.seconds = 0.0
    search.write(out)
    return tried


def _loss(out: Workdir, search: Search, losses: np.ndarray) -> tuple[float | None, str]:
    """The mean loss of a family, on the rows that the first family knows; or None, and why."""
    done = [number for number, one in enumerate(search.tried) if one.nll is not None]
    known = np.isfinite(losses)
    if done:
        known = ~np.isnan(read_held_out(_folder(out, done[0]), len(losses)))
    if np.isnan(losses[known]).any():
        return None, "members failed, and nobody else holds out their rows"
    found = float(losses[known].mean()) if known.any() else math.nan
    if not math.isfinite(found):
        return None, "the loss of a row is infinite"
    return found, ""


@contextlib.contextmanager
def _watched(
    out: Workdir, search: Search, trial: Trial, budget: float, display: Display
) -> Iterator[None]:
    """Within it, a thread shows what is tried, and writes the seconds that it has taken so far."""
    folder, began = _folder(out, len(search.tried)), time.monotonic()
    is_over = threading.Event()

    def watch() -> None:
        kept = began
        while not is_over.wait(_SHOWN_SECONDS):
            now = time.monotonic()
            so_far = dataclasses.replace(search, seconds=search.seconds + now - began)
            display.show(
                f"search: {duration(max(0.0, budget - so_far.spent))} left; {_best(search)}; "
                f"trying {_settings(trial.settings)}, {trial.num_epochs} epochs, "
                f"for {duration(so_far.seconds)}"
            )
            # A first family may not suit the data; before it is a run, there is nothing to go on.
            if now - kept >= _KEPT_SECONDS and (search.tried or folder.config.exists()):
                with contextlib.suppress(OSError):  # The run's own files will say so.
                    so_far.write(out)
                kept = now

    thread = threading.Thread(target=watch, name="search", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _folder(out: Workdir, number: int) -> Workdir:
    """The workdir of a trial."""
    return Workdir(out.path / "trials" / f"{number:03d}")


# The result.


def _result(out: Workdir, search: Search, budget: float, is_interrupted: bool, workdir: Any) -> Fit:
    """Mixes what was tried, and writes it."""
    done = [number for number, one in enumerate(search.tried) if one.nll is not None]
    if not done:
        raise TrainingError(f"no family could be trained: {search.tried[-1].failure}")
    chosen = select_from([_folder(out, number).path for number in done], HELD_OUT)
    weights = dict.fromkeys(range(len(search.tried)), 0.0)
    weights |= {k: float(own.sum()) for k, own in zip(done, chosen.weights_of, strict=True)}
    content = {
        "budget_seconds": budget,
        "seconds": search.spent,
        "is_interrupted": is_interrupted,
        "trials": [
            {**dataclasses.asdict(one), "weight": weights[k]} for k, one in enumerate(search.tried)
        ],
    }
    report = write(out, chosen, {"search": content})
    for line in _remarks(report):
        note(line)
    predictor = restore(out).predictor(search.config.get("num_devices"))
    found = Fit(dict(report), predictor)
    found.workdir = None if workdir is None else os.fspath(workdir)
    return found


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """What was tried and chosen, in paragraphs."""
    search, selection = report["search"], report["selection"]
    number, chosen = len(search["trials"]), sum(one["weight"] > 0 for one in search["trials"])
    told = [
        f"{plural(number, 'trial')} took {duration(search['seconds'])} of "
        f"{duration(search['budget_seconds'])}. {chosen} of them predict together.",
        f"Rows held out: NLL {selection['nll']:.4f}, and {selection['cross_validated_nll']:.4f} by "
        f"cross-validation of what predicts together{_beside_default(report, 'nll')}.",
    ]
    if "test" in report["metrics"]:
        test = report["metrics"]["test"]["nll"]["value"]
        told.append(
            f"Test split, by which nothing was chosen: NLL {test:.4f}"
            f"{_beside_default(report, 'test_nll')}."
        )
    told += _remarks(report)
    return [_table(search["trials"]), "\n".join(told)]


def _beside_default(report: Mapping[str, Any], name: str) -> str:
    """A score of the default family alone, which is the first; empty if it failed."""
    if report["search"]["trials"][0]["nll"] is None:
        return ""
    return f"; the default family alone {report['selection']['runs'][0][name]:.4f}"


def _remarks(report: Mapping[str, Any]) -> list[str]:
    """What a user may not have meant."""
    search = report["search"]
    first, budget = search["trials"][0]["seconds"], search["budget_seconds"]
    lines = []
    if len(search["trials"]) == 1 and first > budget:
        lines.append(
            f"The first family alone took {first:.0f} seconds of a budget of {budget:g}, and "
            "nothing else was tried: give more time."
        )
    if search["is_interrupted"]:
        lines.append("The search was interrupted; with a workdir the same call goes on.")
    return lines


def _table(tried: Sequence[Mapping[str, Any]]) -> str:
    """What was tried, by the loss of rows held out."""
    titles = ("settings", "epochs", "NLL", "seconds", "weight")
    rows = [
        [
            _settings(one["settings"]),
            str(one["num_epochs"]),
            "failed" if one["nll"] is None else f"{one['nll']:.4f}",
            f"{one['seconds']:.0f}",
            f"{one['weight']:.2f}" if one["weight"] else "-",
        ]
        for one in sorted(tried, key=lambda one: math.inf if one["nll"] is None else one["nll"])
    ]
    return grid(titles, rows)


def _line(one: Tried) -> str:
    """How a trial went."""
    went = f"failed: {one.failure}" if one.nll is None else f"held-out NLL {one.nll:.4f}"
    return f"{_settings(one.settings)}, {one.num_epochs} epochs: {went}, {one.seconds:.0f} s"


def _settings(settings: Mapping[str, Any]) -> str:
    """How a family differs from the default."""
    if not settings:
        return "the default"
    model = settings.get("model", DEFAULT_MODEL)
    return ", ".join(f"{key.removeprefix(model + '.')}={value}" for key, value in settings.items())
