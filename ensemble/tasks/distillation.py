"""The task of predicting what an ensemble predicts.

Members maximise the expected log-probability of a target under the teacher's predictive
distribution, at temperature 1 (Hinton et al. 2015, arXiv:1503.02531). The teacher predicts the same
inputs that they see, shifted or mirrored alike (Beyer et al. 2022, arXiv:2106.05237): away from its
training points it is less certain. Labels are used for training metrics alone.
"""

import dataclasses
from functools import cached_property
from typing import Any

import numpy as np
from jax import Array

from ensemble import pytrees
from ensemble.config import Config
from ensemble.config.pieces import resolve
from ensemble.data.source import check_same_data
from ensemble.errors import InputError
from ensemble.network import Variables
from ensemble.pytrees import ByName, Function
from ensemble.storage.workdir import Workdir
from ensemble.task import Aux
from ensemble.tasks import supervised
from ensemble.tasks.supervised import OWN, Supervised

MAX_NETWORKS = 64
"""Most networks of a teacher, which all predict every batch: of more, such as a posterior's draws,
so many at even distances stand for all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distilled(Supervised):
    """A data set, a network that is to predict it, and the ensemble that teaches it.

    Attributes:
        teacher: The ensemble, an `Ensemble`.
        taught_by: Its run, step and number of members.
    """

    teacher: Any
    taught_by: str

    def describe(self) -> ByName:
        """Describes any network on these data, and which ensemble it learns from."""
        return {**super().describe(), "teacher": self.taught_by}

    def prepare(self, inputs: Array) -> Array:
        """Leaves inputs raw, as the teacher takes them."""
        return inputs

    def log_likelihood(
        self,
        variables: Variables,
        inputs: Array,
        targets: Array,
        train: bool = False,
        rng_key: Array | None = None,
    ) -> tuple[Array, Aux]:
        """The expected log-probability of a target under the teacher's prediction.

        Args:
            variables: Variables of the member.
            inputs: Raw inputs, [B, ...].
            targets: Targets, [B]; not used.
            train: As of `Network.apply`.
            rng_key: As of `Network.apply`.

        Returns:
            Nats [B], for the caller to weight, mask and sum; and what else the pass leaves.
        """
        seen = super().prepare(inputs)
        _, aux = super().log_likelihood(variables, seen, targets, train, rng_key)
        own = variables["params"][OWN] if self._has_own else {}
        likelihood: Any = self.likelihood  # Which `create` has checked.
        return likelihood.expected_log_prob(own, aux.outputs, self.teach(inputs)), aux

    @cached_property
    def teach(self) -> Function:
        """From raw inputs [B, ...] to the teacher's predictions, within a program of JAX."""
        teacher, fitted = self.teacher, self.teacher.fitted
        if fitted.num_estimators > MAX_NETWORKS:
            size = min(fitted.num_sets, MAX_NETWORKS)
            chosen = np.linspace(0, fitted.num_sets - 1, size).round().astype(int)
            fitted = dataclasses.replace(
                fitted,
                sets=pytrees.at(fitted.sets, chosen),
                member_of=fitted.member_of[chosen],
                num_passes=MAX_NETWORKS // size,
            )
        return lambda inputs: teacher.likelihood.predictive(
            fitted.all_estimators(teacher.task, inputs)
        )


def create(config: Config, data: Any) -> Distilled:
    """Makes the task of a run.

    Args:
        config: Configuration of the run.
        data: Data that a program has handed over instead of `config.dataset`: the teacher's.

    Raises:
        InputError: The teacher or the data are missing, or what is to learn does not suit them.
    """
    task = supervised.create(config, data)
    where = f"config.teacher={config.teacher!r}"
    try:
        saved = resolve("ensemble.runtime.loading:restore")(Workdir(config.teacher))
        parts = [(saved.task, saved.fitted)]
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    check_same_data(where, saved.description["fingerprint"], task.dataset.fingerprint)
    learns, taught = task.likelihood, saved.task.likelihood
    can_learn = learns.num_targets == 1 and hasattr(learns, "expected_log_prob")
    if not (can_learn and taught.has_density):
        raise InputError(
            f"config.likelihood={config.likelihood!r} of {learns.num_targets} targets cannot "
            f"learn from a teacher that has learned {taught.name}; use 'gaussian' for numbers and "
            "'categorical' for classes, of one target, and teachers whose likelihood has a density"
        )
    teacher = resolve("ensemble.predictor:Ensemble")(parts, saved.live, config.num_devices)
    taught_by = f"{saved.work.identity()} at step {saved.counters['step']} of {len(saved.live)}"
    fields = {one.name: getattr(task, one.name) for one in dataclasses.fields(task)}
    return Distilled(**fields, teacher=teacher, taught_by=taught_by)
