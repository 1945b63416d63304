"""Compares methods on one network and one data set at equal seconds, and recommends one.

The unit is c, the CPU seconds of training that one network needs to its best validation score. The
families of `ensemble.tuning.families` have c each at first, then 4c and 16c as far as the budget
reaches. Each is an ordinary run in a folder of its own. The best is chosen by the validation split,
and the test split only says how far the others are behind it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ensemble.config import build, by_path, flatten
from ensemble.data.catalogue import complete
from ensemble.errors import InputError, Interrupted, TrainingError
from ensemble.notes import collected
from ensemble.run.loop import train
from ensemble.run.progress import duration, open_display
from ensemble.selection import select_members
from ensemble.sharding import processes, signals, startup
from ensemble.storage.search import Comparison, Search
from ensemble.storage.workdir import Workdir
from ensemble.tuning.advice import TITLES, lines_of, recommended
from ensemble.tuning.budget import parse_seconds, quiet, stop_after
from ensemble.tuning.cells import (
    Price,
    Scored,
    best_step,
    checked,
    predict_seconds,
    price_of,
    scored,
)
from ensemble.tuning.families import FAMILIES, PLAIN, Family, steps_after_trials
from ensemble.tuning.same_data import check_same_data, fingerprint_of
from ensemble.tuning.verdicts import SECOND, compare_with_best

logger = logging.getLogger("ensemble")

TIMES: tuple[int, ...] = (1, 4, 16)
"""The units of c that each family has, round after round."""
_LENGTH = "length"
_EVALUATIONS = 20
"""On the way to the best length, and of each cell at most."""


class Methods(dict[str, Any]):
    """The content of methods.json, which `compare_methods` returns, shown as its tables."""

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
) -> Methods:
    """Trains families of methods side by side at equal seconds, and recommends one.

    The same call goes on with a comparison that was interrupted; with more seconds it goes on to
    longer training.

    Args:
        config: of the network and its training, as of `train`; its method is replaced.
        time_limit: seconds; that it may take, over all calls with this workdir; or a text such as
            `10m`. The first round is finished in any case.
        workdir: where all runs live, each in `cells/NAME`, and methods.json; None keeps nothing.
        data: as of `train`; None: `config.dataset` names them.
        methods: names of `ensemble.tuning.families.FAMILIES` to compare; None: all. One network is
            always among them.
        show_progress: whether to show what was run.

    Returns:
        The content of methods.json: rows of all cells, by rounds, with what is recommended.

    Raises:
        InputError: the configuration, the data, the budget or the workdir cannot be used.
        TrainingError: one network could not be trained.
        Interrupted: SIGTERM or Ctrl-C; the same call goes on.
    """
    budget, chosen = parse_seconds(time_limit), _chosen(methods)
    own = _network(config, data)
    startup.configure(own.get("num_devices"), own["method"])
    if processes.count() > 1:
        raise InputError("methods are compared in one process; start it without the others")
    with contextlib.ExitStack() as stack:
        out = Workdir(workdir or stack.enter_context(tempfile.TemporaryDirectory()))
        if out.config.exists() or Search.is_in(out):
            raise InputError(f"{out.path} has a run or a search already; choose another --workdir")
        stack.enter_context(out.opened())
        known = Comparison.read(out, own)
        stop = stack.enter_context(signals.stop_signals())
        stack.enter_context(collected())
        stack.enter_context(open_display(show_progress))
        work = _Work(out, known, chosen, data, budget, stop)
        found = work.run()
        stop.is_settled = True
        return found


def _chosen(methods: Sequence[str] | None) -> list[Family]:
    """The families of some names, in their order.

    Raises:
        InputError: there is none of such a name.
    """
    if isinstance(methods, str):
        raise InputError(f"methods={methods!r} must be a list of names, such as [{methods!r}]")
    known = [one.name for one in FAMILIES]
    for name in methods or ():
        if name not in known:
            raise InputError(f"methods={name} is not a family; choose from {', '.join(known)}")
    return [one for one in FAMILIES if not methods or one.name in (PLAIN, *methods)]


def _network(config: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """The configuration of one network, flat.

    Raises:
        InputError: it cannot stand.
    """
    _, said = complete(by_path(config), {}, data)
    build(said)
    if said.get("init_from"):
        raise InputError(
            f"config.init_from={said['init_from']!r}: methods are compared by networks that start "
            "anew; leave it out"
        )
    return checked(said, {"method": "deep_ensemble", "ensemble_size": 1})


class _Work:
    """A comparison under way."""

    def __init__(
        self,
        out: Workdir,
        known: Comparison,
        families: Sequence[Family],
        data: Any,
        budget: float,
        stop: signals.Stop,
    ):
        self.out, self.known, self.families, self.data = out, known, families, data
        self.budget, self.stop = budget, stop
        self.tried: set[str] = set()

    def run(self) -> Methods:
        """Runs what is missing or has failed before, as far as the budget reaches.

        Raises:
            InputError: the budget is too small, or the data are others than before.
        """
        self._check_data()
        if not self.known.length:
            self._find_length()
        rounds = []
        for times in TIMES:
            if not self._may_begin(times):
                break
            for family in self.families:
                left = math.inf if times == TIMES[0] else self.budget - self.known.spent
                has_ended = self._has_ended(family, times)
                if has_ended and (left <= 0 or not self._failed(family, times)):
                    continue
                if left <= 0 or not self._run_cell(family, times, left):
                    break
            rounds.append(self._round(times))
            if not rounds[-1]["is_complete"]:
                break
        self.known.result = {
            "budget_seconds": self.budget,
            "seconds": self.known.spent,
            "length": self.known.length,
            "rounds": rounds,
            **recommended(rounds),
        }
        self._write()
        return Methods(self.known.result)

    # What is run.

    def _find_length(self) -> None:
        """Trains one network, whose best validation score says how long it should train.

        Raises:
            InputError: the budget is too small.
        """
        values, began = dict(self.known.config), time.monotonic()
        self._show("one network: how long a step takes")
        price = self._price(self._values({}))
        one, overhead = price.num_steps * price.wall, 2 * price.seconds
        least = self.known.spent + (1 + len(self.families)) * (one + overhead)
        if self.budget < least:
            asked = 10 * math.ceil(least / 10)
            raise InputError(
                f"a budget of {self.budget:g} seconds is too small for {len(self.families)} "
                f"methods with the time of one network, about {least:.0f} seconds in all: give "
                f"--time_limit={asked}s, fewer --methods, or lower config.num_epochs"
            )
        epochs = price.num_steps / price.steps_per_epoch
        values["eval_every_epochs"] = max(1, round(epochs / _EVALUATIONS))
        self._write()
        self._show(f"one network of {epochs:.0f} epochs: how long it should train")
        goes_on = self._folder(_LENGTH).config.exists()
        try:
            self._train(values, _LENGTH)
            score = scored(self._folder(_LENGTH)).decides
        except InputError:  # The data, or what was given, suit no method: nothing is kept.
            if not goes_on:
                self.out.manifest.remove(self.out.path / Comparison.file)
                shutil.rmtree(self._folder(_LENGTH).path, ignore_errors=True)
            raise
        except Interrupted:
            self.known.seconds += time.monotonic() - began
            self._write()
            raise
        self.known.seconds += time.monotonic() - began
        steps = best_step(self._folder(_LENGTH), score)
        self.known.length = {
            "steps": steps,
            "epochs": steps / price.steps_per_epoch,
            "epochs_tried": epochs,
            "seconds": steps * price.cpu,
            "wall": steps * price.wall,
        }
        self._write()

    def _may_begin(self, times: int) -> bool:
        """Whether the budget reaches for a round; one that was begun goes on."""
        if times == TIMES[0] or any(_cell(one, times) in self.known.cells for one in self.families):
            return True
        before = TIMES[TIMES.index(times) - 1]
        rows = [self.known.cells[_cell(one, before)] for one in self.families]
        more = (times - before) * self.known.length["wall"] * len(rows)
        needed = self.known.spent + sum(one["seconds"] for one in rows) + more
        if needed <= self.budget:
            return True
        logger.info(
            "Training for %d times as long needs about %s in all: give --time_limit=%ds.",
            times, duration(needed), 10 * math.ceil(needed / 10), extra={"stays": True},
        )  # fmt: skip
        return False

    def _has_ended(self, family: Family, times: int) -> bool:
        """Whether a cell has a row that says how it went."""
        row = self.known.cells.get(_cell(family, times), {"is_cut": True})
        if "selected" in row:  # Of other cells, perhaps.
            return row["selected"].keys() == {one["method"] for one in self._others(times)}
        return "is_cut" not in row

    def _failed(self, family: Family, times: int) -> bool:
        """Whether a cell has failed in an earlier call, as a full disk may have been the cause."""
        name = _cell(family, times)
        return name not in self.tried and "failed" in self.known.cells[name]

    def _others(self, times: int) -> list[dict[str, Any]]:
        """The rows of a round that a selection chooses from."""
        trained = [one for one in self.families if not one.selects]
        rows = [self.known.cells.get(_cell(one, times), {}) for one in trained]
        return [one for one in rows if "validation" in one]

    def _run_cell(self, family: Family, times: int, left: float) -> bool:
        """Runs a cell and keeps its row; returns whether the time was enough.

        Raises:
            Interrupted: SIGTERM or Ctrl-C.
        """
        name, began, cpu = _cell(family, times), time.monotonic(), time.process_time()
        before = self.known.cells.get(name, {"seconds": 0.0, "cpu_seconds": 0.0})
        before = {**before, "seconds": before["seconds"] + self._lost(name, before)}
        head = {"method": family.name, "does": family.does, "times": times}
        spent = {one: before[one] for one in ("seconds", "cpu_seconds")}
        self.known.cells[name] = {**head, "is_cut": True, **spent, "began": time.time()}
        self._write()  # Whoever is killed has spent what it took up to its last evaluation.
        self._show(f"{family.name}, {self.known.length['seconds'] * times:.3g} CPU seconds")
        row: dict[str, Any] = {"is_cut": True}
        try:
            with stop_after(max(0.0, left), self.stop):
                row = self._trained(family, times)
        except Interrupted:
            if self.stop.by_signal or math.isinf(left):
                raise
        except (TrainingError, InputError, jax.errors.JaxRuntimeError, MemoryError) as error:
            if family.name == PLAIN and times == TIMES[0]:
                raise
            self._check_data()
            row = {"failed": (str(error) or type(error).__name__).splitlines()[0]}
        finally:
            seconds = before["seconds"] + time.monotonic() - began
            cpu_seconds = before["cpu_seconds"] + time.process_time() - cpu
            spent = {"seconds": seconds, "cpu_seconds": cpu_seconds}
            self.known.cells[name] = {**head, **row, **spent}
            self.tried.add(name)
            self._write()
        logger.info("%s: %s", name, _went(self.known.cells[name]), extra={"stays": True})
        return "is_cut" not in row

    def _lost(self, name: str, row: Mapping[str, Any]) -> float:
        """Seconds in a cell of a process that was killed, up to what that wrote last."""
        if "began" not in row:
            return 0.0
        files = [self._folder(one).metrics for one in (name, _start_of(name))]
        written = [float(one.stat().mtime) for one in files if one.exists()]
        return max(0.0, max(written, default=0.0) - float(row["began"]))

    def _trained(self, family: Family, times: int) -> dict[str, Any]:
        """The row of a cell, which is run."""
        name, charged = _cell(family, times), times * self.known.length["seconds"]
        if family.selects:
            return self._selected(name, times)
        keys = {"method": family.method, **family.keys(self.known.config, times)}
        steps = 0
        if family.start == 1:
            keys["init_from"] = os.fspath(self._folder(f"{PLAIN}_{times}c").path)
        elif family.start:
            of_start = family.start * charged
            keys["init_from"] = self._start(_start_of(name), of_start, keys["num_chains"])
        if family.start < 1:
            price = self._price(self._values({**keys, **family.lasts(_PILOT)}))
            steps = max(1, round((1 - family.start) * charged / price.cpu))
            if price.num_trials > 1:
                steps = steps_after_trials(steps, price.steps_per_epoch, price.num_trials)
            keys |= {**family.lasts(steps), **_evaluated(steps, price)}
        values = self._values(keys)
        compiling = self._train(values, name)
        return {
            "steps": steps,
            "charged_seconds": charged,
            "compile_seconds": compiling,
            "settings": dict(keys),
            **self._scored(name),
        }

    def _start(self, name: str, seconds: float, size: int) -> str:
        """Trains the plain networks that chains start from; returns their folder."""
        several = {"ensemble_size": size}
        price = self._price(self._values(several))
        steps = max(1, round(seconds / price.cpu))
        keys = {**several, "num_steps": steps, "num_epochs": 0, **_evaluated(steps, price)}
        self._train(self._values(keys), name)
        return os.fspath(self._folder(name).path)

    def _selected(self, name: str, times: int) -> dict[str, Any]:
        """The row of a selection among the other cells of a round."""
        folder = self._folder(name)
        if folder.path.exists():  # Not finished by an earlier process, or of other cells.
            folder.path.rmtree()
        others = self._others(times)
        found = select_members(
            [self._folder(f"{one['method']}_{times}c").path for one in others], folder.path
        )
        trained = [one["charged_seconds"] for one in others if one["steps"]]
        return {
            "steps": 0,
            "charged_seconds": sum(trained),
            "compile_seconds": 0.0,
            "settings": {},
            "selected": {
                one["method"]: sum(run["weights"])
                for one, run in zip(others, found["selection"]["runs"], strict=True)
            },
            **self._scored(name),
        }

    def _scored(self, name: str) -> dict[str, Any]:
        """The scores of a cell, and the seconds in which it predicts."""
        folder = self._folder(name)
        with quiet():
            return {**scored(folder).row(), "predict_seconds": predict_seconds(folder, self.data)}

    def _train(self, values: Mapping[str, Any], name: str) -> float:
        """Trains a run, or goes on with it; returns the seconds before its first step.

        Raises:
            InputError: it cannot, or the data are others than those of the runs before.
        """
        folder = self._folder(name)
        with quiet():
            if _starts_elsewhere(folder, values):  # The workdir was moved within this cell.
                folder.path.rmtree()
            report = train(values, self.data, os.fspath(folder.path), show_progress=False).report
        self.known.fingerprint = fingerprint_of(report, folder, self.known.fingerprint)
        return float(report["timing"]["seconds_to_first_step"] or 0.0)

    def _values(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a cell, whose length is set, so that nothing ends it early."""
        return checked({**self.known.config, "early_stopping_epochs": 0}, keys)

    def _price(self, values: Mapping[str, Any]) -> Price:
        """The cost of a step, measured once for all runs whose steps are alike."""
        key = json.dumps({one: values[one] for one in sorted(values) if one not in _LASTING})
        if key not in self.known.prices:
            with quiet():
                self.known.prices[key] = price_of(values, self.data)._asdict()
            self._write()  # A run that is killed goes on with the length that follows from it.
        return Price(**self.known.prices[key])

    def _check_data(self) -> None:
        """Refuses other data than those of the runs before."""
        known = self.known
        check_same_data(self.out, known.config, known.fingerprint, self.data)

    def _folder(self, name: str) -> Workdir:
        return Workdir(self.out.path / "cells" / name)

    def _write(self) -> None:
        """Keeps what was run, once there is something to go on with."""
        if self._folder(_LENGTH).config.exists() or Comparison.is_in(self.out):
            self.known.write(self.out)

    def _show(self, what: str) -> None:
        left = duration(max(0.0, self.budget - self.known.spent))
        logger.info("%s; %s left", what, left)

    # What it says.

    def _round(self, times: int) -> dict[str, Any]:
        """The rows of a round, the best first, with verdicts where all have ended."""
        cells = {one.name: self.known.cells.get(_cell(one, times)) for one in self.families}
        rows = [one for one in cells.values() if one is not None]
        well = {one["method"]: one for one in rows if one.get("validation") is not None}
        found: dict[str, Any] = {
            "times": times,
            "charged_seconds": times * self.known.length["seconds"],
            "is_complete": all(self._has_ended(one, times) for one in self.families),
        }
        if found["is_complete"] and well:
            found |= self._verdicts(times, well)
        return {**found, "rows": sorted(rows, key=_by_validation)}

    def _verdicts(self, times: int, well: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The best of a round, and what the test split says of the others beside it."""
        known: dict[str, Scored] = {name: scored(self._folder(f"{name}_{times}c")) for name in well}
        selecting = [one.name for one in FAMILIES if one.selects]
        equal = [name for name in well if name not in selecting]
        best = min(equal, key=lambda name: well[name]["validation"])
        score, targets = known[best].decides, known[best].targets
        predictions = {name: one.calibrated for name, one in known.items()}
        cells = [self.known.cells[f"{PLAIN}_{one}c"] for one in TIMES if one <= times]
        able = [one for one in cells if "validation" in one]  # More training can be too much.
        plain = min(able, key=lambda one: one["validation"])["calibrated"]
        found = {
            one: compare_with_best(predictions, targets, best, one, plain[one]["value"])
            for one in (score, SECOND[score])
        }
        return {"best": best, "score": score, "num_test": len(targets), "beside": found}


_PILOT = 64
"""Steps of a run whose first ones are timed."""
_LASTING = (
    *("num_epochs", "num_steps", "snapshot_ensemble.num_cycles", "swag.num_iterates"),
    *("sgmcmc.num_burn_in", "sgmcmc.num_samples", "sgmcmc.steps_per_draw"),
    *("early_stopping_epochs", "init_from", "eval_every_epochs", "checkpoint_every_epochs"),
)
"""Keys on which the price of a step does not depend."""


def _cell(family: Family, times: int) -> str:
    """The name of a cell's folder."""
    return f"{family.name}_{times}c"


def _start_of(name: str) -> str:
    """The name of the networks that a cell starts from."""
    return f"{name}_start"


def _starts_elsewhere(folder: Workdir, values: Mapping[str, Any]) -> bool:
    """Whether a run is there that starts from another folder than a configuration says."""
    known = flatten(folder.read_config() or {})
    return known.get("init_from", "") != values.get("init_from", "") if known else False


def _evaluated(steps: int, price: Price) -> dict[str, Any]:
    """Keys by which a cell is seldom evaluated, which takes time that is not charged."""
    every = max(1, round(steps / price.steps_per_epoch / _EVALUATIONS))
    return {"eval_every_epochs": every, "checkpoint_every_epochs": every}


def _by_validation(row: Mapping[str, Any]) -> tuple[bool, float]:
    value = row.get("validation")
    return value is None, 0.0 if value is None else value


def _went(row: Mapping[str, Any]) -> str:
    """How a cell went."""
    if "failed" in row:
        return f"failed: {row['failed']}"
    if "is_cut" in row:
        return "the time was over"
    return f"validation {TITLES[row['score']]} {row['validation']:.4f}"
