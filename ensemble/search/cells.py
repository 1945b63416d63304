"""One cell of a comparison: what a step of a method costs, its run, and the scores of that.

Seconds that are charged are those of training alone: steps, times the median CPU seconds of a step
after compilation. They are measured by a few steps before the run, so that its length follows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from ensemble.config import flatten
from ensemble.config_rules import check, refuse
from ensemble.errors import UserError
from ensemble.evaluation.subject import Subject
from ensemble.run.loop import create_method, create_task
from ensemble.run.monitor import Pace
from ensemble.scoring.sections import score_split
from ensemble.scoring.view import View
from ensemble.search.verdicts import deciding
from ensemble.sharding import signals
from ensemble.source import SplitInputs
from ensemble.sources.catalogue import complete
from ensemble.storage.metrics_log import read_metrics
from ensemble.storage.workdir import Workdir

_SHOWN = ("nll", "accuracy", "brier", "ece", "crps", "rmse", "coverage_90")
"""Scores that are kept, of those that a view has."""
_LEAST_CHUNKS, _LEAST_SECONDS = 5, 0.5
"""After so many chunks and seconds the price of a step is known."""
_PREDICTED = 1000


class Price(NamedTuple):
    """The cost of steps of a method.

    Attributes:
        cpu: median CPU seconds of a step, of all threads of this process; `wall` on accelerators.
        wall: median seconds of a step.
        seconds: that it took to find out, compilation included.
        num_steps: of the run whose steps they are.
        steps_per_epoch: likewise.
        num_trials: that cross-fitted networks make, if they have the time.
    """

    cpu: float
    wall: float
    seconds: float
    num_steps: int
    steps_per_epoch: int
    num_trials: int = 1


def checked(values: Mapping[str, Any], by_hand: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration, flat: keys that its method has not are left out in silence.

    Args:
        values: keys of another method's run.
        by_hand: those that replace them, which the method must have.

    Raises:
        UserError: some cannot stand.
    """
    found = check({**values, **by_hand}, by_hand.keys())
    refuse(found.conflicts)
    return flatten(found.config)


def price_of(values: Mapping[str, Any], data: Any) -> Price:
    """Measures what a step costs, by the first steps of a run that is not kept.

    Args:
        values: the configuration, flat, as `checked` returns it.
        data: as of `ensemble.train`.

    Raises:
        UserError: the configuration or the data cannot be used.
        Interrupted: SIGTERM or Ctrl-C.
    """
    began = time.monotonic()
    given, said = complete(values, data)
    config = check(said, said.keys()).config
    task = create_task(config, given)
    for split in ("validation", "test"):
        if not task.sizes.get(split):
            raise UserError(
                f"the data have no {split} split, by which methods are compared; train "
                "with config.hold_out=True, or give one"
            )
    clock = _clock()
    method = create_method(config, task)
    state = method.init(jax.random.key(config.seed))
    pace = Pace()
    rates: list[tuple[int, float, float]] = []
    is_first = True
    while not method.finished(state) and not _is_known(rates):
        signals.check()
        cpu, wall = clock(), time.monotonic()
        state, info = method.advance(state, pace.limit)
        method.status(info)  # Waits.
        cpu, wall = clock() - cpu, time.monotonic() - wall
        taken = info.step - info.first
        compiles = is_first or info.compiles
        pace.chunk_done(taken, compiles)
        if taken and not compiles:
            rates.append((taken, cpu, wall))
        is_first = False
    if not rates:
        raise UserError(
            f"config.num_epochs={config.get('num_epochs')} is one step, whose time cannot be told "
            "from that of its compilation; give more rows, or lower config.batch_size"
        )
    steps = [taken for taken, _, _ in rates]
    cpu, wall = (
        float(np.median(np.repeat([one[k] / one[0] for one in rates], steps))) for k in (1, 2)
    )
    seconds = time.monotonic() - began
    num_trials = getattr(method, "most_trials", 1)
    return Price(cpu, wall, seconds, method.num_steps, method.steps_per_epoch, num_trials)


def _is_known(rates: list[tuple[int, float, float]]) -> bool:
    return len(rates) >= _LEAST_CHUNKS and sum(wall for *_, wall in rates) >= _LEAST_SECONDS


