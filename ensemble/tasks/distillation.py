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
from absl import logging

from ensemble import pytrees
from ensemble.config.pieces import resolve
from ensemble.data.source import Source, SplitInputs, check_same_data
from ensemble.errors import InputError
from ensemble.likelihoods.predictive import Predictive
from ensemble.metrics import metrics_of, values
from ensemble.network import Variables
from ensemble.priors import parse_prior
from ensemble.storage.workdir import Workdir
from ensemble.task import Aux
from ensemble.tasks.learning_data import load_source, make_likelihood
from ensemble.tasks.supervised import Supervised, check_network, create_network

if TYPE_CHECKING:
    from ensemble.data.data_forms import Given

MAX_NETWORKS = 64
"""Most networks of a teacher, which all predict every batch: of more, such as a posterior's draws,
so many at even distances stand for all."""
_MAX_BYTES = 2_000_000_000  # Constants of the training step, a program of protobuf: below 2**31.
_SPLITS = ("test", "validation")  # The first that the data have is compared on.
_NUM_TIMED = 1024  # Examples.
_NUM_ROUNDS = 5


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
        fitted = self.teacher.fitted
        leaves = jax.tree.leaves(fitted.sets)
        shapes = [(str(one.dtype), one.shape) for one in leaves]
        found = hashlib.blake2b(repr((shapes, fitted.num_passes)).encode(), digest_size=8)
        for leaf in leaves:
            found.update(np.ascontiguousarray(leaf).data)
        return found.hexdigest()


def create(config: ml_collections.FrozenConfigDict, data: "Given | None") -> Distilled:
    """Makes the task of a run.

    Args:
        config: Configuration of the run.
        data: Data that a program has handed over instead of `config.dataset`: the teacher's.

    Raises:
        InputError: The teacher or the data are missing, or what is to learn does not suit them.
    """
    dataset = load_source(config, data)
    likelihood = make_likelihood(dataset, config)
    if likelihood.num_targets > 1 or not hasattr(likelihood, "expected_log_prob"):
        raise InputError(
            f"config.likelihood={config.likelihood!r} of {likelihood.num_targets} targets cannot "
            "learn from a teacher; use 'gaussian' for numbers and 'categorical' for classes, of "
            "one target"
        )
    network = create_network(config, likelihood, dataset.quantiles)
    check_network(Supervised(dataset, network, likelihood), config)
    teacher = load_teacher(config, dataset)
    priors = parse_prior(config.prior)
    return Distilled(dataset, network, likelihood, priors, teacher=teacher)


def load_teacher(config: ml_collections.FrozenConfigDict, source: Source) -> Any:
    """Loads the ensemble of `config.teacher`, an `Ensemble`.

    Args:
        config: Configuration of the run that learns from it.
        source: Data of that run.

    Raises:
        InputError: It is no workdir with an ensemble, has learned other data, or is too large.
    """
    where = f"config.teacher={config.teacher!r}"
    try:
        restored = resolve("ensemble.predictor:restore")(Workdir(config.teacher))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    check_same_data(where, restored.description["fingerprint"], source.fingerprint)
    if not restored.likelihood.has_density:
        raise InputError(
            f"{where} has learned {restored.likelihood.name}, which are no distribution that could "
            "be learned from; give an ensemble with a likelihood such as 'gaussian'"
        )
    fitted = restored.fitted
    if fitted.num_bytes // fitted.num_sets * min(fitted.num_sets, MAX_NETWORKS) > _MAX_BYTES:
        raise InputError(
            f"{where} has {fitted.num_sets} networks of "
            f"{fitted.num_bytes / fitted.num_sets / 1e9:.2g} GB each; a step of training holds "
            f"{_MAX_BYTES / 1e9:.2g} GB of a teacher: give one of fewer or smaller networks"
        )
    return restored.ensemble(config.num_devices)


def teaching(teacher: Any) -> Callable[[jax.Array], Predictive]:
    """From raw inputs [B, ...] to the teacher's predictions, within a program of JAX."""
    fitted = teacher.fitted
    task = teacher.task
    number = fitted.num_estimators
    if number > MAX_NETWORKS:
        size = min(fitted.num_sets, MAX_NETWORKS)
        chosen = np.linspace(0, fitted.num_sets - 1, size).round().astype(int)
        fitted = dataclasses.replace(
            fitted,
            sets=pytrees.at(fitted.sets, chosen),
            member_of=fitted.member_of[chosen],
            num_passes=MAX_NETWORKS // size,
        )
        logging.info("%d of the teacher's %d networks teach.", fitted.num_estimators, number)

    def predict(inputs: jax.Array) -> Predictive:
        found: Predictive = task.likelihood.predictive(fitted.all_estimators(task, inputs))
        return found

    return predict


def compare(source: Source, teacher: Any, student: Any) -> dict[str, Any]:
    """Compares a student with its teacher: metrics on a split, sizes, and speed on this machine.

    Args:
        source: Data that the student learned.
        teacher: The `Ensemble` that it learned from.
        student: The `Ensemble` that it is.

    Returns:
        `teacher` and `student`: `num_networks`, `num_parameters`, `examples_per_second` and, if a
        split is held out, `metrics` by name. `average_member`: `metrics` of the teacher's average
        member. `speedup`: ratio of the rates. `nll_less_member`: `value`, `low` and `high` of the
        student's NLL less that of the average member.
    """
    split = next((name for name in _SPLITS if name in source.sizes), None)
    inputs = source.read(split or "train", slice(0, _NUM_TIMED)).inputs
    inputs = np.resize(inputs, (_NUM_TIMED, *inputs.shape[1:]))
    both = {"teacher": teacher, "student": student}
    rates = dict.fromkeys(both, 0.0)
    for k in range(1 + _NUM_ROUNDS):  # All in turn, so that other work meets them alike.
        for name, one in both.items():
            began = time.perf_counter()
            one.of_inputs(inputs)
            if k:  # The first one compiles.
                rates[name] = max(rates[name], _NUM_TIMED / (time.perf_counter() - began))
    found: dict[str, Any] = {
        name: {
            "num_networks": one.fitted.num_sets,
            "num_parameters": pytrees.size(one.fitted.sets["params"]),
            "examples_per_second": rates[name],
        }
        for name, one in both.items()
    }
    found["teacher_identity"] = teacher.identity
    found["speedup"] = rates["student"] / rates["teacher"]
    if split is None:
        return found
    y = source.targets(split)
    p, q = (one.predict_members(SplitInputs(source, split)) for one in both.values())
    metrics = {name: one for name, one in metrics_of(p).items() if one.of_members}
    each = [values(one, y, metrics) for one in p.members]
    average = {name: float(np.mean([one[name] for one in each])) for name in metrics}
    found["teacher"]["metrics"] = values(p, y)
    found["student"]["metrics"] = values(q, y)
    nll = metrics["nll"]
    less = nll.difference(nll.member_terms(p, y).mean(axis=0), nll.terms(q, y))
    return found | {
        "split": split,
        "average_member": {"metrics": average},
        "nll_less_member": less._asdict(),
    }
