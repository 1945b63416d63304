"""Times a step of networks of methods.py, and predicting, after compilation."""

import time
from typing import Any

import methods_started
import numpy as np

PILOT, TURNS = 64, 9
"""Steps that are timed at a time, and how often."""


class Timed:
    """A network in training, whose steps are timed after compilation."""

    def __init__(self, problem: Any, family: str, own: int):
        steps = TURNS * PILOT + 1 + PILOT
        keys = problem.keys_of(family, problem.as_it_is._replace(own=own), steps)
        if family == "sghmc":
            keys |= methods_started.timed_keys(steps)
        self._method, self._state = problem.started(keys)
        self._advance(1)
        self._advance(PILOT)  # Programs of several steps compile, too.

    def step_seconds(self) -> float:
        """CPU seconds of a step, of some."""
        cpu = time.process_time()
        self._advance(PILOT)
        return (time.process_time() - cpu) / PILOT

    def _advance(self, number: int) -> None:
        end = min(self._state.step + number, self._method.num_steps)
        while self._state.step < end:
            self._state, info = self._method.advance(self._state, end - self._state.step)
            self._method.status(info)  # Waits.


def fit_seconds(problem: Any, steps: int = 80) -> float:
    """CPU seconds of one SWAG network beside its steps: to collect 20 iterates, and to draw.

    A short run is timed in turns with a plain one; it is the median difference.
    """
    methods = [
        problem.started(problem.keys_of(family, problem.as_it_is, steps))[0]
        for family in ("swag", "plain")
    ]
    found = []
    for _ in range(1 + TURNS):
        ours, plain = (_whole_seconds(one) for one in methods)
        found.append(ours - plain)
    return max(0.0, float(np.median(found[1:])))


def _whole_seconds(method: Any) -> float:
    import jax

    state = jax.block_until_ready(method.init(key_of(0)))
    cpu = time.process_time()
    jax.block_until_ready(ended(method, state))
    return time.process_time() - cpu


class TimedWhole:
    """Cross-fitted networks, which stop at ends of epochs and trials: whole runs are timed."""

    def __init__(self, problem: Any, own: int):
        keys = problem.keys_of("cross_fitted", problem.as_it_is._replace(own=own), TURNS * PILOT)
        self._method = problem._method(problem._checked(keys))
        self.step_seconds()  # Its programs compile.

    def before_seconds(self) -> float:
        """CPU seconds of the linear models from which they may start; 0 where there are none."""
        if self._method.why_not_linear:
            return 0.0
        took = []
        for _ in range(4):
            cpu = time.process_time()
            type(self._method)._linear.func(self._method)
            took.append(time.process_time() - cpu)
        return float(np.median(took[1:]))

    def step_seconds(self) -> float:
        """CPU seconds of a step of all of them: the median over epochs of a run."""
        state, took = self._method.init(key_of(0)), []
        while not has_stopped(self._method, state):
            cpu, first = time.process_time(), state.step
            state, info = self._method.advance(state)
            self._method.status(info)  # Waits.
            took.append((time.process_time() - cpu) / (state.step - first))
        return float(np.median(took))


def has_stopped(method: Any, state: Any) -> bool:
    """Whether no cross-fitted network trains any more."""
    from ensemble.method import Status

    return method.finished(state) or Status.ACTIVE not in method.status(state).values()


def ended(method: Any, state: Any) -> Any:
    """The last state of a method."""
    while not method.finished(state):
        state, _ = method.advance(state)
    return state


def predict_seconds(method: Any, state: Any) -> float:
    """CPU seconds of predicting 1,000 rows, after compilation."""
    took = []
    for _ in range(4):
        cpu = time.process_time()
        method.predict_split(state, "test")
        took.append(time.process_time() - cpu)
    return float(np.median(took[1:])) * 1000 / float(method.task.sizes["test"])


def key_of(seed: int) -> Any:
    """The key of a seed."""
    import jax

    return jax.random.key(seed)
