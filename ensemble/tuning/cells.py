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

from ensemble.config import build
from ensemble.data.catalogue import complete
from ensemble.data.source import SplitInputs
from ensemble.errors import InputError
from ensemble.metrics import metrics_of
from ensemble.metrics.calibration import can_fit_scale, fit_scale
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.run.loop import create_method, create_task
from ensemble.runtime.loop import Loop, Periods
from ensemble.sharding import signals
from ensemble.storage.metrics_log import read_metrics
from ensemble.storage.workdir import Workdir

_SHOWN = ("nll", "accuracy", "brier", "ece", "crps", "rmse", "coverage_90")
"""Metrics that are kept."""
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
        InputError: some cannot stand.
    """
    return dict(build(values, by_hand).values)


def price_of(values: Mapping[str, Any], data: Any) -> Price:
    """Measures what a step costs, by the first steps of a run that is not kept.

    Args:
        values: the configuration, flat, as `checked` returns it.
        data: as of `ensemble.train`.

    Raises:
        InputError: the configuration or the data cannot be used.
        Interrupted: SIGTERM or Ctrl-C.
    """
    began = time.monotonic()
    given, said = complete(values, {}, data)
    config = build(said).config
    task = create_task(config, given)
    for split in ("validation", "test"):
        if not task.sizes.get(split):
            raise InputError(
                f"the data have no {split} split, by which methods are compared; train "
                "with config.train_on_all=False, or give one"
            )
    method = create_method(config, task)
    devices, numbers = method.place(method.num_members), range(method.num_members)
    pricing = _Pricing()
    loop = Loop(
        method.algorithm(devices, numbers),
        devices,
        numbers,
        config.seed,
        Periods(config.log_every_steps, 0, 0),
        pricing,
        pricing.is_known,
    )
    loop.start()
    loop.go()
    rates = pricing.rates
    if not rates:
        raise InputError(
            f"config.num_epochs={config.get('num_epochs')} is one step, whose time cannot be told "
            "from that of its compilation; give more rows, or lower config.batch_size"
        )
    steps = [taken for taken, _, _ in rates]
    cpu, wall = (
        float(np.median(np.repeat([one[k] / one[0] for one in rates], steps))) for k in (1, 2)
    )
    seconds = time.monotonic() - began
    return Price(cpu, wall, seconds, method.num_steps, method.steps_per_epoch, method.num_trials)


class _Pricing:
    """Watches how long steps take: an observer of a loop.

    Attributes:
        rates: Steps, CPU seconds and seconds of each program but the first, which compiles.
    """

    def __init__(self) -> None:
        self.rates: list[tuple[int, float, float]] = []
        self._clock = _clock()
        self._cpu, self._step = self._clock(), 0

    def is_known(self) -> bool:
        """Whether the price is known, or a run is to be interrupted."""
        signals.check()
        seconds = sum(wall for *_, wall in self.rates)
        return len(self.rates) >= _LEAST_CHUNKS and seconds >= _LEAST_SECONDS

    def advanced(self, step: int, seconds: float, compiles: bool) -> None:
        """Notes what some steps have taken."""
        now = self._clock()
        if not compiles:
            self.rates.append((step - self._step, now - self._cpu, seconds))
        self._cpu, self._step = now, step

    def period(self, period: Any, status: Any) -> None:
        """Nothing."""

    def evaluate(self, loop: Loop) -> bool:
        """Nothing."""
        return False

    def stopping(self) -> None:
        """Nothing."""

    def save(self, loop: Loop) -> None:
        """Nothing."""


def best_step(folder: Workdir, score: str) -> int:
    """The step of a run at which its validation score was lowest.

    Raises:
        InputError: no validation score was finite.
    """
    tag = f"validation/ensemble/{score}"
    found = [
        (float(one[tag]), int(one["step"]))
        for one in read_metrics(folder.metrics)
        if np.isfinite(one.get(tag, np.nan))
    ]
    if not found:
        raise InputError(
            f"{folder.path} has no finite {score} of a validation split; train with "
            "config.train_on_all=False, or lower config.learning_rate"
        )
    return min(found)[1]


class Scored(NamedTuple):
    """Predictions of a cell.

    Attributes:
        decides: Name of the metric that decides.
        factor: Temperature, or factor of the scale, fitted on the calibration split; 1 if that has
            too few rows or errors.
        validation: The metric that decides, after the factor.
        test: `Predictive` of the test split.
        calibrated: The same after the factor.
        targets: [N] of the test split.
    """

    decides: str
    factor: float
    validation: float
    test: Any
    calibrated: Any
    targets: np.ndarray

    def row(self) -> dict[str, Any]:
        """What is kept, JSON-ready."""
        return {
            "score": self.decides,
            "factor": self.factor,
            "validation": self.validation,
            "num_members": self.test.num_members,
            "test": _brief(self.test, self.targets),
            "calibrated": _brief(self.calibrated, self.targets),
        }


def _brief(p: Any, y: np.ndarray) -> dict[str, Any]:
    chosen = {name: one for name, one in metrics_of(p).items() if name in _SHOWN}
    return {name: one.estimate(p, y)._asdict() for name, one in chosen.items()}


def scored(folder: Workdir) -> Scored:
    """Scores a finished cell.

    Raises:
        InputError: It has no validation or test split, or its predictions cannot be compared.
    """
    run = EvaluatedRun(str(folder.path))
    validation, calibration = run.predicted("validation"), run.predicted("calibration")
    if validation is None:
        raise InputError(
            f"{folder.path} has no validation split to choose by. Train with "
            "config.train_on_all=False, or give one"
        )
    decides = _DECIDES.get(validation.predictive.kind)
    if decides is None:
        raise InputError(
            f"config.likelihood={run.config['likelihood']!r} has neither the NLL of classes nor "
            "the CRPS of a number, by which methods are compared. Use one such as 'gaussian'"
        )
    factor = 1.0
    if calibration is not None and can_fit_scale(calibration.predictive, calibration.targets):
        factor = fit_scale(calibration.predictive, calibration.targets) or 1.0
    first, test = (
        one if factor == 1 else one.scaled(factor)
        for one in (validation.predictive, run.test.predictive)
    )
    value = metrics_of(first)[decides].value(first, validation.targets)
    return Scored(decides, factor, value, run.test.predictive, test, run.test.targets)


_DECIDES = {"classes": "nll", "numbers": "crps", "counts": "crps"}
"""The metric that decides, by kind of predictions."""


def predict_seconds(folder: Workdir, data: Any) -> float | None:
    """Seconds of `Price.cpu` in which a finished cell predicts 1,000 rows: the median of three.

    Args:
        folder: of the cell.
        data: as of `ensemble.train`.

    Returns:
        Those of at most 1,000 test rows, scaled, after compilation; None where the data cannot be
        had.
    """
    run = EvaluatedRun(str(folder.path), data=data)
    if run.dataset is None:
        return None
    inputs = SplitInputs(run.dataset, "test")[slice(0, _PREDICTED)]
    run.predictor.predict_members(inputs)  # Compiles.
    clock = _clock()
    taken = []
    for _ in range(3):
        began = clock()
        run.predictor.predict_members(inputs)
        taken.append(clock() - began)
    return statistics.median(taken) * _PREDICTED / len(inputs)


def _clock() -> Callable[[], float]:
    """CPU seconds of this process; seconds of the clock where accelerators compute."""
    is_cpu = jax.devices()[0].platform == "cpu"
    return time.process_time if is_cpu else time.monotonic
