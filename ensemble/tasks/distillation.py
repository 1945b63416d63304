"""The task of predicting what an ensemble predicts.

Members maximise the expected log-probability of a target under the teacher's predictive
distribution, at temperature 1 (Hinton et al. 2015, arXiv:1503.02531). The teacher predicts the same
inputs that they see, shifted or mirrored alike (Beyer et al. 2022, arXiv:2106.05237): away from its
training points it is less certain. Labels are used for training metrics alone.
"""

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import ml_collections
import numpy as np

from ensemble import pytrees
from ensemble.config.pieces import resolve
from ensemble.data.source import Source, check_same_data
from ensemble.errors import InputError
from ensemble.likelihoods.predictive import Predictive
from ensemble.network import Variables
from ensemble.storage.workdir import Workdir
from ensemble.task import Aux
from ensemble.tasks import supervised
from ensemble.tasks.supervised import Supervised

if TYPE_CHECKING:
    from ensemble.data.data_forms import Given

MAX_NETWORKS = 64
"""Most networks of a teacher, which all predict every batch: of more, such as a posterior's draws,
so many at even distances stand for all."""
_NUM_TIMED = 1024  # Examples.
_NUM_ROUNDS = 6  # Of which the first compiles.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distilled(Supervised):
    """A data set, a network that is to predict it, and the ensemble that teaches it.

    Attributes:
        teacher: The ensemble, an `Ensemble`.
    """

    teacher: Any

    def describe(self) -> dict[str, Any]:
        """Describes any network on these data, and which ensemble it learns from."""
        return {**super().describe(), "teacher": self._digest}

    def prepare(self, inputs: jax.Array) -> jax.Array:
        """Leaves inputs raw, as the teacher takes them."""
        return inputs

    def log_likelihood(
        self,
        variables: Variables,
        inputs: jax.Array,
        targets: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Aux]:
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
        outputs, own, state = self.outputs(variables, super().prepare(inputs), train, rng_key)
        likelihood: Any = self.likelihood  # Which `create` has checked.
        log_prob = likelihood.expected_log_prob(own, outputs, self._teach(inputs))
        return log_prob, Aux(likelihood.predict(own, outputs), state, outputs)

    def compared(self, student: Any) -> dict[str, Any]:
        """The entry of the results that compares a student, an `Ensemble`, with its teacher."""
        return {"distillation": compare(self.dataset, self.teacher, student)}

    @functools.cached_property
    def _teach(self) -> Callable[[jax.Array], Predictive]:
        return teaching(self.teacher)

    @functools.cached_property
    def _digest(self) -> str:
        """16 hex digits that depend on all variables, and on the passes."""
        found = hashlib.blake2b(str(self.teacher.fitted.num_passes).encode(), digest_size=8)
        for leaf in jax.tree.leaves(self.teacher.fitted.sets):
            found.update(np.ascontiguousarray(leaf))
        return found.hexdigest()


def create(config: ml_collections.FrozenConfigDict, data: "Given | None") -> Distilled:
    """Makes the task of a run.

    Args:
        config: Configuration of the run.
        data: Data that a program has handed over instead of `config.dataset`: the teacher's.

    Raises:
        InputError: The teacher or the data are missing, or what is to learn does not suit them.
    """
    task = supervised.create(config, data)
    likelihood = task.likelihood
    if likelihood.num_targets > 1 or not hasattr(likelihood, "expected_log_prob"):
        raise InputError(
            f"config.likelihood={config.likelihood!r} of {likelihood.num_targets} targets cannot "
            "learn from a teacher; use 'gaussian' for numbers and 'categorical' for classes, of "
            "one target"
        )
    fields = {one.name: getattr(task, one.name) for one in dataclasses.fields(task)}
    return Distilled(**fields, teacher=load_teacher(config, task.dataset))


def load_teacher(config: ml_collections.FrozenConfigDict, source: Source) -> Any:
    """Loads the ensemble of `config.teacher`, an `Ensemble`.

    Args:
        config: Configuration of the run that learns from it.
        source: Data of that run.

    Raises:
        InputError: It is no workdir with an ensemble, or has learned other data.
    """
    where = f"config.teacher={config.teacher!r}"
    try:
        saved = resolve("ensemble.runtime.loading:restore")(Workdir(config.teacher))
        parts = [(saved.task, saved.fitted)]
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    check_same_data(where, saved.description["fingerprint"], source.fingerprint)
    likelihood = saved.task.likelihood
    if not likelihood.has_density:
        raise InputError(
            f"{where} has learned {likelihood.name}, which are no distribution that could "
            "be learned from; give an ensemble with a likelihood such as 'gaussian'"
        )
    make = resolve("ensemble.predictor:Ensemble")
    return make(parts, saved.live, config.num_devices, identity=saved.work.identity())


def teaching(teacher: Any) -> Callable[[jax.Array], Predictive]:
    """From raw inputs [B, ...] to the teacher's predictions, within a program of JAX."""
    fitted = teacher.fitted
    if fitted.num_estimators > MAX_NETWORKS:
        size = min(fitted.num_sets, MAX_NETWORKS)
        chosen = np.linspace(0, fitted.num_sets - 1, size).round().astype(int)
        fitted = dataclasses.replace(
            fitted,
            sets=pytrees.at(fitted.sets, chosen),
            member_of=fitted.member_of[chosen],
            num_passes=MAX_NETWORKS // size,
        )

    def predict(inputs: jax.Array) -> Predictive:
        arrays = fitted.all_estimators(teacher.task, inputs)
        found: Predictive = teacher.likelihood.predictive(arrays)
        return found

    return predict


def compare(source: Source, teacher: Any, student: Any) -> dict[str, Any]:
    """Compares sizes of a student and its teacher, and their speed on this machine.

    Args:
        source: Data that the student learned.
        teacher: The `Ensemble` that it learned from.
        student: The `Ensemble` that it is.

    Returns:
        `teacher` and `student`: `num_networks`, `num_parameters` and `examples_per_second`.
        `speedup`: ratio of the rates. `teacher_identity`: identity of the teacher's run.
    """
    inputs = source.read("train", slice(0, _NUM_TIMED)).inputs
    inputs = np.resize(inputs, (_NUM_TIMED, *inputs.shape[1:]))

    def seconds(one: Any) -> float:
        began = time.perf_counter()
        one.of_inputs(inputs)
        return time.perf_counter() - began

    both = {"teacher": teacher, "student": student}
    # All in turn, so that other work meets them alike.
    rounds = [[seconds(one) for one in both.values()] for _ in range(_NUM_ROUNDS)]
    rates = (_NUM_TIMED / np.min(rounds[1:], axis=0)).tolist()
    sizes = {
        name: {
            "num_networks": one.fitted.num_sets,
            "num_parameters": pytrees.size(one.fitted.sets["params"]),
            "examples_per_second": rate,
        }
        for (name, one), rate in zip(both.items(), rates, strict=True)
    }
    return {**sizes, "speedup": rates[1] / rates[0], "teacher_identity": teacher.identity}
