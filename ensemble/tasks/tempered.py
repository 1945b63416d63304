"""A task whose likelihood has a temperature, for methods that know a task's own likelihood only."""

from typing import Any, cast

import jax

from ensemble.network import Variables
from ensemble.task import Aux, Learned


class _Tempered:
    """A task whose log likelihood is divided; all else is the task's own."""

    def __init__(self, task: Learned, temperature: float):
        self._task = task
        self._temperature = temperature

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def log_likelihood(
        self,
        variables: Variables,
        inputs: jax.Array,
        targets: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Aux]:
        log_prob, aux = self._task.log_likelihood(variables, inputs, targets, train, rng_key)
        return log_prob / self._temperature, aux


def tempered(task: Learned, temperature: float) -> Learned:
    """The task with its log likelihood divided by a temperature; 1 is Bayes."""
    return task if temperature == 1 else cast(Learned, _Tempered(task, temperature))