def best_step(folder: Workdir, score: str) -> int:
    """The step of a run at which its validation score was lowest.

    Raises:
        UserError: no validation score was finite.
    """
    tag = f"validation/ensemble/{score}"
    found = [
        (float(one[tag]), int(one["step"]))
        for one in read_metrics(folder.metrics)
        if np.isfinite(one.get(tag, np.nan))
    ]
    if not found:
        raise UserError(
            f"{folder.path} has no finite {score} of a validation split; train with "
            "config.hold_out=True, or lower config.learning_rate"
        )
    return min(found)[1]


class Scored(NamedTuple):
    """The predictions of a cell for the splits.

    Attributes:
        score: that decides, of `ensemble.search.verdicts.deciding`.
        factor: the temperature, or the scale of numbers, fitted on the calibration split; 1 where
            that has too few rows or errors.
        validation: the score that decides, after the factor.
        test: the test split's view.
        calibrated: the same after the factor.
    """

    score: str
    factor: float
    validation: float
    test: View
    calibrated: View

    def row(self) -> dict[str, Any]:
        """The part that is kept, JSON-ready."""
        raw, calibrated = (
            score_split(one, names=_SHOWN)["scores"] for one in (self.test, self.calibrated)
        )
        return {
            "score": self.score,
            "factor": self.factor,
            "validation": self.validation,
            "num_members": self.test.num_members,
            "test": {name: _brief(one) for name, one in raw.items()},
            "calibrated": {name: _brief(one) for name, one in calibrated.items()},
        }


def _brief(score: Mapping[str, Any]) -> dict[str, Any]:
    return {name: score[name] for name in ("value", "interval")}


def scored(folder: Workdir) -> Scored:
    """Scores a finished cell.

    Raises:
        UserError: it has no validation or test split, or predicts what cannot be compared.
    """
    subject = Subject(str(folder.path))
    subject.check_has_test()
    validation = subject.view_of("validation")
    if validation is None:
        raise UserError(
            f"{folder.path} has no validation split to choose by; train with "
            "config.hold_out=True, or give one"
        )
    score = deciding(validation)
    if score is None:
        raise UserError(
            f"config.likelihood={subject.likelihood.name!r} has neither the NLL of classes nor the "
            f"CRPS of a number, by which methods are compared; use one of these, such as "
            "'categorical' or 'gaussian'"
        )
    factor, test = factor_of(subject.calibration_view), subject.view
    calibrated = [view if factor == 1 else view.with_factor(factor) for view in (validation, test)]
    value = score_split(calibrated[0], intervals=False, names=[score])["scores"][score]["value"]
    return Scored(score, factor, value, test, calibrated[1])


def predict_seconds(folder: Workdir, data: Any) -> float | None:
    """Seconds of `Price.cpu` in which a finished cell predicts 1,000 rows: the median of three.

    Args:
        folder: of the cell.
        data: as of `ensemble.train`.

    Returns:
        Those of at most 1,000 test rows, scaled, after compilation; None where the data cannot be
        had.
    """
    subject = Subject(str(folder.path), data=data)
    if subject.dataset is None:
        return None
    inputs = SplitInputs(subject.dataset, "test")[slice(0, _PREDICTED)]
    subject.predictor.predict_members(inputs)  # Compiles.
    clock = _clock()
    taken = []
    for _ in range(3):
        began = clock()
        subject.predictor.predict_members(inputs)
        taken.append(clock() - began)
    return statistics.median(taken) * _PREDICTED / len(inputs)


def _clock() -> Callable[[], float]:
    """CPU seconds of this process; seconds of the clock where accelerators compute."""
    is_cpu = jax.devices()[0].platform == "cpu"
    return time.process_time if is_cpu else time.monotonic


def factor_of(view: View | None) -> float:
    """The factor that calibrates, fitted on a view.

    It is 1 where there is no view, where too few rows or errors tell it, and where the best lies
    outside the range in which it is sought, .05 to 20.
    """
    if view is None or not view.tells_factor:
        return 1.0
    try:
        return view.fit_factor()
    except ValueError:  # As a `UserError` is.
        return 1.0
